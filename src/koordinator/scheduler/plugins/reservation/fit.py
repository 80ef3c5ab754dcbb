"""Decide whether a pod fits a node with reservations, and what the node looks like to it. Pure.
Source: behaviour/reservations 6 and 7."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from koordinator.api import resources
from koordinator.api.quantity import RawQuantity
from koordinator.api.resource_list import sum_of
from koordinator.api.resource_vector import exact_amount
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import PodInfo

Ints = Mapping[str, int]
"""Resource name → milli-cores, bytes or units; missing is zero."""

NATIVE = (resources.CPU, resources.MEMORY, resources.EPHEMERAL_STORAGE)
"""Always compared, whatever the plugin's arguments ignore."""


class Ignored(msgspec.Struct, frozen=True):
    """Extended resources that are left to other plugins: by name, or by the text before the first `/`."""

    names: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()

    def has(self, name: str) -> bool:
        group, slash, _ = name.partition("/")
        return name in self.names or bool(slash and group and group in self.groups)


NOTHING_IGNORED = Ignored()


class ReservationAmounts(msgspec.Struct, frozen=True, kw_only=True):
    """A reservation as far as amounts go.

    `names` is what it accounts for (`objects.restricted_names`), `kept` what owners may not use, `pods` how many
    owners it has. While a preemption is tried, victims are no owners.
    """

    name: str = ""
    is_restricted: bool = False
    allocatable: Ints = {}
    allocated: Ints = {}
    kept: Ints = {}
    names: tuple[str, ...] = ()
    pods: int = 0

    @property
    def available(self) -> dict[str, int]:
        """Return what owners may still use, never below zero."""
        return {
            name: max(amount - self.allocated.get(name, 0) - self.kept.get(name, 0), 0)
            for name, amount in self.allocatable.items()
        }


class ReservationNodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node before matched reservations are given back.

    `requested` counts everything on it, reserve pods with what their owners leave; `pods` counts reserve pods, too, but
    not those of the matched ones.
    """

    allocatable: Ints
    requested: Ints
    pods: int = 0

    @classmethod
    def of(
        cls, table: NodeTable, row: int, names: Iterable[str], away: Sequence[PodInfo], matched: int = 0
    ) -> "ReservationNodeView":
        """Return a row as far as these resources go, with the pods on it that a trial took away."""
        allocatable, requested = {resources.PODS: int(table.pods_max[row])}, {}
        for name in names:
            column = table.registry.column(name)
            allocatable[name] = int(table.allocatable[column, row])
            back = sum(amount for pod in away for at, amount in pod.requests if at == column)
            requested[name] = int(table.requested[column, row]) + back
        pods = int(table.pod_count[row]) + len(away) - matched
        return cls(allocatable=allocatable, requested=requested, pods=pods)


def ints(wire: Mapping[str, RawQuantity]) -> dict[str, int]:
    """Return the integers of a resource list. Raises: QuantityError."""
    return {name: exact_amount(name, raw) for name, raw in wire.items()}


def short_on_node(
    request: Ints, node: ReservationNodeView, given_back: Iterable[Ints], ignored: Ignored
) -> list[str]:
    """Return names that the node lacks for the request when all of `given_back` is free again; `pods` first."""
    short = []
    if node.pods + 1 > node.allocatable.get(resources.PODS, 0):
        short.append(resources.PODS)
    back = sum_of(given_back)
    for name, wanted in request.items():
        if name == resources.PODS or (name not in NATIVE and ignored.has(name)):
            continue
        free = node.allocatable.get(name, 0) - node.requested.get(name, 0) + back.get(name, 0)
        if wanted > max(free, 0):
            short.append(name)
    return short


NONE_MATCHED = "node(s) no reservations match reservation affinity"
NONE_MEETS = "node(s) no reservation(s) to meet the requirements"


class ReservationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of a pod; `must_reserve`: it has a reservation affinity, which may name one."""

    request: Ints
    must_reserve: bool = False
    name: str = ""
    is_ignoring: bool = False


