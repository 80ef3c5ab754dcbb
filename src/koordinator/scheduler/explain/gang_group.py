"""A gang with those that start with it; the scheduler's books of gangs are only looked at. Source: behaviour/gangs 5 to
9."""

from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from koordinator.api.core import Pod
from koordinator.api.gang_labels import GangMode
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.explain.survey import Steps
from koordinator.scheduler.explain.tries import can_count
from koordinator.scheduler.plugins.coscheduling.config import gang_id_of
from koordinator.scheduler.plugins.coscheduling.events import is_on_its_own
from koordinator.scheduler.plugins.coscheduling.gangs import Gang
from koordinator.scheduler.plugins.coscheduling.plugin import Coscheduling
from koordinator.scheduler.plugins.coscheduling.running import RunningGangs
from koordinator.scheduler.plugins.elastic_quota.plugin import ElasticQuota
from koordinator.scheduler.table.pod_info import PodInfo


class PendingMember(msgspec.Struct, frozen=True):
    """A member without a place, in the order of trying."""

    gang_id: str
    pod: PodInfo


class GangSet(msgspec.Struct, frozen=True, kw_only=True):
    """A gang with those that it is placed together with."""

    books: RunningGangs
    gang: Gang
    ids: tuple[str, ...]
    gangs: dict[str, Gang]
    """Gangs of `ids` that are known at all."""

    @property
    def title(self) -> str:
        """Return the name as sentences begin with it."""
        return f"Gang {self.gang.gang_id}" if len(self.ids) == 1 else f"Gang group {', '.join(self.ids)}"

    @property
    def has_started(self) -> bool:
        """Return whether members are scheduled one by one since the gang has started once."""
        return is_on_its_own(self.gang)

    def short_of(self, gang: Gang, placed: int = 0) -> int:
        """Return how many places a gang lacks, `placed` more taken for granted."""
        return max(self.books.rounds.lacking(gang) - placed, 0)

    @property
    def is_strict(self) -> bool:
        return self.gang.config.mode is GangMode.STRICT

    def needs(self) -> dict[str, int]:
        """Return how many places each gang lacks to start."""
        return {gang_id: self.short_of(gang) for gang_id, gang in self.gangs.items()}

    def pending(self) -> Iterator[PendingMember | str]:
        """Yield members without a place, in the order in which a round tries them: the one that stands for the group
        first, then gang by gang, by name. Of those whose requests cannot be read the name alone."""
        first = self.gang.group.representative
        keys = [(gang_id, key) for gang_id, gang in sorted(self.gangs.items()) for key in gang.startable()]
        keys.sort()
        keys.sort(key=lambda each: each[1] != first)
        for gang_id, key in keys:
            info = self.books.info(key)
            if info is not None:
                yield PendingMember(gang_id, info)
            elif self.books.pod(key) is not None:
                yield key


def books_of(engine: Engine) -> RunningGangs | None:
    """Return the scheduler's gangs; None where no profile runs Coscheduling."""
    return next((plugin.gangs for plugin in engine.plugins_of(Coscheduling)), None)


def gang_keys(engine: Engine) -> list[str]:
    """Return all gangs that somebody has named."""
    books = books_of(engine)
    return sorted(books.rounds.cache.gangs()) if books is not None else []


def group_of(engine: Engine, gang_id: str) -> GangSet | None:
    """Return the group of a gang; None when nobody has named such a gang."""
    books = books_of(engine)
    gang = books.rounds.cache.get(gang_id) if books is not None else None
    if books is None or gang is None:
        return None
    ids = gang.config.group
    known = {each: found for each in ids if (found := books.rounds.cache.get(each)) is not None}
    return GangSet(books=books, gang=gang, ids=ids, gangs=known)


