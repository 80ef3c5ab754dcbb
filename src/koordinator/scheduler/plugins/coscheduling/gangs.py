"""Gangs, groups of gangs, and where each member stands. Fed by events; decides nothing.

Source: behaviour/gangs 4 and 5. Other than upstream, a gang whose list of groups changes moves to the record of
its new group; members that have ended, or are being deleted, count no more; and a group has started when the
minimum of all its gangs had places at a time, until nothing is left of them.
"""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

import msgspec

from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.api.gang_labels import GangMatchPolicy
from koordinator.api.pod_labels import is_terminated
from koordinator.scheduler.plugins.coscheduling.config import GangConfig, GangSource
from koordinator.scheduler.table.columns import discard

CANDIDATES_MAX = 8
"""Members that are asked one after the other to stand for their group: the first may be held back elsewhere."""


def uid_of(pod: Pod) -> str:
    """Return what tells a pod from another one of its name."""
    return pod.metadata.uid or pod.key


class GangGroup(msgspec.Struct):
    """The state that gangs placed together share."""

    group_id: str
    ids: tuple[str, ...]
    """All gangs of the group, sorted, known or not."""
    gangs: set[str] = msgspec.field(default_factory=set)
    """Gangs that are known."""
    once_satisfied: bool = False
    """The group has started: the minimum of each gang is bound, or was."""
    was_released: bool = False
    """A member runs that was bound together with others: if the minimum does not run, somebody died on the way."""
    waiting_gangs: set[str] = msgspec.field(default_factory=set)
    representative: str = ""
    """The one member that may be in the scheduling queue."""
    binding: frozenset[str] = frozenset()
    """UIDs of the pods that were bound together in the current release."""
    root_cause: str = ""
    """The member that failed the last round."""


class Gang(msgspec.Struct):
    """The members of one gang, by `namespace/name`. `children` holds all of them with their uids; each is
    pending (without a place), waiting (with a place, not bound yet) or bound."""

    gang_id: str
    config: GangConfig
    group: GangGroup
    children: dict[str, str] = msgspec.field(default_factory=dict)
    pending: OrderedDict[str, None] = msgspec.field(default_factory=OrderedDict)
    waiting: set[str] = msgspec.field(default_factory=set)
    bound: set[str] = msgspec.field(default_factory=set)
    leaving: set[str] = msgspec.field(default_factory=set)
    """Members that are not bound and are being deleted, or ended without a place. They are not tried any more."""
    spent: set[str] = msgspec.field(default_factory=set)
    """Bound members that failed or are being deleted."""
    succeeded: set[str] = msgspec.field(default_factory=set)
    """Bound members that are done."""
    reported_problems: set[str] = msgspec.field(default_factory=set)
    """Problems of the gang's description that users were told."""

    @property
    def able_count(self) -> int:
        """Members that have a place, need none any more, or could get one. Those that are done count while the gang
        has to start as a whole, or a replacement would wait for ever once some are."""
        able = len(self.children) - len(self.leaving) - len(self.spent)
        counts_done = self.config.match_policy is GangMatchPolicy.ONCE_SATISFIED
        return able if counts_done else able - len(self.succeeded)

    @property
    def placed_count(self) -> int:
        """Members that are bound and run, or are done."""
        return len(self.bound) - len(self.spent)

    @property
    def running_count(self) -> int:
        """Members that are bound and have not ended."""
        return self.placed_count - len(self.succeeded)

    @property
    def waiting_count(self) -> int:
        """Members that have a place and will be bound."""
        if not self.leaving:
            return len(self.waiting)
        return len(self.waiting) - sum(key in self.waiting for key in self.leaving)

    @property
    def is_complete(self) -> bool:
        """Return whether enough members exist to start."""
        return self.config.is_initialised and self.able_count >= self.config.minimum

    @property
    def has_started(self) -> bool:
        """Return whether the minimum is bound."""
        return self.config.is_initialised and self.placed_count >= self.config.minimum

    def startable(self) -> Iterator[str]:
        """Return members without a place that may get one, in order of arrival."""
        return (key for key in self.pending if key not in self.leaving)

    @property
    def startable_count(self) -> int:
        return len(self.pending) - sum(key in self.pending for key in self.leaving)


