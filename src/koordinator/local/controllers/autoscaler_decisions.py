"""Work out how many replicas bring the usage of pods to its target, within bounds, stabilisation and rates. Pure but
for the history that limits keep.

Source: the replica calculator of kube-controller-manager's podautoscaler, and how that normalises with and without
`behavior`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from koordinator import clock
from koordinator.api import pod_resources, quantity
from koordinator.api.core import Pod
from koordinator.api.errors import KoordinatorError
from koordinator.api.groups import Behavior, ScalingRules
from koordinator.api.meta import find_condition

CPU = "cpu"
# The defaults of kube-controller-manager's flags.
CPU_INITIALIZATION_S = 300.0
INITIAL_READINESS_DELAY_S = 30.0
TOLERANCE = 0.1


class NoProposal(KoordinatorError):
    """Nothing can be proposed; the text says why, in the API server's words."""


class PodMetric(NamedTuple):
    """The usage of a pod over `window_s` until `time_s`; `milli` is in thousandths of a core, or of a byte."""

    milli: int
    time_s: float
    window_s: float


class Tolerance(NamedTuple):
    """The range in which usage may miss its target without anything happening, as ratios of the target."""

    down: float = TOLERANCE
    up: float = TOLERANCE

    def holds(self, ratio: float) -> bool:
        return 1.0 - self.down <= ratio <= 1.0 + self.up


class Proposal(NamedTuple):
    """`percent` of the requests is used, None where the target is an amount; `average_milli` per pod."""

    replicas: int
    percent: int | None
    average_milli: int


class _Groups(NamedTuple):
    ready: int
    unready: list[str]
    missing: list[str]
    ignored: list[str]


