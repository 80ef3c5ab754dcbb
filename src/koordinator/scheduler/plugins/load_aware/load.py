"""The load of one node: its report, and the pods on it that the report does not show yet.

Vectors are tuples or lists in the order of the policy's names. Source: behaviour/scheduler I4.
"""

import bisect
import math
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence

import msgspec
import numpy as np

from koordinator.api import duration, labels, pod_resources, resource_vector, resources
from koordinator.api.annotations import placement
from koordinator.api.core import Pod, ResourceRequirements
from koordinator.api.meta import find_condition
from koordinator.api.node_metric import REPORT_INTERVAL_S, NodeMetric, PodMetricInfo
from koordinator.api.pod_labels import load_estimated_s_after_initialized, load_estimated_s_after_scheduled
from koordinator.api.pod_resize import counted_spec
from koordinator.api.priority import PriorityClass
from koordinator.api.quantity import ResourceList
from koordinator.api.resource_vector import I64
from koordinator.clock import parse_rfc3339, parse_rfc3339_or
from koordinator.scheduler.plugin.framework import Scores
from koordinator.scheduler.plugin.percent import PERCENT, floor_percent, mean_percent, rounded_down_mean
from koordinator.scheduler.plugins.load_aware.args import LoadAwareArgs, UsageAggregation
from koordinator.scheduler.table.label_columns import Mask
from koordinator.scheduler.table.nodes import F64
from koordinator.scheduler.table.pod_info import PodInfo

Vector = tuple[int, ...]
NEVER_S = float("-inf")
_PROD_NAME = PriorityClass.PROD.value


class NodeMetricReport(msgspec.Struct, frozen=True, kw_only=True):
    """A NodeMetric as vectors. `updated_s` is `NEVER_S` when nobody ever said when, `is_dated` whether this one does;
    `node_usage` is None when the node was not measured. `aggregated` is by (type, window in seconds); window 0 is the
    longest one."""

    updated_s: float
    is_dated: bool
    interval_s: float
    node_usage: Vector | None
    system_usage: Vector
    aggregated: Mapping[tuple[str, float], Vector]
    pod_usages: Mapping[tuple[str, str], Vector]
    prod_pods: frozenset[tuple[str, str]]


def read_report(metric: NodeMetric, names: tuple[str, ...], last_updated_s: float) -> NodeMetricReport:
    """Return the report in a NodeMetric; one without update time keeps the previous one. Raises: QuantityError,
    ValueError when an amount, time or duration cannot be read."""
    status, policy = metric.status, metric.spec.metric_collect_policy
    interval_s = policy.report_interval_seconds if policy is not None else None
    info = status.node_metric
    zeros = (0,) * len(names)
    aggregated: dict[tuple[str, float], Vector] = {}
    longest_s: dict[str, float] = {}
    for entry in info.aggregated_node_usages if info is not None else ():
        window_s = duration.parse(entry.duration) if entry.duration else 0.0
        for kind, usage in entry.usage.items():
            if not usage.resources:
                continue
            aggregated[(kind, window_s)] = read_vector(usage.resources, names)
            longest_s[kind] = max(window_s, longest_s.get(kind, 0.0))
    for kind, window_s in longest_s.items():
        aggregated[(kind, 0.0)] = aggregated[(kind, window_s)]
    pods = [entry for entry in status.pods_metric if entry.pod_usage.resources]
    keys = [(pod.namespace, pod.name) for pod in pods]
    return NodeMetricReport(
        updated_s=parse_rfc3339(status.update_time) if status.update_time else last_updated_s,
        is_dated=bool(status.update_time),
        interval_s=float(REPORT_INTERVAL_S if interval_s is None else interval_s),
        node_usage=None if info is None else read_vector(info.node_usage.resources, names),
        system_usage=zeros if info is None else read_vector(info.system_usage.resources, names),
        aggregated=aggregated,
        pod_usages=dict(zip(keys, _pod_vectors(pods, names), strict=True)),
        prod_pods=frozenset([key for key, pod in zip(keys, pods, strict=True) if pod.priority == _PROD_NAME]),
    )


