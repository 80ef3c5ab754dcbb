"""Ask the filters about single nodes as the table stands, without a cached evaluation.

For trials (`NodeTable.trial`), where the table is only for a moment what it seems.
"""

from collections.abc import Hashable
from typing import Any

import numpy as np

from koordinator.scheduler.engine.answers import left_out_reason
from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.engine.evaluation_cache import evaluate
from koordinator.scheduler.engine.profile import Profile
from koordinator.scheduler.plugin.status import SUCCESS, Status, unresolvable
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.nominations import Nominations
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import Trial, trial_of


class View:
    """The filters of a profile, for one pod. States are prepared again only where a plugin's epoch asks.

    `only`: the plugins that are asked, where the answers of all others are known; not in profiles with transformers.
    """

    def __init__(
        self,
        profile: Profile,
        table: NodeTable,
        nominations: Nominations,
        pod: PodInfo,
        only: frozenset[str] | None = None,
    ) -> None:
        self._profile = profile
        self._only = only
        self._evaluators = [each for each in profile.evaluators if only is None or each.name in only]
        self._pre_filters = [each for each in profile.pre_filters if only is None or each.name in only]
        self._filters = [each for each in profile.filters if only is None or each.name in only]
        self._table = table
        self._nominations = nominations
        self._pod = pod
        self._states: dict[str, Any] = {}
        self._epochs: dict[str, tuple[Hashable, Hashable]] = {}
        self._pre_filtered: dict[str, tuple[Status, frozenset[str] | None]] = {}

    @property
    def node_count(self) -> int:
        return self._table.node_count

    @property
    def capacity(self) -> int:
        """Rows of the table."""
        return self._table.capacity

    def beside(self, pod: PodInfo) -> "View":
        """Return the same for another pod."""
        return View(self._profile, self._table, self._nominations, pod)

    def row_of(self, node_name: str) -> int | None:
        """Return the row of an existing node."""
        return self._table.row_of(node_name)

    def evaluate(self) -> Evaluation:
        """Return what all filters say about all nodes at this moment."""
        return evaluate(self._profile, self._table, self._pod)

    def check(self, row: int) -> Status:
        """Success when the node takes the pod, also next to the pods nominated to it."""
        status = self.check_with_nominated(row)
        return status if not status.is_success else self._filter(row)

    def check_with_nominated(self, row: int) -> Status:
        """Return what the filters say if the pods nominated to the node were there; success when there are none."""
        name = self._table.name_of(row)
        others = [
            other
            for other in self._nominations.that_count(name, self._pod)
            if self._table.place_of(other.uid) is None
        ]
        if not others:
            return SUCCESS
        with trial_of(self._table) as trial:
            for other in others:
                trial.add(other, name)
            return self._filter(row)

    def _filter(self, row: int) -> Status:
        extensions = self._profile.extensions
        if not extensions.transforms:
            return self._refusal(self._pod, row)
        with trial_of(self._table) as what_if:
            seen = extensions.see_before_pre_filter(self._pod, what_if)
            if not seen.status.is_success:
                return seen.status
            if what_if.is_used or (seen.pod is not self._pod) or extensions.before_filters:
                self._states = {}  # what they were made from differs each time
            return self._refusal(seen.pod, row, what_if)

    def _refusal(self, pod: PodInfo, row: int, what_if: Trial | None = None) -> Status:
        skipped: set[str] = set()
        name = self._table.name_of(row)
        for plugin in self._evaluators:
            self._refresh(plugin, pod)
        for pre in self._pre_filters:
            status, names = self._pre_filtered[pre.name]
            if status.is_skip:
                skipped.add(pre.name)
            elif not status.is_success:
                return status.by(pre.name)
            elif names is not None and name not in names:
                return unresolvable(left_out_reason((pre.name,)))
        if what_if is not None:
            shown = self._profile.extensions.see_before_filter(self._states, pod, what_if)
            if not shown.status.is_success:
                return shown.status
            if shown.pod is not pod:
                self._states = {each.name: each.prepare(shown.pod) for each in self._profile.evaluators}
        rows = np.array([row], np.intp)
        for plugin in self._filters:
            if plugin.name in skipped:
                continue
            state = self._states[plugin.name]
            code = int(plugin.filter(state, rows)[0])
            if code:
                return plugin.refusal(state, code).by(plugin.name)
        return SUCCESS

    def _refresh(self, plugin: Any, pod: PodInfo) -> None:
        """The plugin's state, made anew when what it was made from changed."""
        if plugin.name in self._states:
            if not self._profile.is_epochal(plugin):
                return
            now = (plugin.live_key(pod), plugin.epoch(self._states[plugin.name]))
            if now == self._epochs[plugin.name]:
                return
        state = self._states[plugin.name] = plugin.prepare(pod)
        if plugin in self._profile.pre_filters:
            result = plugin.pre_filter(state)
            self._pre_filtered[plugin.name] = (result.status, result.node_names)
        if self._profile.is_epochal(plugin):
            self._epochs[plugin.name] = (plugin.live_key(pod), plugin.epoch(state))
