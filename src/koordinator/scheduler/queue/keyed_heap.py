"""A heap from which any item can be taken."""

import heapq
import itertools
from typing import Any, Generic, TypeVar

T = TypeVar("T")


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
        arrival = next(self._arrivals)
        self._live[uid] = (arrival, item)
        heapq.heappush(self._heap, (key, arrival, uid))

    def discard(self, uid: str) -> bool:
        """Take an item out, if it is there; what is stale in the heap is dropped when it surfaces."""
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

    def _drop_stale(self) -> None:
        while True:
            _, arrival, uid = self._heap[0]
            live = self._live.get(uid)
            if live is not None and live[0] == arrival:
                return
            heapq.heappop(self._heap)
