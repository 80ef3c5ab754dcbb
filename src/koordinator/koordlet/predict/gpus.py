"""Work out how much of each GPU can be lent: what services requested of it, above their predicted peak there.

The formulas are those of CPU and memory (`reclaimable`), with cards in place of nodes; docs/models.md has them.
Amounts have shape (cards, 2) or (shares, 2): thousandths of a card's compute, and bytes.
"""

from collections.abc import Hashable, Sequence
from typing import Final, Generic, TypeVar

import numpy as np

from koordinator.koordlet.predict import reclaimable
from koordinator.koordlet.predict.reclaimable import Amounts, Predictions, ProdPods, ReclaimableAmount

K = TypeVar("K", bound=Hashable)

LENDABLE_PERCENT: Final = 90
"""A tenth of each card is never lent: the agent sees by it that an owner grows before the card is full."""
CORE_PEAK_SHARE, MEMORY_PEAK_SHARE = 0.98, 1.0
"""Compute can be shared for a moment; memory that is lent is not there when its owner asks for it, so its peak is the
most that was seen."""
RECENT_S = 600.0
"""So long an owner that grew keeps what it took, though that is rare in its history: else batch pods would come to its
card, and go, until a fiftieth of the history is like that."""
MILLI_PER_PERCENT = 10
_PERCENT = 100


class RecentPeaks(Generic[K]):
    """The most that was used of each card lately, by any name of cards."""

    def __init__(self) -> None:
        self._used: dict[K, list[tuple[float, ReclaimableAmount]]] = {}

    def add(self, card: K, use: ReclaimableAmount, now_s: float) -> None:
        """Take in what is used now."""
        known = self._used.get(card, [])
        self._used[card] = [*(each for each in known if now_s - each[0] < RECENT_S), (now_s, use)]

    def of(self, cards: Sequence[K], now_s: float) -> Amounts:
        """Return the peaks of cards, (cards, 2); nothing of those that were not measured lately."""
        peaks = np.zeros((len(cards), 2), np.int64)
        for row, card in enumerate(cards):
            for at_s, use in self._used.get(card, ()):
                if now_s - at_s < RECENT_S:
                    peaks[row] = np.maximum(peaks[row], (use.cpu_milli, use.memory_bytes))
        return peaks


def reclaimable_of(
    total: Amounts, owners: ProdPods, peak: Amounts, margin_percent: int, cold_start_s: float
) -> Predictions:
    """Return what can be lent of each card, and what stays with its owners at their peak.

    `total` is what cards have, `peak` the common peak of all that is not lent, both (cards, 2). `owners.node` is the
    position of a share's card; those of pods that lend nothing have age 0.
    """
    lendable = total * LENDABLE_PERCENT // _PERCENT
    by_pods = reclaimable.by_pods_of(lendable, owners, margin_percent, cold_start_s)
    by_card = reclaimable.by_class_of(lendable, owners, peak, margin_percent)
    # Who is not predicted may use all that it asked for.
    both = reclaimable.cautious_of(by_pods, by_card)
    left = np.maximum(lendable - by_pods.peak, 0)
    return Predictions(np.minimum(both.reclaimable, left), both.peak)
