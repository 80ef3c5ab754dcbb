"""Suppression of best-effort CPU, round by round: reads the view and the samples, asks `cpu_suppress`, writes.

Nothing is guessed: without node, pods, samples or topology nothing is written. Source: behaviour/koordlet-act 4.
"""

import logging
from collections.abc import Iterable

import msgspec

from koordinator.api import cpuset, node_reservation, quantity, resources
from koordinator.api.annotations.node import (
    KUBELET_CPU_MANAGER_POLICY,
    NODE_RESERVATION,
    STATIC_CPU_POLICY,
    SYSTEM_QOS_RESOURCE,
)
from koordinator.api.annotations.placement import RESOURCE_STATUS
from koordinator.api.cpuset import CPUSet, CPUSetError
from koordinator.api.errors import ProtocolError
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.api.qos import KubeQoS
from koordinator.api.slo import DEFAULT_THRESHOLD_STRATEGY, ResourceThresholdStrategy
from koordinator.clock import Clock
from koordinator.host import cgroup_layout, cgroup_values
from koordinator.host.cgroup_knobs import CFS_PERIOD_US, UNLIMITED, Knob
from koordinator.host.cgroup_layout import Driver
from koordinator.host.errors import ContentError
from koordinator.host.host import Host
from koordinator.host.sysfs import HostCPUTopology
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.allowance import AS_CONFIGURED, BatchAllowance
from koordinator.koordlet.node_pods import PodRecord
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.qos import best_effort_cpus, cpu_suppress
from koordinator.koordlet.qos.best_effort_cpus import BestEffortCPUs, TreeCPUs
from koordinator.koordlet.qos.cpu_suppress import (
    CPUHolder,
    CPUUsage,
    SuppressAmount,
    SuppressMode,
    SuppressPodClass,
    UsableCPUs,
)
from koordinator.koordlet.view import NodeView, Topic, are_same
from koordinator.koordlet.writing.update_plan import HELD, Update

log = logging.getLogger(__name__)

WINDOW_S_MIN = 0.05
"""Counters move with the kernel's ticks; over less time they say nothing."""
WINDOW_S_MAX = 10.0


class ServiceUsage:
    """CPU of all pods less that of best-effort ones; each user of it has a mark of its own."""

    def __init__(self, host: Host, view: NodeView, clock: Clock) -> None:
        self._host = host
        self._view = view
        self._clock = clock
        self._driver: Driver | None = None
        self._paths: list[str] = []
        self._marks: dict[str, tuple[float, int]] = {}

    def since(self, mark: str) -> float | None:
        """Cores used since this was asked last with that mark; None when that is not known, or no use."""
        used_ns = self._used_ns()
        old = self._marks.pop(mark, None)
        if used_ns is None:
            return None
        now_s = self._clock.now()
        self._marks[mark] = now_s, used_ns
        if old is None or not WINDOW_S_MIN <= now_s - old[0] <= WINDOW_S_MAX:
            return None
        return max(used_ns - old[1], 0) / 1e9 / (now_s - old[0])

    def _used_ns(self) -> int | None:
        if self._driver is not self._view.driver:
            self._driver = self._view.driver
            self._marks.clear()
            self._paths = [
                self._host.cgroups.path(Knob.CPU_USAGE, cgroup_layout.class_dir(self._driver, kube))
                for kube in (KubeQoS.GUARANTEED, KubeQoS.BEST_EFFORT)
            ]
        version, counted = self._host.cgroups.version, []
        for data in self._host.files.hot_many(self._paths):
            if data is None:
                return None
            try:
                counted.append(cgroup_values.cpu_usage_ns(version, data.decode()))
            except (ContentError, UnicodeDecodeError):
                return None
        return counted[0] - counted[1]


REASON = "AdjustBEByNodeCPUUsage"
"""Reason in the audit log."""
STARVED = "BestEffortCPUStarved"
"""The event that says that no CPU is left for best-effort pods."""
AUDIT_LEVEL = 1
CHECKS_PER_ROUND = 4


class CPUFacts(msgspec.Struct, frozen=True):
    """CPUs by what best-effort pods may do with them."""

    machine_count: int
    usable: UsableCPUs
    recovery: CPUSet
    """CPUs that they have while nothing suppresses them."""
    floor: CPUSet
    """CPUs that they keep when nothing is usable."""
    is_static: bool
    """The kubelet's CPU manager gives containers their CPUs by itself: parents must stay wide."""


class PodFacts(msgspec.Struct, frozen=True):
    """The facts about pods that suppression needs."""

    classes: dict[str, SuppressPodClass]
    holders: tuple[CPUHolder, ...]
    bound_groups: frozenset[str]
    """Groups of active pods to which the scheduler gave CPUs or NUMA nodes."""
    has_active: bool


