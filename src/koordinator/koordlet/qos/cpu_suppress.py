"""Work out how much CPU best-effort pods may use while services keep theirs, by CPUs or by quota.

Source: behaviour/koordlet-act 4. Usage is in cores as sampled; amounts are in milli-cores, cut to whole ones after
summing.

Best-effort pods get CPUs scattered over NUMA nodes and sockets, stacked on pairs of hyper-threads
(behaviour/koordlet-act 4.4): scattering spreads the load on caches and memory, stacking leaves whole cores to services.
"""

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from koordinator.api import cpuset, node_reservation
from koordinator.api.annotations.node import NodeReservation, SystemQOSResource
from koordinator.api.cpuset import CPUSet
from koordinator.api.feature_gates import NodeSwitch, node_switch
from koordinator.api.qos import KubeQoS, QoSClass
from koordinator.api.quantity import ZERO
from koordinator.api.slo import HostApplicationSpec, ResourceThresholdStrategy
from koordinator.host.cgroup_knobs import CFS_PERIOD_US, UNLIMITED
from koordinator.host.cgroup_layout import KUBEPODS_BEST_EFFORT
from koordinator.host.sysfs import Processor


def pick(count: int, processors: Collection[Processor]) -> list[int]:
    """`count` CPUs in the order picked, none when there are too few."""
    if count <= 0 or len(processors) < count:
        return []
    groups = _groups(processors)
    picked, turn = _pick_pairs(groups, count)
    return picked + _pick_singles(groups, set(picked), count - len(picked), turn)


def _groups(processors: Collection[Processor]) -> list[list[Processor]]:
    """Return CPUs by NUMA node and socket, ordered by core; the largest group first."""
    by_place: dict[tuple[int, int], list[Processor]] = {}
    for processor in processors:
        by_place.setdefault((processor.node, processor.socket), []).append(processor)
    groups = [sorted(group, key=lambda p: (p.core, p.cpu)) for group in by_place.values()]
    return sorted(groups, key=lambda group: (-len(group), group[0].cpu))


def _pick_pairs(groups: list[list[Processor]], count: int) -> tuple[list[int], int]:
    """Pairs of neighbours on one core, one per group in turn, and whose turn it is then."""
    pairs = [_pairs(group) for group in groups]
    picked: list[int] = []
    turn, brought = 0, False
    while count - len(picked) > 1:
        if pairs[turn]:
            picked += pairs[turn].pop(0)
            brought = True
        turn = (turn + 1) % len(groups)
        if turn == 0:
            if not brought:
                break
            brought = False
    return picked, turn


def _pairs(group: list[Processor]) -> list[list[int]]:
    pairs = []
    index = 0
    while index + 1 < len(group):
        if group[index].core == group[index + 1].core:
            pairs.append([group[index].cpu, group[index + 1].cpu])
            index += 2
        else:
            index += 1
    return pairs


def _pick_singles(groups: list[list[Processor]], taken: set[int], count: int, turn: int) -> list[int]:
    """Return the first CPU left in each group in turn, until there are `count` or none is left."""
    left = [[p.cpu for p in group if p.cpu not in taken] for group in groups]
    picked: list[int] = []
    while len(picked) < count and any(left):
        if left[turn]:
            picked.append(left[turn].pop(0))
        turn = (turn + 1) % len(groups)
    return picked


CPU_COUNT_MIN = 2
"""Fewer would let one spinning thread stop all best-effort pods."""
QUOTA_US_MIN = 2_000
GROWTH_RATIO_MAX = 0.1
"""Share of the machine that best-effort pods may gain in one round; they lose it all at once."""
QUOTA_CHANGE_RATIO_MIN = 0.01
"""Smaller changes are not worth a write."""

SURGE_RATIO_MIN = 0.1
"""From this share of the machine on, more use by services is not waited out until the next round."""

CFS_QUOTA_POLICY = "cfsQuota"

_FULL_PERCENT = 100
_MILLI = 1000

Integers = NDArray[np.int64]
Amounts = int | Integers
"""A number of one node, or (nodes,): the formulas below are elementwise, so an agent is a fleet of one."""

MILLI_MAX = 10**12
"""A billion CPUs: what an agent reads from counters that jump is held below, so that formulas stay in 64 bits."""

GATE = "BECPUSuppress"


class SuppressMode(enum.Enum):
    """The action of a round; all that it does not use is undone."""

    UNKNOWN = "nothing is configured; nothing is touched"
    OFF = "switched off; both means are undone"
    MANAGER = "the CPU set hook owns the CPUs of bound best-effort pods"
    CPUSET = "by CPUs"
    QUOTA = "by quota"


