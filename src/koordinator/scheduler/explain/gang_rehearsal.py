"""All members of a gang tried side by side: one by one in a rehearsal on the node table, or counted.

A rehearsal is undone within a slice: a longer one is taken up again where it ended, with those counted that have been
placed. Where even that takes too long, the rest is left out, and told so. Source: behaviour/gangs 5 to 9.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from koordinator.api import resource_vector
from koordinator.scheduler.config.default_plugins import FIT
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.explain import survey as surveys
from koordinator.scheduler.explain.answer import Remedy
from koordinator.scheduler.explain.gang_group import (
    AlikeMembers,
    GangSet,
    PendingMember,
    PendingMembers,
    kind_of,
)
from koordinator.scheduler.explain.quotas import explain_quota, refused_by_quota
from koordinator.scheduler.explain.quotas import remedies as quota_remedies
from koordinator.scheduler.explain.remedies import room
from koordinator.scheduler.explain.survey import Steps, Survey, reasons
from koordinator.scheduler.explain.tries import Tries, count
from koordinator.scheduler.plugin.framework import Mask
from koordinator.scheduler.plugin.status import Status
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import Trial, rehearsal_of

REASONS_SHOWN = 3


def lacks(found: Survey, status: Status, rows: Rows | None = None, where: str = "") -> str:
    """`lacks 2 nvidia.com/gpu on every node in SpineLayer spine-3`, or the reasons with their nodes.

    `status` is what the scheduler says, `rows` (rows,) are the nodes in question (None: all), `where` says which
    these are. To be put behind the pod's name.
    """
    if refused_by_quota(status) and (quota := explain_quota(found.profile, found.pod)) is not None:
        return f"finds its quota full: {quota.sentence}"
    if not found.evaluation.status.is_success:
        return f"is refused: {status.message}" if status.message else f"is refused by {status.plugin}"
    inside = found.inside(rows)
    count = int(inside.sum())
    place = f" in {where}" if where else ""
    if short := _short(found, inside):
        return f"lacks {short} on every node{place}" if count > 1 else f"lacks {short}{place}"
    parts = [f"{number} {reason}" for reason, number in _counts(found, inside)]
    more = f", and {len(parts) - REASONS_SHOWN} more reasons" if len(parts) > REASONS_SHOWN else ""
    return f"finds no place on any of {count} nodes{place}: {', '.join(parts[:REASONS_SHOWN])}{more}"


def _short(found: Survey, inside: Mask) -> str:
    """Return the one resource that all nodes are too full for, with what the freest of them lacks; else nothing."""
    index = found.index_of(FIT)
    if index is None or not inside.any():
        return ""
    refused = found.refused[:, inside]
    if not refused[index].all() or (refused.sum(axis=0) > 1).any():
        return ""
    table = found.engine.table
    if (found.free_pods[inside] <= 0).any():
        return ""
    wanted = found.wanted
    columns = list(wanted)
    free = found.free(columns)[:, inside]
    lacking = np.maximum(np.array(list(wanted.values()))[:, np.newaxis] - free, 0)
    short = lacking > 0
    if short.any(axis=1).sum() != 1:
        return ""
    column = int(np.flatnonzero(short.any(axis=1))[0])
    name = table.registry.names[columns[column]]
    amounts = lacking[column]
    least = resource_vector.readable_lot(name, int(amounts.min()))
    at_least = "" if amounts.min() == amounts.max() else "at least "
    return f"{at_least}{least}"


def _counts(found: Survey, inside: Mask) -> list[tuple[str, int]]:
    """Return nodes in question per reason, most first."""
    if inside.all():
        return [(each.reason, each.node_count) for each in reasons(found)]
    counts: Counter[str] = Counter()
    for index in range(len(found.filters)):
        codes = found.codes[index, inside]
        for code in np.unique(codes[codes != 0]).tolist():
            for reason in found.status_of(index, code).reasons:
                counts[reason] += int((codes == code).sum())
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


SLICE_US = 8_000
"""Members placed in one slice, by what they cost."""
RESUMED_US_MAX = 10_000
"""Time that placing the pods of earlier slices again may take; beyond, the others are not tried any more."""

Prepare = Callable[[Trial], None]


class RehearsalOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The rules for trying members: on `rows` only (`where` says which these are), after `prepare` took pods away. Of
    the first that does not fit, what it lacks, unless `is_brief`. `is_live`: others wait for the end of each slice."""

    rows: Rows | None = None
    where: str = ""
    prepare: Prepare | None = None
    is_brief: bool = False
    is_live: bool = False