def of_pods(pods: Iterable[PodRecord]) -> PodFacts:
    """Facts of all pods of the node; a malformed annotation counts as none."""
    classes: dict[str, SuppressPodClass] = {}
    holders: list[CPUHolder] = []
    bound: set[str] = set()
    has_active = False
    for pod in pods:
        classes[pod.uid] = SuppressPodClass(pod.qos, pod.kube_qos)
        if not pod.is_active:
            continue  # what has ended uses nothing and owns nothing any more
        has_active = True
        try:
            status = RESOURCE_STATUS.read(pod.pod.metadata.annotations)
            cpus = cpuset.parse(status.cpuset) if status is not None and status.cpuset else frozenset()
        except (ProtocolError, CPUSetError):
            continue
        if cpus:
            holders.append(CPUHolder(pod.qos, cpus))
        if status is not None and (cpus or status.numa_node_resources):
            bound.add(pod.group)
    return PodFacts(classes, tuple(holders), frozenset(bound), has_active)


def of_node(cpu: HostCPUTopology, topology: NodeResourceTopology, holders: Iterable[CPUHolder]) -> CPUFacts:
    """Facts of the node's CPUs.

    Raises: ProtocolError, CPUSetError when an annotation of the topology is malformed: then nothing may be written.
    """
    annotations = topology.metadata.annotations
    reservation = NODE_RESERVATION.read(annotations)
    reserved: CPUSet = frozenset()
    if reservation is not None and reservation.reserved_cpus:
        reserved = cpuset.parse(reservation.reserved_cpus)
    system = SYSTEM_QOS_RESOURCE.read(annotations)
    policy = KUBELET_CPU_MANAGER_POLICY.read(annotations)
    owners = tuple(holders)
    return CPUFacts(
        machine_count=len(cpu.processors),
        usable=cpu_suppress.usable_cpus(cpu.processors, owners, reserved, system),
        recovery=cpu_suppress.recovery_cpus(cpu.processors, owners, reserved, system),
        floor=cpu_suppress.floor_cpus(cpu.processors, reserved, system),
        is_static=policy is not None and policy.policy == STATIC_CPU_POLICY,
    )


def threshold_percent(strategy: ResourceThresholdStrategy, allowed: BatchAllowance = AS_CONFIGURED) -> int:
    """Return the share of the node's CPU that services and batch may use together: what the closed loop allows, where
    it runs, else what is configured."""
    if allowed.cpu_threshold_percent is not None:
        return allowed.cpu_threshold_percent
    threshold = strategy.cpu_suppress_threshold_percent
    if threshold is None:
        threshold = DEFAULT_THRESHOLD_STRATEGY.cpu_suppress_threshold_percent
    assert threshold is not None
    return threshold


class _Basis(msgspec.Struct, frozen=True):
    """The facts behind a round's decision, for those who act between two rounds."""

    mode: SuppressMode
    at_s: float
    be_milli: int
    least_milli: int | None
    capacity_milli: int
    service_cores: float | None
    """Use by services since the round before, by the counters that `ServiceUsage` reads."""