class SuppressPodClass(msgspec.Struct, frozen=True):
    """The facts about a pod that suppression needs; `qos` is the raw class."""

    qos: QoSClass
    kube_qos: KubeQoS

    @property
    def is_best_effort(self) -> bool:
        """Return whether the pod is suppressed rather than protected."""
        return self.qos is QoSClass.BE or self.kube_qos is KubeQoS.BEST_EFFORT


class SuppressNodeCPU(msgspec.Struct, frozen=True):
    """The CPU of the node, in milli-cores; `reserved_milli` is the larger of the kubelet's and the annotation's."""

    capacity_milli: int
    reserved_milli: int


class CPUUsage(msgspec.Struct, frozen=True):
    """Latest samples in cores; pods by UID, host applications by name."""

    node_cores: float
    pods_cores: Mapping[str, float]
    host_applications_cores: Mapping[str, float]
    best_effort_cores: float | None = None
    """Use of the group of all best-effort pods; None where that is unknown."""


class SuppressAmount(msgspec.Struct, frozen=True):
    """The amount that best-effort pods may use, and the terms of the formula; negative when services take more."""

    be_milli: int
    non_be_milli: int
    host_non_be_milli: int
    system_milli: int


class CPUHolder(msgspec.Struct, frozen=True):
    """CPUs that the scheduler gave to a pod of this raw class."""

    qos: QoSClass
    cpus: CPUSet


class UsableCPUs(msgspec.Struct, frozen=True):
    """CPUs that best-effort pods may share with LSR pods, and those that nobody is bound to."""

    lsr: tuple[Processor, ...]
    shared: tuple[Processor, ...]

    @property
    def cpus(self) -> CPUSet:
        """Return all of them."""
        return frozenset(processor.cpu for processor in (*self.lsr, *self.shared))


class QuotaDecision(msgspec.Struct, frozen=True):
    """CFS quota of all best-effort pods, and whether the file must be written."""

    quota_us: int
    is_written: bool


def mode_of(strategy: ResourceThresholdStrategy | None, *, has_be_manager: bool) -> SuppressMode:
    """Return what this round does; a policy that we do not know means by CPUs."""
    switch = node_switch(GATE, strategy.enable if strategy is not None else None)
    if strategy is None or switch is NodeSwitch.UNKNOWN:
        return SuppressMode.UNKNOWN
    if has_be_manager:
        return SuppressMode.MANAGER
    if switch is NodeSwitch.OFF:
        return SuppressMode.OFF
    return SuppressMode.QUOTA if strategy.cpu_suppress_policy == CFS_QUOTA_POLICY else SuppressMode.CPUSET


def holds_back(allowed_percent: Amounts) -> bool | np.bool_ | NDArray[np.bool_]:
    """Return whether the closed loop holds batch back at all, elementwise: where it allows the whole node, a quota of
    what services leave would only stop batch, and so idle CPUs, each time that services pause."""
    return allowed_percent < _FULL_PERCENT


def node_cpu(capacity_milli: int, allocatable_milli: int, reservation: NodeReservation) -> SuppressNodeCPU:
    """Return the node's CPU; the reservation's apply policy does not matter here."""
    annotated = node_reservation.amounts(reservation).get("cpu", ZERO)
    by_kubelet = max(capacity_milli - allocatable_milli, 0)
    return SuppressNodeCPU(capacity_milli, max(by_kubelet, annotated.milli))


def suppress_amount(
    node: SuppressNodeCPU,
    usage: CPUUsage,
    pods: Mapping[str, SuppressPodClass],
    host_applications: Sequence[HostApplicationSpec],
    threshold_percent: int,
    min_percent: int | None = None,
) -> SuppressAmount:
    """threshold − services − host applications − max(system, reserved), at least `min_percent` of the node.

    A pod with usage of which nothing else is known counts as a service; a host application without sample, or one
    that NodeSLO does not name any more, stays part of the system. Usage of the best-effort group beyond its pods'
    samples is theirs (pods that have just started or ended): as part of the system it would squeeze them by their
    own work.
    """
    non_be = of_pods = 0.0
    for uid, cores in usage.pods_cores.items():
        of_pods += cores
        if cores > 0.0 and not _is_best_effort(pods.get(uid)):
            non_be += cores
    host_non_be = sum(
        max(usage.host_applications_cores.get(application.name, 0.0), 0.0)
        for application in host_applications
        if not _is_best_effort_application(application)
    )
    applications = sum(usage.host_applications_cores.get(each.name, 0.0) for each in host_applications)
    system = usage.node_cores - of_pods - applications
    if usage.best_effort_cores is not None:
        system -= max(usage.best_effort_cores - _best_effort_cores(usage, pods, host_applications), 0.0)
    system_milli = max(int(system * _MILLI), 0)
    non_be_milli, host_non_be_milli = int(non_be * _MILLI), int(host_non_be * _MILLI)
    be_milli = left_milli(
        _bounded(node.capacity_milli),
        _bounded(non_be_milli + host_non_be_milli),
        _bounded(system_milli),
        _bounded(node.reserved_milli),
        threshold_percent,
        min_percent,
    )
    return SuppressAmount(int(be_milli), non_be_milli, host_non_be_milli, system_milli)


