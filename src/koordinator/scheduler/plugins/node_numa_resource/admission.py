"""One pod on one node, exactly: the order of checks, NUMA admission and what the pod would get.

Source: behaviour/numa-cpu 5.3 and 7.1. Filter and Score answer for many nodes at once from columns (`bulk`); what is
said here is what they must say, and Reserve carries it out.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from koordinator.api import resource_list, resource_vector, resources
from koordinator.api.annotations.placement import CPUBindPolicy, NUMATopologyPolicy
from koordinator.scheduler.plugin.status import SUCCESS, Status, unresolvable, unschedulable
from koordinator.scheduler.plugins.node_numa_resource import allocate, policy, score
from koordinator.scheduler.plugins.node_numa_resource.allocate import (
    NOTHING_GIVEN_BACK,
    Allocation,
    AllocationRequest,
    GivenBack,
    NUMAMask,
    NUMANodeState,
)
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import Amounts, Zones, mask_of
from koordinator.scheduler.plugins.node_numa_resource.hint_merge import (
    Exclusivity,
    Hints,
    NUMAAdmission,
    NUMATopologyHint,
    ProvidedHints,
    admit,
)
from koordinator.scheduler.plugins.node_numa_resource.holdings import NodeTopologyFacts
from koordinator.scheduler.plugins.node_numa_resource.node_allocation import NodeAllocation
from koordinator.scheduler.plugins.node_numa_resource.policy import BindDecision, BoundCPUUsage, PodPlan
from koordinator.scheduler.plugins.node_numa_resource.reservations import NO_USE, ReservationUse
from koordinator.scheduler.plugins.node_numa_resource.score import NUMAScoringStrategy

ALL_SUBSETS_NODES_MAX = 8
"""Up to here all sets of NUMA nodes are tried (255); beyond, single ones, pairs and all together.

The kubelet refuses NUMA policies on larger machines.
"""

Trial = Callable[[NUMAMask], bool]


def hints_of(
    node: NUMANodeState,
    request: AllocationRequest,
    policy: NUMATopologyPolicy,
    strategy: NUMAScoringStrategy | None = None,
    given_back: GivenBack = NOTHING_GIVEN_BACK,
    trial: Trial | None = None,
    sizes_max: int | None = None,
) -> dict[str, list[NUMATopologyHint]]:
    """Hints per requested resource that any zone offers, smaller sets first; an empty list means impossible.

    `trial` tells whether the pod can be put on NUMA nodes; by default it is put on the node itself, and
    reservations are the caller's. Without a `strategy`, hints score 0. `sizes_max` leaves larger sets out.

    Source: behaviour/numa-cpu 7.2.
    """
    room = allocate.room_of(node, request, given_back)
    available = room.available

    trial = trial or (lambda numa_nodes: allocate.fits_in(room, node, request, numa_nodes))
    lacking = _lacking(node.zones, available)
    demand = score.demand(request.amounts, node.cpu_ratio, binds_cpus=request.binds_cpus)
    known: dict[str, list[tuple[NUMAMask, int]]] = {}
    smallest = dict.fromkeys(request.amounts, len(node.zones))
    for subset in subsets_of(node.zones, sizes_max):
        total = resource_list.sum_of(node.zones[numa] for numa in subset)
        for name in request.amounts.keys() & total.keys():
            known.setdefault(name, [])
        mask = mask_of(subset)
        if not trial(mask):
            continue
        left = resource_list.sum_of(available.get(numa, {}) for numa in subset)
        points = score.score(strategy, resource_vector.less(total, left), total, demand) if strategy else 0
        for name, hints in known.items():
            if not mask & lacking.get(name, 0):
                smallest[name] = min(smallest[name], len(subset))
                hints.append((mask, points))
    is_restricted = policy is NUMATopologyPolicy.RESTRICTED
    return {
        name: [
            NUMATopologyHint(mask, is_restricted or mask.bit_count() == smallest[name], points)
            for mask, points in hints
        ]
        for name, hints in sorted(known.items())
    }


def subsets_of(numa_nodes: Iterable[int], sizes_max: int | None = None) -> Iterator[tuple[int, ...]]:
    """Yield the sets of NUMA nodes that are tried, smaller ones first."""
    ids = sorted(numa_nodes)
    sizes: Iterable[int] = range(1, len(ids) + 1)
    if len(ids) > ALL_SUBSETS_NODES_MAX:
        sizes = (1, 2, len(ids))
    if sizes_max is not None:
        sizes = [size for size in sizes if size <= sizes_max]
    return itertools.chain.from_iterable(itertools.combinations(ids, size) for size in sizes)


def _lacking(offered: Zones, available: Mapping[int, Mapping[str, int]]) -> dict[str, NUMAMask]:
    """NUMA nodes where nothing is left, per resource that any zone offers."""
    names = {name for zone in offered.values() for name in zone}
    return {
        name: mask_of(numa for numa in offered if available.get(numa, {}).get(name, 0) <= 0) for name in names
    }


MISSING_ZONES = unresolvable("node(s) missing NUMA resources")
INVALID_RATIO = unresolvable("node(s) invalid CPU amplification ratio")
INSUFFICIENT_NUMA = unschedulable("node(s) Insufficient NUMA Node resources")


class OtherHints(msgspec.Struct, frozen=True):
    """The opinion of another plugin about the pod on the node: its hints, and whether a choice suits it."""

    hints: Callable[[], ProvidedHints]
    trial: Callable[[NUMATopologyHint], Status]


class NUMAPlacement(msgspec.Struct, frozen=True):
    """The allocation that the pod would get on the node; nothing when `status` is a refusal."""

    allocation: Allocation = Allocation()
    binding: BindDecision = BindDecision(False)
    policy: NUMATopologyPolicy = NUMATopologyPolicy.NONE
    hint: NUMATopologyHint | None = None
    """The choice of NUMA nodes, where a policy asks for one."""
    breaks_exclusivity: bool = False
    """Whether the pod does not get what it demands of its NUMA nodes' other pods; BestEffort allows that."""
    status: Status = SUCCESS

    @property
    def is_empty(self) -> bool:
        """Return whether the pod gets nothing that has to be written down."""
        return not (self.allocation.cpus or self.allocation.numa)


