"""Place a reservation onto pods that will leave, and choose which of a node's reservations a pod uses. Pure.
Source: behaviour/reservations 8 and 10."""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from koordinator.api.resource_list import sum_of
from koordinator.api.resource_vector import I64
from koordinator.api.scalars import ScalarError, parse_int
from koordinator.scheduler.plugin.framework import SCORE_MAX
from koordinator.scheduler.plugins.reservation.fit import (
    NOTHING_IGNORED,
    Ignored,
    Ints,
    ReservationAmounts,
    ReservationNodeView,
    free_reasons,
    node_reasons,
    short_in_room,
    short_on_node,
)

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
    """The answer whether the node will do; the candidates for the next step, all of them unless several may be used."""

    ok: bool
    selected: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def score(self) -> int:
        """Return the score of a node where several may be used: the fewer the better."""
        return SCORE_MAX // (1 + len(self.selected))


Asked = Callable[[tuple[str, ...]], Sequence[str]]
"""Return why others refuse to take over these candidates together; nothing if they do not."""


def nobody_asked(names: tuple[str, ...]) -> Sequence[str]:
    """Return no reason: amounts alone decide."""
    return ()


def pre_allocate(
    request: Ints,
    node: ReservationNodeView,
    room: ReservationAmounts,
    candidates: Sequence[PreAllocationCandidate],
    policy: PreAllocationMode,
    ignored: Ignored = NOTHING_IGNORED,
    asked: Asked = nobody_asked,
) -> PreAllocation:
    """Return whether a reservation fits a node by free room and by pods that leave it, tried in the order given."""
    if not policy.is_required and not candidates and not policy.prefers_none:
        return PreAllocation(True)  # the general fit check decides
    free_short = short_on_node(request, node, (), ignored)
    if not policy.is_required and policy.prefers_none and not free_short:
        return PreAllocation(True)
    if policy.is_multiple:
        return _several(request, node, room, candidates, policy, ignored, free_short, asked)
    return _one(request, node, room, candidates, policy, ignored, free_short, asked)


def _one(
    request: Ints,
    node: ReservationNodeView,
    room: ReservationAmounts,
    candidates: Sequence[PreAllocationCandidate],
    policy: PreAllocationMode,
    ignored: Ignored,
    free_short: list[str],
    asked: Asked,
) -> PreAllocation:
    everyone = tuple(each.name for each in candidates)
    by_node: set[str] = set()
    by_room: list[str] = []
    by_others: list[str] = []
    for each in candidates:
        if not any(name in each.request for name in room.names):
            continue
        short = short_on_node(request, _left(node, 1), (each.request,), ignored)
        own = short_in_room(each.request, room, ignored)
        if not short and not own:
            refused = asked((each.name,))
            if not refused:
                return PreAllocation(True, everyone)
            by_others.extend(refused)
        by_node.update(short)
        by_room.extend(own)
    if policy.is_required:
        return PreAllocation(False, reasons=(*node_reasons(by_node), *by_room, *by_others) or (NOBODY,))
    if free_short:
        # What is short even without one of them, else what is without anyone leaving.
        short_names = node_reasons(by_node) or free_reasons(free_short)
        return PreAllocation(False, reasons=(*short_names, *by_others))
    return PreAllocation(True)


def _several(
    request: Ints,
    node: ReservationNodeView,
    room: ReservationAmounts,
    candidates: Sequence[PreAllocationCandidate],
    policy: PreAllocationMode,
    ignored: Ignored,
    free_short: list[str],
    asked: Asked,
) -> PreAllocation:
    chosen: list[PreAllocationCandidate] = []
    short: list[str] = []  # without those that were tried last
    by_room: list[str] = []
    by_others: Sequence[str] = ()
    for each in candidates:
        if not any(name in each.request for name in room.names):
            continue
        together = sum_of(one.request for one in (*chosen, each))
        short = short_on_node(request, _left(node, len(chosen) + 1), (together,), ignored)
        if own := short_in_room(together, room, ignored):
            by_room.extend(own)
            continue
        chosen.append(each)
        if not short:
            names = tuple(one.name for one in chosen)
            by_others = asked(names)
            if not by_others:
                return PreAllocation(True, names)
    if policy.is_required:
        return PreAllocation(False, reasons=(*free_reasons(short), *by_room, *by_others) or (NOBODY,))
    if not free_short:
        return PreAllocation(True)
    return PreAllocation(False, reasons=(*free_reasons(short or free_short), *by_others))


def _left(node: ReservationNodeView, leaving: int) -> ReservationNodeView:
    """Return the node without pods that leave it."""
    return msgspec.structs.replace(node, pods=node.pods - leaving)


PREFERRED_SCORE = 1000
"""Score of the node with the smallest order: beats every other by far."""


class NominationCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A matched reservation that the pod fits; `order` is 0 without one, `score` the sum over plugins."""

    name: str
    score: int = 0
    order: int = 0
    is_once: bool = True
    assigned: int = 0


def score(request: Ints, room: ReservationAmounts) -> int:
    """Return how full the pod would make a reservation, 0 to 100: the fuller the better; 0 for what would overflow."""
    shares = []
    for name, capacity in room.allocatable.items():
        if capacity == 0:
            continue
        used = room.allocated.get(name, 0) + request.get(name, 0)
        shares.append(SCORE_MAX * used // capacity if used <= capacity else 0)
    return sum(shares) // len(shares) if shares else 0


def nominate(
    options: Sequence[NominationCandidate], must_reserve: bool, existing: str | None = None
) -> str | None:
    """Return the reservation to use, None for none. Equal ones are told apart by name, so that runs repeat."""
    if len(options) == 1 and must_reserve:
        return options[0].name
    if any(each.name == existing for each in options):
        return existing
    usable = [each for each in options if not (each.is_once and each.assigned)]
    if not usable:
        return None
    ordered = [(each.order, each.name) for each in usable if each.order]
    return min(ordered)[1] if ordered else min(usable, key=lambda each: (-each.score, each.name)).name


def order_of(text: str) -> int:
    """Return the order of a label's text; 0, no order, when it is absent or no number."""
    try:
        return parse_int(text)
    except ScalarError:
        return 0


def node_scores(scores: I64, orders: I64, name_of: Callable[[int], str]) -> tuple[I64, int | None]:
    """Return the scores of nodes from those of their nominated reservations, and which node is preferred to all others
    for the smallest order, 0 being none; of equal ones the first by name. Shapes: all (nodes,)."""
    preferred = None
    if orders.any():
        least = orders[orders != 0].min()
        preferred = min(np.flatnonzero(orders == least).tolist(), key=name_of)
        scores = scores.copy()
        scores[preferred] = PREFERRED_SCORE
    return scores, preferred
