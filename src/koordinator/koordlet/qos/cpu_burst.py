"""Short bursts above a CPU limit while the node has CPU to spare: kernel buffer and raised quota.

Source: behaviour/koordlet-act 8.

Quotas follow the speed of the CPUs (behaviour/koordlet-act 17): the same work needs a smaller quota on faster ones. A
bucket of percent-seconds (behaviour/koordlet-act 8.5) says how long a container may use more CPU than its limit.
"""

import enum
import math
import random
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from koordinator.api import node_labels, pod_labels, qos
from koordinator.api.annotations import placement
from koordinator.api.annotations.koordlet import CPU_BURST
from koordinator.api.errors import ProtocolError
from koordinator.api.node_labels import NO_RATIO
from koordinator.api.qos import QoSClass, allows_cpu_burst
from koordinator.api.slo import CPUBurstStrategy
from koordinator.host import cgroup_knobs
from koordinator.host.cgroup_knobs import CFS_PERIOD_US


def is_scaled(pod_labels: Mapping[str, str], annotations: Mapping[str, str]) -> bool:
    """Return whether the pod shares CPUs, so that its quota follows their speed."""
    qos_class = qos.of_labels(pod_labels)
    if qos_class is QoSClass.NONE:
        return not placement.has_cpuset(annotations)
    return qos_class is QoSClass.LS


def scaled_us(quota_us: int, ratio: float) -> int:
    """Return a quota on CPUs that are `ratio` times as fast as the cluster's measure; ratios up to 1 change nothing."""
    return math.ceil(quota_us / ratio) if quota_us > 0 and ratio > 1 else quota_us


def quota_us(
    pod_labels: Mapping[str, str], annotations: Mapping[str, str], ratio: float, spec_us: int | None
) -> int | None:
    """Quota of a pod or container whose spec says `spec_us`; None leaves it alone.

    With ratio 1 the plain quota is written, which is how an earlier one is put back.
    """
    is_on = ratio != NO_RATIO and is_scaled(pod_labels, annotations)
    if not is_on or spec_us is None or spec_us <= 0:
        return None
    return scaled_us(spec_us, ratio)


def next_ratio(old: float, new: float) -> float:
    """Return the ratio in force after the node's annotation says `new`: small changes are not worth rewriting
    quotas."""
    return new if node_labels.is_cpu_normalization_ratio_different(old, new) else old


SAVING_PERCENT = 60
"""Below this usage a container saves tokens."""
FULL_PERCENT = 100
"""Above this usage it spends them."""
_START_SHARE_MAX = 0.5


class BurstTokenBucket(msgspec.Struct, frozen=True):
    """Tokens left, between plus and minus the capacity, and the part of a second not yet accounted."""

    capacity: int
    tokens: int
    rest_s: float = 0.0

    @property
    def allows(self) -> bool:
        """Return whether the container may go on above its limit."""
        return self.tokens > 0

    def step(self, elapsed_s: float, usage_percent: int) -> "BurstTokenBucket":
        """Return the bucket after `elapsed_s` at this usage (percent of the limit).

        Whole seconds are accounted; the rest is kept for the next step, so that a loop that is slightly
        faster than a second still accounts for its time.
        """
        seconds = int(elapsed_s + self.rest_s)
        tokens = self.tokens
        if usage_percent >= FULL_PERCENT:
            tokens -= (usage_percent - FULL_PERCENT) * seconds
        elif usage_percent < SAVING_PERCENT:
            tokens += (FULL_PERCENT - usage_percent) * seconds
        tokens = min(max(tokens, -self.capacity), self.capacity)
        return BurstTokenBucket(self.capacity, tokens, elapsed_s + self.rest_s - seconds)


def capacity_of(settings: CPUBurstStrategy) -> int | None:
    """Percent-seconds that the settings allow at once; None when the time is not limited."""
    period_s, percent = settings.cfs_quota_burst_period_seconds, settings.cfs_quota_burst_percent
    if period_s is None or period_s < 0:
        return None
    return period_s * (percent - FULL_PERCENT) if percent is not None and percent >= FULL_PERCENT else 0


