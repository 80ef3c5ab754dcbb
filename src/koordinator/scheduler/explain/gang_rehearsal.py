"""A gang with those that start with it, and all of its members tried side by side, in a rehearsal on the node table.

The scheduler's books of gangs are only looked at. Source: spec 05, sections 5 to 9.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from koordinator.api.core import Pod
from koordinator.api.gang_labels import GangMode
from koordinator.scheduler.columns import Rows
from koordinator.scheduler.engine import Engine
from koordinator.scheduler.explain import survey as surveys
from koordinator.scheduler.explain.answer import Remedy
from koordinator.scheduler.explain.lacks import lacks
from koordinator.scheduler.explain.quotas import refused_by_quota
from koordinator.scheduler.explain.quotas import remedies as quota_remedies
from koordinator.scheduler.explain.remedies import room
from koordinator.scheduler.explain.survey import Survey
from koordinator.scheduler.explain.tries import Tries
from koordinator.scheduler.plugins.coscheduling.config import gang_id_of
from koordinator.scheduler.plugins.coscheduling.events import is_on_its_own
from koordinator.scheduler.plugins.coscheduling.gangs import Gang
from koordinator.scheduler.plugins.coscheduling.plugin import Coscheduling
from koordinator.scheduler.plugins.coscheduling.running import RunningGangs
from koordinator.scheduler.pod_info import PodInfo
from koordinator.scheduler.status import Status
from koordinator.scheduler.trial import Trial


class Member(msgspec.Struct, frozen=True):
    """A member without a place, in the order of trying."""

    gang_id: str
    pod: PodInfo


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A gang with those that it is placed together with."""

    books: RunningGangs
    gang: Gang
    ids: tuple[str, ...]
    gangs: dict[str, Gang]
    """Those of `ids` that are known at all."""

    @property
    def name(self) -> str:
        """As sentences call it."""
        return f"gang {self.gang.gang_id}" if len(self.ids) == 1 else f"gang group {', '.join(self.ids)}"

    @property
    def has_started(self) -> bool:
        """Whether members are scheduled one by one since the gang has started once."""
        return is_on_its_own(self.gang)

    @property
    def existing(self) -> int:
        return sum(len(gang.children) for gang in self.gangs.values())

    def short_of(self, gang: Gang, placed: int = 0) -> int:
        """How many places a gang lacks, `placed` more taken for granted."""
        return max(self.books.rounds.lacking(gang) - placed, 0)

    def pending(self) -> list[Member]:
        """Members without a place, in the order in which a round tries them: the one that stands for the group
        first, then gang by gang, by name."""
        first = self.gang.group.representative
        keys = [(gang_id, key) for gang_id, gang in sorted(self.gangs.items()) for key in gang.startable()]
        keys.sort(key=lambda each: (each[1] != first, each))
        found = [(gang_id, self.books.info(key)) for gang_id, key in keys]
        return [Member(gang_id, info) for gang_id, info in found if info is not None]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Members tried side by side. `survey` is what the first one that found no node met, next to those before it."""

    placed: dict[str, str]
    """Member → node."""
    missed: tuple[Member, ...] = ()
    is_enough: bool = False
    status: Status | None = None
    survey: Survey | None = None
    lacks: str = ""
    rooms: tuple[Remedy, ...] = ()
    """What to free for that one, on nodes or in its quota."""

    @property
    def is_whole(self) -> bool:
        return not self.missed


def books_of(engine: Engine) -> RunningGangs | None:
    """The scheduler's gangs; None where no profile runs Coscheduling."""
    plugins = (plugin for profile in engine.profiles.values() for plugin in profile.plugins)
    return next((plugin.gangs for plugin in plugins if isinstance(plugin, Coscheduling)), None)


def gang_keys(engine: Engine) -> list[str]:
    """All gangs that somebody has named."""
    books = books_of(engine)
    return sorted(books.rounds.cache.gangs()) if books is not None else []


def group_of(engine: Engine, gang_id: str) -> Group | None:
    """The group of a gang; None when nobody has named such a gang."""
    books = books_of(engine)
    gang = books.rounds.cache.get(gang_id) if books is not None else None
    if books is None or gang is None:
        return None
    ids = gang.config.group
    known = {each: found for each in ids if (found := books.rounds.cache.get(each)) is not None}
    return Group(books=books, gang=gang, ids=ids, gangs=known)


def group_of_pod(engine: Engine, pod: Pod) -> Group | None:
    """The group of a pod's gang, as far as its rules apply to the pod."""
    gang_id = gang_id_of(pod)
    group = group_of(engine, gang_id) if gang_id else None
    return None if group is None or (group.has_started and gang_id in group.gangs) else group


def rehearse(
    engine: Engine,
    group: Group,
    members: Sequence[Member],
    *,
    rows: Rows | None = None,
    where: str = "",
    trial: Trial | None = None,
    with_survey: bool = True,
) -> Outcome:
    """Place the members one beside the other, within `trial` if there is one, and undo it."""
    if trial is None:
        with engine.table.rehearsal() as own:
            return rehearse(
                engine, group, members, rows=rows, where=where, trial=own, with_survey=with_survey
            )
    tries = Tries(engine, trial, rows)
    placed: dict[str, str] = {}
    missed: list[Member] = []
    by_gang: Counter[str] = Counter()
    found: Survey | None = None
    first: Status | None = None
    lack, rooms = "", tuple[Remedy, ...]()
    is_enough = _is_enough(group, by_gang)
    for member in members:
        node = tries.place(member.pod)
        if isinstance(node, str):
            placed[member.pod.key] = node
            by_gang[member.gang_id] += 1
            if first is None or not _is_strict(group):
                is_enough = is_enough or _is_enough(group, by_gang)
            continue
        missed.append(member)
        if first is None:
            first = node
            found = _survey(engine, member.pod) if with_survey else None
            lack = lacks(found, rows, where) if found is not None else f"is refused: {node.message}"
            rooms = _rooms(found) if found is not None else ()
    return Outcome(
        placed=placed,
        missed=tuple(missed),
        is_enough=is_enough,
        status=first,
        survey=found,
        lacks=lack,
        rooms=rooms,
    )


def _rooms(found: Survey) -> tuple[Remedy, ...]:
    """Next to the members before it."""
    if refused_by_quota(found.evaluation.status):
        return tuple(quota_remedies(found.profile, found.pod))
    return tuple(room(found)) if found.rows.size else ()


def _survey(engine: Engine, pod: PodInfo) -> Survey | None:
    profile = engine.profiles.get(pod.pod.spec.scheduler_name)
    return surveys.survey(engine, profile, pod) if profile is not None else None


def _is_strict(group: Group) -> bool:
    return group.gang.config.mode is GangMode.STRICT


def _is_enough(group: Group, placed: Counter[str]) -> bool:
    """Whether every gang has its minimum."""
    return len(group.gangs) == len(group.ids) and not any(
        group.short_of(gang, placed[gang_id]) for gang_id, gang in group.gangs.items()
    )