KINDS = {"": 0, CPUBindPolicy.FULL_PCPUS.value: 1, CPUBindPolicy.SPREAD_BY_PCPUS.value: 2}
"""Required bind policy → index among usable CPUs: any CPU, those of whole free cores, one of each core."""


class NUMAPodTerms(msgspec.Struct, frozen=True, eq=False):
    """The relation of a pod to a kind of nodes (`kind_of`): all that does not depend on what other pods hold."""

    plan: PodPlan
    status: Status
    """A refusal before the amplified CPU is counted."""
    late_status: Status
    """A refusal after that."""
    binding: BindDecision
    kind: int
    """`KINDS`"""
    policy: NUMATopologyPolicy
    request: AllocationRequest
    amounts: tuple[tuple[str, int], ...]
    """Requests for what zones offer."""
    is_known: bool
    """Whether zones decide; else the whole machine does."""

    def check(self, usage: BoundCPUUsage | None, cpu_ratio: float) -> Status:
        """Return what keeps the pod from a node before its free CPUs and NUMA nodes are looked at; without `usage`
        amplified CPU is not compared."""
        if self.status.is_success and usage is not None:
            binds_cpus = self.binding.binds_cpus
            status = policy.check_amplified(self.plan.cpu_milli, binds_cpus, usage, cpu_ratio)
            return status if not status.is_success else self.late_status
        return self.late_status if self.status.is_success else self.status

    def demand(self, cpu_ratio: float) -> Amounts:
        """Return what the pod takes of amplified capacity."""
        return score.demand(self.plan.requests, cpu_ratio, binds_cpus=self.binding.binds_cpus)


def kind_of(facts: NodeTopologyFacts) -> tuple[object, ...]:
    """Equal for nodes to which pods stand alike."""
    topology = facts.options.cpus
    return (
        facts.bind_policy,
        facts.numa_policy,
        facts.is_ratio_readable,
        facts.cpu_ratio > 1,
        facts.has_report,
        topology.is_valid,
        topology.cpus_per_core,
        frozenset(name for zone in facts.zones.values() for name in zone),
        bool(facts.zones),
    )


