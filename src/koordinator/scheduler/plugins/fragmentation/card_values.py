"""Value free parts of cards by shadow prices of filling cards with shared pods.

Cards are rolls, pods are cuts: the fewest cards that hold all shared pods are a cutting stock problem, whose dual
prices pi(s) say how much of a card a pod of s percent really costs (81 % costs all of it, unless pods of 19 % come as
often).
A free part of f percent is worth U(f) = max sum pi(s) over pods that fit into f together, at most 1.
Source: Gilmore and Gomory, A Linear Programming Approach to the Cutting-Stock Problem (Operations Research, 1961).
"""

from collections.abc import Mapping, Sequence

import numpy as np

from koordinator.scheduler.table.nodes import F64

WHOLE = 100
_ROUNDS_MAX = 400
_TOLERANCE = 1e-9


def card_values(weights: Mapping[int, float]) -> F64:
    """Return U by free percent: (101,), from 0 for nothing to 1 for a whole card. `weights` has how often pods of a
    percentage below 100 come, by percentage."""
    sizes = sorted(size for size, weight in weights.items() if 0 < size < WHOLE and weight > 0)
    if not sizes:
        return _with_whole(np.zeros(WHOLE + 1))
    prices = _prices(sizes, np.array([weights[size] for size in sizes]))
    values, _ = _fill(sizes, prices)
    return _with_whole(values / max(values[WHOLE], 1.0))


def _with_whole(values: F64) -> F64:
    values[WHOLE] = 1.0
    return values


def _prices(sizes: Sequence[int], demand: F64) -> F64:
    """Return the price of each size by column generation: as long as a pattern of cuts is worth more than a card, it
    enters the basis."""
    basis = np.diag([float(WHOLE // size) for size in sizes])
    used: F64 = demand / basis.diagonal()
    prices: F64 = np.zeros(len(sizes))
    for _ in range(_ROUNDS_MAX):
        prices = np.linalg.solve(basis.T, np.ones(len(sizes))).astype(np.float64)
        values, pattern = _fill(sizes, prices)
        if values[WHOLE] <= 1.0 + _TOLERANCE:
            break
        change = np.linalg.solve(basis, pattern)
        ratios = np.where(change > _TOLERANCE, used / np.maximum(change, _TOLERANCE), np.inf)
        leaving = int(ratios.argmin())
        step = ratios[leaving]
        used = np.maximum(used - step * change, 0.0)
        used[leaving] = step
        basis[:, leaving] = pattern
    return np.maximum(prices, 0.0)


def _fill(sizes: Sequence[int], prices: F64) -> tuple[F64, F64]:
    """Return the best worth by room (101,), and how many of each size (sizes,) the best filling of a card has."""
    worth = [0.0] * (WHOLE + 1)
    last = [-1] * (WHOLE + 1)
    items = [
        (size, float(price), index) for index, (size, price) in enumerate(zip(sizes, prices, strict=True))
    ]
    for room in range(1, WHOLE + 1):
        best, choice = worth[room - 1], -1
        for size, price, index in items:
            if size > room:
                break
            if worth[room - size] + price > best + _TOLERANCE:
                best, choice = worth[room - size] + price, index
        worth[room], last[room] = best, choice
    counts, room = np.zeros(len(sizes)), WHOLE
    while room > 0:
        if last[room] < 0:
            room -= 1
        else:
            counts[last[room]] += 1
            room -= sizes[last[room]]
    return np.array(worth), counts