def group_of_pod(engine: Engine, pod: Pod) -> GangSet | None:
    """Return the group of a pod's gang, as far as its rules apply to the pod."""
    gang_id = gang_id_of(pod)
    group = group_of(engine, gang_id) if gang_id else None
    return None if group is None or (group.has_started and gang_id in group.gangs) else group


SINGLY_MAX = 128
"""Up to so many members are tried one by one, about 0.1 ms each, as the scheduler would."""
MEMBERS_PER_SLICE = 256

Kind = tuple[object, ...]


class AlikeMembers(msgspec.Struct, frozen=True):
    """Members that are alike; `pod` is asked about for all of them."""

    pod: PodInfo
    members: tuple[PendingMember, ...]


class PendingMembers(msgspec.Struct, frozen=True):
    """All members without a place."""

    singly: tuple[PendingMember, ...]
    """First, in the order in which a round tries them."""
    counted: AlikeMembers | None = None
    """Then these, at once: the largest kind of a large job."""
    unreadable: tuple[str, ...] = ()
    """Members whose requests cannot be read: they are in no queue."""

    @property
    def members(self) -> tuple[PendingMember, ...]:
        """In the order in which they are tried."""
        return (*self.singly, *self.counted.members) if self.counted is not None else self.singly

    def __len__(self) -> int:
        return len(self.singly) + (len(self.counted.members) if self.counted is not None else 0)

    def changed(self, engine: Engine, apply: Callable[[Pod], Pod]) -> "PendingMembers":
        """With every member changed. Raises: KoordinatorError when that makes an amount that is none."""
        registry = engine.table.registry

        def change(pod: PodInfo) -> PodInfo:
            after = apply(pod.pod)
            return pod if after is pod.pod else PodInfo.of(after, registry)

        singly = tuple(msgspec.structs.replace(each, pod=change(each.pod)) for each in self.singly)
        if self.counted is None:
            return PendingMembers(singly)
        return PendingMembers(singly, msgspec.structs.replace(self.counted, pod=change(self.counted.pod)))


def job_of(engine: Engine, group: GangSet, *, is_live: bool) -> Steps[PendingMembers]:
    """Yield the pending members. Of a live scheduler's large gang the largest kind is counted, where that tells as
    much."""
    members: list[PendingMember] = []
    unreadable: list[str] = []
    for number, member in enumerate(group.pending(), 1):
        if isinstance(member, str):
            unreadable.append(member)
        else:
            members.append(member)
        if number % MEMBERS_PER_SLICE == 0:
            yield
    if not is_live or len(members) <= SINGLY_MAX:
        return PendingMembers(tuple(members), unreadable=tuple(unreadable))
    numbers: dict[Kind, int] = {}  # comparing kinds takes longer than comparing numbers
    kinds: list[int] = []
    for number, member in enumerate(members, 1):
        kinds.append(numbers.setdefault(kind_of(engine, member.pod), len(numbers)))
        if number % MEMBERS_PER_SLICE == 0:
            yield
    [(largest, count)] = Counter(kinds).most_common(1)
    alike = tuple(each for each, kind in zip(members, kinds, strict=True) if kind == largest)
    profile = engine.profiles.get(alike[0].pod.pod.spec.scheduler_name)
    if count <= SINGLY_MAX // 2 or profile is None or not can_count(engine, profile, alike[0].pod):
        return PendingMembers(tuple(members), unreadable=tuple(unreadable))
    yield
    others = tuple(each for each, kind in zip(members, kinds, strict=True) if kind != largest)
    return PendingMembers(others, AlikeMembers(alike[0].pod, alike), tuple(unreadable))


def kind_of(engine: Engine, pod: PodInfo) -> Kind:
    """Equal for members that get the same answers from all nodes and count in the same quota."""
    profile = engine.profiles.get(pod.pod.spec.scheduler_name)
    if profile is None:
        return (pod.uid,)
    quotas = profile.find(ElasticQuota)
    return (profile.name, profile.class_key(pod), quotas.sleep_key(pod) if quotas is not None else None)