class RehearsalResult(msgspec.Struct, frozen=True, kw_only=True):
    """Members tried side by side. `survey` is what the first one that found no node met, next to those before it."""

    job: PendingMembers
    placed: Mapping[str, str]
    """Member → node."""
    missed: tuple[PendingMember, ...] = ()
    untried: int = 0
    """Members for whom there was no time."""
    is_enough: bool = False
    status: Status | None = None
    survey: Survey | None = None
    lacks: str = ""
    rooms: tuple[Remedy, ...] = ()
    """Amounts to free for that one, on nodes or in its quota."""
    is_room_for_all: bool = False
    """Whether `rooms` are for all members that are needed."""
    quota_full: str = ""
    """Shortage of its quota, where nodes are short first."""
    unasked: tuple[str, ...] = ()
    """Plugins that book something in Reserve, which was not tried."""

    @property
    def is_whole(self) -> bool:
        return not self.missed and not self.untried

    @property
    def first_missed(self) -> int:
        """Return how many members come before the first that found no node."""
        assert self.missed
        return self.job.members.index(self.missed[0])


def rehearse(
    engine: Engine, group: GangSet, job: PendingMembers, question: RehearsalOptions
) -> Steps[RehearsalResult]:
    """Place the members one beside the other, and undo it."""
    found = _Progress(engine, group, job, question)
    while not found.is_over:
        if not job.singly and question.prepare is None:
            found.count_all()
        else:
            with rehearsal_of(engine.table) as trial:
                if question.prepare is not None:
                    question.prepare(trial)
                with Tries(engine, trial, question.rows) as tries:
                    found.go_on(tries)
        if found.is_over:
            found.see_quota()
        yield
    return found.outcome


