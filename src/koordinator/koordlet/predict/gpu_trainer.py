"""Learning what services use of each GPU, and telling what they leave of it (feature gate BatchGPU).

A model stands for a pod on a card, or for all on a card that is not lent; it learns each minute, from the last minute's
samples. Nothing is learnt from what could not be measured.
"""

import os
from collections.abc import Iterator, Mapping

import numpy as np

from koordinator.api import pod_labels
from koordinator.host.gpu import GPUDevice
from koordinator.koordlet import gpu_shares
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.gpu_shares import GPUShare
from koordinator.koordlet.node_pods import PodRecord
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.predict import gpus, reclaimable
from koordinator.koordlet.predict.gpus import MILLI_PER_PERCENT, RecentPeaks
from koordinator.koordlet.predict.models import NO_USAGE, KeptModels, TrainingUsage, TrainingWindow
from koordinator.koordlet.predict.reclaimable import NOTHING, Prediction, ProdPod, ProdPods, ReclaimableAmount

_FOLDER = "gpus"
_BETWEEN = "_"
_WHOLE_PERCENT = 100
_NODE_USAGE = (kinds.NODE_GPU_CORE, kinds.NODE_GPU_MEMORY)
_POD_USAGE = (kinds.POD_GPU_CORE, kinds.POD_GPU_MEMORY)


class GPUTrainer:
    """The models of this node's GPUs."""

    name = "predict GPUs"
    informers = ()

    def __init__(self, shared: Shared) -> None:
        config = shared.config.predict
        self.interval_s = config.training_interval_s
        self._shared = shared
        self._config = config
        folder = os.path.join(config.checkpoints, _FOLDER) if config.checkpoints else ""
        self._kept = KeptModels(config, folder, is_read_only=shared.executor.is_dry_run)
        self._recent: RecentPeaks[str] = RecentPeaks()

    def run(self) -> None:
        """One round. Nothing is learnt before the pods are known: what is lent would seem to be the owners'."""
        if not self._shared.view.has_pods:
            return
        now_s = self._shared.clock.now()
        self._kept.load(self._is_wanted, now_s)
        usages: dict[str, TrainingUsage] = {}
        for card in self._cards():
            usages |= self._usages(card, now_s)
        for card in self._cards():
            if (used := usages.get(card.uuid)) is not None:
                self._recent.add(card.uuid, _amount(used), now_s)
        self._kept.models.learn(usages, now_s)
        self._kept.tidy(now_s)

    def predictions(self) -> Mapping[int, Prediction]:
        """Return what can be lent of each GPU by minor, in thousandths of its compute and bytes, and the peak of what
        stays with its owners."""
        cards = self._cards()
        if not cards:
            return {}
        peaks = self._kept.models.peaks(gpus.CORE_PEAK_SHARE, gpus.MEMORY_PEAK_SHARE)
        total = [(_WHOLE_PERCENT * MILLI_PER_PERCENT, card.memory_bytes) for card in cards]
        common = [peaks.get(card.uuid, NOTHING) for card in cards]
        recent = self._recent.of([card.uuid for card in cards], self._shared.clock.now())
        learnt = np.array([(each.cpu_milli, each.memory_bytes) for each in common], np.int64)
        found = gpus.reclaimable_of(
            np.array(total, np.int64),
            self._owners(cards, peaks),
            np.maximum(learnt, recent),
            self._config.safety_margin_percent,
            self._config.cold_start_s,
        )
        return {card.minor: found.of(number) for number, card in enumerate(cards)}

    def _cards(self) -> list[GPUDevice]:
        return list(self._shared.gpus.devices) if self._shared.gpus is not None else []

    def _is_wanted(self, name: str) -> bool | None:
        """Return whether a checkpoint is of use: of cards at once, of pods as soon as some are known."""
        pod, _, card = name.rpartition(_BETWEEN)
        pods = self._shared.view.pods
        if card not in {each.uuid for each in self._cards()}:
            return False
        if not pod:
            return True
        return pod in pods if pods else None

    def _shares(self, card: GPUDevice) -> Iterator[tuple[PodRecord, GPUShare]]:
        """Yield the parts of a card that pods hold."""
        for record in self._shared.view.pods.values():
            for share in gpu_shares.shares_of(record.pod):
                if share.is_of(card.minor, card.uuid):
                    yield record, share

    def _usages(self, card: GPUDevice, now_s: float) -> dict[str, TrainingUsage]:
        """Return the 90th percentile over the last interval of each owner of a card, and of all that is not lent."""
        window = TrainingWindow.ending(now_s, self.interval_s, self._shared.store)
        at = {kinds.GPU_MINOR: str(card.minor), kinds.GPU_UUID: card.uuid}
        usages: dict[str, TrainingUsage] = {}
        owners, lent = NO_USAGE, NO_USAGE
        for record, share in self._shares(card):
            found = window.usage(_POD_USAGE, {**at, kinds.POD_UID: record.uid}, _WHOLE_PERCENT)
            if found is None:
                continue
            if share.is_lent:
                lent += found
            else:
                usages[_model(record.uid, card)] = found
                owners += found
        whole = window.usage(_NODE_USAGE, at, _WHOLE_PERCENT)
        if whole is not None:
            # What runs outside of pods counts as the owners'.
            usages[card.uuid] = owners + whole.above(owners + lent)
        return usages

    def _owners(self, cards: list[GPUDevice], peaks: Mapping[str, ReclaimableAmount]) -> ProdPods:
        """Return the parts of cards that are not lent; those of pods that are no services never lend anything."""
        pods = [record.pod for record in self._shared.view.pods.values()]
        ages_s = reclaimable.ages_s(pods, self._shared.clock.now())
        found, on_card = [], []
        for number, card in enumerate(cards):
            for record, share in self._shares(card):
                if share.is_lent:
                    continue
                on_card.append(number)
                found.append(
                    ProdPod(
                        ReclaimableAmount(share.core_percent * MILLI_PER_PERCENT, share.memory_bytes),
                        ages_s[record.uid] if reclaimable.is_prod(record.pod) else 0.0,
                        peaks.get(_model(record.uid, card)),
                        record.pod.metadata.deletion_timestamp is not None,
                        pod_labels.is_terminated(record.pod),
                    )
                )
        return ProdPods.on_nodes(found, on_card)


def _amount(used: TrainingUsage) -> ReclaimableAmount:
    return ReclaimableAmount(int(used.cores * _WHOLE_PERCENT * MILLI_PER_PERCENT), int(used.memory_bytes))


def _model(uid: str, card: GPUDevice) -> str:
    return f"{uid}{_BETWEEN}{card.uuid}"
