"""Ask the filters about single nodes as the table stands, without a cached evaluation; and tell plugins that decide
about several pods at once what nodes say to pods beside the one whose cycle runs (`Prospects`).

For trials (`NodeTable.trial`), where the table is only for a moment what it seems.
"""

from collections.abc import Callable, Hashable
from typing import Any

import msgspec
import numpy as np

from koordinator.scheduler.engine.answers import left_out
from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.engine.evaluation_cache import EvaluationCache, evaluate
from koordinator.scheduler.engine.profile import Profile
from koordinator.scheduler.plugin.framework import FilterPlugin, Handle
from koordinator.scheduler.plugin.status import SUCCESS, Status
from koordinator.scheduler.table.columns import BY_PLACEMENT, Rows
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import Nominations, PodInfo
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
        self.profile = profile
        self._only = only
        self._evaluators = [each for each in profile.evaluators if only is None or each.name in only]
        self._pre_filters = [each for each in profile.pre_filters if only is None or each.name in only]
        self._filters = [each for each in profile.filters if only is None or each.name in only]
        self.table = table
        self._nominations = nominations
        self._pod = pod
        self._states: dict[str, Any] = {}
        self._epochs: dict[str, tuple[Hashable, Hashable]] = {}
        self._pre_filtered: dict[str, tuple[Status, frozenset[str] | None]] = {}

    def beside(self, pod: PodInfo) -> "View":
        """Return the same for another pod."""
        return View(self.profile, self.table, self._nominations, pod)

    def evaluate(self) -> Evaluation:
        """Return what all filters say about all nodes at this moment."""
        return evaluate(self.profile, self.table, self._pod)

    def check(self, row: int) -> Status:
        """Success when the node takes the pod, also next to the pods nominated to it."""
        status = self.check_with_nominated(row)
        return status if not status.is_success else self._filter(row)

    def check_with_nominated(self, row: int) -> Status:
        """Return what the filters say if the pods nominated to the node were there; success when there are none."""
        name = self.table.name_of(row)
        others = [
            other
            for other in self._nominations.that_count(name, self._pod)
            if self.table.place_of(other.uid) is None
        ]
        if not others:
            return SUCCESS
        with trial_of(self.table) as trial:
            for other in others:
                trial.add(other, name)
            return self._filter(row)

    def _filter(self, row: int) -> Status:
        extensions = self.profile.extensions
        shown = extensions.shown_nodes(self._pod) if extensions.node_transformers else None
        if shown is None and not extensions.transforms:
            return self._refusal(self._pod, row)
        with trial_of(self.table) as what_if:
            if shown is not None:
                # Whoever looks around has to see all nodes as they are shown.
                shown.show(what_if) if self._looks_around() else shown.show_row(row, what_if)
            seen = extensions.see_before_pre_filter(self._pod, what_if)
            if not seen.status.is_success:
                return seen.status
            if what_if.is_used or (seen.pod is not self._pod) or extensions.before_filters:
                self._states = {}  # what they were made from differs each time
            return self._refusal(seen.pod, row, what_if)

    def _looks_around(self) -> bool:
        epochal = [each for each in self.profile.epochal if self._only is None or each.name in self._only]
        return any(plugin.epoch(plugin.prepare(self._pod)) is not None for plugin in epochal)

    def _refusal(self, pod: PodInfo, row: int, what_if: Trial | None = None) -> Status:
        skipped: set[str] = set()
        name = self.table.name_of(row)
        for plugin in self._evaluators:
            self._refresh(plugin, pod)
        for pre in self._pre_filters:
            status, names = self._pre_filtered[pre.name]
            if status.is_skip:
                skipped.add(pre.name)
            elif not status.is_success:
                return status.by(pre.name)
            elif names is not None and name not in names:
                return left_out((pre.name,))
        if what_if is not None:
            shown = self.profile.extensions.see_before_filter(self._states, pod, what_if)
            if not shown.status.is_success:
                return shown.status
            if shown.pod is not pod:
                self._states = {each.name: each.prepare(shown.pod) for each in self.profile.evaluators}
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
        """Prepare the plugin's state anew when what it was made from changed."""
        if plugin.name in self._states:
            if not self.profile.is_epochal(plugin):
                return
            now = (plugin.live_key(pod), plugin.epoch(self._states[plugin.name]))
            if now == self._epochs[plugin.name]:
                return
        state = self._states[plugin.name] = plugin.prepare(pod)
        if plugin in self.profile.pre_filters:
            result = plugin.pre_filter(state)
            self._pre_filtered[plugin.name] = (result.status, result.node_names)
        if self.profile.is_epochal(plugin):
            self._epochs[plugin.name] = (plugin.live_key(pod), plugin.epoch(state))


