"""The members of a gang in the order in which they are tried: one by one, and many equal ones that are counted."""

from collections import Counter
from collections.abc import Callable

import msgspec

from koordinator.api.core import Pod
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.explain.counting import can_count
from koordinator.scheduler.explain.gang_group import Group, Member
from koordinator.scheduler.explain.quotas import plugin_of
from koordinator.scheduler.explain.slices import Steps
from koordinator.scheduler.table.pod_info import PodInfo

SINGLY_MAX = 128
"""Up to so many members are tried one by one, about 0.1 ms each, as the scheduler would."""
MEMBERS_PER_SLICE = 256

Kind = tuple[object, ...]


class Counted(msgspec.Struct, frozen=True):
    """Members that are alike; `pod` is asked about for all of them."""

    pod: PodInfo
    members: tuple[Member, ...]


class Job(msgspec.Struct, frozen=True):
    """All members without a place."""

    singly: tuple[Member, ...]
    """First, in the order in which a round tries them."""
    counted: Counted | None = None
    """Then these, at once: the largest kind of a large job."""
    unreadable: tuple[str, ...] = ()
    """Members whose requests cannot be read: they are in no queue."""

    @property
    def members(self) -> tuple[Member, ...]:
        """In the order in which they are tried."""
        return (*self.singly, *self.counted.members) if self.counted is not None else self.singly

    def __len__(self) -> int:
        return len(self.singly) + (len(self.counted.members) if self.counted is not None else 0)

    def changed(self, engine: Engine, apply: Callable[[Pod], Pod]) -> "Job":
        """With every member changed. Raises: KoordinatorError when that makes an amount that is none."""
        registry = engine.table.registry

        def change(pod: PodInfo) -> PodInfo:
            after = apply(pod.pod)
            return pod if after is pod.pod else PodInfo.of(after, registry)

        singly = tuple(msgspec.structs.replace(each, pod=change(each.pod)) for each in self.singly)
        if self.counted is None:
            return Job(singly)
        return Job(singly, msgspec.structs.replace(self.counted, pod=change(self.counted.pod)))


def job_of(engine: Engine, group: Group, *, is_live: bool) -> Steps[Job]:
    """The pending members. Of a live scheduler's large gang the largest kind is counted, where that tells as much."""
    members: list[Member] = []
    unreadable: list[str] = []
    for number, member in enumerate(group.pending(), 1):
        if isinstance(member, str):
            unreadable.append(member)
        else:
            members.append(member)
        if number % MEMBERS_PER_SLICE == 0:
            yield
    if not is_live or len(members) <= SINGLY_MAX:
        return Job(tuple(members), unreadable=tuple(unreadable))
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
        return Job(tuple(members), unreadable=tuple(unreadable))
    yield
    others = tuple(each for each, kind in zip(members, kinds, strict=True) if kind != largest)
    return Job(others, Counted(alike[0].pod, alike), tuple(unreadable))


def kind_of(engine: Engine, pod: PodInfo) -> Kind:
    """Equal for members that get the same answers from all nodes and count in the same quota."""
    profile = engine.profiles.get(pod.pod.spec.scheduler_name)
    if profile is None:
        return (pod.uid,)
    quotas = plugin_of(profile)
    return (profile.name, profile.class_key(pod), quotas.sleep_key(pod) if quotas is not None else None)
