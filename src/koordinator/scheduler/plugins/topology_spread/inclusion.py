"""Decide which nodes count for a constraint: those with all keys that the pod may use and whose taints it bears."""

from collections.abc import Hashable, Iterable

import msgspec
import numpy as np

from koordinator.api.affinity import NodeSelectorTerm
from koordinator.api.core import Pod
from koordinator.scheduler.plugin.framework import Mask
from koordinator.scheduler.table.label_columns import ABSENT, LabelColumns, TaintColumns
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.recent import Recent

INCLUSIONS_MAX = 1_024
"""Sets of nodes kept; one per distinct node selector among pods that spread, 1 byte per node."""


class InclusionPolicy(msgspec.Struct, frozen=True):
    """The demands of a constraint on nodes: all of `keys`, and what its inclusion policies look at in the pod."""

    keys: tuple[str, ...]
    honors_affinity: bool
    honors_taints: bool


class Inclusion:
    """`mask` (rows,): nodes that count. `version` changes when some node does or does not any more.

    `keys` are the labels that decide about it.
    """

    def __init__(
        self, table: NodeTable, labels: LabelColumns, taints: TaintColumns, policy: InclusionPolicy, pod: Pod
    ) -> None:
        self._table = table
        self._labels = labels
        self._taints = taints
        self._policy = policy
        self._selector = tuple(pod.spec.node_selector.items()) if policy.honors_affinity else ()
        self._terms = required_terms(pod) if policy.honors_affinity else None
        self._tolerations = tuple(pod.spec.tolerations)
        self.keys = (*policy.keys, *(key for key, _ in self._selector), *_keys_of(self._terms or ()))
        self._stamp: Hashable = None
        self._mask: Mask = np.zeros(0, np.bool_)
        self._version = 0

    @property
    def mask(self) -> Mask:
        self._refresh()
        return self._mask

    @property
    def version(self) -> int:
        self._refresh()
        return self._version

    def _refresh(self) -> None:
        stamp = (
            self._table.membership,
            self._taints.version if self._policy.honors_taints else 0,
            *[self._labels.column(key).version for key in self.keys],
        )
        if stamp == self._stamp:
            return
        self._stamp = stamp
        mask = self._computed()
        if not np.array_equal(mask, self._mask):
            self._mask = mask
            self._version += 1

    def _computed(self) -> Mask:
        rows = self._table.rows
        counts = np.ones(rows.size, np.bool_)
        for key in self._policy.keys:
            counts &= self._labels.ids(key, rows) != ABSENT
        if self._selector:
            counts &= self._labels.match_labels(self._selector, rows)
        if self._terms is not None:
            counts &= self._labels.match_terms(self._terms, rows)
        if self._policy.honors_taints:
            counts &= ~self._taints.keep_out(self._tolerations, rows)
        mask = np.zeros(self._table.capacity, np.bool_)
        mask[rows] = counts
        return mask


class Inclusions:
    """The sets of nodes of recently seen pods and constraints."""

    def __init__(self, table: NodeTable, labels: LabelColumns) -> None:
        self._table = table
        self._labels = labels
        self._taints = TaintColumns()
        table.add_keeper(self._taints)
        self._known: Recent[Inclusion] = Recent(INCLUSIONS_MAX)

    def of(self, pod: Pod, policy: InclusionPolicy) -> Inclusion:
        key = (policy, placement_key(pod, policy.honors_affinity, policy.honors_taints))
        return self._known.get(key, lambda: Inclusion(self._table, self._labels, self._taints, policy, pod))


def placement_key(pod: Pod, honors_affinity: bool, honors_taints: bool) -> bytes:
    """Return what the inclusion policies look at in a pod."""
    spec = pod.spec
    parts: list[object] = []
    if honors_affinity and (spec.node_selector or spec.affinity is not None):
        parts += [sorted(spec.node_selector.items()), required_terms(pod)]
    if honors_taints and spec.tolerations:
        parts += ["taints", spec.tolerations]
    return msgspec.json.encode(parts) if parts else b""


def required_terms(pod: Pod) -> list[NodeSelectorTerm] | None:
    """Terms of the pod's required node affinity; None when it has none."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    return None if required is None else required.node_selector_terms


def _keys_of(terms: Iterable[NodeSelectorTerm]) -> tuple[str, ...]:
    return tuple(wanted.key for term in terms for wanted in term.match_expressions)
