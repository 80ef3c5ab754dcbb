"""The members of a gang in the order in which they are tried: one by one, and many equal ones that are counted."""

from collections import Counter
from collections.abc import Callable

import msgspec

from koordinator.api.core import Pod
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.explain.counting import can_count
from koordinator.scheduler.explain.gang_group import GangSet, PendingMember
from koordinator.scheduler.explain.quotas import plugin_of
from koordinator.scheduler.explain.slices import Steps
from koordinator.scheduler.table.pod_info import PodInfo

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
    """The pending members. Of a live scheduler's large gang the largest kind is counted, where that tells as much."""
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
    quotas = plugin_of(profile)
    return (profile.name, profile.class_key(pod), quotas.sleep_key(pod) if quotas is not None else None)
