"""Keep what pods hold of things that a node has singly (CPUs, cards), in step with the table.

Of bound pods annotations say what they hold; of assumed ones Reserve has chosen it, whatever their annotations say of
earlier attempts. So what is kept follows from the objects alone, in whatever order they come. Trials set it aside and
bring it back.
"""

import abc
import logging
from typing import ClassVar, Generic, TypeVar

from koordinator.api.errors import KoordinatorError
from koordinator.scheduler.table.columns import RowChange
from koordinator.scheduler.table.nodes import NodeTable, RowKeeper
from koordinator.scheduler.table.pod_info import PodInfo

log = logging.getLogger(__name__)

H = TypeVar("H")
C = TypeVar("C")


class HoldingKeeper(RowKeeper, abc.ABC, Generic[H, C]):
    """`H` is what a pod holds, `C` what Reserve chose for it. `annotations` are those that say what a pod holds."""

    annotations: ClassVar[tuple[str, ...]]

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._chosen: dict[str, C] = {}
        """Of pods that are not known to be bound."""
        self._aside: dict[str, tuple[int, H]] = {}
        """Pods that a trial took, with their rows."""

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
        self._release(row, pod.uid)

    def _is_assumed(self, uid: str) -> bool:
        place = self._table.place_of(uid)
        return place is not None and place.assumed

    def _hold_as_written(self, row: int, pod: PodInfo) -> None:
        held = None
        try:
            held = self._written(pod)
        except KoordinatorError as problem:
            log.warning("pod holds nothing that we know of: %s", problem, extra={"pod": pod.key})
        if self._release(row, pod.uid) if held is None else self._hold(row, pod.uid, held):
            self._table.changes.add(row, RowChange.PODS)
