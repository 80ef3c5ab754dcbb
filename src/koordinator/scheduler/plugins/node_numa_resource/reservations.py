"""Work out how much of a node reservations give back to a pod, and in what order it is taken. Source:
behaviour/numa-cpu 11.

A reservation and the pods that use it are both in the ledger, so what its owners use is counted twice and has to be
given back once; what is left of a reservation is given back to pods that may use it. The reservations that matter
to a pod are an input: without any, everything is as if there were none. In the node's allocation a reservation holds
what its users leave (`ReservedHoldings`), so that nothing counts twice for others.
"""

import enum
from collections.abc import Iterable, Sequence

import msgspec

from koordinator.api import resource_list, resource_vector
from koordinator.scheduler.plugin.status import unschedulable
from koordinator.scheduler.plugins.node_numa_resource import allocate
from koordinator.scheduler.plugins.node_numa_resource.allocate import (
    Allocation,
    AllocationRequest,
    GivenBack,
    NUMAMask,
    NUMANodeState,
)
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import (
    CPUMask,
    NodeCPUTopology,
    Zones,
    union_of,
)
from koordinator.scheduler.plugins.node_numa_resource.node_allocation import (
    NOT_ENOUGH,
    NodeAllocation,
    PodHolding,
)


class Held(msgspec.Struct, frozen=True):
    """The holding of a pod, and the Reservation (uid) that it is out of; or that of a whole Reservation."""

    holding: PodHolding
    reservation: str = ""
    is_reservation: bool = False


def rest_of(whole: PodHolding, users: Iterable[PodHolding]) -> PodHolding:
    """Return what users of a reservation leave of it, never less than nothing."""
    users = tuple(users)
    used: Zones = {}
    for user in users:
        for numa, amounts in user.numa.items():
            used[numa] = resource_list.sum_of((used.get(numa, {}), amounts))
    return msgspec.structs.replace(
        whole,
        cpus=whole.cpus.difference(*(user.cpus for user in users)),
        numa={
            numa: resource_vector.less(amounts, used.get(numa, {})) for numa, amounts in whole.numa.items()
        },
    )


class ReservedHoldings:
    """The holdings of reservations of one node, and what the pods that use them take; writes the node's allocation."""

    def __init__(self, node_allocation: NodeAllocation) -> None:
        self._allocation = node_allocation
        self._whole: dict[str, PodHolding] = {}
        self._uses: dict[str, str] = {}

    def held(self, uid: str) -> Held | None:
        """Return what a pod holds, or a whole Reservation."""
        if (whole := self._whole.get(uid)) is not None:
            return Held(whole, is_reservation=True)
        holding = self._allocation.holdings.get(uid)
        return Held(holding, self._uses.get(uid, "")) if holding is not None else None

    def hold(self, held: Held) -> bool:
        """Note what a pod or a Reservation holds; return whether that is news."""
        uid = held.holding.uid
        if self.held(uid) == held:
            return False
        self.release(uid)
        if held.is_reservation:
            self._whole[uid] = held.holding
            self._show_rest(uid)
            return True
        self._allocation.add(held.holding)
        if held.reservation:
            self._uses[uid] = held.reservation
            self._show_rest(held.reservation)
        return True

    def release(self, uid: str) -> bool:
        """Forget what a pod or a Reservation holds; return whether it held anything."""
        was_whole = self._whole.pop(uid, None) is not None
        was_held = uid in self._allocation.holdings
        self._allocation.remove(uid)
        used = self._uses.pop(uid, None)
        if used is not None:
            self._show_rest(used)
        return was_whole or was_held

    def rest(self, whole: PodHolding) -> PodHolding:
        """Return what its users leave of a reservation, whether it is noted here or not."""
        held = self._allocation.holdings
        return rest_of(whole, (held[user] for user, uid in self._uses.items() if uid == whole.uid))

    def _show_rest(self, uid: str) -> None:
        whole = self._whole.get(uid)
        if whole is not None:
            self._allocation.update(self.rest(whole))


NO_NOMINATION = unschedulable("no nominated reservation")
NOT_TAKEN_OVER = unschedulable("Reservation(s) would not get all CPUs of the pods that it takes over")
OUT_OF_SCOPE = unschedulable("pod has a nominated reservation but cannot be allocated within its NUMA scope")