class CPUSuppress:
    """Keeps best-effort pods within what services leave."""

    name = "CPUSuppress"
    gates: tuple[str, ...] = (cpu_suppress.GATE,)
    after = Topic.USAGE

    def __init__(self, shared: Shared, services: ServiceUsage) -> None:
        self.interval_s = shared.config.qos.suppress_interval_s
        self._shared = shared
        self._view = shared.view
        self._services = services
        self._cpus = BestEffortCPUs(shared, self.name)
        self._facts: CPUFacts | None = None
        self._facts_of: tuple[object, ...] = ()
        self._pod_facts: PodFacts | None = None
        self._pods: object = None
        self._is_quota_undone = False
        self._is_starved = False
        self._basis: _Basis | None = None
        self._held_until_s = 0.0
        self._logged = ""

    @property
    def _top(self) -> str:
        return cgroup_layout.class_dir(self._view.driver, KubeQoS.BEST_EFFORT)

    @property
    def interval_between_s(self) -> float:
        """Return for how long the facts behind a round are good."""
        return 2 * self.interval_s

    def run(self) -> None:
        """One round."""
        services = self._services.since("round")
        self._basis = None
        slo = self._view.slo
        strategy = slo.resource_used_threshold_with_be if slo is not None else None
        mode = cpu_suppress.mode_of(strategy, has_be_manager=self._shared.gates.is_on("BECPUManager"))
        if mode is SuppressMode.UNKNOWN or strategy is None:
            return self._skip("the NodeSLO does not say whether to suppress")
        allowed_percent = self._view.allowance.cpu_threshold_percent
        is_held_back = mode in (SuppressMode.CPUSET, SuppressMode.QUOTA)
        if is_held_back and allowed_percent is not None and not cpu_suppress.holds_back(allowed_percent):
            mode = SuppressMode.OFF
        if mode is not SuppressMode.CPUSET:
            self._is_starved = False
        if mode in (SuppressMode.MANAGER, SuppressMode.OFF):
            self._logged = ""
            self._shared.metrics.be_suppress_cpu.reset()
            self._undo_quota()
            self._recover(is_managed=mode is SuppressMode.MANAGER)
            return None
        capacity_milli = self._view.capacity(resources.CPU)
        if capacity_milli <= 0:
            return self._skip("the node's capacity is not known")
        amount = self._amount(strategy, capacity_milli)
        if amount is None:
            return None
        self._logged = ""
        self._shared.metrics.be_suppress_ls_used.set(amount.non_be_milli / 1000)
        percent = strategy.cpu_suppress_min_percent
        least_milli = None if percent is None else capacity_milli * percent // 100
        self._basis = _Basis(
            mode, self._shared.clock.now(), amount.be_milli, least_milli, capacity_milli, services
        )
        if mode is SuppressMode.QUOTA:
            self._by_quota(amount.be_milli, capacity_milli)
            self._recover(is_managed=False)
        else:
            self._by_cpus(amount.be_milli)
            self._undo_quota()
        return None

    def surged(self, service_cores: float) -> bool:
        """Between two rounds: services use so much now. Takes CPU back at once if that is far more than the last round
        saw; gives none. Return whether something was taken."""
        basis = self._basis
        now_s = self._shared.clock.now()
        if basis is None or not 0 <= now_s - basis.at_s <= self.interval_between_s:
            return False
        be_milli = cpu_suppress.surge_milli(
            basis.be_milli, basis.service_cores, service_cores, basis.capacity_milli, basis.least_milli
        )
        if be_milli is None:
            return False
        is_quota = basis.mode is SuppressMode.QUOTA
        taken = (
            self._by_quota(be_milli, basis.capacity_milli, only_less=True)
            if is_quota
            else self._by_cpus(be_milli, only_less=True)
        )
        if taken:
            self._held_until_s = now_s + self.interval_s
        return taken

    def disable(self) -> None:
        """Restore all that was changed."""
        self._basis = None
        self._cpus.adopt()
        self._cpus.forget()
        self._shared.executor.restore(self.name, REASON)
        self._is_quota_undone = False

    def _set_metrics(self, kind: str, cores: float) -> None:
        """Tell what best-effort pods are held to, by the one policy in force."""
        self._shared.metrics.be_suppress_cpu.reset()
        self._shared.metrics.be_suppress_cpu.set(cores, kind)

    # What is known

    def _skip(self, why: str) -> None:
        """Nothing is written in this round; said once, until something else is the matter."""
        if why != self._logged:
            self._logged = why
            log.info("best-effort CPU not adjusted", extra={"reason": why})

    def _pods_now(self) -> PodFacts:
        if self._pod_facts is None or self._pods is not self._view.pods:
            self._pods = self._view.pods
            self._pod_facts = of_pods(self._view.pods.values())
        return self._pod_facts

    def _facts_now(self) -> CPUFacts | None:
        """None when the topology is not known, or says what nobody understands."""
        view, pods = self._view, self._pods_now()
        found_for = (pods, view.cpu, view.topology)
        if not are_same(self._facts_of, found_for):
            self._facts_of, self._facts = found_for, None
            if view.cpu is not None and view.topology is not None:
                try:
                    self._facts = of_node(view.cpu, view.topology, pods.holders)
                except (ProtocolError, CPUSetError) as error:
                    log.warning("CPU topology invalid", extra={"error": str(error)})
        return self._facts

    def _amount(self, strategy: ResourceThresholdStrategy, capacity_milli: int) -> SuppressAmount | None:
        view, readings = self._view, self._shared.readings
        node = view.node
        if node is None or not view.pods or view.cpu is None:
            self._skip("the node, its pods or its CPUs are not known")
            return None
        node_cores, pods_cores = readings.latest(kinds.NODE_CPU), readings.pods()
        pods = self._pods_now()
        if node_cores is None or (pods.has_active and not pods_cores):
            self._skip("there is no fresh CPU sample of the node or its pods")
            return None
        allocatable = node.status.allocatable.get(resources.CPU)
        best_effort_milli = readings.latest(kinds.NODE_BE, kinds.BE_CPU_USED)
        threshold = threshold_percent(strategy, view.allowance)
        return cpu_suppress.suppress_amount(
            cpu_suppress.node_cpu(
                capacity_milli,
                capacity_milli if allocatable is None else quantity.milli(allocatable),
                node_reservation.of_annotations(node.metadata.annotations),
            ),
            CPUUsage(
                node_cores,
                pods_cores,
                readings.host_applications(),
                None if best_effort_milli is None else best_effort_milli / 1000,
            ),
            pods.classes,
            view.host_applications,
            threshold,
            strategy.cpu_suppress_min_percent,
        )

    # By CPUs

    def _by_cpus(self, be_milli: int, *, only_less: bool = False) -> bool:
        """Suppress by CPUs; return whether CPUs were taken or given."""
        facts = self._facts_now()
        if facts is None:
            self._skip("the node's topology is not known")
            return False
        old = self._cpus.now(of_containers=facts.is_static)
        if old is None:
            self._skip("the CPUs of best-effort pods cannot be read")
            return False
        self._report_starvation(not facts.usable.cpus)
        cpus = facts.floor
        if facts.usable.cpus:
            cpus = cpu_suppress.decide_cpuset(be_milli, old, facts.machine_count, facts.usable)
        is_less = len(cpus) < len(old)
        if not cpus or (only_less and not is_less) or (len(cpus) > len(old) and self._is_held()):
            return False
        self._set_metrics("cpuset", len(cpus))
        wanted = best_effort_cpus.alike(cpus)
        if facts.is_static and facts.recovery:
            wanted = TreeCPUs(facts.recovery, facts.recovery, cpus)
        self._cpus.give(wanted, REASON)
        return cpus != old

    def _recover(self, *, is_managed: bool) -> None:
        facts = self._facts_now()
        if facts is None or not facts.recovery:
            return
        left_alone = self._pods_now().bound_groups if is_managed else frozenset()
        self._cpus.give(best_effort_cpus.alike(facts.recovery, left_alone), REASON)

    def _report_starvation(self, is_starved: bool) -> None:
        node = self._view.node
        if is_starved and not self._is_starved and node is not None:
            message = (
                "all CPUs are reserved or owned by LSE pods; best-effort pods keep a few of them. "
                "Move LSE pods away, or keep batch pods off this node"
            )
            self._shared.events.warning(node, STARVED, message)
        self._is_starved = is_starved

    # By quota

    def _by_quota(self, be_milli: int, capacity_milli: int, *, only_less: bool = False) -> bool:
        """Suppress by quota; return whether the quota was changed."""
        try:
            old_us = self._shared.host.cgroups.quota_us(self._top)
        except ContentError:
            old_us = None
        if old_us is None:
            self._skip("the quota of best-effort pods cannot be read")
            return False
        self._is_quota_undone = False
        decision = cpu_suppress.decide_quota(be_milli, capacity_milli, old_us)
        is_less = old_us == UNLIMITED or decision.quota_us < old_us
        if not decision.is_written or (only_less and not is_less) or (not is_less and self._is_held()):
            return False
        self._set_metrics("cfsQuota", decision.quota_us / CFS_PERIOD_US)
        if decision.quota_us == old_us or not self._write_quota(decision.quota_us, is_audited=False):
            return False
        message = f"update BE group to cfs_quota: {decision.quota_us}"
        self._shared.audit.node(AUDIT_LEVEL, REASON, message)
        return True

    def _is_held(self) -> bool:
        """Right after a surge, samples that are a mean with the time before it are no reason to give CPU back."""
        return 0 <= self._held_until_s - self._shared.clock.now() <= self.interval_s

    def _undo_quota(self) -> None:
        if not self._is_quota_undone:
            self._is_quota_undone = self._write_quota(UNLIMITED)

    def _write_quota(self, quota_us: int, *, is_audited: bool = True) -> bool:
        update = Update(self._top, Knob.CPU_QUOTA, str(quota_us), REASON)
        (result,) = self._shared.executor.update(
            [update], owner=self.name, cacheable=False, is_audited=is_audited
        )
        return result.outcome in HELD


class CPUSurge:
    """Watches services for `suppress`, to which all writes belong.

    Samples are means over a collect interval, so a round sees a jump whole only after one to two of them. Two counters
    of the kernel, read a few times per second, tell of it within a fraction of that. CPU is only ever taken here;
    giving it back is up to the rounds.
    """

    name = "CPUSurge"
    gates: tuple[str, ...] = (cpu_suppress.GATE,)

    def __init__(self, shared: Shared, suppress: CPUSuppress, services: ServiceUsage) -> None:
        self.interval_s = shared.config.qos.suppress_interval_s / CHECKS_PER_ROUND
        self._suppress = suppress
        self._services = services

    def run(self) -> None:
        """One look."""
        cores = self._services.since("look")
        if cores is not None:
            self._suppress.surged(cores)

    def disable(self) -> None:
        """Nothing: what was written is the suppression's to put back."""
