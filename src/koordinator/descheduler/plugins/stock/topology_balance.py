"""Decide how many pods each topology domain gives up, the core of RemovePodsViolatingTopologySpreadConstraint.

Pure. Source: behaviour/descheduler 12.
"""

from collections.abc import Sequence

import msgspec


class Balanced(msgspec.Struct, frozen=True):
    """Per domain, in the order given: how many pods it holds afterwards, and how many it gave up."""

    sizes: list[int]
    moved: list[int]


def balance(sizes: Sequence[int], max_skew: int) -> Balanced:
    """Move pods from large to small domains until sizes differ by at most `max_skew`.

    `moved` counts what each domain gave up. A domain above the average never gets any, so what was moved
    once is not moved again.
    """
    after, moved = list(sizes), [0] * len(sizes)
    if not sizes or max(sizes) - min(sizes) <= max_skew:
        return Balanced(after, moved)
    total, count = sum(sizes), len(sizes)
    order = sorted(range(count), key=after.__getitem__)
    small, large = 0, count - 1
    while small < large:
        if after[order[large]] * count <= total:
            large -= 1
        low, high = order[small], order[large]
        skew = after[high] - after[low]
        above, below = after[high] * count - total, total - after[low] * count
        move = min(-(-above // count), -(-below // count), -(-(skew - max_skew) // 2))
        if skew <= max_skew or move <= 0:
            small += 1
            continue
        after[high] -= move
        after[low] += move
        moved[high] += move
    return Balanced(after, moved)
