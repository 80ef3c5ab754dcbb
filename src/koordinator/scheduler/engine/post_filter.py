"""Ask PostFilter plugins when no node passed. Source: behaviour/scheduler B4 and B7."""

from collections.abc import Hashable, Sequence
from typing import Any

import msgspec
import numpy as np

from koordinator.scheduler.engine.answers import left_out
from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.engine.profile import Profile
from koordinator.scheduler.engine.results import FREE, Steering
from koordinator.scheduler.engine.view import View
from koordinator.scheduler.plugin.framework import FilterPlugin, Later, Mask
from koordinator.scheduler.plugin.status import (
    SUCCESS,
    Code,
    Status,
    Suggestion,
    SuggestionType,
    count_reasons,
    fit_error,
    unresolvable,
    unschedulable,
)
from koordinator.scheduler.table.pod_info import PodInfo

KeptFree = dict[int, Status]
"""Rows that pass the filters, but not together with the pods nominated to them: why."""


class CycleDiagnosis:
    """The facts that PostFilter plugins may ask for."""

    def __init__(
        self,
        view: View,
        evaluation: Evaluation,
        kept_free: KeptFree,
        steering: Steering = FREE,
    ) -> None:
        self.rejected_by = evaluation.rejected_by() | {status.plugin for status in kept_free.values()}
        self.profile_name = view.profile.name
        self._evaluation = evaluation
        self._kept_free = kept_free
        self._view = view
        self._table = view.table
        self._steering = steering
        self.suggestion: Suggestion | None = None
        if steering is not FREE:
            self._steered()

    def _steered(self) -> None:
        """Choose whose refusals count when plugins pointed at a node, or refused the pod."""
        steering = self._steering
        if not steering.status.is_success:
            self.rejected_by = steering.rejected_by | {steering.status.plugin}
        elif steering.planned and steering.is_revisable:
            self.rejected_by = frozenset()
        elif steering.planned:
            row = self._table.row_of(steering.planned)
            status = self.status_of(row) if row is not None else SUCCESS
            self.rejected_by = frozenset(filter(None, (steering.planned_by, status.plugin)))

    def status_of(self, row: int) -> Status:
        steering = self._steering
        if steering.verdict is not None:
            status = steering.verdict.status_of(row)
            return status if not status.is_success else unresolvable(*steering.status.reasons)
        if not steering.status.is_success:
            return steering.status
        if steering.planned and self._table.row_of(steering.planned) != row:
            return left_out((steering.planned_by,))
        return self._kept_free.get(row) or self._evaluation.status_of(row)

    def fit_error(self, post_filter_message: str) -> str:
        """Return the message to the user."""
        steering = self._steering
        count = self._table.node_count
        if not steering.status.is_success:
            return fit_error(count, {}, steering.status.message, post_filter_message)
        if not steering.planned or not self._evaluation.status.is_success:
            return self._evaluation.fit_error(post_filter_message, self._kept_free.values())
        row = self._table.row_of(steering.planned)
        refusals = [(left_out((steering.planned_by,)), count - (row is not None))]
        if row is not None:
            refusals.append((self.status_of(row), 1))
        reasons = count_reasons(pair for pair in refusals if pair[1])
        return fit_error(count, reasons, "", post_filter_message)

    def wake_by(self, plugin_name: str) -> None:
        self.rejected_by |= {plugin_name}

    def suggest(self, kind: SuggestionType, message: str) -> None:
        if self.suggestion is None:
            self.suggestion = Suggestion(kind, message)

    def post_filter_text(self, texts: Sequence[str]) -> str:
        """Return what PostFilter plugins said, and what one of them suggests."""
        return ", ".join(texts if self.suggestion is None else (*texts, str(self.suggestion)))

    def check(self, row: int) -> Status:
        return self._view.check(row)

    def unresolvable_rows(self) -> Mask:
        """Return a mask (capacity,) of rows where evictions cannot help."""
        hopeless = self._evaluation.unresolvable_rows()
        steering = self._steering
        if not steering.status.is_success:
            is_hopeless = steering.status.code is not Code.UNSCHEDULABLE
            if steering.verdict is None or is_hopeless:
                hopeless = np.full(hopeless.size, is_hopeless, np.bool_)
        elif steering.planned:
            row = self._table.row_of(steering.planned)
            others = np.arange(hopeless.size) != (-1 if row is None else row)
            hopeless = hopeless | others
        lost = [row for row, status in self._kept_free.items() if status.code is not Code.UNSCHEDULABLE]
        if lost:
            hopeless = hopeless.copy()
            hopeless[lost] = True
        return hopeless

    def feasible_rows(self) -> Mask:
        """Return a mask (capacity,) of rows that the filters let pass."""
        found = np.zeros(self._table.capacity, np.bool_)
        if self._evaluation.status.is_success and not self._steering.planned:
            found[self._evaluation.feasible] = True
            found[list(self._kept_free)] = False
        return found

    def class_key(self, pod: PodInfo) -> Hashable:
        return self._view.profile.class_key(pod), self._view.profile.live_key(pod)

    def about(self, pod: PodInfo) -> "CycleDiagnosis":
        view = self._view.beside(pod)
        return CycleDiagnosis(view, view.evaluate(), {})

    def active_filters(self) -> list[tuple[FilterPlugin[Any], Any]] | None:
        return self._evaluation.active_filters()


class Answered(msgspec.Struct, frozen=True):
    """The answers of PostFilter plugins: the nomination of the first that made room, how it ended, and what has to be
    waited for, if anything."""

    texts: tuple[str, ...]
    nominated: str | None
    ended: Status
    later: Later | None


def ask(profile: Profile, pod: PodInfo, found: CycleDiagnosis) -> Answered:
    """Ask PostFilter plugins in order, until one made room or says that nobody can (unresolvable)."""
    texts: tuple[str, ...] = ()
    nominated: str | None = None
    later: Later | None = None
    ended = unschedulable()
    for plugin in profile.post_filters:
        result = plugin.post_filter(pod, found)
        if result.nominated_node is not None:
            nominated = result.nominated_node
        if not result.status.is_skip:
            ended = result.status.by(plugin.name)
        later = result.later
        if later is not None:
            break
        texts = texts_with(texts, result.status)
        if is_over(result.status):
            break
    return Answered(texts, nominated, ended, later)


def texts_with(texts: tuple[str, ...], status: Status) -> tuple[str, ...]:
    """Return the texts after one more plugin; a plugin that ends the questions replaces all others."""
    said = (status.message,) if status.message else ()
    return said if is_over(status) else (*texts, *said)


def is_over(status: Status) -> bool:
    """Return whether no other plugin is asked: room was made, nobody can make any, or something went wrong."""
    if status.is_skip:
        return False
    return not status.is_rejected or status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE
