"""CPU burst, round by round: burst buffers when pods or settings change, quotas of those that are throttled or raised.

A container that is neither throttled nor above its limit costs nothing but its bucket of tokens. Source:
behaviour/koordlet-act 8.
"""

from collections.abc import Iterator, Mapping

from koordinator.api import node_labels, pod_resources, quantity, resources
from koordinator.api.annotations.koordlet import CPU_BURST
from koordinator.api.errors import ProtocolError
from koordinator.api.node_labels import NO_RATIO
from koordinator.api.slo import CPUBurstStrategy
from koordinator.host.cgroup_knobs import Knob
from koordinator.host.errors import ContentError
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.node_pods import NodeContainer, PodRecord
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.qos import cpu_burst
from koordinator.koordlet.qos.cpu_burst import (
    QUOTA_POLICIES,
    BurstNodeState,
    BurstTokenBucket,
    ContainerQuota,
    PoolPod,
)
from koordinator.koordlet.view import Topic, are_same
from koordinator.koordlet.writing.update_plan import HELD, NOT_TAKEN, Update

BUFFER_REASON, QUOTA_REASON = "CPUBurst", "CFSQuotaBurst"
"""Reasons in the audit log."""
POOL_INTERVALS, POOL_WINDOW_S_MAX = 5, 10.0
"""The usage of shared CPUs is a mean over so many collect intervals, or so many seconds if that is less."""
STEP_S_MAX = 10.0
"""More time than this between two steps of a bucket is a step of the clock."""
RETRY_S = 10.0
_IDLE_PERIODS = 2


class _Container:
    """A container of a managed pod, and the quota that we last knew."""

    __slots__ = ("base_us", "group", "id", "is_running", "labels", "limit_milli", "name", "quota_us")

    def __init__(self, pod: PodRecord, record: NodeContainer, limit_milli: int, ratio: float) -> None:
        self.name, self.id, self.group = record.name, record.id, record.group
        self.is_running = record.is_running
        self.limit_milli = limit_milli
        self.base_us = cpu_burst.base_quota_us(limit_milli, ratio)
        self.quota_us: int | None = None
        meta = pod.pod.metadata
        self.labels = (meta.namespace, meta.name, record.id, record.name)


class _Pod:
    """A managed pod with what its settings mean for it."""

    def __init__(self, record: PodRecord, settings: CPUBurstStrategy, ratio: float) -> None:
        self.record = record
        self.settings = settings
        self.ratio = ratio
        limits = {
            each.name: quantity.milli(each.resources.limits[resources.CPU])
            for each in record.pod.spec.containers
            if resources.CPU in each.resources.limits
        }
        self.containers = [
            _Container(record, each, limits.get(each.name, 0), ratio)
            for each in record.containers
            if not each.is_init
        ]
        self.limited = [each for each in self.containers if each.limit_milli > 0 and each.is_running]
        self.capacity = cpu_burst.capacity_of(settings)
        self.raises = settings.policy in QUOTA_POLICIES
        self.buffered_s: float | None = None
        """Time at which the burst buffers held last; None while they do not."""
        self.tried_s = 0.0

    @property
    def base_us(self) -> int:
        """Return the pod's quota while none of its containers is raised, `UNLIMITED` without."""
        return cpu_burst.base_quota_us(pod_resources.cpu_limit_milli(self.record.pod), self.ratio)


