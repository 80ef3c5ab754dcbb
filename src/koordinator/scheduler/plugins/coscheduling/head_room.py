"""Upper bounds of how many members of a gang group nodes could take. Pure.

Members are alike within a kind. A kind is counted as if there were no others; of a mixture nodes take no more than
of pods that ask for the least that any kind asks for, and all together no more than is free.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugins.network_topology.slots import Slots
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import PodInfo

Amounts = Mapping[int, int]
"""Column → what one member asks for."""


class GangDemand(msgspec.Struct, frozen=True):
    """The demand of each gang: how many members more have to get a place, and how many there are of each kind
    without one.
    """

    needed: Mapping[str, int]
    members: Mapping[str, Counter[int]]

    @property
    def total(self) -> int:
        return sum(self.needed.values())

    def forced(self, kind: int) -> dict[str, int]:
        """Gang → members of the kind that it cannot do without."""
        found = {}
        for gang, count in self.needed.items():
            others = self.members[gang].total() - self.members[gang][kind]
            if count > others:
                found[gang] = count - others
        return found


class MemberClass(msgspec.Struct, frozen=True, eq=False):
    """Members that are alike. Nodes take no more of them than `slots` say; `wanted` is what one of them asks for, None
    where nodes are not asked about amounts."""

    members: tuple[PodInfo, ...]
    slots: Slots
    wanted: Amounts | None


class HeadRoom(msgspec.Struct, frozen=True, eq=False):
    """`counts` (kinds, rows) are members that rows could take of each kind alone; `free` maps columns to what is free
    (rows,), `free_pods` (rows,)."""

    counts: I64
    free: Mapping[int, I64]
    free_pods: I64


class MemberShortage(msgspec.Struct, frozen=True):
    """The shortage: of `needed` members of the gangs no more than `fitting` could get a place; `kind` None: of all
    kinds.
    """

    gangs: tuple[str, ...]
    needed: int
    fitting: int
    kind: int | None


def as_is(table: NodeTable, kinds: Sequence[MemberClass]) -> HeadRoom:
    """Return the room that there is."""
    counts = np.array([kind.slots.counts for kind in kinds])
    return HeadRoom(counts, {column: table.free[column] for column in _columns(kinds)}, table.free_pods)


def without(
    table: NodeTable, kinds: Sequence[MemberClass], held: Mapping[int, I64], held_pods: I64
) -> HeadRoom:
    """Return the room that there would be if pods were gone that hold so much: `held` (rows,) per column,
    `held_pods` (rows,) of them. Filters other than that for amounts are taken to let members pass then where
    evictions may help.
    """
    now = as_is(table, kinds)
    free = {column: amounts + held[column] for column, amounts in now.free.items()}
    free_pods = now.free_pods + held_pods
    counts = now.counts.copy()
    for number, kind in enumerate(kinds):
        found = free_pods
        for column, amount in (kind.wanted or {}).items():
            found = np.minimum(found, free[column] // amount)
        is_useful = (held_pods > 0) & ~kind.slots.evaluation.unresolvable_rows()
        counts[number] = np.where(is_useful, np.maximum(counts[number], found), counts[number])
    return HeadRoom(counts, free, free_pods)


def _columns(kinds: Sequence[MemberClass]) -> set[int]:
    return {column for kind in kinds for column in kind.wanted or ()}


def lack(demand: GangDemand, room: HeadRoom, kinds: Sequence[MemberClass]) -> MemberShortage | None:
    """Return what the gangs surely lack; None when they may find room."""
    wanted = [kind.wanted for kind in kinds]
    for kind, counts in enumerate(room.counts):
        forced = demand.forced(kind)
        needed, fitting = sum(forced.values()), int(counts.sum())
        if fitting < needed:
            return MemberShortage(tuple(forced), needed, fitting, kind)
    known = [amounts for amounts in wanted if amounts is not None]
    if len(wanted) < 2 or len(known) < len(wanted):
        return None
    fitting = min(_mixed(room, known), _by_amounts(demand, room, known))
    if fitting < demand.total:
        return MemberShortage(tuple(demand.needed), demand.total, fitting, None)
    return None


def _mixed(room: HeadRoom, wanted: Sequence[Amounts]) -> int:
    """Return members of any kinds that rows take if all ask for as little as the most modest one."""
    counts = np.minimum(room.counts.sum(axis=0), room.free_pods)
    for column, free in room.free.items():
        least = min(amounts.get(column, 0) for amounts in wanted)
        if least > 0:
            counts = np.minimum(counts, free // least)
    return int(np.maximum(counts, 0).sum())


def _by_amounts(demand: GangDemand, room: HeadRoom, wanted: Sequence[Amounts]) -> int:
    """Return members, the most modest of each gang, that the free amounts of all rows together would do for."""
    fitting = demand.total
    rows: Rows = np.flatnonzero(room.counts.any(axis=0))
    for column, free in room.free.items():
        left = int(np.maximum(free[rows], 0).sum())
        found = 0
        for amount, count in sorted(_most_modest(demand, wanted, column).items()):
            taken = count if amount <= 0 else min(count, left // amount)
            left -= taken * amount
            found += taken
        fitting = min(fitting, found)
    return fitting


def _most_modest(demand: GangDemand, wanted: Sequence[Amounts], column: int) -> Counter[int]:
    """Amount → members that ask for it, of those of each gang that ask for least."""
    found: Counter[int] = Counter()
    for gang, needed in demand.needed.items():
        kinds = sorted(demand.members[gang].items(), key=lambda item: wanted[item[0]].get(column, 0))
        for kind, count in kinds:
            taken = min(needed, count)
            found[wanted[kind].get(column, 0)] += taken
            needed -= taken
    return found
