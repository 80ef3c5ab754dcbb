"""Say why nodes were refused, in configured order of the filters: the first that refuses a node is its reason."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from koordinator.scheduler.engine.profile import Profile
from koordinator.scheduler.plugin.framework import FilterPlugin, Mask, ReasonCodes
from koordinator.scheduler.plugin.status import SUCCESS, Code, Status, unresolvable
from koordinator.scheduler.table.columns import LEFT_OUT, NO_NODE, RefusedBy, Rows
from koordinator.scheduler.table.nodes import NodeTable


class NodeRefusals:
    """The verdicts of one evaluation. `codes` are those of the plugin in `refused_by`."""

    def __init__(
        self,
        profile: Profile,
        table: NodeTable,
        states: Mapping[str, Any],
        refused_by: RefusedBy,
        codes: ReasonCodes,
        narrowed_by: tuple[str, ...],
    ) -> None:
        self._profile = profile
        self._table = table
        self._states = states
        self.refused_by = refused_by
        self.codes = codes
        self._narrowed_by = narrowed_by

    def status_of(self, row: int) -> Status:
        """Return why a row was refused; success for rows that pass."""
        refused_by = int(self.refused_by[row])
        if refused_by == 0:
            return SUCCESS
        if refused_by in (LEFT_OUT, NO_NODE):
            return unresolvable(left_out_reason(self._narrowed_by))
        plugin = self._profile.filters[refused_by - 1]
        self._detail(plugin, np.array([row], np.intp))
        return plugin.refusal(self._states[plugin.name], int(self.codes[row])).by(plugin.name)

    def counts(self) -> list[tuple[Status, int]]:
        """Each distinct refusal with the number of nodes that it concerns."""
        rows = self._table.rows
        for index, plugin in enumerate(self._profile.filters):
            if type(plugin).detail is not FilterPlugin.detail:
                self._detail(plugin, rows[self.refused_by[rows] == index + 1])
        pairs = self.refused_by[rows].astype(np.int64) << 16 | self.codes[rows]
        _, first, counts = np.unique(pairs, return_index=True, return_counts=True)
        found = [
            (self.status_of(int(rows[index])), int(count)) for index, count in zip(first, counts, strict=True)
        ]
        return [(status, count) for status, count in found if not status.is_success]

    def _detail(self, plugin: FilterPlugin[Any], rows: Rows) -> None:
        """Codes of a plugin that tell more in place of those that told enough."""
        if rows.size and type(plugin).detail is not FilterPlugin.detail:
            self.codes[rows] = plugin.detail(self._states[plugin.name], rows, self.codes[rows])

    def plugins(self) -> frozenset[str]:
        """Plugins that refused at least one node."""
        found = np.unique(self.refused_by[self._table.rows]).tolist()
        names = {self._profile.filters[number - 1].name for number in found if 0 < number < LEFT_OUT}
        if LEFT_OUT in found:
            names.update(self._narrowed_by)
        return frozenset(names)

    def unresolvable_rows(self) -> Mask:
        """(capacity,): rows that no eviction can help."""
        pairs = self.refused_by.astype(np.int64) << 16 | self.codes
        _, first, inverse = np.unique(pairs, return_index=True, return_inverse=True)
        verdicts = [self.status_of(int(row)).code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE for row in first]
        return np.array(verdicts, np.bool_)[inverse]


def left_out_reason(plugins: tuple[str, ...]) -> str:
    return f"node(s) didn't satisfy plugin(s) [{' '.join(plugins)}]"


def nothing_left_reason(plugins: list[str]) -> str:
    return f"node(s) didn't satisfy plugin(s) [{' '.join(plugins)}] simultaneously"