class CPUBurst:
    """Lets containers exceed their CPU limit for a while."""

    name = "CPUBurst"
    gates: tuple[str, ...] = ("CPUBurst",)
    after = Topic.USAGE

    def __init__(self, shared: Shared) -> None:
        self.interval_s = shared.config.qos.reconcile_interval_s
        self._shared = shared
        self._view = shared.view
        self._cgroups = shared.host.cgroups
        self._pods: dict[str, _Pod] = {}
        self._planned_for: tuple[object, object, object] = (None, None, None)
        self._planned_s = 0.0
        self._ratio = NO_RATIO
        self._buckets: dict[str, tuple[BurstTokenBucket, float, float]] = {}
        """Container id → bucket, when it was stepped last, how long it is kept."""
        self._is_buffer_capped = False
        """This kernel takes no buffer above the quota."""

    def run(self) -> None:
        """One round."""
        slo = self._view.slo
        if slo is None or slo.cpu_burst_strategy is None or not self._view.has_pods:
            return
        self._plan(slo.cpu_burst_strategy)
        readings, pods = self._shared.readings, self._pods.values()
        throttled: Mapping[str, float] = {}
        if any(pod.raises for pod in pods):
            throttled = readings.containers(kinds.CONTAINER_THROTTLED)
        used: Mapping[str, float] = {}
        if any(pod.capacity is not None for pod in pods):
            used = readings.containers(kinds.CONTAINER_CPU)
        state: BurstNodeState | None = None
        for pod in pods:
            self._buffer(pod)
            for container in pod.limited:
                bucket = self._bucket(container, pod, used)
                ratio = throttled.get(container.id) if pod.raises else None
                is_calm = container.quota_us == container.base_us and not ratio
                is_pinned = container.quota_us is not None and container.quota_us < 0
                if is_calm or is_pinned:
                    continue
                if state is None:
                    state = self._state(slo.cpu_burst_strategy)
                self._adjust(pod, container, state, ratio, bucket)
        self._drop_buckets()

    def disable(self) -> None:
        """Buffers and quotas say again what they said before."""
        self._pods = {}
        self._planned_for = (None, None, None)
        self._shared.metrics.scaled_burst.reset()
        self._shared.metrics.scaled_quota.reset()
        self._shared.executor.restore(self.name, QUOTA_REASON)

    # What applies to whom

    def _plan(self, strategy: CPUBurstStrategy) -> None:
        now_s, view = self._shared.clock.now(), self._view
        wanted_for = (view.pods, strategy, view.node)
        is_due = not 0 <= now_s - self._planned_s < self._shared.config.qos.force_update_s
        if are_same(wanted_for, self._planned_for) and not is_due:
            return
        self._planned_for, self._planned_s = wanted_for, now_s
        self._ratio = self._node_ratio()
        old, self._pods = self._pods, {}
        raised = self._raised_groups()
        for record in view.pods.values():
            if not cpu_burst.is_managed(record.qos, record.pod.status.phase):
                continue
            annotations = record.pod.metadata.annotations
            settings = (
                cpu_burst.settings_of(strategy, annotations) if CPU_BURST.key in annotations else strategy
            )
            is_scaled = cpu_burst.is_scaled(record.pod.metadata.labels, annotations)
            ratio = self._ratio if is_scaled else NO_RATIO
            known = old.get(record.uid)
            if known is not None and (known.record, known.settings, known.ratio) == (record, settings, ratio):
                pod = known
            else:
                pod = _Pod(record, settings, ratio)
            self._pods[record.uid] = pod
            if pod is not known or is_due:
                self._read(pod, is_raised=record.group in raised)
        self._show()

    def _node_ratio(self) -> float:
        node = self._view.node
        if node is None:
            return self._ratio
        try:
            new = node_labels.cpu_normalization_ratio(node.metadata.annotations)
        except ProtocolError:
            return self._ratio
        return cpu_burst.next_ratio(self._ratio, new)

    def _raised_groups(self) -> frozenset[str]:
        """Groups whose quota we have changed, perhaps before a restart."""
        records = self._shared.executor.changed_by(self.name)
        return frozenset(record.group for record in records if record.knob == Knob.CPU_QUOTA)

    def _read(self, pod: _Pod, *, is_raised: bool) -> None:
        """Quotas as they are. A pod that we have raised must be as much above its limit as its containers are: killed
        between the two writes the agent leaves it higher."""
        for container in pod.limited:
            container.quota_us = self._quota_us(container.group)
        if not is_raised or pod.base_us <= 0:
            return
        above_us = sum(
            max(each.quota_us - each.base_us, 0) for each in pod.limited if each.quota_us is not None
        )
        now_us = self._quota_us(pod.record.group)
        if now_us is not None and now_us > 0 and now_us != pod.base_us + above_us:
            self._write(pod.record.group, pod.base_us + above_us)

    def _show(self) -> None:
        metrics = self._shared.metrics
        metrics.scaled_burst.reset()
        metrics.scaled_quota.reset()
        for pod in self._pods.values():
            for container in pod.containers:
                metrics.scaled_burst.set(self._burst_us(pod, container), *container.labels)
            for container in pod.limited:
                if container.quota_us is not None:
                    metrics.scaled_quota.set(container.quota_us, *container.labels)

    # Buffers

    def _buffer(self, pod: _Pod) -> None:
        now_s = self._shared.clock.now()
        force_s = self._shared.config.qos.force_update_s
        if pod.buffered_s is not None and 0 <= now_s - pod.buffered_s < force_s:
            return
        if pod.buffered_s is None and pod.tried_s and 0 <= now_s - pod.tried_s < RETRY_S:
            return
        pod.tried_s = now_s
        is_held = self._write_buffers(pod, is_probe=not self._is_buffer_capped)
        if not is_held and not self._is_buffer_capped:
            # Kernels without a patch for it refuse a buffer above the quota (Documentation/scheduler/sched-bwc.rst).
            self._is_buffer_capped = True
            is_held = self._write_buffers(pod)
            self._is_buffer_capped = is_held
            self._show()
        pod.buffered_s = now_s if is_held else None

    def _write_buffers(self, pod: _Pod, *, is_probe: bool = False) -> bool:
        """Write containers first, then the pod; a probe finds out whether the kernel takes buffers above the quota."""
        amounts = [(container.group, self._burst_us(pod, container)) for container in pod.containers]
        amounts.append((pod.record.group, sum(amount for _, amount in amounts)))
        updates = [Update(group, Knob.CPU_BURST, str(amount), BUFFER_REASON) for group, amount in amounts]
        results = self._shared.executor.update(updates, owner=self.name, is_probe=is_probe)
        return not any(result.outcome in NOT_TAKEN for result in results)

    def _burst_us(self, pod: _Pod, container: _Container) -> int:
        wanted_us = cpu_burst.burst_us(pod.settings, container.limit_milli)
        return min(wanted_us, container.base_us) if self._is_buffer_capped and wanted_us else wanted_us

    # Quotas

    def _state(self, strategy: CPUBurstStrategy) -> BurstNodeState:
        readings = self._shared.readings
        window_s = min(POOL_INTERVALS * readings.collect_interval_s, POOL_WINDOW_S_MAX)
        cpu, node = self._view.cpu, readings.average(kinds.NODE_CPU, window_s).value
        used = readings.average_by(kinds.POD_CPU, kinds.POD_UID, window_s)
        threshold = strategy.share_pool_threshold_percent
        return cpu_burst.node_state(
            node,
            None if cpu is None else len(cpu.processors),
            self._pool_pods(used),
            cpu_burst.SHARE_POOL_PERCENT if threshold is None else threshold,
        )

    def _pool_pods(self, used: Mapping[str, float]) -> Iterator[PoolPod]:
        for uid, record in self._view.pods.items():
            if record.qos in cpu_burst.NOT_IN_POOL and record.is_active:
                request = pod_resources.requests(record.pod).get(resources.CPU)
                yield PoolPod(record.qos, request.milli if request is not None else 0, used.get(uid, 0.0))

    def _adjust(
        self,
        pod: _Pod,
        container: _Container,
        state: BurstNodeState,
        ratio: float | None,
        bucket: BurstTokenBucket | None,
    ) -> None:
        """Move one container's quota, and that of the pod along with it; a refusal ends it for this round."""
        quota_us, pod_us = self._quota_us(container.group), self._quota_us(pod.record.group)
        container.quota_us = quota_us
        if quota_us is None or pod_us is None:
            return
        measured = ContainerQuota(container.name, container.limit_milli, quota_us, ratio, bucket)
        plan = cpu_burst.plan_pod(pod.settings, state, [measured], pod_us, pod.ratio)
        for write in plan.writes:
            if not self._write(container.group if write.container else pod.record.group, write.quota_us):
                self._read(pod, is_raised=True)  # one of the two may have moved
                return
        container.quota_us = plan.containers_us[container.name]
        self._shared.metrics.scaled_quota.set(container.quota_us, *container.labels)

    def _quota_us(self, group: str) -> int | None:
        try:
            return self._cgroups.quota_us(group)
        except ContentError:
            return None

    def _write(self, group: str, quota_us: int) -> bool:
        update = Update(group, Knob.CPU_QUOTA, str(quota_us), QUOTA_REASON)
        (result,) = self._shared.executor.update([update], owner=self.name, cacheable=False)
        return result.outcome in HELD

    # Buckets

    def _bucket(self, container: _Container, pod: _Pod, used: Mapping[str, float]) -> BurstTokenBucket | None:
        if pod.capacity is None:
            return None
        now_s = self._shared.clock.now()
        old, stepped_s, _ = self._buckets.get(container.id, (None, now_s, 0.0))
        bucket = cpu_burst.bucket_for(pod.capacity, old, self._shared.rng)
        elapsed_s = now_s - stepped_s if 0 <= now_s - stepped_s <= STEP_S_MAX else 0.0
        percent = cpu_burst.usage_percent(used.get(container.id), container.limit_milli)
        bucket = bucket.step(elapsed_s, percent)
        kept_s = _IDLE_PERIODS * float(pod.settings.cfs_quota_burst_period_seconds or 0)
        self._buckets[container.id] = bucket, now_s, max(kept_s, STEP_S_MAX)
        return bucket

    def _drop_buckets(self) -> None:
        now_s = self._shared.clock.now()
        old = [key for key, (_, at_s, kept_s) in self._buckets.items() if not 0 <= now_s - at_s <= kept_s]
        for key in old:
            del self._buckets[key]