class AllocatePolicy(enum.StrEnum):
    """The choice whether a pod that uses a reservation may take more from beside it."""

    DEFAULT = ""
    """Same as Aligned."""
    ALIGNED = "Aligned"
    RESTRICTED = "Restricted"


class RestoredReservation(msgspec.Struct, frozen=True):
    """One reservation on a node: what it holds, what its owners use of it and what is left.

    `remained` may be negative where owners use more than the reservation holds.
    """

    uid: str
    allocatable: Zones = {}
    allocated: Zones = {}
    remained: Zones = {}
    cpus: CPUMask = 0
    remained_cpus: CPUMask = 0
    policy: AllocatePolicy = AllocatePolicy.DEFAULT

    @classmethod
    def of(
        cls,
        holding: PodHolding,
        owners: Iterable[PodHolding],
        topology: NodeCPUTopology,
        policy: AllocatePolicy = AllocatePolicy.DEFAULT,
    ) -> "RestoredReservation | None":
        """From the ledger's entries of the reservation and its owner pods; None when it holds nothing of ours."""
        if not holding.numa and not holding.cpus:
            return None
        owners = tuple(owners)
        allocated = _summed(owner.numa for owner in owners)
        cpus = topology.mask_of(holding.cpus)
        used = topology.mask_of(cpu for owner in owners for cpu in owner.cpus)
        return cls(
            uid=holding.uid,
            allocatable=holding.numa,
            allocated=allocated,
            remained=_less(holding.numa, allocated),
            cpus=cpus,
            remained_cpus=cpus & ~used,
            policy=policy,
        )


class RestoreState(msgspec.Struct, frozen=True):
    """The reservations of a node, as one pod sees them: those that it may use, and the others."""

    matched: tuple[RestoredReservation, ...] = ()
    unmatched: tuple[RestoredReservation, ...] = ()

    def node_path(self) -> GivenBack:
        """For a pod that takes none of the reservations: only what is counted twice."""
        unmatched_used = (_less(each.allocatable, _floored(each.remained)) for each in self.unmatched)
        return GivenBack(zones=_summed([*unmatched_used, *(each.allocated for each in self.matched)]))

    def reservation_path(self, reservation: RestoredReservation) -> GivenBack:
        """For a pod that takes of one of `matched`."""
        zones = _summed((self.node_path().zones, reservation.remained))
        if reservation.policy is not AllocatePolicy.RESTRICTED:
            preferred = union_of(each.cpus for each in self.matched) | reservation.remained_cpus
            return GivenBack(zones=zones, preferred_cpus=preferred)
        return GivenBack(
            zones=zones,
            preferred_cpus=reservation.remained_cpus,
            required_zones=_floored(reservation.remained),
        )

    def hint_path(self) -> GivenBack:
        """For the ranking of NUMA nodes: matched reservations count as free, whatever policy they have."""
        preferred = union_of(each.remained_cpus for each in self.matched)
        zones = _summed([self.node_path().zones, *(each.remained for each in self.matched)])
        return GivenBack(zones=zones, preferred_cpus=preferred)


NO_RESERVATIONS = RestoreState()


class ReservationUse(msgspec.Struct, frozen=True):
    """The relation of a pod to the reservations of a node."""

    state: RestoreState = NO_RESERVATIONS
    nominated: str | None = None
    """uid of the reservation that Reserve has to use, "" for none; None in Filter, where all are tried."""
    is_required: bool = False
    """Whether the pod may run in a reservation only."""
    must_have: CPUMask = 0
    """CPUs that have to be among those that it gets, if it gets any of its own."""

    def allocate(
        self, node: NUMANodeState, request: AllocationRequest, numa_nodes: NUMAMask | None
    ) -> Allocation:
        """Return the pod's part of a reservation or of the node."""
        found = self._allocate(node, request, numa_nodes)
        is_incomplete = request.cpu_count > 0 and bool(self.must_have & ~found.cpus)
        return Allocation(status=NOT_TAKEN_OVER) if found.status.is_success and is_incomplete else found

    def _allocate(
        self, node: NUMANodeState, request: AllocationRequest, numa_nodes: NUMAMask | None
    ) -> Allocation:
        if self.nominated is None:
            return allocate_anywhere(
                node, request, numa_nodes, self.state, requires_reservation=self.is_required
            )
        return allocate_nominated(
            node, request, numa_nodes, self.state, self.nominated, requires_reservation=self.is_required
        )