def bucket_for(capacity: int, old: BurstTokenBucket | None, rng: random.Random) -> BurstTokenBucket:
    """Return the old bucket, or a new one where there is none of this capacity.

    A new bucket starts less than half full, at random: otherwise all containers of a restarted agent would
    burst and stop at the same time.
    """
    if old is not None and old.capacity == capacity:
        return old
    return BurstTokenBucket(capacity, int(capacity * rng.uniform(0.0, _START_SHARE_MAX)))


def usage_percent(used_cores: float | None, limit_milli: int) -> int:
    """Usage as a percentage of the limit; an unknown usage counts as the limit."""
    return FULL_PERCENT if used_cores is None else int(used_cores / (limit_milli / 1000) * 100)


COOLING_SHARE = 0.9
"""From this share of the threshold on, quotas no longer grow."""
GROWTH, SHRINKING = 1.2, 0.8

_BURST_POLICIES = ("auto", "cpuBurstOnly")
QUOTA_POLICIES = ("auto", "cfsQuotaBurstOnly")
SHARE_POOL_PERCENT = 50
"""Use of the shared CPUs above which quotas are taken back, where nothing is configured."""
_OUTSIDE_POOL = (QoSClass.LSE, QoSClass.LSR)
NOT_IN_POOL = (QoSClass.LSE, QoSClass.LSR, QoSClass.BE)


class BurstNodeState(enum.Enum):
    """The load of the CPUs that unbound pods share."""

    IDLE = "idle"
    COOLING = "cooling"
    OVERLOAD = "overload"
    UNKNOWN = "unknown"


class Operation(enum.Enum):
    """The change to a container's quota."""

    UP = "up"
    DOWN = "down"
    REMAIN = "remain"
    RESET = "reset"


class PoolPod(msgspec.Struct, frozen=True):
    """A pod on the node: raw class, CPU request, average usage (0 when unknown)."""

    qos: QoSClass
    request_milli: int
    used_cores: float


class ContainerQuota(msgspec.Struct, frozen=True):
    """A running container with a CPU limit: its quota now and what was measured of it."""

    name: str
    limit_milli: int
    quota_us: int
    throttled_ratio: float | None
    bucket: BurstTokenBucket | None
    """After this round's step; None where the time of bursts is not limited."""


class QuotaWrite(msgspec.Struct, frozen=True):
    """A quota to write; an empty name is the pod."""

    container: str
    quota_us: int


class QuotaPlan(msgspec.Struct, frozen=True):
    """Writes of one pod in order, the quotas that follow, and what was done to each container."""

    writes: tuple[QuotaWrite, ...]
    containers_us: dict[str, int]
    pod_us: int
    operations: dict[str, Operation]


def node_state(
    node_cores: float | None, cpu_count: int | None, pods: Iterable[PoolPod], threshold_percent: int
) -> BurstNodeState:
    """State of the CPUs that are not bound to LSE and LSR pods, best-effort use left out."""
    if node_cores is None or cpu_count is None:
        return BurstNodeState.UNKNOWN
    size = float(cpu_count)
    used = node_cores
    for pod in pods:
        if pod.qos in _OUTSIDE_POOL:
            size -= pod.request_milli / 1000
        if pod.qos in NOT_IN_POOL:
            used -= pod.used_cores
    share = used / size if size > 0 else 1.0
    threshold = threshold_percent / 100
    if share >= threshold:
        return BurstNodeState.OVERLOAD
    return BurstNodeState.COOLING if share >= threshold * COOLING_SHARE else BurstNodeState.IDLE


def settings_of(node: CPUBurstStrategy | None, annotations: Mapping[str, str]) -> CPUBurstStrategy:
    """Return the pod's own settings over the node's; a malformed annotation counts as none."""
    settings = node or CPUBurstStrategy()
    try:
        own = CPU_BURST.read(annotations)
    except ProtocolError:
        return settings
    if own is None:
        return settings
    said = {name: value for name in own.__struct_fields__ if (value := getattr(own, name)) not in (None, "")}
    return msgspec.structs.replace(settings, **said)


