"""The extension points of FragmentationGradient."""

from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api.core import Pod
from koordinator.clock import parse_rfc3339
from koordinator.scheduler.plugin.framework import (
    SCORE_MAX,
    Handle,
    PreScorePlugin,
    ScorePlugin,
    Scores,
    Watch,
)
from koordinator.scheduler.plugin.status import SKIP, SUCCESS, Status
from koordinator.scheduler.plugins.device_share import request
from koordinator.scheduler.plugins.device_share.node_device_cache import CardChooser, NodeDeviceCache
from koordinator.scheduler.plugins.fragmentation.books import CostBook, GPUNodes
from koordinator.scheduler.plugins.fragmentation.card_values import WHOLE
from koordinator.scheduler.plugins.fragmentation.demand import PodDemand
from koordinator.scheduler.plugins.fragmentation.target import Workload, prices, target_of
from koordinator.scheduler.table.columns import RowChange, Rows
from koordinator.scheduler.table.nodes import F64
from koordinator.scheduler.table.pod_info import REQUESTS, PodInfo, node_selection

PRICED_CHANGES = 256
"""Changes in the table after which models are priced anew."""
_STEPS = 1_000
"""Scores are whole numbers: steps per percent of a card."""

_OWNED = request.NAMES - request.LENT
"""Names by which a pod asks for devices of its own; pods on lent ones leave no fragment."""


class FragmentationGradientArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A pod that came `halfLifeSeconds` ago counts half as much for the target workload as one that comes now."""

    half_life_seconds: Annotated[int, msgspec.Meta(ge=1)] = 6 * 3_600


class FragmentationGradient(PreScorePlugin[PodDemand], ScorePlugin[PodDemand], CardChooser):
    """Prefers nodes, and cards, where the least GPU becomes useless for the pods that usually come."""

    name = "FragmentationGradient"
    args = FragmentationGradientArgs
    keyed_by = (REQUESTS, node_selection)
    reads = RowChange.NODE | RowChange.PODS
    normalizes = True

    def __init__(self, args: FragmentationGradientArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._table = handle.table
        self._devices = handle.table.shared(NodeDeviceCache)
        self._nodes = GPUNodes(handle.table)
        self._workload = Workload(args.half_life_seconds)
        self._made_of: tuple[int, int] = (-1, 0)
        """The version of the workload and the number of models that the target was made of."""
        self._book = CostBook(handle.table, self._nodes, target_of({}, ()))
        self._card_points: dict[int, list[int]] = {}
        """Points of a card by its free percent, for pods of so many percent; of this book."""
        self._prices: F64 = np.zeros(1)
        self._priced_at = -PRICED_CHANGES
        self._epoch = 0
        handle.watch(Watch(Pod, self._came, lambda _old, _new: None, lambda _: None))

    # The workload

    def _came(self, pod: Pod) -> None:
        if not any(_OWNED & each.resources.requests.keys() for each in pod.spec.containers):
            return
        created = pod.metadata.creation_timestamp
        at_s = parse_rfc3339(created) if created else self.handle.clock.now()
        self._workload.came(self._nodes.demand_of(pod), at_s)

    def refresh(self, now_s: float) -> None:
        names = self._nodes.model_names
        made_of = self._workload.version, len(names)
        if made_of != self._made_of or not self._book.is_current:
            self._made_of = made_of
            self._book = CostBook(self._table, self._nodes, target_of(self._workload.shares, names))
            self._card_points = {}
            self._priced_at = -PRICED_CHANGES
        if self._table.changes.sequence - self._priced_at >= PRICED_CHANGES:
            self._priced_at = self._table.changes.sequence
            self._prices = prices(self._book.target.by_models, names, self._nodes.free_by_model())
            self._epoch += 1

    # A pod

    def prepare(self, pod: PodInfo) -> PodDemand:
        self._devices.choosers[pod.pod.spec.scheduler_name] = self
        return self._nodes.demand(pod)

    def epoch(self, state: PodDemand) -> int:
        return self._epoch

    def pre_score(self, state: PodDemand) -> Status:
        return SUCCESS if self._nodes.model_names or state.shape.cards else SKIP

    def score(self, state: PodDemand, rows: Rows) -> Scores:
        costs = self._book.costs(state, rows).astype(np.float64)
        if state.shape.cards:
            costs += state.shape.gpu_percent * self._prices[self._book.models(rows)]
        return np.rint(-_STEPS * costs).astype(np.int64)

    def normalize(self, state: PodDemand, scores: Scores) -> Scores:
        """Return 100 for the best only, so that no rounding hides it; the others in proportion."""
        if not scores.size:
            return scores
        behind = scores.max() - scores
        points = (SCORE_MAX - 1) - behind * (SCORE_MAX - 1) // max(int(behind.max()), 1)
        return np.where(behind == 0, SCORE_MAX, points)

    # Cards

    def card_points(self, pod: PodInfo, row: int) -> tuple[int, ...]:
        demand = self._nodes.demand(pod)
        if not demand.shape.cards or demand.shape.percent == WHOLE:
            return ()
        points = self._card_points.get(demand.shape.percent)
        if points is None:
            costs = self._book.taking(demand.shape).card_costs
            points = [int(each) if np.isfinite(each) else _NEVER for each in np.rint(-_STEPS * costs)]
            self._card_points[demand.shape.percent] = points
        cards: npt.NDArray[np.uint8] = self._nodes.cards(np.array([row], np.intp))[:, 0]
        return tuple([points[free] for free in cards.tolist()])


_NEVER = -(1 << 60)
