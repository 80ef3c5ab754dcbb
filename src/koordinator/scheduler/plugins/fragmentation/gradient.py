"""Work out how much of a node pods of the target can use, and how much of that a pod takes away. Pure.

For a node n and a shape m that reaches rho = min(free CPU / CPU of m, free memory / memory of m) times:

    usable(n) = sum p(m) [rho >= 1] ((1 - a) fit(n, m) + a even(n, m) min(1, rho / copies(n, m)))

fit is the free GPU on cards that m can use, even that of full sets of cards, copies how many m fit by cards alone.
With a = 0, free GPU less usable(n) is the expected fragment F of Weng et al., Beware of Fragmentation (USENIX ATC
2023); a > 0 also sees CPU and memory run out before the cards do. A pod costs

    F(after) - F(before) + k (U(cards before) - U(cards after))

with U of `card_values`, which keeps parts together that fill cards.
"""

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugins.fragmentation.card_values import WHOLE
from koordinator.scheduler.plugins.fragmentation.demand import Shape
from koordinator.scheduler.plugins.fragmentation.target import CARDS_MAX, F32, Target
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.nodes import F64

COPIES_WEIGHT = 0.3
"""a. Around 0.2 to 0.3 the most GPU was allocated (benchmarks/packing.py)."""
CARD_VALUE_WEIGHT = 10.0
"""k. Beyond 10, results stay the same: what parts of cards are worth decides first."""
BLOCK_ROWS = 512
"""Rows worked out at once: intermediate results stay in the processor's cache."""

_HALF = np.float32(0.5)
_ENOUGH = 1 - 1e-6
"""An amount divided by itself is less than 1 by rounding, sometimes."""

Cards = npt.NDArray[np.uint8]
"""(slots, rows): free percent, 0 for cards that cannot be given."""


class Nodes(msgspec.Struct, frozen=True, eq=False):
    """Nodes as the gradient sees them; `model` is a row of `Target.weight`."""

    amounts: F32
    """(rows, 2 + 3 groups): free milli-cores, free bytes, and the sums of `Target.parts` over the cards"""
    model: npt.NDArray[np.intp]
    """(rows,)"""
    whole: npt.NDArray[np.intp]
    """(rows,): whole free cards"""


class Taking(msgspec.Struct, frozen=True, eq=False):
    """The change that a pod of a shape makes on the node that takes it, for one target."""

    shape: Shape
    of_node: F32
    """(2 + 3 groups,): added to `Nodes.amounts`, whichever cards it gets."""
    of_card: F32
    """(101, 2 + 3 groups): added for each card of which it gets a part, by the card's free percent before."""
    value_of_card: F32
    """(101,): by how much less the card is worth then"""
    card_costs: F64
    """(101,): as `card_costs` says"""


def nodes_of(target: Target, cpu: I64, memory: I64, model: npt.NDArray[np.intp], cards: Cards) -> Nodes:
    """Return nodes with these free amounts (rows,), models (rows,) and cards (slots, rows)."""
    amounts = np.empty((model.size, 2 + target.parts.shape[1]), np.float32)
    amounts[:, 0], amounts[:, 1] = cpu, memory
    target.parts.take(cards, axis=0).sum(axis=0, out=amounts[:, 2:])
    return Nodes(amounts, model, np.count_nonzero(cards == WHOLE, axis=0))


