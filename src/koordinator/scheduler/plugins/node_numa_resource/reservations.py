"""Work out how much of a node reservations give back to a pod, and in what order it is taken. Source:
behaviour/numa-cpu 11.

A reservation and the pods that use it both hold the same CPUs and amounts. In the node's allocation a reservation
holds what its users leave (`ReservedHoldings`), so that nothing counts twice; that is given back to pods that may use
it. The reservation that a pod uses is an input: without one, everything is as if there were none.
"""

from collections.abc import Iterable, Sequence

import msgspec

from koordinator.api import resource_list, resource_vector
from koordinator.scheduler.plugin.status import unschedulable
from koordinator.scheduler.plugins.node_numa_resource import allocate
from koordinator.scheduler.plugins.node_numa_resource.allocate import (
    NOTHING_GIVEN_BACK,
    Allocation,
    AllocationRequest,
    GivenBack,
    NUMAMask,
    NUMANodeState,
)
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import CPUMask, NodeCPUTopology, Zones
from koordinator.scheduler.plugins.node_numa_resource.node_allocation import NodeAllocation, PodHolding


class Held(msgspec.Struct, frozen=True):
    """The holding of a pod, and the Reservation (uid) that it is out of; or that of a whole Reservation."""

    holding: PodHolding
    reservation: str = ""
    is_reservation: bool = False


def rest_of(whole: PodHolding, users: Iterable[PodHolding]) -> PodHolding:
    """Return what users of a reservation leave of it, never less than nothing."""
    users = tuple(users)
    used = _summed(user.numa for user in users)
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

    def rests(self) -> list[PodHolding]:
        """Return what users leave of each reservation that is noted here."""
        return [self._allocation.holdings[uid] for uid in self._whole]

    def _show_rest(self, uid: str) -> None:
        whole = self._whole.get(uid)
        if whole is not None:
            self._allocation.update(self.rest(whole))


NOT_TAKEN_OVER = unschedulable("Reservation(s) would not get all CPUs of the pods that it takes over")
BEYOND_RESERVATION = unschedulable("Reservation(s) not enough cpus available to satisfy request")


class ReservationUse(msgspec.Struct, frozen=True):
    """CPUs and amounts given back to a pod: what is left of the reservation that it uses, or of all where it ignores
    reservations; or all that running pods hold which it takes over."""

    given_back: GivenBack = NOTHING_GIVEN_BACK
    must_have: CPUMask = 0
    """CPUs that have to be among those that it gets, if it gets any of its own."""
    is_ignoring: bool = False
    """Whether it uses no reservation, but what all of them leave."""
    is_restricted: bool = False
    """Whether it gets CPUs of the reservation only."""

    @property
    def is_any(self) -> bool:
        return bool(self.given_back.zones or self.given_back.preferred_cpus)

    @property
    def for_hints(self) -> GivenBack:
        """Return what counts as free for the ranking of NUMA nodes: all of it, whatever policy a reservation has."""
        return msgspec.structs.replace(self.given_back, required_zones=None)

    def allocate(
        self, node: NUMANodeState, request: AllocationRequest, numa_nodes: NUMAMask | None
    ) -> Allocation:
        """Return the pod's part of the reservation and the node; of a restricted one no CPU that it does not hold."""
        found = allocate.allocate(node, request, numa_nodes, self.given_back)
        if not self.is_any or self.is_ignoring:
            return found
        if not found.status.is_success:
            reasons = (f"Reservation(s) {reason}" for reason in found.status.reasons)
            return Allocation(status=unschedulable(*reasons))
        if self.is_restricted and found.cpus & ~self.given_back.preferred_cpus:
            return Allocation(status=BEYOND_RESERVATION)
        if request.cpu_count > 0 and self.must_have & ~found.cpus:
            return Allocation(status=NOT_TAKEN_OVER)
        return found


NO_USE = ReservationUse()


class ReservedNode(msgspec.Struct, frozen=True):
    """A node to a pod that uses one of its reservations, which holds in `node_allocation` what its users left."""

    node_allocation: NodeAllocation
    use: ReservationUse = NO_USE

    @classmethod
    def of(
        cls,
        node_allocation: NodeAllocation,
        rest: PodHolding,
        topology: NodeCPUTopology,
        *,
        is_restricted: bool,
    ) -> "ReservedNode":
        # One that holds no amounts of NUMA nodes restricts CPUs alone.
        required = rest.numa if is_restricted and rest.numa else None
        back = GivenBack(rest.numa, topology.mask_of(rest.cpus), required)
        return cls(node_allocation, ReservationUse(back, is_restricted=is_restricted))

    @classmethod
    def of_all(
        cls,
        node_allocation: NodeAllocation,
        parts: Sequence[PodHolding],
        topology: NodeCPUTopology,
        *,
        takes_over: bool,
    ) -> "ReservedNode | None":
        """To a reserve pod that takes over running pods, or to a pod that ignores reservations, of which `parts` are
        left; None when these hold nothing."""
        cpus = topology.mask_of(cpu for each in parts for cpu in each.cpus)
        back = GivenBack(_summed(each.numa for each in parts), cpus)
        use = ReservationUse(back, cpus if takes_over else 0, is_ignoring=not takes_over)
        return cls(node_allocation, use) if use.is_any else None


def _summed(parts: Iterable[Zones]) -> Zones:
    found: Zones = {}
    for zones in parts:
        for numa, amounts in zones.items():
            found[numa] = resource_list.sum_of((found.get(numa, {}), amounts))
    return found
