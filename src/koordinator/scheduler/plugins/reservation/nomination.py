"""Decide which of a node's reservations a pod uses, and how good the node is for it. Pure.

Source: behaviour/reservations 8.
"""

from collections.abc import Mapping, Sequence

import msgspec

from koordinator.api.scalars import ScalarError, parse_int
from koordinator.scheduler.plugins.reservation.amounts import Ints, ReservationAmounts

SCORE_MAX = 100
PREFERRED_SCORE = 1000
"""Of the node with the smallest order: beats every other by far."""

USED_UP = "reservation has allocateOnce enabled and has already been allocated"


class NominationCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A matched reservation that the pod fits; `order` is its label's text, `score` the sum over plugins."""

    name: str
    score: int = 0
    order: str = ""
    is_once: bool = True
    assigned: int = 0


class NodeScores(msgspec.Struct, frozen=True):
    """Scores before and after normalisation, and the node that its order prefers."""

    preferred: str | None
    raw: dict[str, int]
    normalised: dict[str, int]


def score(request: Ints, room: ReservationAmounts) -> int:
    """Return how full the pod would make a reservation, 0 to 100: the fuller the better; 0 for what would overflow."""
    shares = []
    for name, capacity in room.allocatable.items():
        if capacity == 0:
            continue
        used = max(room.allocated.get(name, 0) - room.preemptible.get(name, 0), 0) + request.get(name, 0)
        shares.append(SCORE_MAX * used // capacity if used <= capacity else 0)
    return sum(shares) // len(shares) if shares else 0


def nominate(
    options: Sequence[NominationCandidate], must_reserve: bool, existing: str | None = None
) -> str | None:
    """The reservation to use, None for none. Equal ones are told apart by name, so that runs repeat."""
    if len(options) == 1 and must_reserve:
        return options[0].name
    if existing is not None and any(each.name == existing for each in options):
        return existing
    usable = [each for each in options if not refusal(each)]
    if not usable:
        return None
    ordered = [(order_of(each.order), each.name) for each in usable if order_of(each.order)]
    if ordered:
        return min(ordered)[1]
    return min(usable, key=lambda each: (-each.score, each.name)).name


def refusal(option: NominationCandidate) -> str:
    """Return why a reservation cannot be nominated, or empty."""
    return USED_UP if option.is_once and option.assigned > 0 else ""


def order_of(text: str) -> int:
    """The order of a label's text; 0, no order, when it is absent or no number."""
    try:
        return parse_int(text)
    except ScalarError:
        return 0


def node_scores(scores: Mapping[str, int], orders: Mapping[str, int]) -> NodeScores:
    """Scores of nodes from those of their nominated reservations, and from the smallest order on each."""
    ranked = [(order, node) for node, order in orders.items() if order]
    preferred = min(ranked)[1] if ranked else None
    raw = {node: scores.get(node, 0) for node in {**scores, **orders}}
    if preferred is not None:
        raw[preferred] = PREFERRED_SCORE
    best = max(raw.values(), default=0)
    normalised = {node: SCORE_MAX * each // best if best > 0 else each for node, each in raw.items()}
    return NodeScores(preferred, raw, normalised)