def usable(target: Target, nodes: Nodes) -> F32:
    """Return the GPU percent that an average pod of the target can use: (rows,)."""
    count = nodes.whole.size
    if count <= BLOCK_ROWS:
        return _usable(target, nodes.amounts, nodes.model, nodes.whole)
    found = np.empty(count, np.float32)
    for start in range(0, count, BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        found[block] = _usable(target, nodes.amounts[block], nodes.model[block], nodes.whole[block])
    return found


def _usable(target: Target, amounts: F32, model: npt.NDArray[np.intp], whole: npt.NDArray[np.intp]) -> F32:
    # Amounts are whole numbers: half of one more makes nothing suffice for nothing and changes no other comparison.
    reach = (amounts[:, :1] + _HALF) * target.per_amount[0]
    np.minimum(reach, (amounts[:, 1:2] + _HALF) * target.per_amount[1], out=reach)
    by_group = target.wholes.take(np.minimum(whole, CARDS_MAX), axis=0)
    by_group += amounts[:, 2:]
    groups = target.group_count
    fit, even, copies = by_group[:, :groups], by_group[:, groups : 2 * groups], by_group[:, 2 * groups :]
    fit *= 1 - COPIES_WEIGHT
    even *= COPIES_WEIGHT
    np.maximum(copies, 1, out=copies)
    np.divide(even, copies, out=copies)
    # By shape, one after the other: all three together would leave the processor's cache.
    found = copies.take(target.group, axis=1)
    found *= reach
    np.minimum(found, even.take(target.group, axis=1), out=found)
    found += fit.take(target.group, axis=1)
    found *= reach >= _ENOUGH
    total: F32 = np.einsum("ij,ij->i", found, target.weight.take(model, axis=0))
    return total


def taking_of(target: Target, shape: Shape) -> Taking:
    """Return what a pod of this shape changes."""
    parts = target.parts
    of_node = np.zeros(2 + parts.shape[1], np.float32)
    of_node[:2] = -np.array([shape.cpu_milli, shape.memory_bytes], np.float32)
    of_card = np.zeros((WHOLE + 1, of_node.size), np.float32)
    value = np.zeros(WHOLE + 1)
    if shape.cards and shape.percent == WHOLE:
        of_node[2:] = shape.cards * (parts[0] - parts[WHOLE])
    elif shape.cards:
        left = np.maximum(np.arange(WHOLE + 1) - shape.percent, 0)
        of_card[:, 2:] = parts[left] - parts
        value = target.card_value - target.card_value[left]
    return Taking(shape, of_node, of_card, value.astype(np.float32), card_costs(target, shape.percent))


def card_costs(target: Target, percent: int) -> F64:
    """Return what taking a percentage of a card costs, by the card's free percent: (101,), infinite where it does not
    fit."""
    worth = CARD_VALUE_WEIGHT * WHOLE * target.card_value + target.card_use
    costs = np.full(WHOLE + 1, np.inf)
    costs[percent:] = worth[percent:] - worth[: WHOLE + 1 - percent]
    return costs


def choose_cards(costs: F64, cards: Cards, count: int) -> npt.NDArray[np.intp]:
    """Return the slots of the `count` cheapest cards of each node: (count, rows); among equals the first."""
    by_card = costs[cards]
    cheapest: npt.NDArray[np.intp]
    if count == 1:
        cheapest = by_card.argmin(axis=0)[np.newaxis]
    else:
        cheapest = by_card.argsort(axis=0, kind="stable")[:count]
    return cheapest


def costs(
    target: Target, taking: Taking, nodes: Nodes, cards: Cards, before: F32, unknown: Rows
) -> tuple[F32, F32]:
    """Return what a pod costs on each node, in GPU percent, and `usable` of the nodes as they are: (rows,) each.

    `before` (rows,) has the latter where it is known, `unknown` are the positions of the others. Nodes on which the pod
    does not fit get some number.
    """
    after, value = _after(taking, nodes, cards)
    if unknown.size:  # all at once: for few rows, each step costs as much as for many
        as_they_are = nodes if unknown.size == before.size else _at(nodes, unknown)
        found = usable(target, _joined(as_they_are, after))
        before = before.copy()
        before[unknown], left = found[: unknown.size], found[unknown.size :]
    else:
        left = usable(target, after)
    lost = before - left
    lost -= np.float32(taking.shape.gpu_percent)
    lost += np.float32(CARD_VALUE_WEIGHT * WHOLE) * value
    return lost, before


def _after(taking: Taking, nodes: Nodes, cards: Cards) -> tuple[Nodes, F32]:
    """Return the nodes with the pod, and by how much less their cards are worth: (rows,)."""
    shape, whole = taking.shape, nodes.whole
    amounts = nodes.amounts + taking.of_node
    value = np.zeros(whole.size, np.float32)
    if shape.cards and shape.percent == WHOLE:
        whole = np.maximum(whole - shape.cards, 0)
    elif shape.cards:
        slots = choose_cards(taking.card_costs, cards, min(shape.cards, len(cards)))
        for slot in slots:
            old = cards[slot, np.arange(slot.size)].astype(np.intp)
            amounts += taking.of_card.take(old, axis=0)
            whole = whole - (old == WHOLE)
            value += taking.value_of_card.take(old)
    return Nodes(amounts, nodes.model, whole), value


def _at(nodes: Nodes, rows: Rows) -> Nodes:
    return Nodes(nodes.amounts.take(rows, axis=0), nodes.model.take(rows), nodes.whole.take(rows))


def _joined(first: Nodes, second: Nodes) -> Nodes:
    return Nodes(
        np.concatenate([first.amounts, second.amounts]),
        np.concatenate([first.model, second.model]),
        np.concatenate([first.whole, second.whole]),
    )
