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

from koordinator.scheduler.plugins.fragmentation.card_values import F64, WHOLE
from koordinator.scheduler.plugins.fragmentation.demand import Shape
from koordinator.scheduler.plugins.fragmentation.target import CARDS_MAX, F32, Target

COPIES_WEIGHT = 0.3
"""a. Around 0.2 to 0.3 the most GPU was allocated (benchmarks/packing.py)."""
CARD_VALUE_WEIGHT = 10.0
"""k. Beyond 10, results stay the same: what parts of cards are worth decides first."""
BLOCK_ROWS = 1_024
"""Rows worked out at once: intermediate results stay in the processor's cache."""

_ENOUGH = 1 - 1e-6
"""An amount divided by itself is less than 1 by rounding, sometimes."""

Cards = npt.NDArray[np.uint8]
"""(slots, rows): free percent, 0 for cards that cannot be given."""


class NodeAmounts(msgspec.Struct, frozen=True, eq=False):
    """Nodes as the gradient sees them; `model` is a row of `Target.weight`."""

    cpu_milli: F32
    """(rows,)"""
    memory_bytes: F32
    """(rows,)"""
    model: npt.NDArray[np.intp]
    """(rows,)"""
    whole: npt.NDArray[np.intp]
    """(rows,): whole free cards"""
    part_fit: F32
    """(rows, groups): sum of `Target.part_fit` over the cards"""
    part_copies: F32
    """(rows, groups)"""


Parts = tuple[F32, F32, npt.NDArray[np.intp]]


def parts_of(target: Target, cards: Cards) -> Parts:
    """Return `part_fit`, `part_copies` and `whole` of nodes with these cards (slots, rows)."""
    fit, copies = target.part_fit[cards].sum(axis=0), target.part_copies[cards].sum(axis=0)
    return fit, copies, np.count_nonzero(cards == WHOLE, axis=0)


def usable(target: Target, nodes: NodeAmounts) -> F32:
    """Return the GPU percent that an average pod of the target can use: (rows,)."""
    found = np.empty(nodes.whole.size, np.float32)
    for start in range(0, found.size, BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        found[block] = _usable(target, nodes, block)
    return found


def _usable(target: Target, nodes: NodeAmounts, block: slice) -> F32:
    # Amounts are whole numbers: half of one more makes nothing suffice for nothing and changes no other comparison.
    half = np.float32(0.5)
    reach = np.multiply.outer(nodes.cpu_milli[block] + half, target.per_cpu)
    np.minimum(reach, np.multiply.outer(nodes.memory_bytes[block] + half, target.per_memory), out=reach)
    whole = np.minimum(nodes.whole[block], CARDS_MAX)
    fit = nodes.part_fit[block] + target.whole_fit[whole]
    even = nodes.part_fit[block] + target.whole_even[whole]
    copies = nodes.part_copies[block] + target.whole_copies[whole]
    even *= COPIES_WEIGHT
    per_reach = even / np.maximum(copies, 1)
    fit *= 1 - COPIES_WEIGHT
    group = target.group
    found = per_reach.take(group, axis=1)
    found *= reach
    np.minimum(found, even.take(group, axis=1), out=found)
    found += fit.take(group, axis=1)
    found *= reach >= _ENOUGH
    total: F32 = np.einsum("ij,ij->i", found, target.weight[nodes.model[block]])
    return total


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


def costs(target: Target, shape: Shape, nodes: NodeAmounts, cards: Cards, before: F32) -> F32:
    """Return what a pod costs on each node, in GPU percent: (rows,). `before` is `usable` of the nodes as they are.

    Nodes on which it does not fit get some number.
    """
    whole, fit, copies = nodes.whole, nodes.part_fit, nodes.part_copies
    value = np.zeros(before.size, np.float32)
    if shape.cards and shape.percent == WHOLE:
        whole = np.maximum(whole - shape.cards, 0)
        change = shape.cards * (target.part_fit[0] - target.part_fit[WHOLE])
        fit = fit + change
        copies = copies - shape.cards * target.part_copies[WHOLE]
    elif shape.cards:
        slots = choose_cards(card_costs(target, shape.percent), cards, min(shape.cards, len(cards)))
        for slot in slots:
            old = cards[slot, np.arange(slot.size)].astype(np.intp)
            new = np.maximum(old - shape.percent, 0)
            fit = fit - target.part_fit[old] + target.part_fit[new]
            copies = copies - target.part_copies[old] + target.part_copies[new]
            whole = whole - (old == WHOLE)
            value += (target.card_value[old] - target.card_value[new]).astype(np.float32)
    after = NodeAmounts(
        nodes.cpu_milli - np.float32(shape.cpu_milli),
        nodes.memory_bytes - np.float32(shape.memory_bytes),
        nodes.model,
        whole,
        fit,
        copies,
    )
    lost = before - usable(target, after)
    found: F32 = lost - np.float32(shape.gpu_percent) + np.float32(CARD_VALUE_WEIGHT * WHOLE) * value
    return found
