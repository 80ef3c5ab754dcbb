"""RequiresIsolation: pods that ask for proven isolation stay off nodes whose agent did not prove it
(docs/isolation-probe.md). Not in the reference."""

from collections.abc import Hashable
from typing import Any

import numpy as np

from koordinator.api import isolation, labels
from koordinator.scheduler.plugin.events import ClusterEvent
from koordinator.scheduler.plugin.framework import FilterPlugin, Handle, ReasonCodes, passes
from koordinator.scheduler.plugin.status import SUCCESS, Reason, unresolvable
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.label_columns import LabelColumns
from koordinator.scheduler.table.pod_info import PodInfo


class IsolationReason(Reason):
    OK = 0, SUCCESS
    BROKEN = 1, unresolvable("node(s) whose agent found that the required isolation does not work")
    UNPROVEN = 2, unresolvable("node(s) whose agent has not proven the required isolation")


def required_text(pod: PodInfo) -> Hashable:
    """Return what a pod requires, as it is written."""
    meta = pod.pod.metadata
    key = labels.REQUIRES_ISOLATION
    return meta.annotations.get(key, "") or meta.labels.get(key, "")


class RequiresIsolation(FilterPlugin[tuple[str, ...]]):
    """The state has the labels of nodes that count. Kinds that nobody knows are proven nowhere."""

    name = "RequiresIsolation"
    keyed_by = (required_text,)
    reasons = IsolationReason
    wakes_on = (ClusterEvent.NODE_ADDED, ClusterEvent.NODE_LABELS, ClusterEvent.POD_UPDATED)

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._labels = handle.table.shared(LabelColumns)

    def prepare(self, pod: PodInfo) -> tuple[str, ...]:
        words = str(required_text(pod)).replace(".", ",").split(",")
        return tuple(isolation.label_of(word.strip()) for word in words if word.strip())

    def filter(self, state: tuple[str, ...], rows: Rows) -> ReasonCodes:
        if not state:
            return passes(rows)
        codes = np.zeros(rows.size, np.uint16)
        codes[~self._labels.match_labels([(key, isolation.WORKS) for key in state], rows)] = (
            IsolationReason.UNPROVEN
        )
        for key in state:
            codes[self._labels.match_labels([(key, isolation.BROKEN)], rows)] = IsolationReason.BROKEN
        return codes

    def facts(self, state: tuple[str, ...], row: int) -> tuple[str, ...]:
        rows = np.array([row])
        return tuple(
            f"{key} is not {isolation.WORKS}"
            for key in state
            if not self._labels.match_labels([(key, isolation.WORKS)], rows)[0]
        )
