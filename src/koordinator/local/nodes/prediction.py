"""Peak prediction of all nodes: the histograms and sums of `koordlet.predict`, over rows instead of names.

A node has a model of its system, of its prod pods and of its pods without class; a pod has one of its own.
Source: behaviour/koordlet-observe 11.
"""

import msgspec
import numpy as np

from koordinator.api.priority import PriorityClass
from koordinator.koordlet.config import PredictConfig
from koordinator.koordlet.predict import reclaimable
from koordinator.koordlet.predict.hours import HourlyPeaks
from koordinator.koordlet.predict.models import ModelRows
from koordinator.koordlet.predict.reclaimable import Predictions, ProdPods
from koordinator.koordlet.predict.trainer import CPU_PEAK_SHARE, MEMORY_PEAK_SHARE
from koordinator.local.nodes.usage import F64, Index, Mask, per_node

CLASSES = (PriorityClass.PROD, PriorityClass.NONE)
"""Classes that have a model; that of the system comes before them."""
_SYSTEM = 0


class SlotUsage(msgspec.Struct, frozen=True):
    """The usage of pods in some slots over the last interval, all (pods,); only those that were measured."""

    slots: Index
    node: Index
    cores: F64
    memory_bytes: F64
    is_class: tuple[Mask, ...]
    """Members of each of `CLASSES`."""
    is_lent_to: Mask
    """Pods that yield to the others: batch and free ones."""


class Peaks:
    """Models of all nodes and pods."""

    def __init__(self, nodes: int, config: PredictConfig, *, learns_hours: bool = False) -> None:
        self._nodes = nodes
        self._config = config
        self._of_nodes = ModelRows(config)  # row: model * nodes + node
        self._of_nodes.grow((1 + len(CLASSES)) * nodes)
        self._of_pods = ModelRows(config)  # row: slot
        self._knows_node = np.zeros((1 + len(CLASSES), nodes), np.bool_)
        self._knows_pod = np.zeros(0, np.bool_)
        self.hours = HourlyPeaks(nodes, config) if learns_hours else None

    def grow(self, slots: int) -> None:
        """Have a row for so many slots."""
        self._of_pods.grow(slots)
        self._knows_pod = np.append(self._knows_pod, np.zeros(slots - self._knows_pod.size, np.bool_))

    def forget(self, slot: int) -> None:
        """Whoever had this slot is gone."""
        if self._knows_pod[slot]:
            self._of_pods.clear(np.array([slot]))
            self._knows_pod[slot] = False

    def learn(
        self,
        pods: SlotUsage,
        node_cores: F64,
        node_bytes: F64,
        has_pods: tuple[Mask, ...],
        runs: Mask,
        now_s: float,
    ) -> None:
        """Add a sample to every model that was measured; `node_…`, `runs` and `has_pods` are (nodes,).

        `has_pods` says where pods of each of `CLASSES` are, `runs` where any pod runs: what is there and not measured
        teaches nothing, a class whose last pods are gone fades.
        """
        if self.hours is not None:
            self._learn_hours(self.hours, pods, node_cores, node_bytes, now_s)
        self._of_pods.learn(pods.slots, pods.cores, pods.memory_bytes, now_s)
        self._knows_pod[pods.slots] = True
        nodes = self._nodes
        in_pods, in_pods_bytes = (
            per_node(pods.node, each, nodes) for each in (pods.cores, pods.memory_bytes)
        )
        is_measured = np.bincount(pods.node, minlength=nodes) > 0
        system = np.maximum(node_cores - in_pods, 0.0), np.maximum(node_bytes - in_pods_bytes, 0.0)
        learnt = [(is_measured | ~runs, *system)]
        for number, (of_class, is_there) in enumerate(zip(pods.is_class, has_pods, strict=True), start=1):
            node = pods.node[of_class]
            cores, memory = (
                per_node(node, each[of_class], nodes) for each in (pods.cores, pods.memory_bytes)
            )
            is_learnt = (np.bincount(node, minlength=nodes) > 0) | (~is_there & self._knows_node[number])
            learnt.append((is_learnt, cores, memory))
        learns, all_cores, all_bytes = (np.concatenate(each) for each in zip(*learnt, strict=True))
        models = np.flatnonzero(learns)  # of all nodes, one class after the other, as their rows are
        self._of_nodes.learn(models, all_cores[models], all_bytes[models], now_s)
        self._knows_node.reshape(-1)[models] = True

    def _learn_hours(
        self, hours: HourlyPeaks, pods: SlotUsage, node_cores: F64, node_bytes: F64, now_s: float
    ) -> None:
        lent, lent_bytes = (
            per_node(pods.node[pods.is_lent_to], each[pods.is_lent_to], self._nodes)
            for each in (pods.cores, pods.memory_bytes)
        )
        cores, memory = np.maximum(node_cores - lent, 0.0), np.maximum(node_bytes - lent_bytes, 0.0)
        hours.learn(cores, memory, np.ones(self._nodes, np.bool_), now_s)

    def knows(self, rows: Index) -> Mask:
        """Return whether anything can be predicted of each of these nodes, (n,)."""
        known: Mask = self._knows_node[_SYSTEM, rows]
        return known

    def predict(self, rows: Index, allocatable: Index, pods: ProdPods, slots: Index) -> Predictions:
        """Return what prod pods of these nodes (n,) leave, (n, 2); `allocatable` is (n, 2).

        `pods.node` is a position in `rows`. `pods.peak` is filled in here, from the models of `slots`, (pods,): only
        where the pod is old enough to need it.
        """
        shares = CPU_PEAK_SHARE, MEMORY_PEAK_SHARE
        models = np.arange(1 + len(CLASSES))[:, None] * self._nodes + rows
        common = self._of_nodes.peaks(models.reshape(-1), *shares).reshape(*models.shape, 2).sum(axis=0)
        config = self._config
        needs_peak = self._knows_pod[slots] & (pods.age_s > config.cold_start_s)
        peak = np.zeros((slots.size, 2), np.int64)
        peak[needs_peak] = self._of_pods.peaks(slots[needs_peak], *shares)
        known = msgspec.structs.replace(pods, peak=peak, has_peak=needs_peak)
        margin = config.safety_margin_percent
        return reclaimable.cautious_of(
            reclaimable.by_pods_of(allocatable, known, margin, config.cold_start_s),
            reclaimable.by_class_of(allocatable, known, common, margin),
        )