def read_vector(amounts: ResourceList, names: tuple[str, ...]) -> Vector:
    """Return the amounts of `names`, 0 where there is none. Raises: QuantityError."""
    # A list first: for two names a generator costs more than the work itself.
    return tuple([resource_vector.amount(name, amounts[name]) if name in amounts else 0 for name in names])


def _pod_vectors(pods: Sequence[PodMetricInfo], names: tuple[str, ...]) -> list[Vector]:
    """Return `read_vector` of the usage of each pod: one loop per name is what reports of many pods cost least."""
    if not names:
        return [()] * len(pods)
    lists, columns = [pod.pod_usage.resources for pod in pods], []
    for name in names:
        amount = resource_vector.measured(name)
        columns.append([amount(each[name]) if name in each else 0 for each in lists])
    return list(zip(*columns, strict=True))


class AssignedPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod on the node: what it will use, since when it is there, and until when it counts as estimated
    although it is reported (None: not longer than needed)."""

    name: tuple[str, str]
    estimate: Vector
    since_s: float
    deadline_s: float | None
    is_prod: bool


class PodContribution(msgspec.Struct, frozen=True):
    """The part of one pod in the sums of its node."""

    node_delta: Vector
    prod_usage: Vector
    prod_delta: Vector
    estimated: Vector


def share_of(pod: AssignedPod, report: NodeMetricReport, zeros: Vector) -> PodContribution:
    """Return what the pod adds beyond what the report shows of it.

    A pod that is not reported, was placed less than a report interval before the report, or has a deadline after
    it, counts with the excess of its estimate over its reported usage. A contribution of nothing is `zeros` itself.
    """
    name, is_prod = pod.name, pod.is_prod
    usage = report.pod_usages.get(name)
    is_active_prod = is_prod and name in report.prod_pods
    prod_usage = usage if is_active_prod and usage is not None else zeros
    if not any(pod.estimate):
        return PodContribution(zeros, prod_usage, zeros, zeros)
    is_young = pod.since_s > _settled_s(report)
    is_held = pod.deadline_s is not None and pod.deadline_s > report.updated_s
    counts = usage is None or is_young or is_held
    node_delta = _excess(pod.estimate, usage) if counts else zeros
    prod_delta = zeros
    if pod.is_prod:
        if not is_active_prod and usage is not None:
            # Reported, but not as prod: the prod view does not know its usage.
            prod_delta = pod.estimate
        elif counts:
            prod_delta = _excess(pod.estimate, usage)
    return PodContribution(node_delta, prod_usage, prod_delta, pod.estimate)


def _settled_s(report: NodeMetricReport) -> float:
    """Return the time by which a pod must have been placed to be seen in full by a report."""
    return report.updated_s - report.interval_s


def _excess(estimate: Vector, usage: Vector | None) -> Vector:
    return estimate if usage is None else tuple(max(0, e - u) for e, u in zip(estimate, usage, strict=True))


def assigned_pod(
    pod: Pod, estimate: Vector, is_prod: bool, args: LoadAwareArgs, assigned_s: float
) -> AssignedPod:
    """Return the pod as it counts; `assigned_s` is when we first saw it on the node."""
    scheduled_s = _condition_s(pod, "PodScheduled")
    since_s = assigned_s if scheduled_s is None else scheduled_s
    after_scheduled_s = args.estimated_seconds_after_pod_scheduled
    after_initialized_s = args.estimated_seconds_after_initialized
    if args.allow_customize_estimation:
        annotations = pod.metadata.annotations
        if (custom_s := load_estimated_s_after_scheduled(annotations)) >= 0:
            after_scheduled_s = custom_s
        if (custom_s := load_estimated_s_after_initialized(annotations)) >= 0:
            after_initialized_s = custom_s
    initialized_s = _condition_s(pod, "Initialized")
    deadline_s = None
    if after_initialized_s and initialized_s is not None:
        deadline_s = initialized_s + after_initialized_s
    elif after_scheduled_s:
        deadline_s = since_s + after_scheduled_s
    name = (pod.metadata.namespace, pod.metadata.name)
    return AssignedPod(name=name, estimate=estimate, since_s=since_s, deadline_s=deadline_s, is_prod=is_prod)


def _condition_s(pod: Pod, kind: str) -> float | None:
    """Return when a condition became true; None when it is not, or nobody can tell since when."""
    found = find_condition(pod.status.conditions, kind)
    if found is None or found.status != "True":
        return None
    return parse_rfc3339_or(found.last_transition_time, None)


def _sums(start: Vector, parts: Sequence[Vector], zeros: Vector) -> list[int]:
    """Return the sum of all vectors; those that are `zeros` itself are not looked at."""
    counted = [part for part in parts if part is not zeros]
    return list(map(sum, zip(start, *counted, strict=True))) if counted else list(start)


class NodeLoad:
    """The bookkeeping of one node; sums change with each pod, and are made anew with each report."""

    def __init__(self, width: int) -> None:
        self.report: NodeMetricReport | None = None
        self._zeros = (0,) * width
        self._pods: dict[str, AssignedPod] = {}
        self._reset()

    def _reset(self) -> None:
        self.node_delta = list(self._zeros)
        self.prod_usage = list(self._zeros)
        self.prod_delta = list(self._zeros)
        self.node_estimated = list(self._zeros)

    def pod(self, uid: str) -> AssignedPod | None:
        return self._pods.get(uid)

    def set_report(self, report: NodeMetricReport | None, *, include_system: bool) -> None:
        """Take a new report (None: there is none any more)."""
        self.report = report
        if report is None:
            self._reset()
            return
        zeros, pods = self._zeros, self._pods.values()
        usages, prod_pods, settled_s = report.pod_usages, report.prod_pods, _settled_s(report)
        shares: list[PodContribution] = []
        prod_usages: list[Vector] = []
        for pod in pods:
            name = pod.name
            if pod.since_s <= settled_s and pod.deadline_s is None and name in usages:
                # Most pods: what they use is reported, and nothing else is added.
                if not pod.is_prod:
                    continue
                if name in prod_pods:
                    prod_usages.append(usages[name])
                    continue
            shares.append(share_of(pod, report, zeros))
        # Per sum and not per pod: of most pods, most parts are nothing.
        prod_usages += [each.prod_usage for each in shares]
        self.node_delta = _sums(zeros, [each.node_delta for each in shares], zeros)
        self.prod_usage = _sums(report.system_usage if include_system else zeros, prod_usages, zeros)
        self.prod_delta = _sums(zeros, [each.prod_delta for each in shares], zeros)
        self.node_estimated = _sums(zeros, [pod.estimate for pod in pods], zeros)

    def share(self, uid: str) -> PodContribution | None:
        """Return what a pod adds to the sums; None without a report, or for a pod that is not here."""
        pod = self._pods.get(uid)
        if pod is None or self.report is None:
            return None
        return share_of(pod, self.report, self._zeros)

    def set_pod(self, uid: str, pod: AssignedPod) -> PodContribution | None:
        """Count a pod, or its new state; return its part when the sums changed."""
        old = self.share(uid)
        self._pods[uid] = pod
        if self.report is None:
            return None
        new = share_of(pod, self.report, self._zeros)
        if old == new:
            return None
        if old is not None:
            self._change_sums(old, operator.sub)
        self._change_sums(new, operator.add)
        return new

    def counts_in_full(self, pod: AssignedPod, share: PodContribution) -> bool:
        """Return whether a pod adds its whole estimate and nothing else to the sums, as is assumed of the next one."""
        wanted_prod = pod.estimate if pod.is_prod else self._zeros
        return (
            share.node_delta == pod.estimate
            and share.prod_delta == wanted_prod
            and share.prod_usage == self._zeros
        )

    def remove_pod(self, uid: str) -> bool:
        """Count a pod no longer; whether the sums changed."""
        share = self.share(uid)
        self._pods.pop(uid, None)
        if share is not None:
            self._change_sums(share, operator.sub)
        return share is not None

    def without(self, uid: str, *, include_system: bool, by_percentile: bool) -> "tuple[NodeLoad, str]":
        """Return the node as if the pod had never been there, and what cannot be told exactly, if anything.

        A reported pod's usage is taken out of the node's. Unknown are the usage of an unreported pod before the
        report, and a percentile of what is left (`by_percentile`).
        """
        report, own = self.report, self._pods[uid]
        found, rest = NodeLoad(len(self._zeros)), ""
        found._pods = {each: pod for each, pod in self._pods.items() if each != uid}
        if report is not None:
            used = report.pod_usages.get(own.name)
            if used is not None and report.node_usage is not None:
                left = tuple([max(0, a - b) for a, b in zip(report.node_usage, used, strict=True)])
                report = msgspec.structs.replace(report, node_usage=left)
            if used is None and own.since_s < report.updated_s:
                rest = "what the pod itself uses is not reported, and counts as used by others"
            elif used is not None and by_percentile:
                rest = (
                    "what the pod itself used is in the percentiles of its node, and counts as used by others"
                )
        found.set_report(report, include_system=include_system)
        return found, rest

    def _change_sums(self, share: PodContribution, change: Callable[[int, int], int]) -> None:
        """Add a pod's part to the sums, or subtract it."""
        zeros = self._zeros
        if share.node_delta is not zeros:
            self.node_delta = list(map(change, self.node_delta, share.node_delta))
        if share.prod_usage is not zeros:
            self.prod_usage = list(map(change, self.prod_usage, share.prod_usage))
        if share.prod_delta is not zeros:
            self.prod_delta = list(map(change, self.prod_delta, share.prod_delta))
        if share.estimated is not zeros:
            self.node_estimated = list(map(change, self.node_estimated, share.estimated))

    # Views

    def existing(self) -> list[int]:
        """Usage of the node, with what is not visible in it yet."""
        usage = self.report.node_usage if self.report is not None else None
        return list(map(operator.add, usage or self._zeros, self.node_delta))

    def existing_prod(self) -> list[int]:
        """Return the same of prod pods."""
        return list(map(operator.add, self.prod_usage, self.prod_delta))

    def existing_aggregated(self, wanted: UsageAggregation) -> list[int]:
        """Return the same by a percentile; estimates alone when an explicit window was not reported."""
        found = self.report.aggregated.get((wanted.type, wanted.duration_s)) if self.report else None
        if found is not None:
            return [u + d for u, d in zip(found, self.node_delta, strict=True)]
        if wanted.duration_s == 0:
            return self.existing()
        return list(self.node_estimated)


