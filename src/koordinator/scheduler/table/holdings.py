"""Keep what pods hold of things that a node has singly (CPUs, cards, Reservations), in step with the table.

Of bound pods annotations say what they hold; of assumed ones Reserve has chosen it, whatever their annotations say of
earlier attempts. So what is kept follows from the objects alone, in whatever order they come. Trials set it aside and
bring it back.
"""

import abc
import logging
from collections.abc import Iterable
from typing import ClassVar, Generic, TypeVar

import msgspec

from koordinator.api import labels
from koordinator.api.errors import KoordinatorError
from koordinator.scheduler.table.columns import RowChange, discard
from koordinator.scheduler.table.nodes import NodeTable, RowKeeper
from koordinator.scheduler.table.pod_info import PodInfo

log = logging.getLogger(__name__)

H = TypeVar("H")
R = TypeVar("R", bound=msgspec.Struct)
C = TypeVar("C")


class HoldingKeeper(RowKeeper, abc.ABC, Generic[H, C]):
    """`H` is what a pod holds, `C` what Reserve chose for it. `annotations` are those that say what a pod holds."""

    annotations: ClassVar[tuple[str, ...]]

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._chosen: dict[str, C] = {}
        """Choices for pods that are not known to be bound."""
        self._aside: dict[str, tuple[int, H]] = {}
        """Pods that a trial took, with their rows."""
        self._aside_at: dict[int, dict[str, H]] = {}
        """The same by row."""

    @abc.abstractmethod
    def _written(self, pod: PodInfo) -> H | None:
        """Return what a pod's annotations say that it holds. Raises: ProtocolError, QuantityError."""

    @abc.abstractmethod
    def _held(self, row: int, pod: PodInfo) -> H | None:
        """Return what a pod holds on a row as things stand."""

    @abc.abstractmethod
    def _hold(self, row: int, uid: str, held: H) -> bool:
        """Book what a pod holds, in place of what it held; return whether that is news."""

    @abc.abstractmethod
    def _release(self, row: int, uid: str) -> bool:
        """Drop what a pod holds; return whether it held anything."""

    def reserved(self, uid: str) -> C | None:
        """Return what Reserve gave a pod that is not yet known to be bound."""
        return self._chosen.get(uid)

    def unreserve(self, uid: str) -> None:
        """Take back what Reserve gave; nothing when it gave nothing."""
        if self._chosen.pop(uid, None) is not None:
            place = self._table.place_of(uid)
            if place is not None:
                self._release(place.row, uid)

    def pod_assigned(self, row: int, pod: PodInfo) -> None:
        if self._table.is_trial:
            aside = self._aside.pop(pod.uid, None)
            if aside is not None:
                discard(self._aside_at, aside[0], pod.uid)
                self._hold(row, pod.uid, aside[1])
        elif not self._is_assumed(pod.uid):  # else Reserve says what it gets
            self._hold_as_written(row, pod)

    def pod_changed(self, row: int, old: PodInfo, new: PodInfo) -> None:
        if self._is_assumed(new.uid) or self._table.is_trial:
            return
        was_reserved = self._chosen.pop(new.uid, None) is not None
        before, now = old.pod.metadata.annotations, new.pod.metadata.annotations
        if was_reserved or any(before.get(key) != now.get(key) for key in self.annotations):
            self._hold_as_written(row, new)

    def pod_unassigned(self, row: int, pod: PodInfo) -> None:
        if not self._table.is_trial:
            self._chosen.pop(pod.uid, None)
        elif (held := self._held(row, pod)) is not None:
            self._aside[pod.uid] = row, held
            self._aside_at.setdefault(row, {})[pod.uid] = held
        self._release(row, pod.uid)

    def _is_assumed(self, uid: str) -> bool:
        place = self._table.place_of(uid)
        return place is not None and place.assumed

    def _hold_as_written(self, row: int, pod: PodInfo) -> None:
        held = self._readable(pod)
        if self._release(row, pod.uid) if held is None else self._hold(row, pod.uid, held):
            self._table.changes.add(row, RowChange.PODS)

    def _readable(self, pod: PodInfo) -> H | None:
        """Return what a pod's annotations say that it holds; nothing where they cannot be read."""
        try:
            return self._written(pod)
        except KoordinatorError as problem:
            log.warning("pod holds nothing that we know of: %s", problem, extra={"pod": pod.key})
            return None


class ReservableHoldingKeeper(HoldingKeeper[R, C]):
    """A keeper of what Reservations can hold, too: `R` has a field `reservation`, the uid of the one that a pod's part
    is out of, "" for none."""

    def __init__(self, table: NodeTable) -> None:
        super().__init__(table)
        self._taken_over: dict[str, str] = {}
        """Running pod → the Reservation that is being placed onto it, until the pod's annotation says so."""

    def held_by(self, row: int, pods: Iterable[PodInfo]) -> list[R]:
        """Return what pods hold on a row as things stand, those left out that hold nothing."""
        return [held for pod in pods if (held := self._held(row, pod)) is not None]

    def take_over(self, reservation: str, row: int, pods: Iterable[PodInfo]) -> None:
        """Count what running pods hold as part of what Reserve has just given to a Reservation (uid)."""
        for pod in pods:
            held = self._held(row, pod)
            if held is not None:
                self._taken_over[pod.uid] = reservation
                self._hold(row, pod.uid, msgspec.structs.replace(held, reservation=reservation))

    def unreserve(self, uid: str) -> None:
        if uid not in self._chosen:
            return
        super().unreserve(uid)
        for running in [each for each, by in self._taken_over.items() if by == uid]:
            del self._taken_over[running]
            place = self._table.place_of(running)
            if place is not None:
                self._hold_as_written(place.row, place.pod)

    def pod_unassigned(self, row: int, pod: PodInfo) -> None:
        if not self._table.is_trial:
            self._taken_over.pop(pod.uid, None)
        super().pod_unassigned(row, pod)

    def _readable(self, pod: PodInfo) -> R | None:
        held = super()._readable(pod)
        if labels.RESERVATION_ALLOCATED in pod.pod.metadata.annotations:
            self._taken_over.pop(pod.uid, None)
        elif held is not None and pod.uid in self._taken_over:
            return msgspec.structs.replace(held, reservation=self._taken_over[pod.uid])
        return held
