"""Keep what reservations of one node hold, and what the pods that use them take of it. Source: behaviour/numa-cpu 11.

In the node's allocation a reservation holds what its users leave, so that nothing counts twice for others.
"""

from collections.abc import Iterable

import msgspec

from koordinator.api import resource_list, resource_vector
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import Zones
from koordinator.scheduler.plugins.node_numa_resource.node_allocation import NodeAllocation, PodHolding


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
    """Writes a node's allocation."""

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