class Foresight(msgspec.Struct, frozen=True, eq=False):
    """`foreseen` are filters, with their states, that pods on a row can turn against the next one and that can tell
    when (`FilterPlugin.filter_ahead`). `blind` are the names of those that have to be tried; None: all filters."""

    foreseen: list[tuple[FilterPlugin[Any], Any]]
    blind: frozenset[str] | None
    may_yield: frozenset[str] | None = frozenset()
    """Blind plugins that may let a pod onto a node that they refuse now once other pods are somewhere; None: nodes
    that nobody was asked about may come into question then."""

    @property
    def is_complete(self) -> bool:
        """Return whether nothing has to be tried."""
        return self.blind is not None and not self.blind


class Prospects:
    """Answers for pods of one profile."""

    def __init__(
        self, profile: Profile, table: NodeTable, nominations: Nominations, cache: EvaluationCache
    ) -> None:
        self._profile = profile
        self._table = table
        self._nominations = nominations
        self._cache = cache

    def class_key(self, pod: PodInfo) -> Hashable:
        """Equal for pods that get the same answers at this moment."""
        return self._profile.name, self._profile.class_key(pod), self._profile.live_key(pod)

    def lasting_key(self, pod: PodInfo) -> Hashable:
        """Return the part of `class_key` that holds as long as the pod is not changed."""
        return self._profile.class_key(pod)

    def live_key(self, pod: PodInfo) -> Hashable:
        """Return the other part."""
        return self._profile.live_key(pod)

    def evaluate(self, pod: PodInfo, lasting_key: Hashable = None) -> Evaluation:
        """Return what all filters say about all nodes now: shared with all pods of the class, unless the table is only
        for a moment what it seems. `lasting_key`: for who knows it."""
        if self._table.is_trial:
            return evaluate(self._profile, self._table, pod)
        key = self._profile.class_key(pod) if lasting_key is None else lasting_key
        return self._cache.evaluate(self._profile, pod, key)

    def view(self, pod: PodInfo, only: frozenset[str] | None = None) -> View:
        """Return what the filters say about single nodes, also within trials; `only` some of them, if given."""
        return View(self._profile, self._table, self._nominations, pod, only)

    def nominated_beside(self, pod: PodInfo) -> list[int]:
        """Return rows that are kept free for pods which this one has to respect."""
        rows = [
            self._table.row_of(name)
            for name in self._nominations.nodes
            if self._nominations.that_count(name, pod)
        ]
        return sorted(row for row in rows if row is not None)

    def foresight(self, evaluation: Evaluation) -> Foresight:
        """Return which filters can tell what pods of the class on a row mean for the next one there."""
        if not evaluation.is_of_table:
            return Foresight([], None, None)
        foreseen: list[tuple[FilterPlugin[Any], Any]] = []
        blind: set[str] = set()
        may_yield: set[str] = set()
        for plugin, state in evaluation.active_filters() or ():
            looks_around = self._profile.has_epoch(plugin) and plugin.epoch(state) is not None
            if looks_around or not plugin.foresees(state):
                blind.add(plugin.name)
                if not plugin.fewer_pods_help:
                    may_yield.add(plugin.name)
            elif int(plugin.reads) & BY_PLACEMENT:
                foreseen.append((plugin, state))
        narrowing = (each for each in self._profile.pre_filters if each.name in evaluation.narrowed_by)
        is_fixed = not any(map(self._profile.is_epochal, narrowing))  # else it may narrow otherwise later
        return Foresight(foreseen, frozenset(blind), frozenset(may_yield) if is_fixed else None)

    def refused_by(self, evaluation: Evaluation, names: frozenset[str]) -> Rows:
        """Return the rows (refused rows,) that one of these filters refuses, and none before it."""
        numbers = [at + 1 for at, plugin in enumerate(self._profile.filters) if plugin.name in names]
        return np.flatnonzero(np.isin(evaluation.refused_by, numbers))


class ProspectsSource(msgspec.Struct, frozen=True):
    """The source of prospects for plugins: the scheduler's shared object of this kind (`Handle.shared`)."""

    of: Callable[[PodInfo], Prospects | None]


def prospects_of(handle: Handle, pod: PodInfo) -> Prospects | None:
    """Return what nodes say to pods of the pod's profile; None for pods of other schedulers."""
    return handle.shared(ProspectsSource, lambda _: ProspectsSource(lambda _: None)).of(pod)