class Fit(msgspec.Struct, frozen=True):
    """The answer whether the node will do and by which reservation (None: by its free room), or every reason why
    not."""

    ok: bool
    room: str | None = None
    reasons: tuple[str, ...] = ()


def fit(
    asked: ReservationRequest,
    node: ReservationNodeView,
    rooms: Sequence[ReservationAmounts],
    ignored: Ignored = NOTHING_IGNORED,
    *,
    skip_node: bool = False,
) -> Fit:
    """Return whether the pod fits by one of the matched reservations, tried in the order given.

    `skip_node`: the general fit filter looks at the node (`SkipReservationFitsNode`); counts for one matched
    reservation at most.
    """
    if asked.is_ignoring:
        return Fit(True)
    if asked.must_reserve and not rooms:
        return Fit(False, reasons=(NONE_MATCHED,))
    is_node_skipped = skip_node and len(rooms) <= 1
    by_node: set[str] = set()
    by_room: list[str] = []
    for room in rooms:
        if not is_candidate(asked, room):
            continue
        short = [] if is_node_skipped else short_on_node(asked.request, node, (room.available,), ignored)
        own = short_in_room(asked.request, room, ignored, bool(asked.name)) if room.is_restricted else []
        if not short and not own:
            return Fit(True, room.name)
        by_node.update(short)
        by_room.extend(own)
    if asked.must_reserve:
        return Fit(False, reasons=(*node_reasons(by_node), *by_room) or (NONE_MEETS,))
    # What is reserved stays counted as used here: the pod would have to do without it.
    if by_node:
        return Fit(False, reasons=node_reasons(by_node))
    short = short_on_node(asked.request, node, (), ignored)
    return Fit(not short, reasons=free_reasons(short))


def short_in_room(
    request: Ints, room: ReservationAmounts, ignored: Ignored, is_detailed: bool = False
) -> list[str]:
    """Return why a Restricted reservation has too little of what it accounts for; with figures when `is_detailed`."""
    reasons = []
    pods_max = room.allocatable.get(resources.PODS)
    if pods_max is not None and room.pods + 1 > pods_max:
        reasons.append("Too many pods" + _figures(1, room.pods, pods_max) * is_detailed)
    for name in room.names:
        if name == resources.PODS or not request.get(name) or ignored.has(name):
            continue
        capacity = room.allocatable.get(name, 0) - room.kept.get(name, 0)
        used = room.allocated.get(name, 0)
        if request[name] > capacity - used:
            reasons.append(f"Insufficient {name}" + _figures(request[name], used, capacity) * is_detailed)
    return [f"Reservation(s) {reason}" for reason in reasons]


def node_reasons(names: Collection[str]) -> tuple[str, ...]:
    """Return what the node lacks, for people."""
    return tuple(sorted(f"Insufficient {name} by node" for name in names))


def free_reasons(names: Iterable[str]) -> tuple[str, ...]:
    """Return what the node lacks without a reservation: pods, then native resources, then others by name."""
    rank = {name: number for number, name in enumerate((resources.PODS, *NATIVE))}
    in_order = sorted(names, key=lambda name: (rank.get(name, len(rank)), name))
    return tuple(f"Insufficient {name} by node" for name in in_order)


def is_policy_conflict(incoming: str, existing: Sequence[str]) -> bool:
    """Return whether reservations with and without a policy would share a node."""
    return any((policy == "") != (incoming == "") for policy in existing)


def is_candidate(asked: ReservationRequest, room: ReservationAmounts) -> bool:
    if asked.must_reserve:
        return not asked.name or asked.name == room.name
    return any(name in asked.request for name in room.names)


def _figures(requested: int, used: int, capacity: int) -> str:
    return f", requested: {requested}, used: {used}, capacity: {capacity}"