Limits = tuple[int | None, ...]
"""The highest usage within a threshold, per resource; None where no threshold applies."""
LIMIT_MAX = 1 << 62
"""More than is ever used: thresholds in annotations are not held to a range."""
ESTIMATE_MAX = 1 << 52
"""More than any pod uses: many a limit says "none" by a huge number, and sums must stay within 64 bits."""


def limits(capacity: Sequence[int], thresholds: Sequence[int]) -> Limits:
    """Return the highest usages within thresholds (percent; 0 is off, nothing is within a negative one): judging a row
    is one comparison with them."""
    return tuple(
        _limit(amount, percent) if percent != 0 and amount > 0 else None
        for amount, percent in zip(capacity, thresholds, strict=True)
    )


def _limit(capacity: int, threshold: int) -> int:
    """Return the last amount whose percentage, rounded half up, is not above the threshold; -1 if there is none.

    Percentages do not fall as amounts grow, rounding errors included: the boundary is found by bisection.
    """
    above = capacity * (threshold + 1) // 100 + 1
    if above >= LIMIT_MAX:
        return LIMIT_MAX
    amounts = range(above + 1)
    return bisect.bisect_right(amounts, threshold, key=lambda used: percent_of(used, capacity)) - 1


def is_over(room: I64, estimate: I64, ahead: int | I64 = 0) -> Mask:
    """Return where a pod, the last of `ahead` + 1 alike, would exceed a threshold; elementwise.

    `room` is the limit less what is used already, `estimate` what the pod is expected to use, by resource.
    """
    over: Mask = room < estimate * (ahead + 1)
    return over


