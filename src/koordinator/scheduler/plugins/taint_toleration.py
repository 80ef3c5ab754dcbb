"""TaintToleration: taints keep pods away, or make a node less welcome. Source: behaviour/scheduler B1, B2 and B9.

Nodes share few sets of taints: each set is judged once per pod, rows look their set up.
"""

from collections.abc import Hashable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api import tolerations
from koordinator.api.core import Node, Taint
from koordinator.api.tolerations import Tolerations
from koordinator.scheduler.plugin.events import ClusterEvent
from koordinator.scheduler.plugin.framework import (
    FilterPlugin,
    Handle,
    PreScorePlugin,
    ReasonCodes,
    ScorePlugin,
    Scores,
    default_normalize,
    passes,
)
from koordinator.scheduler.plugin.status import SUCCESS, Reason, unresolvable
from koordinator.scheduler.table import pod_info
from koordinator.scheduler.table.columns import ColumnSpec, Rows, at
from koordinator.scheduler.table.nodes import RowKeeper
from koordinator.scheduler.table.pod_info import PodInfo


class TaintReason(Reason):
    OK = 0, SUCCESS
    UNTOLERATED = 1, unresolvable("node(s) had untolerated taint(s)")


class TaintState(msgspec.Struct):
    """A pod's tolerations and what they mean for each known set of taints (grows with the sets)."""

    tolerations: Tolerations
    codes: npt.NDArray[np.uint16]
    counts: npt.NDArray[np.int64]
    refuses: bool = False
    prefers: bool = False
    """Whether any known set refuses the pod, or is one that it would rather avoid."""


class TaintToleration(
    FilterPlugin[TaintState], PreScorePlugin[TaintState], ScorePlugin[TaintState], RowKeeper
):
    name = "TaintToleration"
    keyed_by = (pod_info.tolerations,)
    reasons = TaintReason
    normalizes = True
    wakes_on = (ClusterEvent.NODE_ADDED, ClusterEvent.NODE_TAINTS, ClusterEvent.POD_UPDATED)

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        # Never shrinks: clusters have dozens of distinct sets, and cached states refer to them by number.
        self._set_of_row = handle.columns["taintSet"]
        self._sets: list[tuple[Taint, ...]] = [()]
        self._ids: dict[tuple[Hashable, ...], int] = {(): 0}

    @classmethod
    def columns_of(cls, args: Any) -> tuple[ColumnSpec, ...]:
        return (ColumnSpec("taintSet", np.int32),)

    # Columns

    def node_changed(self, row: int, node: Node) -> None:
        key = tuple((taint.key, taint.value, taint.effect) for taint in node.spec.taints)
        number = self._ids.get(key)
        if number is None:
            number = self._ids[key] = len(self._sets)
            self._sets.append(tuple(node.spec.taints))
        self._set_of_row.values[row] = number

    # A pod

    def prepare(self, pod: PodInfo) -> TaintState:
        empty = np.zeros(0, np.uint16), np.zeros(0, np.int64)
        return TaintState(tuple(pod.pod.spec.tolerations), *empty)

    def filter(self, state: TaintState, rows: Rows) -> ReasonCodes:
        self._judge_new_sets(state)
        if not state.refuses:
            return passes(rows)
        return state.codes.take(at(self._set_of_row.values, rows))

    def facts(self, state: TaintState, row: int) -> tuple[str, ...]:
        taints = self._sets[int(self._set_of_row.values[row])]
        hard = [taint for taint in taints if tolerations.keeps_out(state.tolerations, (taint,))]
        return tuple(f"{tolerations.text_of(taint)} is not tolerated" for taint in hard)

    def score(self, state: TaintState, rows: Rows) -> Scores:
        self._judge_new_sets(state)
        if not state.prefers:
            return np.zeros(rows.size, np.int64)
        return state.counts.take(at(self._set_of_row.values, rows))

    def normalize(self, state: TaintState, scores: Scores) -> Scores:
        return default_normalize(scores, reverse=True)

    def _judge_new_sets(self, state: TaintState) -> None:
        new = self._sets[state.codes.size :]
        if new:
            codes = [tolerations.keeps_out(state.tolerations, taints) for taints in new]
            counts = [tolerations.untolerated_preferences(state.tolerations, taints) for taints in new]
            state.codes = np.concatenate([state.codes, np.array(codes, np.uint16)])
            state.counts = np.concatenate([state.counts, np.array(counts, np.int64)])
            state.refuses = bool(state.codes.any())
            state.prefers = bool(state.counts.any())
