"""Learning at which hours of the day services need this node, and telling it (feature gate PeaksByHour).

Each minute the models learn what batch yielded to in the last one: all that was used but by batch and free pods. One
file keeps them.
"""

import logging
import os

import msgspec
import numpy as np

from koordinator.api import priority
from koordinator.api.feature_gates import FeatureGate, FeatureStage
from koordinator.api.priority import PriorityClass
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.errors import ModelError
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.predict.hours import HourlyCheckpoint, HourlyPeaks
from koordinator.koordlet.predict.models import (
    FUTURE_S_MAX,
    NO_USAGE,
    NODE_USAGE,
    POD_USAGE,
    CheckpointFiles,
    TrainingUsage,
    TrainingWindow,
)
from koordinator.koordlet.predict.reclaimable import ReclaimableAmount

log = logging.getLogger(__name__)

GATE = "PeaksByHour"
NEW_GATE = FeatureGate(
    False,
    FeatureStage.ALPHA,
    "predict at which hours of the day services need the node, and report it (not in the reference)",
)
LENT_TO = (PriorityClass.BATCH, PriorityClass.FREE)
"""The pods that yield."""
_FOLDER = "hours"
"""Folder of its own: all files beside those of pods' models are removed."""
FILE = "hours.json"
_ROW = np.zeros(1, np.int64)


class HourTrainer:
    """The models of this node."""

    name = "predict hours"
    informers = ()

    def __init__(self, shared: Shared) -> None:
        self._config = shared.config.predict
        self.interval_s = self._config.training_interval_s
        self._shared = shared
        self._peaks = HourlyPeaks(1, self._config)
        checkpoints = self._config.checkpoints
        folder = os.path.join(checkpoints, _FOLDER) if checkpoints else ""
        self._files = CheckpointFiles(folder, is_read_only=shared.executor.is_dry_run)
        self._is_loaded = False
        self._saved_s = 0.0

    def run(self) -> None:
        """One round. Nothing is learnt before the pods are known: what batch uses would seem to be services'."""
        now_s = self._shared.clock.now()
        if not self._is_loaded:
            self._is_loaded = True
            self._load(now_s)
            self._saved_s = now_s
        if not self._shared.view.has_pods:
            return
        used = self._used(now_s)
        if used is None:
            return
        self._peaks.learn(np.array([used.cores]), np.array([used.memory_bytes]), np.array([True]), now_s)
        if abs(now_s - self._saved_s) >= self._config.checkpoint_interval_s:
            self._saved_s = now_s
            self._files.write(FILE, msgspec.json.encode(self._peaks.checkpoint(0, now_s)))

    def peaks(self) -> list[ReclaimableAmount]:
        """Return what batch will yield to at the peak of each hour of the day in UTC; empty while that is not known."""
        if not self._peaks.knows(_ROW)[0]:
            return []
        return [ReclaimableAmount(*amount) for amount in self._peaks.peaks(_ROW)[0].tolist()]

    def _used(self, now_s: float) -> TrainingUsage | None:
        """Return the 90th percentile over the last interval of what is not lent; None where nothing was measured."""
        window = TrainingWindow.ending(now_s, self.interval_s, self._shared.store)
        node = window.usage(NODE_USAGE)
        if node is None:
            return None
        lent = NO_USAGE
        for uid, record in self._shared.view.pods.items():
            if priority.default(record.pod) in LENT_TO:
                lent += window.usage(POD_USAGE, {kinds.POD_UID: uid}) or NO_USAGE
        return node.above(lent)

    def _load(self, now_s: float) -> None:
        content = self._files.read().get(FILE)
        if content is None:
            return
        try:
            saved = msgspec.json.decode(content, type=HourlyCheckpoint)
            if saved.updated_s > now_s + FUTURE_S_MAX:
                raise ModelError(FILE, "the checkpoint comes from the future")
            self._peaks.load(0, saved)
        except (msgspec.MsgspecError, ValueError, ModelError) as error:
            log.warning("checkpoint dropped", extra={"file": FILE, "problem": str(error)})
            self._files.remove(FILE)