def left_milli(
    capacity_milli: Amounts,
    services_milli: Amounts,
    system_milli: Amounts,
    reserved_milli: Amounts,
    threshold_percent: Amounts,
    min_percent: int | None = None,
) -> Integers:
    """Return what services leave best-effort pods, (nodes,) or (): `suppress_amount` without its sums over pods."""
    left = capacity_milli * threshold_percent // _FULL_PERCENT
    left = left - services_milli - np.maximum(system_milli, reserved_milli)
    if min_percent is not None:
        left = np.maximum(left, capacity_milli * min_percent // _FULL_PERCENT)
    return np.asarray(left, np.int64)


def _bounded(milli: int) -> int:
    return max(-MILLI_MAX, min(milli, MILLI_MAX))


def surge_milli(
    be_milli: int,
    round_cores: float | None,
    now_cores: float,
    capacity_milli: int,
    least_milli: int | None,
) -> int | None:
    """Return what best-effort pods may use when services use `now_cores` and used `round_cores` when `be_milli` was
    decided.

    None while that is not much more, or when it is not known.
    """
    if round_cores is None:
        return None
    more_milli = int((now_cores - round_cores) * _MILLI)
    if more_milli < capacity_milli * SURGE_RATIO_MIN:
        return None
    return max(be_milli - more_milli, least_milli) if least_milli is not None else be_milli - more_milli


def _best_effort_cores(
    usage: CPUUsage, pods: Mapping[str, SuppressPodClass], host_applications: Iterable[HostApplicationSpec]
) -> float:
    """Return what is known of the users of the best-effort group."""
    of_pods = sum(
        cores
        for uid, cores in usage.pods_cores.items()
        if (pod := pods.get(uid)) is not None and pod.kube_qos is KubeQoS.BEST_EFFORT
    )
    return of_pods + sum(
        usage.host_applications_cores.get(application.name, 0.0)
        for application in host_applications
        if application.cgroup_path is not None and application.cgroup_path.base == KUBEPODS_BEST_EFFORT
    )


def usable_cpus(
    processors: Iterable[Processor],
    holders: Iterable[CPUHolder],
    reserved: CPUSet,
    system: SystemQOSResource | None,
) -> UsableCPUs:
    """Return where best-effort pods may run at all: not on reserved, exclusive SYSTEM or LSE CPUs.

    Raises: CPUSetError when the SYSTEM CPU list is malformed.
    """
    holder_of: dict[int, QoSClass] = {}
    for holder in holders:
        holder_of.update(dict.fromkeys(holder.cpus, holder.qos))
    left_out = reserved | _exclusive(system)
    free = [processor for processor in processors if processor.cpu not in left_out]
    lsr = tuple(p for p in free if holder_of.get(p.cpu) is QoSClass.LSR)
    kept_away = (QoSClass.LSR, QoSClass.LSE)
    return UsableCPUs(lsr, tuple(p for p in free if holder_of.get(p.cpu) not in kept_away))


def recovery_cpus(
    processors: Iterable[Processor],
    holders: Iterable[CPUHolder],
    reserved: CPUSet,
    system: SystemQOSResource | None,
) -> CPUSet:
    """Return what best-effort pods get back when suppression is off.

    Raises: CPUSetError when the SYSTEM CPU list is malformed.
    """
    exclusive = [holder.cpus for holder in holders if holder.qos is QoSClass.LSE]
    return (
        frozenset(processor.cpu for processor in processors)
        - reserved
        - _exclusive(system)
        - frozenset().union(*exclusive)
    )


def wanted_cpu_count(be_milli: int, old_count: int, machine_count: int) -> int:
    """Return how many CPUs the amount stands for, after the limit on growth."""
    return int(wanted_cpu_counts(_bounded(be_milli), old_count, machine_count))


def wanted_cpu_counts(be_milli: Amounts, old_count: Amounts, machine_count: Amounts) -> Integers:
    """Return `wanted_cpu_count` of each node, (nodes,) or ()."""
    count = np.maximum(-(-be_milli // _MILLI), CPU_COUNT_MIN)
    step = np.ceil(GROWTH_RATIO_MAX * np.asarray(machine_count)).astype(np.int64)
    return np.asarray(np.minimum(count, old_count + step), np.int64)


def cpu_counts(
    be_milli: Amounts, old_count: Amounts, machine_count: Amounts, usable_count: Amounts
) -> Integers:
    """Return how many CPUs best-effort pods have after a round, (nodes,): the size of what `decide_cpuset` answers."""
    return np.minimum(wanted_cpu_counts(be_milli, old_count, machine_count), usable_count)


def suppressed_cpus(count: int, usable: UsableCPUs) -> CPUSet:
    """`count` CPUs, LSR and shared ones in proportion; empty when there are too few.

    LSR CPUs are reclaimed CPUs: best-effort pods may use the time that their owners leave.
    """
    total = len(usable.lsr) + len(usable.shared)
    if total == 0:
        return frozenset()
    lsr_count = count * len(usable.lsr) // total
    picked = pick(lsr_count, usable.lsr) + pick(count - lsr_count, usable.shared)
    return frozenset(picked)


def floor_cpus(processors: Iterable[Processor], reserved: CPUSet, system: SystemQOSResource | None) -> CPUSet:
    """Return what best-effort pods keep when LSE pods own every CPU: otherwise nothing of theirs could even be
    stopped.

    Raises: CPUSetError when the SYSTEM CPU list is malformed.
    """
    everything = list(processors)
    left_out = reserved | _exclusive(system)
    spared = [processor for processor in everything if processor.cpu not in left_out] or everything
    return frozenset(pick(min(CPU_COUNT_MIN, len(spared)), spared))


def decide_cpuset(be_milli: int, old: CPUSet, machine_count: int, usable: UsableCPUs) -> CPUSet:
    """Return the CPUs of best-effort pods, empty when none is usable. They grow by at most a tenth of the machine per
    round, up to all that are usable (the reference picks none where fewer are usable than the amount stands for).
    """
    count = wanted_cpu_count(be_milli, len(old), machine_count)
    return suppressed_cpus(min(count, len(usable.cpus)), usable)


def decide_quota(be_milli: int, capacity_milli: int, old_us: int) -> QuotaDecision:
    """Return the CFS quota of all best-effort pods; `old_us` may be `UNLIMITED`."""
    quotas = decide_quotas(_bounded(be_milli), _bounded(capacity_milli), old_us)
    return QuotaDecision(int(quotas.quota_us), bool(quotas.is_written))


class SuppressQuotas(msgspec.Struct, frozen=True):
    """Quotas of nodes, (nodes,) or (), and whether each is written."""

    quota_us: Integers
    is_written: NDArray[np.bool_]


def decide_quotas(be_milli: Amounts, capacity_milli: Amounts, old_us: Amounts) -> SuppressQuotas:
    """Return what `decide_quota` decides for each node: all arguments and results are (nodes,).

    Quotas grow by at most a tenth of the machine per round; a change under a hundredth of it is not written.
    """
    target_us = np.maximum(be_milli * CFS_PERIOD_US // _MILLI, QUOTA_US_MIN)
    machine_us = -(-capacity_milli // _MILLI) * CFS_PERIOD_US
    is_similar = np.abs(target_us - old_us) < machine_us * QUOTA_CHANGE_RATIO_MIN
    is_written = ~(is_similar & (target_us != QUOTA_US_MIN))
    step_us = np.asarray(machine_us * GROWTH_RATIO_MAX)
    is_stepped = is_written & (np.asarray(old_us) != UNLIMITED) & (target_us - old_us > step_us)
    written_us = np.where(is_stepped, old_us + step_us.astype(np.int64), target_us)
    return SuppressQuotas(np.where(is_written, written_us, old_us), np.asarray(is_written))


def _is_best_effort(pod: SuppressPodClass | None) -> bool:
    return pod is not None and pod.is_best_effort


def _is_best_effort_application(application: HostApplicationSpec) -> bool:
    """Only below the best-effort cgroup is it suppressed with them; elsewhere it is to be protected."""
    path = application.cgroup_path
    is_below = path is not None and path.base == KUBEPODS_BEST_EFFORT
    return application.qos == QoSClass.BE and is_below


def _exclusive(system: SystemQOSResource | None) -> CPUSet:
    if system is None or not system.is_exclusive:
        return frozenset()
    return cpuset.parse(system.cpuset)
