"""Keep the numbers of a day of ledgers, minute by minute, in bounded memory.

A page holds `PAGE_NODES` nodes as one table of integers. Each minute is kept as its difference from the minute before
(most columns do not move), byte planes apart and deflated; an hour begins with a whole table, so that reading a minute
inflates an hour at most and the oldest hour can be dropped. Texts (nodes, pods, strategies) are numbers that hold
within their hour.
"""

import zlib
from collections.abc import Hashable, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from koordinator.manager.noderesource.batch import I64

PAGE_NODES = 256
HOUR_MINUTES = 60
_LEVEL = 1
_BLOCK_BYTES = 64
"""Memory of an object besides its content, about."""

H = TypeVar("H", bound=Hashable)


class Interned(Generic[H]):
    """Numbers for objects that come again; they hold within one hour of one page. -1 stands for None."""

    def __init__(self) -> None:
        self.objects: list[H] = []
        self._numbers: dict[H, int] = {}

    def number(self, found: H | None) -> int:
        """Return the number of an object, new or known."""
        if found is None:
            return -1
        number = self._numbers.setdefault(found, len(self.objects))
        if number == len(self.objects):
            self.objects.append(found)
        return number

    def of(self, number: int) -> H | None:
        """Return the object; None for what has none."""
        return self.objects[number] if 0 <= number < len(self.objects) else None


class PageHour:
    """One hour of one page; `texts` are whatever its numbers stand for."""

    def __init__(self, hour: int, names: Sequence[str | None], texts: Sequence[Interned[Any]]) -> None:
        self.hour = hour
        self.names: list[str | None] = list(names)
        self.texts = texts
        self.minutes: list[int] = []
        self._blocks: list[bytes] = []
        self._shape: tuple[int, ...] = ()
        self._last: I64 | None = None
        self._counted = 0
        self.byte_count = _BLOCK_BYTES * len(self.names)

    def add(self, minute: int, table: I64) -> None:
        """Keep the numbers of a minute, shape (nodes, columns); those of one hour have one shape."""
        old = np.zeros_like(table) if self._last is None else self._last
        block = packed(table - old)
        self._last, self._shape = table.copy(), table.shape
        self.minutes.append(minute)
        self._blocks.append(block)
        texts = sum(len(each.objects) for each in self.texts)
        self.byte_count += len(block) + _BLOCK_BYTES + 2 * _BLOCK_BYTES * (texts - self._counted)
        self._counted = texts

    def close(self) -> None:
        """Keep no table beside the blocks: nothing is added any more."""
        self._last = None

    def until(self, minute: int) -> "KeptMinute | None":
        """Return what tells the newest kept minute up to `minute`; None when there is none."""
        count = sum(each <= minute for each in self.minutes)
        if not count:
            return None
        blocks = tuple(self._blocks[:count])
        return KeptMinute(self.minutes[count - 1], tuple(self.names), self.texts, blocks, self._shape)


class KeptMinute(msgspec.Struct, frozen=True):
    """One minute of one page, not inflated yet: it changes no more, so any thread may read it."""

    minute: int
    names: tuple[str | None, ...]
    texts: Sequence[Interned[Any]]
    blocks: tuple[bytes, ...]
    shape: tuple[int, ...]

    def table(self) -> I64:
        """Return the numbers, shape (nodes, columns)."""
        table = np.zeros(self.shape, np.int64)
        for block in self.blocks:
            table += unpacked(block, self.shape)
        return table


def packed(difference: I64) -> bytes:
    """Return differences, shape (nodes, columns), as bytes: signs folded into the lowest bit, columns together, byte
    planes apart, deflated."""
    signless = np.ascontiguousarray(((difference << 1) ^ (difference >> 63)).T).astype("<i8")
    folded = signless.view(np.uint8)
    planes = folded.reshape(difference.shape[1], difference.shape[0], 8).transpose(0, 2, 1)
    return zlib.compress(np.ascontiguousarray(planes).tobytes(), _LEVEL)


def unpacked(block: bytes, shape: tuple[int, ...]) -> I64:
    """Return what `packed` was given, of this shape (nodes, columns)."""
    planes = np.frombuffer(zlib.decompress(block), np.uint8).reshape(shape[1], 8, shape[0])
    folded = np.ascontiguousarray(planes.transpose(0, 2, 1)).view("<u8")[:, :, 0].T
    half: I64 = (folded >> np.uint64(1)).astype(np.int64)
    return half ^ -(folded & np.uint64(1)).astype(np.int64)