def is_managed(qos: QoSClass, phase: str) -> bool:
    """Return whether pods of this raw class and phase are touched at all."""
    return not pod_labels.is_inactive(phase) and allows_cpu_burst(qos)


def burst_us(settings: CPUBurstStrategy, limit_milli: int) -> int:
    """CPU time that a container may save up; 0 switches the buffer off. A pod gets the sum of its containers'."""
    if settings.policy not in _BURST_POLICIES or limit_milli <= 0:
        return 0
    return int(limit_milli / 1000 * ((settings.cpu_burst_percent or 0) / 100) * CFS_PERIOD_US)


def plan_pod(
    settings: CPUBurstStrategy,
    state: BurstNodeState,
    containers: Sequence[ContainerQuota],
    pod_us: int,
    normalization_ratio: float = 0.0,
) -> QuotaPlan:
    """Return the quotas of a pod's containers after this round; the pod's own moves along.

    A pod grows before its container and shrinks after it. A container without quota although it has a limit
    is bound to CPUs by another hook and left alone. `normalization_ratio` above 1 makes the limit smaller, as
    CPU normalization does, so that the two do not undo each other.
    """
    writes: list[QuotaWrite] = []
    quotas = {container.name: container.quota_us for container in containers}
    operations: dict[str, Operation] = {}
    for container in containers:
        old_us = container.quota_us
        if container.limit_milli <= 0 or old_us < 0:
            continue
        operation = decide(settings, state, container)
        base_us = base_quota_us(container.limit_milli, normalization_ratio)
        new_us = target_us(settings, operation, old_us, base_us)
        operations[container.name], quotas[container.name] = operation, new_us
        if new_us == old_us:
            continue
        steps = [QuotaWrite(container.name, new_us)]
        if pod_us > 0:
            # A pod below one of its containers would be refused, or would throttle it: limits of pods may be smaller
            # than the sum of their containers'.
            pod_us = max(pod_us + new_us - old_us, *quotas.values())
            steps.insert(0 if new_us > old_us else 1, QuotaWrite("", pod_us))
        writes += steps
    return QuotaPlan(tuple(writes), quotas, pod_us, operations)


def decide(settings: CPUBurstStrategy, state: BurstNodeState, container: ContainerQuota) -> Operation:
    """Return what the container needs, and what the node allows of it."""
    operation = _wanted(settings, container)
    if state is BurstNodeState.OVERLOAD and operation in (Operation.UP, Operation.REMAIN):
        return Operation.DOWN
    if state in (BurstNodeState.COOLING, BurstNodeState.UNKNOWN) and operation is Operation.UP:
        return Operation.REMAIN
    return operation


def base_quota_us(limit_milli: int, normalization_ratio: float = 0.0) -> int:
    """Return the quota that stands for the limit itself."""
    return scaled_us(cgroup_knobs.quota_of_milli(limit_milli), normalization_ratio)


def target_us(settings: CPUBurstStrategy, operation: Operation, old_us: int, base_us: int) -> int:
    """Return the quota after an operation, between the limit and its burst."""
    percent = settings.cfs_quota_burst_percent
    ceiling_us = base_us * percent // 100 if percent is not None and percent > 100 else base_us
    moved_us = {
        Operation.UP: int(old_us * GROWTH),
        Operation.DOWN: int(old_us * SHRINKING),
        Operation.RESET: base_us,
        Operation.REMAIN: old_us,
    }[operation]
    return min(max(moved_us, base_us), ceiling_us)


def _wanted(settings: CPUBurstStrategy, container: ContainerQuota) -> Operation:
    if settings.policy not in QUOTA_POLICIES:
        return Operation.RESET
    if container.bucket is not None and not container.bucket.allows:
        return Operation.DOWN
    return Operation.UP if (container.throttled_ratio or 0.0) > 0 else Operation.REMAIN