def percent_of(used: int, capacity: int) -> int:
    """Usage in percent of a capacity above 0, rounded half up."""
    return math.floor(used / capacity * 100 + 0.5)


def usage_score(free: F64, capacity: F64, weights: I64, dominant_weight: int) -> Scores:
    """100 when idle, 0 when used up: the mean over resources, the worst of them weighted extra.

    Shapes: `free` (overwritten) and `capacity` (at least 1) are (resources, rows), `weights` (resources,);
    returns (rows,). What is free may be negative, which counts as nothing.

    Pure. Source: behaviour/scheduler I5.
    """
    each_weight = weights.tolist()  # a few numbers: adding them up as an array takes longer
    weight_sum = sum(each_weight) + dominant_weight
    if weight_sum == 0:
        return np.zeros(capacity.shape[1], np.int64)
    if not dominant_weight:
        free *= PERCENT
        return mean_percent(free, capacity, each_weight)
    shares = floor_percent(free, capacity)
    total = dominant_weight * shares.min(axis=0)
    for weight, share in zip(each_weight, shares, strict=True):
        total += share if weight == 1 else weight * share
    return rounded_down_mean(total, weight_sum)


DEFAULT_CPU_MILLI = 250
DEFAULT_MEMORY_BYTES = 200 << 20
"""Memory that counts for pods that neither request nor limit."""

