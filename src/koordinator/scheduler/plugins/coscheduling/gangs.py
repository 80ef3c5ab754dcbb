"""Gangs, groups of gangs, and where each member stands. Fed by events; decides nothing.

Source: spec 05, sections 4 and 5. Other than upstream, a gang whose list of groups changes moves to the
record of its new group.
"""

import msgspec

from koordinator.scheduler.plugins.coscheduling.config import GangConfig, GangSource, unconfigured


class GangGroup(msgspec.Struct):
    """What gangs that are placed together have in common."""

    group_id: str
    gangs: set[str] = msgspec.field(default_factory=set)
    once_satisfied: bool = False
    """A member was bound at some time."""
    waiting_gangs: set[str] = msgspec.field(default_factory=set)
    representative: str = ""
    """The one member that may be in the scheduling queue."""
    binding: frozenset[str] = frozenset()
    """Who was bound together in the current release: uids, or keys of pods without one."""
    root_cause: str = ""
    """The member that failed the last round."""


class Gang(msgspec.Struct):
    """The members of one gang, by `namespace/name`. `children` holds all of them with their uid."""

    gang_id: str
    config: GangConfig
    group: GangGroup
    children: dict[str, str] = msgspec.field(default_factory=dict)
    pending: set[str] = msgspec.field(default_factory=set)
    waiting: set[str] = msgspec.field(default_factory=set)
    """Have a place, but are not bound yet."""
    bound: set[str] = msgspec.field(default_factory=set)

    @property
    def is_complete(self) -> bool:
        """Whether enough members exist to start."""
        return self.config.is_initialised and len(self.children) >= self.config.minimum


class GangCache:
    """All gangs and groups. A gang is there as long as a PodGroup or a pod names it."""

    def __init__(self) -> None:
        self._gangs: dict[str, Gang] = {}
        self._groups: dict[str, GangGroup] = {}

    def get(self, gang_id: str) -> Gang | None:
        """The gang, None when there is none of the id."""
        return self._gangs.get(gang_id)

    def gangs(self) -> dict[str, Gang]:
        """All gangs by id, to be read only."""
        return self._gangs

    @property
    def waiting_group_count(self) -> int:
        """Groups that hold places for members which are not complete yet."""
        return sum(bool(group.waiting_gangs) for group in self._groups.values())

    def members_of(self, group: GangGroup) -> list[Gang]:
        """The known gangs of a group, by id."""
        return [self._gangs[gang_id] for gang_id in sorted(group.gangs)]

    def ensure(self, gang_id: str) -> Gang:
        """The gang, made when it is not known."""
        gang = self._gangs.get(gang_id)
        if gang is None:
            config = unconfigured(gang_id)
            gang = Gang(gang_id, config, self._group_of(config))
            gang.group.gangs.add(gang_id)
            self._gangs[gang_id] = gang
        return gang

    def configure(self, gang: Gang, config: GangConfig) -> None:
        """Somebody described the gang, perhaps anew."""
        gang.config = config
        former, group = gang.group, self._group_of(config)
        if former is group:
            return
        self._leave_group(gang)
        gang.group = group
        group.gangs.add(gang.gang_id)
        group.once_satisfied = group.once_satisfied or bool(gang.bound) or former.once_satisfied

    def drop(self, gang: Gang) -> None:
        """The gang is no more."""
        self.stop_waiting(gang)
        self._leave_group(gang)
        del self._gangs[gang.gang_id]

    def _group_of(self, config: GangConfig) -> GangGroup:
        return self._groups.setdefault(config.group_id, GangGroup(config.group_id))

    def _leave_group(self, gang: Gang) -> None:
        group = gang.group
        group.gangs.discard(gang.gang_id)
        group.waiting_gangs.discard(gang.gang_id)
        if group.representative in gang.children:
            group.representative = ""
        if not group.gangs:
            del self._groups[group.group_id]

    # Members

    def add_member(self, gang: Gang, key: str, uid: str, *, is_on_node: bool) -> None:
        """A pod of the gang exists."""
        gang.children[key] = uid or key
        if is_on_node:
            self.bound(gang, key)
        elif key not in gang.waiting:
            gang.bound.discard(key)
            gang.pending.add(key)

    def holds_place(self, gang: Gang, key: str) -> None:
        """A member has a place and waits to be bound."""
        gang.pending.discard(key)
        gang.waiting.add(key)

    def gave_up_place(self, gang: Gang, key: str) -> None:
        """A member lost its place again."""
        gang.waiting.discard(key)
        if key in gang.children and key not in gang.bound:
            gang.pending.add(key)
        if not gang.waiting:
            self.stop_waiting(gang)

    def bound(self, gang: Gang, key: str) -> None:
        """A member is on its node for good."""
        gang.waiting.discard(key)
        gang.pending.discard(key)
        gang.bound.add(key)
        gang.group.once_satisfied = True
        self.forget_representative(gang, key)
        if not gang.waiting:
            self.stop_waiting(gang)

    def remove_member(self, gang: Gang, key: str) -> None:
        """A pod of the gang is gone; with the last one goes a gang that only pods described."""
        gang.children.pop(key, None)
        for members in (gang.pending, gang.waiting, gang.bound):
            members.discard(key)
        self.forget_representative(gang, key)
        if not gang.waiting:
            self.stop_waiting(gang)
        if not gang.children and gang.config.source is not GangSource.POD_GROUP:
            self.drop(gang)

    def forget_representative(self, gang: Gang, key: str) -> None:
        """The group is free to send another member."""
        if gang.group.representative == key:
            gang.group.representative = ""

    def stop_waiting(self, gang: Gang) -> None:
        """The gang holds no places any more."""
        group = gang.group
        group.waiting_gangs.discard(gang.gang_id)
        if not group.waiting_gangs:
            group.binding = frozenset()
