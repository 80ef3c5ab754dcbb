"""Learning what pods and the node use, and telling the peaks: each minute, from the last minute's samples.

Source: behaviour/koordlet-observe 11.3 and 11.4. Otherwise than in the reference, what could not be measured teaches
nothing (instead of zero), and a class without pods is not predicted to use anything.
"""

from collections.abc import Mapping, Sequence

from koordinator.api import priority
from koordinator.api.core import Pod
from koordinator.api.priority import PriorityClass
from koordinator.api.quantity import QuantityError
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.errors import ModelError
from koordinator.koordlet.metrics import NodeGauge
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.predict import reclaimable
from koordinator.koordlet.predict.models import (
    CLASSES,
    NO_USAGE,
    NODE,
    NODE_ITEMS,
    NODE_USAGE,
    POD_USAGE,
    SYSTEM,
    KeptModels,
    TrainingUsage,
    TrainingWindow,
)
from koordinator.koordlet.predict.reclaimable import NOTHING, Prediction, ProdPods, ReclaimableAmount

CPU_PEAK_SHARE, MEMORY_PEAK_SHARE = 0.95, 0.98


class Trainer:
    """The models of this node."""

    name = "predict"
    informers = ()

    def __init__(self, shared: Shared) -> None:
        self.interval_s = shared.config.predict.training_interval_s
        self._shared = shared
        self._config = shared.config.predict
        self._kept = KeptModels(
            self._config, self._config.checkpoints, is_read_only=shared.executor.is_dry_run
        )
        self.models = self._kept.models

    def run(self) -> None:
        """One round. Nothing is learnt before the pods are known: all that is used would seem to be the system's."""
        if not self._shared.view.has_pods:
            return
        now_s = self._shared.clock.now()
        self._kept.load(self._is_wanted, now_s)
        self.models.learn(self._usages(now_s), now_s)
        self._kept.tidy(now_s)

    def prod(self, pods: Sequence[Pod]) -> Prediction:
        """Return what of these pods' requests can be lent, and the peak of what stays: the cautious one of two
        predictors.

        Raises: ModelError when the node or the use of its system is not known.
        """
        node = self._shared.view.node
        if node is None:
            raise ModelError(NODE, "the node is not known yet")
        peaks = self.models.peaks(CPU_PEAK_SHARE, MEMORY_PEAK_SHARE)
        if SYSTEM not in peaks:
            raise ModelError(SYSTEM, "nothing was learnt yet")
        common = peaks[SYSTEM] + _of_class(peaks, PriorityClass.PROD)
        common += _of_class(peaks, PriorityClass.NONE)
        margin = self._config.safety_margin_percent
        try:
            allocatable = reclaimable.allocatable_of(node)
        except QuantityError as error:
            raise ModelError(NODE, f"status.allocatable: {error}") from error
        found = reclaimable.prod_pods(pods, peaks, reclaimable.ages_s(pods, self._shared.clock.now()))
        prod, total = ProdPods.on_one_node(found), reclaimable.rows((allocatable,))
        by_pods = reclaimable.by_pods_of(total, prod, margin, self._config.cold_start_s)
        by_class = reclaimable.by_class_of(total, prod, reclaimable.rows((common,)), margin)
        both = reclaimable.cautious_of(by_pods, by_class).of(0)
        self._set_metrics("podReclaimablePredictor", by_pods.of(0))
        self._set_metrics("priorityReclaimablePredictor", by_class.of(0))
        self._set_metrics("minPredictor", both)
        return both

    def _usages(self, now_s: float) -> dict[str, TrainingUsage]:
        """Return the 90th percentile over the last interval, by model; without those that were not measured."""
        pods = self._shared.view.pods
        window = TrainingWindow.ending(now_s, self.interval_s, self._shared.store)
        usages = {
            uid: usage for uid in pods if (usage := window.usage(POD_USAGE, {kinds.POD_UID: uid})) is not None
        }
        by_class: dict[PriorityClass, TrainingUsage] = {}
        present = set()
        for uid, record in pods.items():
            priority_class = priority.default(record.pod)
            if uid in usages:
                by_class[priority_class] = by_class.get(priority_class, NO_USAGE) + usages[uid]
            if record.is_active:
                present.add(priority_class)
        everybody = sum(by_class.values(), NO_USAGE)
        is_running = any(record.pod.status.phase == "Running" for record in pods.values())
        node = window.usage(NODE_USAGE)
        if node is not None:
            usages[NODE] = node
            if by_class or not is_running:
                usages[SYSTEM] = node.above(everybody)
        for priority_class, model in CLASSES.items():
            if priority_class in by_class:
                usages[model] = by_class[priority_class]
            elif priority_class not in present and model in self.models:
                usages[model] = NO_USAGE  # what its last pods used fades
        return usages

    def _is_wanted(self, name: str) -> bool | None:
        """Return whether a checkpoint is of use: of the node at once, of pods as soon as some are known."""
        pods = self._shared.view.pods
        if name in NODE_ITEMS:
            return True
        return name in pods if pods else None

    def _set_metrics(self, predictor: str, prediction: Prediction) -> None:
        metrics = self._shared.metrics
        _set(metrics.predicted_reclaimable, predictor, prediction.reclaimable)
        _set(metrics.predicted_peak, predictor, prediction.peak)


def _set(gauge: NodeGauge, predictor: str, amount: ReclaimableAmount) -> None:
    gauge.set(amount.cpu_milli / 1000, predictor, "cpu", "core")
    gauge.set(amount.memory_bytes, predictor, "memory", "byte")


def _of_class(peaks: Mapping[str, ReclaimableAmount], priority_class: PriorityClass) -> ReclaimableAmount:
    """Nothing for a class that never had pods here."""
    return peaks.get(CLASSES[priority_class], NOTHING)
