"""Items in the order of their keys, which may be taken out by name."""

import heapq
import itertools
from typing import Any, Generic, TypeVar

T = TypeVar("T")

STALE_MIN = 1_024
"""Keys of items that were taken out are kept up to this number, and beyond it as many as there are others."""


class KeyedHeap(Generic[T]):
    """Items by uid, the smallest sort key first; equal keys leave in order of arrival."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[Any, ...], int, str]] = []
        self._live: dict[str, tuple[int, T]] = {}
        self._arrivals = itertools.count()

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, uid: str) -> bool:
        return uid in self._live

    def push(self, key: tuple[Any, ...], uid: str, item: T) -> None:
        """Put an item in, in place of the one of that uid."""
        arrival = next(self._arrivals)
        self._live[uid] = (arrival, item)
        heapq.heappush(self._heap, (key, arrival, uid))
        if len(self._heap) > 2 * len(self._live) + STALE_MIN:
            self._heap = [each for each in self._heap if self._is_live(each[1], each[2])]
            heapq.heapify(self._heap)

    def discard(self, uid: str) -> bool:
        """Take an item out, if it is there; its key is dropped when it surfaces, or when such keys are many."""
        return self._live.pop(uid, None) is not None

    def first_key(self) -> tuple[Any, ...]:
        """Key of the first item; there must be one."""
        self._drop_stale()
        return self._heap[0][0]

    def pop(self) -> T | None:
        if not self._live:
            self._heap.clear()
            return None
        self._drop_stale()
        _, _, uid = heapq.heappop(self._heap)
        return self._live.pop(uid)[1]

    def _is_live(self, arrival: int, uid: str) -> bool:
        live = self._live.get(uid)
        return live is not None and live[0] == arrival

    def _drop_stale(self) -> None:
        while not self._is_live(*self._heap[0][1:]):
            heapq.heappop(self._heap)