NO_USE = ReservationUse()


class ReservedNode(msgspec.Struct, frozen=True):
    """A node to a pod that uses one of its reservations, which holds in `node_allocation` what its users left."""

    node_allocation: NodeAllocation
    use: ReservationUse = NO_USE

    @classmethod
    def of(
        cls, node_allocation: NodeAllocation, rest: PodHolding, topology: NodeCPUTopology, policy: str
    ) -> "ReservedNode":
        restored = RestoredReservation.of(rest, (), topology, AllocatePolicy(policy))
        matched = (restored,) if restored is not None else ()
        return cls(node_allocation, ReservationUse(RestoreState(matched), nominated=rest.uid))

    @classmethod
    def of_pods(
        cls, node_allocation: NodeAllocation, pods: Sequence[Held], topology: NodeCPUTopology
    ) -> "ReservedNode | None":
        """To a reserve pod that takes over running pods ; None when these hold nothing."""
        cpus = frozenset[int]().union(*(each.holding.cpus for each in pods))
        whole = PodHolding("pods", cpus, numa=_summed(each.holding.numa for each in pods))
        restored = RestoredReservation.of(whole, (), topology)
        if restored is None:
            return None
        use = ReservationUse(RestoreState((restored,)), nominated=whole.uid, must_have=restored.cpus)
        return cls(node_allocation, use)


def allocate_from(
    node: NUMANodeState,
    request: AllocationRequest,
    numa_nodes: NUMAMask | None,
    state: RestoreState,
    reservation: RestoredReservation,
) -> Allocation:
    """Return the pod's part of one reservation; of a restricted one no CPU that the reservation does not hold."""
    given_back = state.reservation_path(reservation)
    is_restricted = reservation.policy is AllocatePolicy.RESTRICTED
    own = given_back.preferred_cpus
    if is_restricted and request.cpu_count > own.bit_count():
        return Allocation(status=NOT_ENOUGH)
    allocation = allocate.allocate(node, request, numa_nodes, given_back)
    if is_restricted and allocation.cpus & ~own:
        return Allocation(status=NOT_ENOUGH)
    return allocation


def allocate_anywhere(
    node: NUMANodeState,
    request: AllocationRequest,
    numa_nodes: NUMAMask | None,
    state: RestoreState = NO_RESERVATIONS,
    *,
    requires_reservation: bool = False,
) -> Allocation:
    """Return the pod's part of the first reservation that can give it, else of the node unless it requires one."""
    reasons: list[str] = []
    for reservation in state.matched:
        allocation = allocate_from(node, request, numa_nodes, state, reservation)
        if allocation.status.is_success:
            return allocation
        reasons += [f"Reservation(s) {reason}" for reason in allocation.status.reasons]
    if requires_reservation:
        return Allocation(status=unschedulable(*reasons) if reasons else NO_NOMINATION)
    return allocate.allocate(node, request, numa_nodes, state.node_path())


def allocate_nominated(
    node: NUMANodeState,
    request: AllocationRequest,
    numa_nodes: NUMAMask | None,
    state: RestoreState,
    nominated: str,
    *,
    requires_reservation: bool = False,
) -> Allocation:
    """Return what Reserve books: of the nominated reservation ("" is none) if it holds anything of ours, else of the
    node."""
    if not nominated and requires_reservation:
        return Allocation(status=NO_NOMINATION)
    reservation = next((each for each in state.matched if nominated and each.uid == nominated), None)
    if reservation is None:
        return allocate.allocate(node, request, numa_nodes, state.node_path())
    allocation = allocate_from(node, request, numa_nodes, state, reservation)
    return allocation if allocation.status.is_success else Allocation(status=OUT_OF_SCOPE)


def _summed(parts: Iterable[Zones]) -> Zones:
    found: Zones = {}
    for zones in parts:
        for numa, amounts in zones.items():
            found[numa] = resource_list.sum_of((found.get(numa, {}), amounts))
    return found


def _less(zones: Zones, others: Zones) -> Zones:
    """Differences, negative ones too; what only `others` have counts as well."""
    return _summed((zones, {numa: {n: -a for n, a in amounts.items()} for numa, amounts in others.items()}))


def _floored(zones: Zones) -> Zones:
    return {numa: resource_vector.less(amounts, {}) for numa, amounts in zones.items()}