class GangCache:
    """All gangs and groups. A gang is there as long as a PodGroup or a pod names it."""

    def __init__(self) -> None:
        self._gangs: dict[str, Gang] = {}
        self._groups: dict[str, GangGroup] = {}
        self._orphans: dict[str, dict[str, str]] = {}
        """Members of gangs whose PodGroup is gone, until they are heard of again."""
        self.begun: dict[str, None] = {}
        """Groups of which somebody else bound a part: they are finished before anything else is placed."""
        self.pods: dict[str, Pod] = {}
        """All members, also those of gangs that are not known."""
        self.version = 0
        """Grows whenever another gang may be complete, or may have started, than before."""

    def get(self, gang_id: str) -> Gang | None:
        """Return the gang, None when there is none of the id."""
        return self._gangs.get(gang_id)

    def group(self, group_id: str) -> GangGroup | None:
        """Return the group, None when no gang belongs to it."""
        return self._groups.get(group_id)

    def gangs(self) -> dict[str, Gang]:
        """Return all gangs by id, to be read only."""
        return self._gangs

    @property
    def waiting_group_count(self) -> int:
        """Groups that hold places for members which are not complete yet."""
        return sum(bool(group.waiting_gangs) for group in self._groups.values())

    def members_of(self, group: GangGroup) -> list[Gang]:
        """Return the known gangs of a group, by id."""
        return [self._gangs[gang_id] for gang_id in group.ids if gang_id in group.gangs]

    def ensure(self, gang_id: str) -> Gang:
        """Return the gang, made when it is not known."""
        gang = self._gangs.get(gang_id)
        if gang is None:
            config = GangConfig(group=(gang_id,))  # known by name only
            gang = Gang(gang_id, config, self._group_of(config))
            gang.group.gangs.add(gang_id)
            self._gangs[gang_id] = gang
            self.version += 1
        return gang

    def configure(self, gang: Gang, config: GangConfig) -> None:
        """Somebody described the gang, perhaps anew."""
        self.version += 1
        gang.config = config
        group = self._group_of(config)
        if gang.group is not group:
            self._leave_group(gang)
            gang.group = group
            group.gangs.add(gang.gang_id)
        self._judge(group)

    def drop(self, gang: Gang) -> None:
        """Note that the gang is no more; its members, if there are any, wait for another description."""
        self.version += 1
        self.stop_waiting(gang)
        self._leave_group(gang)
        del self._gangs[gang.gang_id]
        if gang.children:
            self._orphans[gang.gang_id] = gang.children

    def orphans_of(self, gang_id: str) -> list[Pod]:
        """Return members that are left of a gang which was dropped, until they are seen again."""
        return [self.pods[key] for key in self._orphans.get(gang_id, ())]

    def _group_of(self, config: GangConfig) -> GangGroup:
        return self._groups.setdefault(config.group_id, GangGroup(config.group_id, config.group))

    def _leave_group(self, gang: Gang) -> None:
        group = gang.group
        group.gangs.discard(gang.gang_id)
        group.waiting_gangs.discard(gang.gang_id)
        if group.representative in gang.children:
            group.representative = ""
        if group.root_cause in gang.children:
            group.root_cause = ""
        if group.gangs:
            self._judge(group)
        else:
            del self._groups[group.group_id]
            self.begun.pop(group.group_id, None)

    def _judge(self, group: GangGroup) -> None:
        """Judge whether the group has started, or nothing is left of what did."""
        gangs = [self._gangs.get(gang_id) for gang_id in group.ids]
        if group.once_satisfied or all(gang is not None and gang.has_started for gang in gangs):
            group.once_satisfied = any(gang.placed_count for gang in gangs if gang is not None)

    # Members

    def add_member(self, gang: Gang, pod: Pod) -> None:
        """Note that a pod of the gang exists, or changed."""
        key = pod.key
        self.version += 1
        discard(self._orphans, gang.gang_id, key)
        was_bound = key in gang.bound
        # Older news than the answer to its binding, which nothing undoes.
        is_bound_already = was_bound and gang.children.get(key) == uid_of(pod)
        self.pods[key], gang.children[key] = pod, uid_of(pod)
        if pod.spec.node_name:
            if pod.metadata.annotations.get(labels.BIND_GANG_GROUP_ID) == gang.group.group_id:
                gang.group.was_released = True
            self._bind(gang, key)
        elif not is_bound_already and key not in gang.waiting and key not in gang.pending:
            gang.bound.discard(key)
            gang.pending[key] = None
        has_settled = self._settle(gang, key, pod)
        if has_settled or was_bound is not (key in gang.bound):
            self._judge(gang.group)

    def _settle(self, gang: Gang, key: str, pod: Pod) -> bool:
        """Sort the member into leaving, spent or succeeded; return whether that changed anything."""
        is_bound, phase = key in gang.bound, pod.status.phase
        is_deleted = pod.metadata.deletion_timestamp is not None
        is_new = _set(gang.leaving, key, to=not is_bound and (is_deleted or is_terminated(pod)))
        is_new |= _set(gang.spent, key, to=is_bound and (is_deleted or phase == "Failed"))
        is_new |= _set(gang.succeeded, key, to=is_bound and not is_deleted and phase == "Succeeded")
        if key in gang.leaving:
            self.forget_representative(gang, key)
        return is_new

    def remember(self, pod: Pod) -> None:
        """Note that a pod changed that is a member of no known gang now."""
        if pod.key in self.pods:
            self.pods[pod.key] = pod

    def ended(self, gang: Gang, pod: Pod) -> None:
        """Note that a member has succeeded or failed, perhaps without that it was seen on a node."""
        key = pod.key
        self.version += 1
        self.remember(pod)
        if key in gang.children and self._settle(gang, key, pod):
            self._judge(gang.group)

    def holds_place(self, gang: Gang, key: str) -> None:
        """Note that a member has a place and waits to be bound."""
        gang.pending.pop(key, None)
        gang.waiting.add(key)

    def gave_up_place(self, gang: Gang, key: str) -> None:
        """Note that a member lost its place again."""
        gang.waiting.discard(key)
        if key in gang.children and key not in gang.bound:
            gang.pending[key] = None
        if not gang.waiting:
            self.stop_waiting(gang)

    def bound(self, gang: Gang, key: str) -> None:
        """Note that a member is on its node for good."""
        self.version += 1
        self._bind(gang, key)
        self._judge(gang.group)

    def _bind(self, gang: Gang, key: str) -> None:
        gang.waiting.discard(key)
        gang.pending.pop(key, None)
        gang.leaving.discard(key)
        gang.bound.add(key)
        self.forget_representative(gang, key)
        if not gang.waiting:
            self.stop_waiting(gang)

    def remove_member(self, gang_id: str, pod: Pod) -> None:
        """Note that a pod of the gang is gone; with the last one goes a gang that only pods described."""
        key = pod.key
        self.version += 1
        self.pods.pop(key, None)
        discard(self._orphans, gang_id, key)
        gang = self._gangs.get(gang_id)
        if gang is None:
            return
        gang.children.pop(key, None)
        gang.pending.pop(key, None)
        for members in (gang.waiting, gang.bound, gang.leaving, gang.spent, gang.succeeded):
            members.discard(key)
        self.forget_representative(gang, key)
        if not gang.waiting:
            self.stop_waiting(gang)
        if not gang.children and gang.config.source is not GangSource.POD_GROUP:
            self.drop(gang)
        else:
            self._judge(gang.group)

    def is_current(self, pod: Pod) -> bool:
        """Return whether the member of that name is this pod, and not another one that came after it."""
        known = self.pods.get(pod.key)
        return known is not None and uid_of(known) == uid_of(pod)

    def candidates(self, group: GangGroup, first: str = "") -> tuple[str, ...]:
        """Some members without a place, for one of them to stand for the group; those of the gang `first` before,
        those of gangs that have their minimum last."""
        gangs = sorted(self.members_of(group), key=lambda gang: (gang.gang_id != first, gang.has_started))
        found = (key for gang in gangs for key in gang.startable())
        return tuple(islice(found, CANDIDATES_MAX))

    def forget_representative(self, gang: Gang, key: str) -> None:
        """Note that the group is free to send another member."""
        if gang.group.representative == key:
            gang.group.representative = ""

    def stop_waiting(self, gang: Gang) -> None:
        """Note that the gang holds no places any more."""
        group = gang.group
        group.waiting_gangs.discard(gang.gang_id)
        if not group.waiting_gangs:
            group.binding = frozenset()


def _set(members: set[str], key: str, *, to: bool) -> bool:
    """Add the key or remove it; return whether that changed anything."""
    if (key in members) is to:
        return False
    if to:
        members.add(key)
    else:
        members.remove(key)
    return True