class _Progress:
    """The progress of the members."""

    def __init__(
        self, engine: Engine, group: GangSet, job: PendingMembers, question: RehearsalOptions
    ) -> None:
        self.is_over = False
        self._engine = engine
        self._group = group
        self._job = job
        self._asked = question
        self._needs = group.needs()
        self._index = 0
        self._placed: dict[str, str] = {}
        self._tried: list[tuple[PodInfo, str, bool]] = []
        self._missed: list[PendingMember] = []
        self._by_gang: Counter[str] = Counter()
        self._unasked: set[str] = set()
        self._found = RehearsalResult(job=job, placed=self._placed, is_enough=self._has_all())

    @property
    def outcome(self) -> RehearsalResult:
        unasked = tuple(sorted(self._unasked))
        return msgspec.structs.replace(self._found, missed=tuple(self._missed), unasked=unasked)

    def _note(self, **members: Any) -> None:
        self._found = msgspec.structs.replace(self._found, **members)

    def go_on(self, tries: Tries) -> None:
        """One slice."""
        table, is_live = self._engine.table, self._asked.is_live
        for pod, node, is_booked in self._tried:
            if table.place_of(pod.uid) is None:
                tries.again(pod, node, is_booked=is_booked)
        if is_live and tries.spent_us > RESUMED_US_MAX:
            self._note(untried=len(self._job) - self._index)
            self.is_over = True
            return
        end_us = tries.spent_us + SLICE_US
        while self._index < len(self._job.singly):
            if is_live and tries.spent_us > end_us:
                return
            self._try(tries, self._job.singly[self._index])
            self._index += 1
        self._unasked |= tries.unasked
        self.count_all()

    def count_all(self) -> None:
        """The last slice."""
        if self._job.counted is not None:
            self._count(self._job.counted)
        self.is_over = True

    def see_quota(self) -> None:
        """Ask the quota of all members that are needed what it says to them, where they ask for the same."""
        found, status = self._found.survey, self._found.status
        if found is None or status is None:
            return
        kinds = {kind_of(self._engine, each.pod) for each in self._job.singly}
        if self._job.counted is not None:
            kinds.add(kind_of(self._engine, self._job.counted.pod))
        if len(kinds) > 1:
            return
        there = Counter(each.gang_id for each in self._job.members)
        needed = sum(min(need, there[gang_id]) for gang_id, need in self._needs.items())
        quota = explain_quota(found.profile, found.pod, needed)
        if quota is None or quota.fits:
            return
        if not refused_by_quota(status):
            self._note(quota_full=quota.sentence)
            return
        rooms = tuple(quota_remedies(found.profile, found.pod, needed))
        self._note(lacks=f"finds its quota full: {quota.sentence}", rooms=rooms, is_room_for_all=True)

    def _try(self, tries: Tries, member: PendingMember) -> None:
        place = self._engine.table.place_of(member.pod.uid)
        if place is not None:  # by the scheduler, since the members were listed
            self._place(member, self._engine.table.name_of(place.row))
            return
        booked = tries.booked_count
        node = tries.place(member.pod)
        if isinstance(node, str):
            self._tried.append((member.pod, node, tries.booked_count > booked))
            self._place(member, node)
            return
        self._miss(member, node)

    def _place(self, member: PendingMember, node: str) -> None:
        self._placed[member.pod.key] = node
        self._by_gang[member.gang_id] += 1
        self._see_whether_enough()

    def _see_whether_enough(self) -> None:
        is_open = not self._missed or not self._group.is_strict
        if is_open and not self._found.is_enough and self._has_all():
            self._note(is_enough=True)

    def _miss(self, member: PendingMember, status: Status, survey: Survey | None = None) -> None:
        self._missed.append(member)
        if self._found.status is not None:
            return
        self._note(status=status)
        if not self._asked.is_brief:
            survey = survey or _survey(self._engine, member.pod)
            lacking, rooms = _lacks(survey, status, self._asked), _rooms(survey, status, self._asked.rows)
            self._note(survey=survey, lacks=lacking, rooms=rooms)

    def _count(self, counted: AlikeMembers) -> None:
        profile = self._engine.profiles[counted.pod.pod.spec.scheduler_name]
        left = [each for each in counted.members if self._engine.table.place_of(each.pod.uid) is None]
        found = count(self._engine, profile, counted.pod, len(left), self._asked.rows)
        names = [self._engine.table.name_of(row) for row in found.rows.tolist()]
        fitting, missed = left[: len(names)], left[len(names) :]
        self._placed.update(zip((each.pod.key for each in fitting), names, strict=True))
        self._by_gang.update(each.gang_id for each in fitting)
        self._see_whether_enough()
        if missed:
            is_brief = self._asked.is_brief
            survey = None if is_brief else surveys.survey(self._engine, profile, counted.pod, found.taken)
            self._miss(missed[0], found.status, survey)
            self._missed += missed[1:]

    def _has_all(self) -> bool:
        """Return whether every gang has its minimum."""
        is_known = len(self._group.gangs) == len(self._group.ids)
        return is_known and all(self._by_gang[each] >= need for each, need in self._needs.items())


def _survey(engine: Engine, pod: PodInfo) -> Survey | None:
    profile = engine.profiles.get(pod.pod.spec.scheduler_name)
    return surveys.survey(engine, profile, pod) if profile is not None else None


def _lacks(found: Survey | None, status: Status, asked: RehearsalOptions) -> str:
    if found is None:
        return f"is refused: {status.message}"
    is_booking = any(each.name == status.plugin for each in found.profile.reserves)
    if is_booking and found.takers.size:
        return f"is refused: {status.message}"
    return lacks(found, status, asked.rows, asked.where)


def _rooms(found: Survey | None, status: Status, rows: Rows | None) -> tuple[Remedy, ...]:
    """Next to the members before it."""
    if found is None:
        return ()
    if refused_by_quota(status):
        return tuple(quota_remedies(found.profile, found.pod))
    return tuple(room(found, rows)) if found.rows.size else ()
