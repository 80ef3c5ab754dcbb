"""Which of many refused pods an event can concern, by their quotas."""

import numpy as np

from koordinator.scheduler.plugin.events import ClusterEvent, Happening
from koordinator.scheduler.plugin.framework import Mask, WakeIndex
from koordinator.scheduler.plugins.elastic_quota.book import QuotaBook
from koordinator.scheduler.table.pod_info import PodInfo

_FREE = -1
_SLOTS_FIRST = 64


class QuotaIndex(WakeIndex):
    """Slots by quota.

    The end of a pod makes room in its quota at once; what its siblings gain by that, they are told when it is worked
    out. `all_of_tree`: ancestors have a say, so that all quotas of a tree may depend on each other.
    """

    def __init__(self, book: QuotaBook, *, all_of_tree: bool) -> None:
        self._book = book
        self._all_of_tree = all_of_tree
        self._numbers: dict[str, int] = {}
        """Quota, or tree → the number that it has in `_slots`."""
        self._pods: dict[int, PodInfo] = {}
        self._slots = np.full(_SLOTS_FIRST, _FREE, np.int64)
        self._moves = book.moves

    def put(self, slot: int, pod: PodInfo) -> None:
        if slot >= self._slots.size:
            more = np.full(max(slot + 1, 2 * self._slots.size) - self._slots.size, _FREE, np.int64)
            self._slots = np.concatenate((self._slots, more))
        self._pods[slot] = pod
        self._slots[slot] = self._number(pod)

    def clear(self, slot: int) -> None:
        del self._pods[slot]
        self._slots[slot] = _FREE

    def may_wake(self, happening: Happening, slot_count: int) -> Mask:
        if self._moves != self._book.moves:
            self._moves = self._book.moves
            for slot, pod in self._pods.items():
                self._slots[slot] = self._number(pod)
        slots = self._slots[:slot_count]
        if isinstance(happening.new, frozenset) and not self._all_of_tree:
            numbers = [self._numbers[name] for name in happening.new if name in self._numbers]
            return np.isin(slots, numbers)
        if happening.event is ClusterEvent.ASSIGNED_POD_DELETED and isinstance(happening.old, PodInfo):
            return np.asarray(slots == self._number(happening.old))
        return np.asarray(slots != _FREE)

    def _number(self, pod: PodInfo) -> int:
        ref = self._book.quota_of(pod.pod)
        name = f"tree {ref.tree_id}" if self._all_of_tree else ref.name
        return self._numbers.setdefault(name, len(self._numbers))