def by_utilization(
    pods: Sequence[Pod],
    usage: Mapping[str, PodMetric],
    resource: str,
    container: str,
    target_percent: int,
    replicas: int,
    tolerance: Tolerance,
    now_s: float,
) -> Proposal:
    """Return a proposal for usage in percent of requests; `usage` by name of the pod. Raises: NoProposal."""
    groups = _grouped(pods, usage, resource, now_s)
    used = _counted(usage, groups)
    requests = {pod.metadata.name: _request_milli(pod, container, resource) for pod in pods}
    percent, average = _utilization(used, requests)
    fallback = max(100, target_percent)
    missing = {name: requests[name] * fallback // 100 for name in groups.missing}

    def ratio(values: Mapping[str, int]) -> float:
        return _utilization(values, requests)[0] / target_percent

    wanted = _replicas(used, groups, missing, ratio, replicas, tolerance)
    return Proposal(wanted, percent, average)


def by_average(
    pods: Sequence[Pod],
    usage: Mapping[str, PodMetric],
    resource: str,
    target_milli: int,
    replicas: int,
    tolerance: Tolerance,
    now_s: float,
) -> Proposal:
    """Return a proposal for an amount per pod. Raises: NoProposal."""
    groups = _grouped(pods, usage, resource, now_s)
    used = _counted(usage, groups)

    def ratio(values: Mapping[str, int]) -> float:
        return (sum(values.values()) // len(values)) / target_milli

    wanted = _replicas(used, groups, dict.fromkeys(groups.missing, target_milli), ratio, replicas, tolerance)
    return Proposal(wanted, None, sum(used.values()) // len(used))


def _replicas(
    used: Mapping[str, int],
    groups: _Groups,
    missing: Mapping[str, int],
    ratio_of: Callable[[Mapping[str, int]], float],
    replicas: int,
    tolerance: Tolerance,
) -> int:
    """Pods that say nothing count against the change: as using `missing` when fewer would do, as idle when more
    would be needed; so do pods that are not ready yet when more would be needed. A change that turns its direction
    by that is not made.
    """
    ratio = ratio_of(used)
    idle = groups.unready if ratio > 1.0 else []
    if not idle and not groups.missing:
        return replicas if tolerance.holds(ratio) else math.ceil(ratio * groups.ready)
    assumed = dict(used)
    if ratio < 1.0:
        assumed.update(missing)
    elif ratio > 1.0:
        assumed.update(dict.fromkeys([*groups.missing, *idle], 0))
    careful = ratio_of(assumed)
    if tolerance.holds(careful) or (ratio < 1.0 < careful) or (careful < 1.0 < ratio):
        return replicas
    wanted = math.ceil(careful * len(assumed))
    turns = (careful < 1.0 and wanted > replicas) or (careful > 1.0 and wanted < replicas)
    return replicas if turns else wanted


def _grouped(pods: Sequence[Pod], usage: Mapping[str, PodMetric], resource: str, now_s: float) -> _Groups:
    """Raises: NoProposal without any pods."""
    if not pods:
        raise NoProposal("no pods returned by selector while calculating replica count")
    groups = _Groups(0, [], [], [])
    ready = 0
    for pod in pods:
        name = pod.metadata.name
        if pod.metadata.deletion_timestamp is not None or pod.status.phase == "Failed":
            groups.ignored.append(name)
        elif pod.status.phase == "Pending":
            groups.unready.append(name)
        elif name not in usage:
            groups.missing.append(name)
        elif resource == CPU and not _is_settled(pod, usage[name], now_s):
            groups.unready.append(name)
        else:
            ready += 1
    return groups._replace(ready=ready)


def _is_settled(pod: Pod, usage: PodMetric, now_s: float) -> bool:
    """Return whether CPU use tells about work, and not about starting."""
    condition = find_condition(pod.status.conditions, "Ready")
    if condition is None or pod.status.start_time is None:
        return False
    started_s = clock.parse_rfc3339(pod.status.start_time)
    changed_s = clock.parse_rfc3339(condition.last_transition_time) if condition.last_transition_time else 0.0
    is_unready = condition.status == "False"
    if started_s + CPU_INITIALIZATION_S > now_s:
        return not is_unready and usage.time_s >= changed_s + usage.window_s
    return not (is_unready and started_s + INITIAL_READINESS_DELAY_S > changed_s)


def _counted(usage: Mapping[str, PodMetric], groups: _Groups) -> dict[str, int]:
    out = {*groups.ignored, *groups.unready}
    used = {name: one.milli for name, one in usage.items() if name not in out}
    if not used:
        raise NoProposal("did not receive metrics for targeted pods (pods might be unready)")
    return used


def _utilization(used: Mapping[str, int], requests: Mapping[str, int]) -> tuple[int, int]:
    """Percent of the requests, and the mean use."""
    known = [name for name in used if name in requests]
    requested = sum(requests[name] for name in known)
    if not requested:
        raise NoProposal("no metrics returned matched known pods")
    total = sum(used[name] for name in known)
    return total * 100 // requested, total // len(known)


def _request_milli(pod: Pod, container: str, resource: str) -> int:
    """Return what the pod requests, or one of its containers. Raises: NoProposal when somebody requests nothing."""
    name = pod.metadata.name
    whole = pod.spec.resources.requests if pod.spec.resources is not None else {}
    if whole and not container:
        amount = pod_resources.requests(pod).get(resource)
        if amount is None:
            raise NoProposal(f"missing pod-level request for {resource} in Pod {name}")
        return amount.milli
    containers = pod_resources.running_together(pod.spec)
    if container:
        containers = [one for one in containers if one.name == container]
        if not containers:
            raise NoProposal(f"container {container} not found in Pod {name}")
    total = 0
    for one in containers:
        if resource not in one.resources.requests:
            raise NoProposal(f"missing request for {resource} in container {one.name} of Pod {name}")
        total += quantity.milli(one.resources.requests[resource])
    return total


DOWNSCALE_WINDOW_S = 300.0
KEPT_S = 3_600.0
"""The longest window that the API accepts."""
_GROWTH_FACTOR, _GROWTH_MIN = 2.0, 4.0
_UNBOUNDED = 2**31 - 1
_RISING = "recent recommendations were lower than current one, applying the lowest recent recommendation"
_FALLING = "recent recommendations were higher than current one, applying the highest recent recommendation"
_FASTER = "the desired replica count is {} faster than the maximum scale rate"
_TOO_MANY = "the desired replica count is more than the maximum replica count"
_TOO_FEW = "the desired replica count is less than the minimum replica count"
_FINE = "DesiredWithinRange", "the desired count is within the acceptable range"


class ConditionState(NamedTuple):
    """A condition: whether it holds, reason and message."""

    holds: bool
    reason: str
    message: str


class LimitedReplicas(NamedTuple):
    """The replicas to have, and what to say under `AbleToScale` and `ScalingLimited`."""

    replicas: int
    able: ConditionState
    limited: ConditionState


class ReplicaBounds(NamedTuple):
    least: int
    most: int


class History(msgspec.Struct):
    """The recommendations and the changes so far, with their times (seconds since 1970)."""

    recommendations: list[tuple[int, float]] = []
    added: list[tuple[int, float]] = []
    removed: list[tuple[int, float]] = []

    def begin(self, replicas: int, now_s: float) -> None:
        """The first look: what there is counts as recommended."""
        if not self.recommendations:
            self.recommendations.append((replicas, now_s))

    def scaled(self, before: int, after: int, now_s: float) -> None:
        """Replicas were changed."""
        if after > before:
            self.added.append((after - before, now_s))
        else:
            self.removed.append((before - after, now_s))

    def recommend(self, replicas: int, now_s: float) -> None:
        """Note a recommendation, and forget what is too old for every window."""
        self.recommendations.append((replicas, now_s))
        for entries in (self.recommendations, self.added, self.removed):
            entries[:] = [entry for entry in entries if entry[1] > now_s - KEPT_S]

    def change(self, period_s: float, now_s: float) -> int:
        """Replicas gained within the last `period_s`."""
        return sum(c for c, at_s in self.added if at_s > now_s - period_s) - sum(
            c for c, at_s in self.removed if at_s > now_s - period_s
        )


def limited(
    history: History,
    behavior: Behavior | None,
    current: int,
    wanted: int,
    bounds: ReplicaBounds,
    now_s: float,
) -> LimitedReplicas:
    """Return the replicas that may be had now; notes the recommendation."""
    if behavior is None:
        return _by_default(history, current, wanted, bounds, now_s)
    up, down = behavior.scale_up or ScalingRules(), behavior.scale_down or ScalingRules()
    stable = _stabilised(history, up, down, current, wanted, now_s)
    history.recommend(wanted, now_s)
    if stable == wanted:
        able = _ready()
    elif wanted >= current:
        able = ConditionState(True, "ScaleUpStabilized", _RISING)
    else:
        able = ConditionState(True, "ScaleDownStabilized", _FALLING)
    replicas, reason, message = _at_rate(history, up, down, current, stable, bounds, now_s)
    return LimitedReplicas(replicas, able, ConditionState(replicas != stable, reason, message))


def _by_default(
    history: History, current: int, wanted: int, bounds: ReplicaBounds, now_s: float
) -> LimitedReplicas:
    """Without `behavior`: growth is at most twofold at a time, and shrinking waits for five minutes."""
    recent = (r for r, at_s in history.recommendations if at_s >= now_s - DOWNSCALE_WINDOW_S)
    stable = max([wanted, *recent])
    history.recommend(wanted, now_s)
    able = _ready() if stable == wanted else ConditionState(True, "ScaleDownStabilized", _FALLING)
    fastest = int(max(_GROWTH_FACTOR * current, _GROWTH_MIN))
    most = min(bounds.most, fastest)
    if stable < bounds.least:
        return LimitedReplicas(bounds.least, able, ConditionState(True, "TooFewReplicas", _TOO_FEW))
    if stable > most:
        why = ("ScaleUpLimit", _FASTER.format("increasing")) if bounds.most > fastest else (
            "TooManyReplicas", _TOO_MANY
        )  # fmt: skip
        return LimitedReplicas(most, able, ConditionState(True, *why))
    return LimitedReplicas(stable, able, ConditionState(False, *_FINE))


def _ready() -> ConditionState:
    return ConditionState(True, "ReadyForNewScale", "recommended size matches current size")


def _stabilised(
    history: History, up: ScalingRules, down: ScalingRules, current: int, wanted: int, now_s: float
) -> int:
    """Return the number as near to `current` as the recommendations of both windows allow."""
    up_s = float(up.stabilization_window_seconds or 0)
    down_s = DOWNSCALE_WINDOW_S
    if down.stabilization_window_seconds is not None:
        down_s = float(down.stabilization_window_seconds)
    least = min([wanted, *(r for r, at_s in history.recommendations if at_s > now_s - up_s)])
    most = max([wanted, *(r for r, at_s in history.recommendations if at_s > now_s - down_s)])
    return min(max(current, least), most)


def _at_rate(
    history: History,
    up: ScalingRules,
    down: ScalingRules,
    current: int,
    wanted: int,
    bounds: ReplicaBounds,
    now_s: float,
) -> tuple[int, str, str]:
    """Return how far the policies let replicas change, and why not more."""
    if wanted > current:
        fastest = max(_fastest(history, up, current, now_s, sign=1), current)
        if bounds.most > fastest:
            most, why = fastest, ("ScaleUpLimit", _FASTER.format("increasing"))
        else:
            most, why = bounds.most, ("TooManyReplicas", _TOO_MANY)
        if wanted > most:
            return most, *why
    elif wanted < current:
        fastest = min(_fastest(history, down, current, now_s, sign=-1), current)
        if bounds.least < fastest:
            least, why = fastest, ("ScaleDownLimit", _FASTER.format("decreasing"))
        else:
            least, why = bounds.least, ("TooFewReplicas", _TOO_FEW)
        if wanted < least:
            return least, *why
    return wanted, *_FINE


def _fastest(history: History, rules: ScalingRules, current: int, now_s: float, *, sign: int) -> int:
    """Return where the policies let replicas get in one direction (`sign` 1 up, -1 down), seen from the start of
    each policy's period.
    """
    if rules.select_policy == "Disabled":
        return current
    reached: list[int] = []
    for policy in rules.policies:
        start = current - history.change(policy.period_seconds, now_s)
        if policy.type == "Pods":
            reached.append(start + sign * policy.value)
        elif sign > 0:
            # Rounded up: a small percentage of few replicas would otherwise never allow any.
            reached.append(math.ceil(start * (1 + policy.value / 100)))
        else:
            reached.append(int(start * (1 - policy.value / 100)))
    takes_farthest = rules.select_policy != "Min"
    if not reached:
        return sign * _UNBOUNDED if not takes_farthest else -sign * _UNBOUNDED
    return max(reached) if takes_farthest == (sign > 0) else min(reached)
