"""The NodeMetric status: what the node, its pods and its host applications use. Source: behaviour/koordlet-observe 8.

Amounts are cut to milli-cores and bytes. A usage without samples is an empty map, which readers must take for
"unknown", never for zero.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from koordinator.api import duration, priority, qos, quantity, resources
from koordinator.api import node_metric as api
from koordinator.api.annotations.device import DeviceType
from koordinator.api.core import Pod
from koordinator.api.device import DeviceInfo
from koordinator.api.node_metric import (
    AggregatedUsage,
    HostApplicationMetricInfo,
    NodeMetricInfo,
    NodeMetricSpec,
    NodeMetricStatus,
    NUMAUsage,
    PeakMetric,
    PodMetricInfo,
    ReclaimableMetric,
    ResourceMap,
)
from koordinator.api.quantity import Family
from koordinator.api.scalars import ScalarError
from koordinator.api.slo import HostApplicationSpec
from koordinator.api.workload_profile import EXTENSION, PodInterference
from koordinator.cluster.informer import key_of
from koordinator.host.gpu import GPUDevice
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.degradation import Interference, Learnt
from koordinator.koordlet.node_pods import PodRecord
from koordinator.koordlet.predict.gpus import MILLI_PER_PERCENT
from koordinator.koordlet.predict.reclaimable import Prediction, ReclaimableAmount
from koordinator.koordlet.series import NO_PROPERTIES, Aggregation, SeriesStore

REPORT_INTERVAL_S_MIN = 30
AGGREGATE_DURATION_S_MIN = 60
WITH_PAGE_CACHE = "usageWithPageCache"
WITH_HOT_PAGE_CACHE = "usageWithHotPageCache"

_COVERED_SHARE_MIN = 0.5  # of a window, below which percentiles would mislead
AGGREGATIONS = (Aggregation.AVG, Aggregation.P50, Aggregation.P90, Aggregation.P95, Aggregation.P99)
_USAGE_KEYS = {how: how.name.lower() for how in AGGREGATIONS}


class CollectPolicy(msgspec.Struct, frozen=True):
    """The policy of reports, with defaults and floors applied; `durations` as the spec writes them."""

    report_interval_s: int
    aggregate_duration_s: int
    durations: tuple[str, ...]
    memory_policy: str


class ReportSubjects(msgspec.Struct, frozen=True):
    """The subjects of a report, besides the samples."""

    pods: Sequence[Pod] = ()
    host_applications: Sequence[HostApplicationSpec] = ()
    gpus: Sequence[GPUDevice] = ()
    numa_nodes: Sequence[int] = ()
    has_cold_pages: bool = False
    """Whether cold pages are really being counted."""


class _MemoryKinds(msgspec.Struct, frozen=True):
    node: str
    pod: str
    host_application: str


_PLAIN = _MemoryKinds(kinds.NODE_MEMORY, kinds.POD_MEMORY, kinds.HOST_APP_MEMORY)
_PAGE_CACHE = _MemoryKinds(
    kinds.NODE_MEMORY_PAGE_CACHE, kinds.POD_MEMORY_PAGE_CACHE, kinds.HOST_APP_MEMORY_PAGE_CACHE
)
_HOT_PAGE = _MemoryKinds(
    kinds.NODE_MEMORY_HOT_PAGE, kinds.POD_MEMORY_HOT_PAGE, kinds.HOST_APP_MEMORY_HOT_PAGE
)


def collect_policy(spec: NodeMetricSpec) -> CollectPolicy:
    """Return what the NodeMetric asks for."""
    asked = spec.metric_collect_policy or api.MetricCollectPolicy()
    interval_s = _or(asked.report_interval_seconds, api.REPORT_INTERVAL_S)
    window_s = _or(asked.aggregate_duration_seconds, api.AGGREGATE_DURATION_S)
    percentiles = asked.node_aggregate_policy
    return CollectPolicy(
        report_interval_s=max(interval_s, REPORT_INTERVAL_S_MIN),
        aggregate_duration_s=max(window_s, AGGREGATE_DURATION_S_MIN),
        durations=api.AGGREGATE_DURATIONS if percentiles is None else tuple(percentiles.durations),
        memory_policy=asked.node_memory_collect_policy or api.MEMORY_COLLECT_POLICY,
    )


def status_of(
    store: SeriesStore,
    known: ReportSubjects,
    policy: CollectPolicy,
    now_ms: int,
    update_time: str,
) -> NodeMetricStatus:
    """Return the whole status at `now_ms`, without what `with_prediction` adds.

    Raises: ScalarError when a duration of the policy is malformed.
    """
    report = _Report(store, known, policy, now_ms)
    return NodeMetricStatus(
        update_time=update_time,
        node_metric=report.node(),
        pods_metric=report.pods(),
        host_application_metric=report.host_applications(),
        prod_reclaimable_metric=ReclaimableMetric(),
    )


def with_prediction(status: NodeMetricStatus, prediction: Prediction) -> NodeMetricStatus:
    """Return the same report with what prod pods leave."""
    free, peak = (
        _amount_map(each.cpu_milli, each.memory_bytes) for each in (prediction.reclaimable, prediction.peak)
    )
    return msgspec.structs.replace(
        status,
        prod_reclaimable_metric=ReclaimableMetric(resource=free),
        prod_peak_metric=PeakMetric(resource=peak),
    )


def with_hours(status: NodeMetricStatus, peaks: Iterable[ReclaimableAmount]) -> NodeMetricStatus:
    """Return the same report with what batch yields to at the peak of each hour of the day in UTC."""
    amounts = [_amount_map(peak.cpu_milli, peak.memory_bytes) for peak in peaks]
    return msgspec.structs.replace(status, yielded_by_hour=amounts)


def with_gpu_predictions(
    status: NodeMetricStatus, gpus: Iterable[tuple[GPUDevice, Prediction]]
) -> NodeMetricStatus:
    """Return the same report with what can be lent of GPUs, and the peaks of what stays; `cpu_milli` of a prediction is
    thousandths of a card. Cards of which nothing can be lent are left out."""
    free, peaks = [], []
    for gpu, each in gpus:
        if each.reclaimable.cpu_milli >= MILLI_PER_PERCENT and each.reclaimable.memory_bytes > 0:
            free.append(_predicted(gpu, each.reclaimable))
            peaks.append(_predicted(gpu, each.peak))
    old_free = status.prod_reclaimable_metric or ReclaimableMetric()
    old_peak = status.prod_peak_metric
    return msgspec.structs.replace(
        status,
        prod_reclaimable_metric=ReclaimableMetric(
            resource=msgspec.structs.replace(old_free.resource, devices=free)
        ),
        # Without, nothing of the node could be predicted.
        prod_peak_metric=old_peak
        and PeakMetric(resource=msgspec.structs.replace(old_peak.resource, devices=peaks)),
    )


def _predicted(gpu: GPUDevice, amount: ReclaimableAmount) -> DeviceInfo:
    return device_usage(gpu, amount.cpu_milli // MILLI_PER_PERCENT, amount.memory_bytes)


def readable_windows(policy: CollectPolicy) -> tuple[CollectPolicy, dict[str, ScalarError]]:
    """Return the policy without windows over which nothing can be averaged, and what is wrong with those."""
    problems: dict[str, ScalarError] = {}
    kept = []
    for text in policy.durations:
        try:
            if duration.parse(text) <= 0:
                raise ScalarError(text, "a duration above 0")
            kept.append(text)
        except ScalarError as error:
            problems[text] = error
    return msgspec.structs.replace(policy, durations=tuple(kept)), problems


def pod_info(pod: Pod, usage: ResourceMap) -> PodMetricInfo:
    """Return the entry of a pod."""
    return PodMetricInfo(
        name=pod.metadata.name,
        namespace=pod.metadata.namespace,
        pod_usage=usage,
        priority=priority.default(pod),
        qos=qos.default(pod),
    )


def with_interference(
    status: NodeMetricStatus, found: Mapping[tuple[str, str], PodInterference]
) -> NodeMetricStatus:
    """Return a report that also says how degraded services are, by namespace and name of their pods."""
    if not found:
        return status
    pods = [
        msgspec.structs.replace(
            each,
            extensions={**each.extensions, EXTENSION: msgspec.to_builtins(found[each.namespace, each.name])},
        )
        if (each.namespace, each.name) in found
        else each
        for each in status.pods_metric
    ]
    return msgspec.structs.replace(status, pods_metric=pods)


def interference_of(
    now: Interference, pods: Mapping[str, PodRecord], learnt: Mapping[str, Learnt]
) -> dict[tuple[str, str], PodInterference]:
    """Return how degraded services are and what they taught, by namespace and name."""
    found = {}
    for uid, each in now.services.items():
        record = pods.get(uid)
        if record is None:
            continue
        known = [learnt[container.id] for container in record.containers if container.id in learnt]
        verdict = now.verdicts.get(uid)
        culprit = pods.get(verdict.culprit) if verdict is not None else None
        meta = record.pod.metadata
        found[meta.namespace, meta.name] = PodInterference(
            level=round(each.level, 3),
            slack=None if each.slack is None else round(each.slack, 3),
            suffering_seconds=None if each.since_s is None else round(now.at_s - each.since_s, 1),
            culprit=culprit.key if culprit is not None else "",
            resource=verdict.resource if verdict is not None else "",
            confidence=round(verdict.confidence, 3) if verdict is not None else 0.0,
            workload=known[0].workload if known else "",
            cpu_model=known[0].cpu_model if known else "",
            containers={one.name: one.profile for one in known},
        )
    return found


def aggregated_usage(
    window_ms: int, span_ms: int | None, usages: Mapping[Aggregation, ResourceMap]
) -> AggregatedUsage:
    """Return the percentiles of a window; empty maps while its samples cover less than half of it.

    `span_ms` is the time between the oldest and the newest one, None without any.
    """
    is_covered = span_ms is not None and span_ms >= window_ms * _COVERED_SHARE_MIN
    usage = {key: usages[how] if is_covered else ResourceMap() for how, key in _USAGE_KEYS.items()}
    return AggregatedUsage(usage=usage, duration=duration.text_of(window_ms / 1000))


def usage_maps(cores: NDArray[np.float64], memory_bytes: NDArray[np.float64]) -> list[ResourceMap]:
    """Return the map of each usage, both (n,), cut to milli-cores and bytes."""
    milli, whole_bytes = (cores * 1000).astype(np.int64).tolist(), memory_bytes.astype(np.int64).tolist()
    return list(map(_amount_map, milli, whole_bytes))


class _Report:
    """One report: the store at one moment, under one policy."""

    def __init__(self, store: SeriesStore, known: ReportSubjects, policy: CollectPolicy, now_ms: int) -> None:
        self._store = store
        self._known = known
        self._policy = policy
        self._now_ms = now_ms
        self._window_ms = policy.aggregate_duration_s * 1000
        self._memory = _memory_kinds(policy.memory_policy, known.has_cold_pages)

    def node(self) -> NodeMetricInfo:
        return NodeMetricInfo(
            node_usage=self._node_usage(self._window_ms, Aggregation.AVG),
            system_usage=self._system_usage(self._window_ms, Aggregation.AVG),
            aggregated_node_usages=self._aggregated(kinds.NODE_CPU, self._node_usage),
            aggregated_system_usages=self._aggregated(kinds.SYS_CPU, self._system_usage),
            numa_usages=self._numa_usages(),
        )

    def pods(self) -> list[PodMetricInfo]:
        """Return pods with samples, by namespace and name."""
        found = []
        for pod in sorted(self._known.pods, key=key_of):
            at = {kinds.POD_UID: pod.metadata.uid}
            usage = self._usage(kinds.POD_CPU, self._memory.pod, at)
            if usage.resources:
                devices = self._devices(kinds.POD_GPU_CORE, kinds.POD_GPU_MEMORY, at)
                found.append(pod_info(pod, msgspec.structs.replace(usage, devices=devices)))
        return found

    def host_applications(self) -> list[HostApplicationMetricInfo]:
        """Host applications with samples, by name."""
        found = []
        for application in sorted(self._known.host_applications, key=lambda each: each.name):
            at = {kinds.HOST_APP_NAME: application.name}
            usage = self._usage(kinds.HOST_APP_CPU, self._memory.host_application, at)
            if usage.resources:
                found.append(
                    HostApplicationMetricInfo(
                        name=application.name,
                        usage=usage,
                        priority=application.priority,
                        qos=application.qos,
                    )
                )
        return found

    def _node_usage(self, window_ms: int, how: Aggregation) -> ResourceMap:
        usage = self._usage(kinds.NODE_CPU, self._memory.node, NO_PROPERTIES, window_ms, how)
        if not usage.resources:
            return usage
        devices = self._devices(kinds.NODE_GPU_CORE, kinds.NODE_GPU_MEMORY, NO_PROPERTIES, window_ms, how)
        return msgspec.structs.replace(usage, devices=devices)

    def _system_usage(self, window_ms: int, how: Aggregation) -> ResourceMap:
        return self._usage(kinds.SYS_CPU, kinds.SYS_MEMORY, NO_PROPERTIES, window_ms, how)

    def _aggregated(
        self, cpu_kind: str, usage_of: Callable[[int, Aggregation], ResourceMap]
    ) -> list[AggregatedUsage]:
        """Return each window of the policy; empty maps while the samples cover less than half of it."""
        found = []
        for text in self._policy.durations:
            window_ms = int(duration.parse(text) * 1000)
            points = self._store.query(cpu_kind, self._now_ms - window_ms, self._now_ms)
            usages = {how: usage_of(window_ms, how) for how in AGGREGATIONS}
            found.append(aggregated_usage(window_ms, points.span_ms if points.count else None, usages))
        return found

    def _numa_usages(self) -> list[NUMAUsage]:
        found = []
        for numa in sorted(self._known.numa_nodes):
            at = {kinds.NUMA_NODE: str(numa)}
            usage = self._usage(kinds.NODE_NUMA_CPU, kinds.NODE_NUMA_MEMORY, at)
            if usage.resources:
                system = self._usage(kinds.SYS_NUMA_CPU, kinds.SYS_NUMA_MEMORY, at)
                found.append(NUMAUsage(numa_node_id=numa, node_usage=usage, system_usage=system))
        return found

    def _usage(
        self,
        cpu_kind: str,
        memory_kind: str,
        properties: Mapping[str, str],
        window_ms: int | None = None,
        how: Aggregation = Aggregation.AVG,
    ) -> ResourceMap:
        """CPU and memory, both or none."""
        cores = self._value(cpu_kind, properties, window_ms, how)
        memory = self._value(memory_kind, properties, window_ms, how)
        if cores is None or memory is None:
            return ResourceMap()
        return usage_maps(np.array([cores]), np.array([memory]))[0]

    def _devices(
        self,
        core_kind: str,
        memory_kind: str,
        properties: Mapping[str, str],
        window_ms: int | None = None,
        how: Aggregation = Aggregation.AVG,
    ) -> list[DeviceInfo]:
        """GPUs of which both series have samples."""
        found = []
        for gpu in self._known.gpus:
            at = {**properties, kinds.GPU_MINOR: str(gpu.minor), kinds.GPU_UUID: gpu.uuid}
            core = self._value(core_kind, at, window_ms, how)
            memory = self._value(memory_kind, at, window_ms, how)
            if core is not None and memory is not None:
                found.append(device_usage(gpu, core, memory))
        return found

    def _value(
        self, kind: str, properties: Mapping[str, str], window_ms: int | None, how: Aggregation
    ) -> float | None:
        start_ms = self._now_ms - (self._window_ms if window_ms is None else window_ms)
        return self._store.query(kind, start_ms, self._now_ms, properties).aggregate(how)


def device_usage(gpu: GPUDevice, core_percent: float, memory_bytes: float) -> DeviceInfo:
    """Return the entry of a card in a usage: its compute in percent, and its memory."""
    ratio_percent = int(100 * memory_bytes / gpu.memory_bytes) if gpu.memory_bytes > 0 else 0
    amounts = {
        resources.GPU_CORE: str(int(core_percent)),
        resources.GPU_MEMORY: quantity.text_of_value(int(memory_bytes), Family.BINARY),
        resources.GPU_MEMORY_RATIO: str(ratio_percent),
    }
    return DeviceInfo(type=DeviceType.GPU, id=gpu.uuid, minor=gpu.minor, resources=dict(amounts))


def _memory_kinds(policy: str, has_cold_pages: bool) -> _MemoryKinds:
    """Series of memory by policy; hot pages only count while cold ones are really measured."""
    if policy == WITH_HOT_PAGE_CACHE and has_cold_pages:
        return _HOT_PAGE
    return _PAGE_CACHE if policy == WITH_PAGE_CACHE else _PLAIN


def _amount_map(cpu_milli: int, memory_bytes: int) -> ResourceMap:
    return ResourceMap(
        resources={
            resources.CPU: quantity.text_of_milli(cpu_milli),
            resources.MEMORY: quantity.text_of_value(memory_bytes, Family.BINARY),
        }
    )


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
