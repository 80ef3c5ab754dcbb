"""GPUs of hollow nodes that are lent: what services leave of them, and who must go when they want it back.

The decisions are the node agent's (`koordlet.predict.gpus`, `koordlet.qos.batch_gpu_evict`), with its gate BatchGPU.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from koordinator.api.core import Pod
from koordinator.host.gpu import GPUDevice
from koordinator.koordlet.config import PredictConfig
from koordinator.koordlet.gpu_shares import BATCH_GPU
from koordinator.koordlet.predict import gpus
from koordinator.koordlet.predict.gpus import MILLI_PER_PERCENT, RecentPeaks
from koordinator.koordlet.predict.models import ModelRows
from koordinator.koordlet.predict.reclaimable import Prediction, ProdPod, ProdPods, ReclaimableAmount
from koordinator.koordlet.qos import batch_gpu_evict
from koordinator.koordlet.qos.batch_gpu_evict import CardUse, LentCard
from koordinator.koordlet.qos.eviction import EvictionTask
from koordinator.local.nodes import devices
from koordinator.local.nodes.devices import Uses
from koordinator.local.nodes.fleet import FleetPolicy, HollowFleet

WHOLE_MILLI = 100 * MILLI_PER_PERCENT


def agents_of(known_after_s: float | None) -> FleetPolicy:
    """Return the policy of agents that predict services which are as old as that, and lend what these leave of GPUs;
    None lends nothing, and predicts as agents do that nobody configured."""
    if known_after_s is None:
        return FleetPolicy()
    predict = PredictConfig()
    return FleetPolicy(
        evictions=FleetPolicy().evictions | {BATCH_GPU},
        predict=PredictConfig(
            cold_start_s=known_after_s,
            training_interval_s=min(predict.training_interval_s, max(known_after_s / 2, 1.0)),
        ),
    )


class LentGPUs:
    """Peaks of cards and of pods on them, and who borrows; empty without the gate."""

    def __init__(self, fleet: HollowFleet) -> None:
        self._fleet = fleet
        config = fleet.policy.predict
        counts = [shape.gpus for shape in fleet.shapes]
        self._first = np.cumsum([0, *counts]).tolist()
        self._of_cards, self._of_shares = ModelRows(config), ModelRows(config)
        self._of_cards.grow(self._first[-1])
        self._known: dict[tuple[int, int], int] = {}
        """Slot and minor → row of `_of_shares`."""
        self._free: list[int] = []
        self._borrowers: dict[int, set[int]] = {}
        self._unsettled: set[int] = set()
        self.is_on = BATCH_GPU in fleet.policy.evictions
        self._learnt_s = float("-inf")
        self._recent: RecentPeaks[int] = RecentPeaks()

    def changed(self, slot: int) -> None:
        """Take in a pod that is on its node now, runs now, or uses its cards otherwise than before."""
        shares = self._fleet.shape_of[slot].gpu_shares
        if not self.is_on or not shares:
            return
        row = int(self._fleet.node[slot])
        self._unsettled.add(row)
        if any(share.is_lent for share in shares):
            self._borrowers.setdefault(row, set()).add(slot)

    def gone(self, slot: int, row: int) -> None:
        """Forget a pod."""
        of_row = self._borrowers.get(row)
        if of_row is not None:
            of_row.discard(slot)
            if not of_row:
                del self._borrowers[row]
        for key in [key for key in self._known if key[0] == slot] if self._known else ():
            self._free.append(self._known.pop(key))

    def unsettled_rows(self) -> list[int]:
        """Return the nodes whose cards batch pods are on, and where something has changed since nobody had to go: use
        of cards is constant between changes."""
        self._unsettled &= self._borrowers.keys()
        return list(self._unsettled)

    def settled(self, row: int) -> None:
        """Note that nobody has to go."""
        self._unsettled.discard(row)

    def learn(self, now_s: float) -> None:
        """Add a sample of what is used now to all models, if the last one is old enough."""
        if not self.is_on or now_s - self._learnt_s < self._fleet.policy.predict.training_interval_s:
            return
        self._learnt_s = now_s
        cards: dict[int, CardUse] = {}
        shares: dict[int, CardUse] = {}
        for row, shape in enumerate(self._fleet.shapes):
            if not shape.gpus:
                continue
            uses = devices.running_uses(self._fleet, row)
            for minor in range(shape.gpus):
                card = self._first[row] + minor
                cards[card] = self._owners(uses, minor)
                self._recent.add(card, _amount(cards[card]), now_s)
            for slot, of_pod in uses.items():
                for minor, use in of_pod.items():
                    if not self._is_lent(slot, minor):
                        shares[self._model(slot, minor)] = CardUse(use.core_percent, use.memory_bytes)
        for models, samples in ((self._of_cards, cards), (self._of_shares, shares)):
            if samples:
                used = samples.values()
                models.learn(
                    np.array(list(samples), np.intp),
                    np.array([each.core_percent / batch_gpu_evict.WHOLE_PERCENT for each in used]),
                    np.array([each.memory_bytes for each in used]),
                    now_s,
                )

    def predictions(self, row: int, now_s: float) -> list[tuple[GPUDevice, Prediction]]:
        """Return what can be lent of each GPU of a node, as its agent predicts it."""
        count = self._fleet.shapes[row].gpus if self.is_on else 0
        if not count:
            return []
        known = devices.known_gpus(self._fleet.shapes[row])
        shares = (gpus.CORE_PEAK_SHARE, gpus.MEMORY_PEAK_SHARE)
        first = self._first[row]
        config = self._fleet.policy.predict
        found = gpus.reclaimable_of(
            np.array([(WHOLE_MILLI, gpu.memory_bytes) for gpu in known], np.int64),
            self._held(row, now_s),
            np.maximum(
                self._of_cards.peaks(np.arange(first, first + count), *shares),
                self._recent.of(range(first, first + count), now_s),
            ),
            config.safety_margin_percent,
            config.cold_start_s,
        )
        return [(gpu, found.of(number)) for number, gpu in enumerate(known)]

    def tasks(self, row: int, pods: Sequence[Pod]) -> list[EvictionTask]:
        """Return what must go from the cards of a node whose owners want them back."""
        uses = devices.running_uses(self._fleet, row)
        found = []
        for minor, gpu in enumerate(devices.known_gpus(self._fleet.shapes[row])):
            batch = dict(self._batch(row, uses, minor))
            if batch:
                found.append(LentCard(minor, gpu.memory_bytes, self._owners(uses, minor), batch))
        return batch_gpu_evict.wanted(found, pods)

    def _batch(self, row: int, uses: Uses, minor: int) -> Iterator[tuple[str, CardUse]]:
        """Yield what each batch pod has of a card: what it was given, or uses."""
        for slot in self._borrowers.get(row, ()):
            shape = self._fleet.shape_of[slot]
            for share in shape.gpu_shares:
                if share.is_lent and share.minor == minor:
                    used = uses.get(slot, {}).get(minor, devices.NO_USE)
                    has = CardUse(share.core_percent, share.memory_bytes)
                    yield shape.uid, has.at_least(CardUse(used.core_percent, used.memory_bytes))

    def _owners(self, uses: Uses, minor: int) -> CardUse:
        """Return what is used of a card by pods to which it was not lent."""
        found = CardUse()
        for slot, of_pod in uses.items():
            if minor in of_pod and not self._is_lent(slot, minor):
                found += CardUse(of_pod[minor].core_percent, of_pod[minor].memory_bytes)
        return found

    def _is_lent(self, slot: int, minor: int) -> bool:
        shares = self._fleet.shape_of[slot].gpu_shares
        return any(share.is_lent and share.minor == minor for share in shares)

    def _model(self, slot: int, minor: int) -> int:
        row = self._known.get((slot, minor))
        if row is None:
            row = self._free.pop() if self._free else len(self._known)
            self._of_shares.grow(row + 1)
            self._of_shares.clear(np.array([row], np.intp))
            self._known[slot, minor] = row
        return row

    def _held(self, row: int, now_s: float) -> ProdPods:
        """Return the parts of a node's cards that are not lent."""
        fleet = self._fleet
        pods, on_card = [], []
        for slot in fleet.pods_on[row]:
            shape = fleet.shape_of[slot]
            for share in shape.gpu_shares:
                if share.is_lent or share.minor >= fleet.shapes[row].gpus:
                    continue
                on_card.append(share.minor)
                pods.append(
                    ProdPod(
                        ReclaimableAmount(share.core_percent * MILLI_PER_PERCENT, share.memory_bytes),
                        now_s - float(fleet.created_s[slot]) if shape.is_prod else 0.0,
                        self._peak(slot, share.minor),
                        bool(fleet.is_terminating[slot]),
                        bool(fleet.is_finished[slot]),
                    )
                )
        return ProdPods.on_nodes(pods, on_card)

    def _peak(self, slot: int, minor: int) -> ReclaimableAmount | None:
        row = self._known.get((slot, minor))
        if row is None:
            return None
        shares = (gpus.CORE_PEAK_SHARE, gpus.MEMORY_PEAK_SHARE)
        return ReclaimableAmount(*self._of_shares.peaks(np.array([row], np.intp), *shares)[0].tolist())


def _amount(use: CardUse) -> ReclaimableAmount:
    return ReclaimableAmount(int(use.core_percent * MILLI_PER_PERCENT), int(use.memory_bytes))
