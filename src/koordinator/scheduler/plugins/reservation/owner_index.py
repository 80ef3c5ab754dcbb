"""Find the reservations that a pod may own without looking at each: reservations with equal `spec.owners` form a group,
and groups are looked up by what owners have to have. Source: behaviour/reservations 5.1."""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

import msgspec

from koordinator.api.core import Pod
from koordinator.api.reservation import ReservationOwner
from koordinator.scheduler.plugins.reservation.matching import ReservationOwners
from koordinator.scheduler.table.columns import Recent, discard
from koordinator.scheduler.table.pod_info import PodInfo

GroupNumbers = tuple[int, ...]
"""Numbers of owner groups, ascending."""

NO_GROUPS: GroupNumbers = ()
IDENTITIES_MAX = 16_384
"""Kinds of pods whose groups are remembered."""


class OwnerGroup:
    """Reservations with the same owners: on which rows they hold room, and how many there."""

    def __init__(self, number: int, key: bytes, owners: Sequence[ReservationOwner]) -> None:
        self.number = number
        self.key = key
        self.owners = ReservationOwners.of(owners)
        self.traits = [_trait(owner) for owner in owners]
        self.names_pods = any(owner.object is not None for owner in owners)
        self.member_count = 0
        self.rows: Counter[int] = Counter()


class OwnerIndex:
    """Groups by what a pod must have to own their reservations."""

    def __init__(self) -> None:
        self._groups: dict[bytes, OwnerGroup] = {}
        self._by_number: dict[int, OwnerGroup] = {}
        self._by_trait: dict[Hashable, set[int]] = {}
        self._next_number = 0
        self._of_kind: Recent[GroupNumbers] = Recent(IDENTITIES_MAX)
        self._names_pods = 0
        """Groups that name single pods."""

    def __len__(self) -> int:
        return len(self._groups)

    def group(self, number: int) -> OwnerGroup | None:
        """Return the group of a number; None when it has no reservation any more."""
        return self._by_number.get(number)

    def join(self, owners: Sequence[ReservationOwner]) -> OwnerGroup:
        """Return the group of one more reservation with these owners."""
        key = msgspec.json.encode(owners)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = OwnerGroup(self._next_number, key, owners)
            self._next_number += 1
            self._by_number[group.number] = group
            for trait in _all_traits(group):
                self._by_trait.setdefault(trait, set()).add(group.number)
            self._names_pods += group.names_pods
            self._of_kind.clear()
        group.member_count += 1
        return group

    def leave(self, group: OwnerGroup) -> None:
        """Take one reservation out of its group."""
        group.member_count -= 1
        if group.member_count:
            return
        del self._groups[group.key], self._by_number[group.number]
        for trait in _all_traits(group):
            discard(self._by_trait, trait, group.number)
        self._names_pods -= group.names_pods
        self._of_kind.clear()

    def of(self, pod: PodInfo) -> GroupNumbers:
        """Return the groups whose reservations the pod may own. Costs a look at the pod's labels, not at
        reservations."""
        if not self._groups:
            return NO_GROUPS
        meta = pod.pod.metadata
        if self._names_pods:  # then pods that are alike but for their names may differ
            return self._found(pod.pod)
        kind = (pod.labelled, tuple(meta.owner_references)) if meta.owner_references else pod.labelled
        return self._of_kind.get(kind, lambda: self._found(pod.pod))

    def _found(self, pod: Pod) -> GroupNumbers:
        candidates: set[int] = set()
        for trait in _traits_of(pod):
            candidates |= self._by_trait.get(trait, _NOBODY)
        return tuple(sorted(each for each in candidates if self._by_number[each].owners.match(pod)))


_NOBODY: frozenset[int] = frozenset()
_ANYBODY = ("anybody",)


def _all_traits(group: OwnerGroup) -> set[Hashable]:
    return {trait for traits in group.traits for trait in traits}


def _trait(owner: ReservationOwner) -> list[Hashable]:
    """Return traits of which a pod has to have one for an entry to fit it: what narrows most first."""
    wanted, controller, selector = owner.object, owner.controller, owner.label_selector
    if wanted is not None and wanted.uid:
        return [("uid", wanted.uid)]
    if wanted is not None and wanted.name:
        return [("name", wanted.name)]
    if controller is not None and controller.uid:
        return [("controller", controller.uid)]
    if controller is not None and controller.name:
        return [("controller name", controller.name)]
    if selector is not None:
        for key, value in sorted(selector.match_labels.items()):
            return [("label", key, value)]
        for each in selector.match_expressions:
            if each.operator == "In":
                return [("label", each.key, value) for value in each.values]
    return [_ANYBODY]


def _traits_of(pod: Pod) -> Iterator[Hashable]:
    meta = pod.metadata
    yield _ANYBODY
    yield ("uid", meta.uid)
    yield ("name", meta.name)
    for owner in meta.owner_references:
        yield ("controller", owner.uid)
        yield ("controller name", owner.name)
    for key, value in meta.labels.items():
        yield ("label", key, value)
