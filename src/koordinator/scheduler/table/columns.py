"""Columns of the node table: numbers of all rows, and fast ways to read and write some of them."""

from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.intp]
"""Indices of rows, ascending."""

A = TypeVar("A", bound=np.generic)


def at(values: npt.NDArray[A], rows: Rows) -> npt.NDArray[A]:
    """Return the entries of `rows` along the last axis, to be read only. Rows ascend, each once, or they descend.

    Neighbouring rows (all nodes of a table without gaps, or one) come as a view: gathering is what a full
    scan would spend most of its time on.
    """
    if rows.size:
        first, last = rows.item(0), rows.item(-1)
        if last - first + 1 == rows.size:
            return values[..., first : last + 1]
    return values.take(rows, axis=-1)


def put(values: npt.NDArray[Any], rows: Rows, entries: npt.NDArray[Any] | int) -> None:
    """Write the entries (rows,), or one number, to `rows` (rows,) of `values` (capacity,), fast where they are
    neighbours.
    """
    if rows.size:
        first, last = int(rows[0]), int(rows[-1])
        if last - first + 1 == rows.size:
            values[first : last + 1] = entries
            return
    values[rows] = entries


class ColumnSpec(msgspec.Struct, frozen=True):
    """A column that a plugin keeps: `width` numbers per row (0: one, as a plain vector)."""

    name: str
    dtype: npt.DTypeLike
    width: int = 0
    fill: Any = 0


class TableColumn:
    """Numbers of all rows: `values` is (rows,) or (width, rows), and is replaced when the table grows."""

    __slots__ = ("spec", "values")

    def __init__(self, spec: ColumnSpec, capacity: int) -> None:
        self.spec = spec
        shape = (spec.width, capacity) if spec.width else (capacity,)
        self.values: npt.NDArray[Any] = np.full(shape, spec.fill, spec.dtype)

    def grow(self, capacity: int) -> None:
        missing = capacity - self.values.shape[-1]
        tail = np.full((*self.values.shape[:-1], missing), self.spec.fill, self.spec.dtype)
        self.values = np.concatenate([self.values, tail], axis=-1)

    def widen(self, width: int) -> None:
        """Add leading entries to each row (a new resource was met)."""
        missing = width - self.values.shape[0]
        if missing > 0:
            tail = np.full((missing, self.values.shape[1]), self.spec.fill, self.spec.dtype)
            self.values = np.concatenate([self.values, tail])

    def clear(self, row: int) -> None:
        self.values[..., row] = self.spec.fill


NO_NODE = 255
"""`refused_by` of rows that stand for no node."""
LEFT_OUT = 254
"""`refused_by` of nodes that a PreFilter plugin left out."""
NOT_FEASIBLE = int(np.iinfo(np.int32).min)
"""Total of a row that is out of the question."""

RefusedBy = npt.NDArray[np.uint8]
"""(capacity,): 0 for rows that pass, else the position (from 1) of the first Filter plugin that refused."""


class AnswerPatterns(msgspec.Struct, frozen=True):
    """Arrays of (capacity,), to be read only. `membership` says for which nodes they hold."""

    membership: int
    nobody_refused: RefusedBy
    nobody_asked: RefusedBy
    no_codes: npt.NDArray[np.uint16]
    everywhere: npt.NDArray[np.bool_]
    nowhere: npt.NDArray[np.bool_]
    never: npt.NDArray[np.int32]

    @classmethod
    def of(cls, rows: npt.NDArray[np.intp], capacity: int, membership: int) -> "AnswerPatterns":
        """`rows` stand for nodes."""
        nobody_refused = np.full(capacity, NO_NODE, np.uint8)
        nobody_refused[rows] = 0
        found = cls(
            membership,
            nobody_refused=nobody_refused,
            nobody_asked=np.full(capacity, NO_NODE, np.uint8),
            no_codes=np.zeros(capacity, np.uint16),
            everywhere=nobody_refused == 0,
            nowhere=np.zeros(capacity, np.bool_),
            never=np.full(capacity, NOT_FEASIBLE, np.int32),
        )
        for name in cls.__struct_fields__[1:]:
            getattr(found, name).setflags(write=False)
        return found
