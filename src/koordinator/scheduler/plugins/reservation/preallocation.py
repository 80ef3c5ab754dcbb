"""Placing a reservation onto pods that will leave. Pure. Source: behaviour/reservations 10."""

from collections.abc import Sequence

import msgspec

from koordinator.scheduler.plugins.reservation.amounts import (
    NOTHING_IGNORED,
    Ignored,
    Ints,
    ReservationAmounts,
    ReservationNodeView,
    added,
    short_on_node,
)
from koordinator.scheduler.plugins.reservation.fit import node_reasons, short_in_room

SCORE_MAX = 100
NOBODY = "node(s) no pod(s) to meet the pre-allocation requirements"


class PreAllocationCandidate(msgspec.Struct, frozen=True):
    """A running pod whose room the reservation may take over."""

    name: str
    request: Ints


class PreAllocationMode(msgspec.Struct, frozen=True, kw_only=True):
    """`is_required`: never onto free room only; `prefers_none`: free room first, if it suffices."""

    is_multiple: bool = False
    is_required: bool = False
    prefers_none: bool = False


class PreAllocation(msgspec.Struct, frozen=True):
    """The answer whether the node will do; the candidates for the next step, all of them unless several may be
    used.
    """

    ok: bool
    selected: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def score(self) -> int:
        """Return the score of a node where several may be used: the fewer the better."""
        return SCORE_MAX // (1 + len(self.selected))


def pre_allocate(
    request: Ints,
    node: ReservationNodeView,
    room: ReservationAmounts,
    candidates: Sequence[PreAllocationCandidate],
    policy: PreAllocationMode,
    ignored: Ignored = NOTHING_IGNORED,
) -> PreAllocation:
    """Return whether a reservation fits a node by free room and by pods that leave it, tried in the order given."""
    if not policy.is_required and not candidates:
        return PreAllocation(True)  # the general fit check decides
    free_short = short_on_node(request, node, (), ignored)
    if not policy.is_required and policy.prefers_none and not free_short:
        return PreAllocation(True)
    if policy.is_multiple:
        return _several(request, node, room, candidates, policy, ignored, free_short)
    return _one(request, node, room, candidates, policy, ignored, free_short)


def _one(
    request: Ints,
    node: ReservationNodeView,
    room: ReservationAmounts,
    candidates: Sequence[PreAllocationCandidate],
    policy: PreAllocationMode,
    ignored: Ignored,
    free_short: list[str],
) -> PreAllocation:
    everyone = tuple(each.name for each in candidates)
    by_node: set[str] = set()
    by_room: list[str] = []
    for each in candidates:
        if not any(name in each.request for name in room.names):
            continue
        short = short_on_node(request, _left(node, 1), (each.request,), ignored)
        own = short_in_room(each.request, room, ignored)
        if not short and not own:
            return PreAllocation(True, everyone)
        by_node.update(short)
        by_room.extend(own)
    if policy.is_required:
        return PreAllocation(False, reasons=(*node_reasons(by_node), *by_room) or (NOBODY,))
    return PreAllocation(not free_short, () if free_short else everyone, node_reasons(free_short))


def _several(
    request: Ints,
    node: ReservationNodeView,
    room: ReservationAmounts,
    candidates: Sequence[PreAllocationCandidate],
    policy: PreAllocationMode,
    ignored: Ignored,
    free_short: list[str],
) -> PreAllocation:
    chosen: list[PreAllocationCandidate] = []
    short = free_short
    by_room: list[str] = []
    for each in candidates:
        together = added(*(one.request for one in (*chosen, each)))
        if own := short_in_room(together, room, ignored):
            by_room.extend(own)
            continue
        chosen.append(each)
        short = short_on_node(request, _left(node, len(chosen)), (together,), ignored)
        if not short:
            return PreAllocation(True, tuple(one.name for one in chosen))
    if policy.is_required:
        return PreAllocation(False, reasons=(*node_reasons(short), *by_room) or (NOBODY,))
    return PreAllocation(not short, reasons=node_reasons(short))


def _left(node: ReservationNodeView, leaving: int) -> ReservationNodeView:
    """The node without pods that leave it."""
    return msgspec.structs.replace(node, pods=node.pods - leaving)
