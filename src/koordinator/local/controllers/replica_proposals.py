"""Work out how many replicas bring the usage of pods to its target. Pure.

Source: the replica calculator of kube-controller-manager's podautoscaler.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from koordinator import clock
from koordinator.api import pod_resources, quantity
from koordinator.api.core import Pod
from koordinator.api.errors import KoordinatorError
from koordinator.api.pod_resize import is_sidecar
from koordinator.local.controllers import status_write

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
    condition = status_write.find(pod.status.conditions, "Ready")
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
    containers = [
        *pod.spec.containers,
        *filter(is_sidecar, pod.spec.init_containers),
    ]
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