_DEFAULTS = {
    resources.CPU: DEFAULT_CPU_MILLI,
    resources.BATCH_CPU: DEFAULT_CPU_MILLI,
    resources.MEMORY: DEFAULT_MEMORY_BYTES,
    resources.BATCH_MEMORY: DEFAULT_MEMORY_BYTES,
}


def estimate(
    pod: Pod, cls: PriorityClass, factors: Mapping[str, int], *, allow_custom: bool
) -> dict[str, int]:
    """Expected usage per resource of `factors` (percent): cpu in milli-cores, others in base units.

    Batch and mid pods are judged by the resources of their class `cls`. `allow_custom` honours the factors in the
    pod's annotation.

    Raises: QuantityError when an amount is no quantity.

    Pure. Source: behaviour/scheduler I6.
    """
    custom = placement.load_scaling_factors(pod.metadata.annotations) if allow_custom else None
    own_factors = {**factors, **custom} if custom else factors
    requests = pod_resources.wire_requests(pod)
    limits = pod_resources.wire_limits(pod)
    estimated = {}
    for name, percent in own_factors.items():
        real = resources.translate(cls, name)
        request = resource_vector.amount(real, requests.get(real, 0))
        limit = resource_vector.amount(real, limits.get(real, 0))
        estimated[name] = _estimate_amount(request, limit, percent, _DEFAULTS.get(real, 0))
    return estimated


def kind_key(pod: Pod) -> Hashable:
    """Equal for pods that get the same class and estimate, custom factors left aside."""
    spec, meta_labels = counted_spec(pod), pod.metadata.labels
    return (
        spec.priority,
        meta_labels.get(labels.PRIORITY_CLASS),
        meta_labels.get(labels.QOS_CLASS),
        pod.status.qos_class,
        tuple([_requirements_key(container.resources) for container in spec.containers]),
        tuple([(_requirements_key(c.resources), c.restart_policy) for c in spec.init_containers]),
        tuple(spec.overhead.items()),
        None if spec.resources is None else _requirements_key(spec.resources),
    )


def _requirements_key(requirements: ResourceRequirements) -> Hashable:
    return tuple(requirements.requests.items()), tuple(requirements.limits.items())


def _estimate_amount(request: int, limit: int, percent: int, default: int) -> int:
    wanted = max(request, limit)
    if wanted == 0:
        return default
    share = (wanted * percent + 50) // 100
    return min(share, limit) if limit > 0 else share


def is_daemon(pod: PodInfo) -> bool:
    return any(owner.kind == "DaemonSet" for owner in pod.pod.metadata.owner_references)


def is_estimated_alike(old: PodInfo, new: PodInfo) -> bool:
    """Return whether two states of a pod agree in containers and class (being bound changes neither)."""
    a, b = old.pod, new.pod
    return (
        old.request_key is new.request_key  # so are containers: `PodInfo.updated`
        and old.priority == new.priority
        and a.status.qos_class == b.status.qos_class
        and a.metadata.labels == b.metadata.labels
        and a.metadata.annotations == b.metadata.annotations
    )


def is_same_to_us(old: PodInfo, new: PodInfo) -> bool:
    """Return whether nothing changed that estimates, deadlines or the class depend on."""
    a, b = old.pod, new.pod
    return (
        old.request_key is new.request_key
        and a.spec == b.spec
        and a.status.conditions == b.status.conditions
        and a.metadata.labels == b.metadata.labels
        and a.metadata.annotations == b.metadata.annotations
    )
