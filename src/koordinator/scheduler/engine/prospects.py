"""Tell what nodes say to pods beside the one whose cycle runs: for plugins that decide about several pods at once."""

from collections.abc import Callable, Hashable
from typing import Any

import msgspec
import numpy as np

from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.engine.evaluation_cache import EvaluationCache, evaluate
from koordinator.scheduler.engine.lookahead import BY_PLACEMENT
from koordinator.scheduler.engine.profile import Profile
from koordinator.scheduler.engine.view import View
from koordinator.scheduler.plugin.framework import FilterPlugin, Handle
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.nominations import Nominations
from koordinator.scheduler.table.pod_info import PodInfo


class Foresight(msgspec.Struct, frozen=True, eq=False):
    """`foreseen` are filters, with their states, that pods on a row can turn against the next one and that can tell
    when (`FilterPlugin.filter_ahead`). `blind` are the names of those that have to be tried; None: all filters."""

    foreseen: list[tuple[FilterPlugin[Any], Any]]
    blind: frozenset[str] | None
    may_yield: frozenset[str] | None = frozenset()
    """Those of the blind that may let a pod onto a node that they refuse now once other pods are somewhere; None: nodes
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
        """Return what all filters say about all nodes now: shared with all pods of the class, unless the table is
        only for a moment what it seems. `lasting_key`: for who knows it.
        """
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
        is_fixed = not any(map(self._is_changing, evaluation.narrowed_by))
        return Foresight(foreseen, frozenset(blind), frozenset(may_yield) if is_fixed else None)

    def refused_by(self, evaluation: Evaluation, names: frozenset[str]) -> Rows:
        """Return the rows (refused rows,) that one of these filters refuses, and none before it."""
        numbers = [at + 1 for at, plugin in enumerate(self._profile.filters) if plugin.name in names]
        return np.flatnonzero(np.isin(evaluation.refused_by, numbers))

    def _is_changing(self, name: str) -> bool:
        """Return whether a plugin may say something else of the same pod later."""
        return any(
            plugin.name == name and self._profile.is_epochal(plugin) for plugin in self._profile.plugins
        )


class ProspectsSource(msgspec.Struct, frozen=True):
    """The source of prospects for plugins: the scheduler's shared object of this kind (`Handle.shared`)."""

    of: Callable[[PodInfo], Prospects | None]


def prospects_of(handle: Handle, pod: PodInfo) -> Prospects | None:
    """Return what nodes say to pods of the pod's profile; None for pods of other schedulers."""
    return handle.shared(ProspectsSource, lambda _: ProspectsSource(lambda _: None)).of(pod)