def terms_of(plan: PodPlan, facts: NodeTopologyFacts) -> NUMAPodTerms:
    """Return how the pod stands to the node's kind."""
    merged = policy.merge_numa_policies(facts.numa_policy, plan.numa_policy)
    binding = policy.decide_binding(plan, facts.bind_policy)
    request = policy.request_of(plan, binding)
    offered = {name for zone in facts.zones.values() for name in zone}
    amounts = tuple((name, amount) for name, amount in plan.requests.items() if name in offered)
    late = policy.check_binding(plan, binding, facts.options.cpus)
    if late.is_success and merged.policy and not facts.zones:
        late = MISSING_ZONES
    return NUMAPodTerms(
        plan=plan,
        status=_check_settings(plan, facts, merged.status, binding),
        late_status=late,
        binding=binding,
        kind=KINDS[request.required_policy],
        policy=merged.policy,
        request=request,
        amounts=amounts,
        is_known=bool(amounts) and (not binding.binds_cpus or resources.CPU in offered),
    )


def _check_settings(plan: PodPlan, facts: NodeTopologyFacts, merged: Status, binding: BindDecision) -> Status:
    """Return what the node's settings forbid, before any CPU is counted."""
    if not merged.is_success:
        return merged
    if binding.status == policy.NOT_INTEGER:
        return policy.NOT_INTEGER
    if plan.cpu_milli:
        if not facts.is_ratio_readable:
            return INVALID_RATIO
        if facts.cpu_ratio > 1 and facts.has_report and not facts.options.cpus.is_valid:
            return policy.INVALID_TOPOLOGY
    return SUCCESS


def place(
    terms: NUMAPodTerms,
    facts: NodeTopologyFacts,
    node_allocation: NodeAllocation,
    usage: BoundCPUUsage | None,
    strategy: NUMAScoringStrategy,
    reservations: ReservationUse = NO_USE,
    others: Sequence[OtherHints] = (),
) -> NUMAPlacement:
    """Return whether the node can take the pod, and what the pod gets there; `terms` are for nodes of its kind.

    `reservations` is what the pod uses of them; `others` have a say in which NUMA nodes are chosen.
    """
    status = terms.check(usage, facts.cpu_ratio)
    if not status.is_success:
        return NUMAPlacement(status=status)
    state, binding = facts.state(node_allocation, strategy.type), terms.binding
    if not terms.policy:
        allocation = Allocation()
        if binding.binds_cpus:
            allocation = reservations.allocate(state, terms.request, None)
        return NUMAPlacement(allocation, binding, status=allocation.status)
    exclusivity = Exclusivity(terms.plan.is_exclusive, node_allocation.numa_status(facts.options.cpus))
    admission = choose(state, terms.request, terms.policy, exclusivity, strategy, reservations, others)
    if not admission.status.is_success:
        return NUMAPlacement(status=admission.status)
    allocation = reservations.allocate(state, terms.request, admission.hint.numa_nodes)
    status = allocation.status
    for other in others:
        if status.is_success:
            status = other.trial(admission.hint)
    if not status.is_success:
        return NUMAPlacement(status=status)
    chosen = admission.hint.numa_nodes
    breaks = chosen is not None and not exclusivity.allows(chosen)
    return NUMAPlacement(allocation, binding, terms.policy, admission.hint, breaks_exclusivity=breaks)


def choose(
    state: NUMANodeState,
    request: AllocationRequest,
    numa_policy: NUMATopologyPolicy,
    exclusivity: Exclusivity,
    strategy: NUMAScoringStrategy | None = None,
    reservations: ReservationUse = NO_USE,
    others: Sequence[OtherHints] = (),
) -> NUMAAdmission:
    """Return the NUMA nodes for the pod. Larger sets are looked at only when they can be chosen or named in the
    refusal."""
    numa_nodes = mask_of(state.zones)
    provided: list[Hints] = []
    for other in others:
        found = other.hints()
        if not found.status.is_success:
            return NUMAAdmission(
                NUMATopologyHint(None, is_preferred=False), unschedulable(*found.status.reasons)
            )
        provided.append(found.by_resource)

    def fits(numa_nodes: NUMAMask) -> bool:
        return reservations.allocate(state, request, numa_nodes).status.is_success

    given_back = reservations.for_hints
    trial = fits if reservations.is_any else None
    is_single = numa_policy is NUMATopologyPolicy.SINGLE_NUMA_NODE
    if is_single and len(state.zones) > 1:
        own = hints_of(state, request, numa_policy, strategy, given_back, trial, sizes_max=1)
        if all(own.values()):
            admission = admit(numa_policy, numa_nodes, [own, *provided], exclusivity)
            if admission.status.is_success:
                return admission
    own = hints_of(state, request, numa_policy, strategy, given_back, trial)
    return admit(numa_policy, numa_nodes, [own, *provided], exclusivity)
