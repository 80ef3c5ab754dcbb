"""ScarceResourceAvoidance: keeps nodes with scarce resources free of pods without need.

Source: behaviour/scheduler D3.
"""

import msgspec
import numpy as np

from koordinator.api import resources
from koordinator.scheduler.plugin.framework import SCORE_MAX, Handle, PreScorePlugin, ScorePlugin, Scores
from koordinator.scheduler.plugin.status import SUCCESS, Status
from koordinator.scheduler.table.columns import Rows, at
from koordinator.scheduler.table.pod_info import REQUESTS, PodInfo


class ScarceArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names of the scarce resources."""

    resources: list[str] = []


class ScarceResourceAvoidance(PreScorePlugin[frozenset[int]], ScorePlugin[frozenset[int]]):
    """The state is the columns of what a pod requests."""

    name = "ScarceResourceAvoidance"
    keyed_by = (REQUESTS,)
    args = ScarceArgs

    def __init__(self, args: ScarceArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._scarce = tuple(args.resources)

    def prepare(self, pod: PodInfo) -> frozenset[int]:
        return frozenset(column for column, _ in pod.requests)

    def pre_score(self, state: frozenset[int]) -> Status:
        return SUCCESS

    def score(self, state: frozenset[int], rows: Rows) -> Scores:
        table = self.handle.table
        registry = table.registry
        is_spare = at(table.allocatable, rows) > 0
        # Names that no node has yet have no column in the table.
        known = range(is_spare.shape[0])
        used = {*state, registry.find(resources.PODS)}
        is_spare[[column for column in known if column in used]] = False
        scarce = {registry.find(name) for name in self._scarce}
        spare = is_spare.sum(axis=0)
        wasted = is_spare[[column for column in known if column in scarce]].sum(axis=0)
        scores = (spare - wasted) * SCORE_MAX // np.maximum(spare, 1)
        return np.where((spare == 0) | (wasted == 0), SCORE_MAX, scores).astype(np.int64)
