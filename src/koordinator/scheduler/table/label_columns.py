"""Node labels as columns: per key the number of its value on each row. Node selectors over rows.

Columns are made when a selector first asks for a key, and kept current from then on.
"""

import itertools
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator

import numpy as np
import numpy.typing as npt

from koordinator.api import tolerations
from koordinator.api.affinity import NodeSelectorRequirement, NodeSelectorTerm, Taint
from koordinator.api.core import Node
from koordinator.api.scalars import ScalarError, parse_int
from koordinator.api.tolerations import Tolerations
from koordinator.scheduler.table.columns import Rows, at, grown
from koordinator.scheduler.table.nodes import NodeTable, RowKeeper

Mask = npt.NDArray[np.bool_]

KEYS_MAX = 1_024
"""Columns kept; the key that was not asked for longest goes first. Users choose keys, hence the bound."""

ABSENT = -1
NAME_FIELD = "metadata.name"


class LabelColumn:
    """Values of one key: `ids` (rows,), `ABSENT` where the node lacks the key.

    `version` changes with every change; no two states of a key's columns have the same.
    """

    def __init__(self, capacity: int, versions: Iterator[int]) -> None:
        self.ids: npt.NDArray[np.int32] = np.full(capacity, ABSENT, np.int32)
        self.values: list[str] = []
        self.version = next(versions)
        self._versions = versions
        self._id_of: dict[str, int] = {}

    def set(self, row: int, value: str | None) -> None:
        if row >= self.ids.size:
            self.reserve(max(row + 1, 2 * self.ids.size))
        number = ABSENT if value is None else self._number(value)
        if self.ids[row] != number:
            self.ids[row] = number
            self.version = next(self._versions)

    def reserve(self, capacity: int) -> None:
        """Make room for as many rows."""
        self.ids = grown(self.ids, capacity, ABSENT)

    def numbers_of(self, values: Iterable[str]) -> list[int]:
        """Numbers of those values that occur."""
        return [self._id_of[value] for value in values if value in self._id_of]

    def _number(self, value: str) -> int:
        number = self._id_of.get(value)
        if number is None:
            number = self._id_of[value] = len(self.values)
            self.values.append(value)
        return number


class LabelColumns(RowKeeper):
    """The label columns of a table. `version` grows with each change of any node's labels."""

    def __init__(self, table: NodeTable) -> None:
        self.version = 0
        self._table = table
        self._seen: dict[int, dict[str, str]] = {}
        self._columns: OrderedDict[str, LabelColumn] = OrderedDict()
        self._versions = itertools.count(1)

    def column(self, key: str) -> LabelColumn:
        found = self._columns.get(key)
        if found is not None:
            self._columns.move_to_end(key)
            return found
        found = self._columns[key] = LabelColumn(self._table.capacity, self._versions)
        for row, labels in self._seen.items():
            found.set(row, labels.get(key))
        if len(self._columns) > KEYS_MAX:
            self._columns.popitem(last=False)
        return found

    def node_changed(self, row: int, node: Node) -> None:
        labels = node.metadata.labels
        if self._seen.get(row) == labels:
            return
        self._seen[row] = labels
        self.version += 1
        for key, column in self._columns.items():
            column.set(row, labels.get(key))

    def row_freed(self, row: int) -> None:
        self._seen.pop(row, None)
        for column in self._columns.values():
            column.set(row, None)

    def ids(self, key: str, rows: Rows) -> npt.NDArray[np.int32]:
        """Return the number of the key's value on each row (rows,), `ABSENT` where the node lacks the key."""
        return _ids(self.column(key), rows)

    # Matching

    def match_labels(self, wanted: Iterable[tuple[str, str]], rows: Rows) -> Mask:
        """Return a mask (rows,) of those that carry all of the labels."""
        mask = np.ones(rows.size, np.bool_)
        for key, value in wanted:
            column = self.column(key)
            mask &= np.isin(_ids(column, rows), column.numbers_of((value,)))
        return mask

    def match_terms(self, terms: Iterable[NodeSelectorTerm], rows: Rows) -> Mask:
        """Return a mask (rows,) of those that match one of the terms; no terms match nothing."""
        mask = np.zeros(rows.size, np.bool_)
        for term in terms:
            mask |= self.match_term(term, rows)
        return mask

    def match_term(self, term: NodeSelectorTerm, rows: Rows) -> Mask:
        """Return a mask (rows,) of those that meet all conditions of a term; an empty term matches nothing."""
        if not term.match_expressions and not term.match_fields:
            return np.zeros(rows.size, np.bool_)
        mask = np.ones(rows.size, np.bool_)
        for requirement in term.match_expressions:
            mask &= self._match_label(requirement, rows)
        for requirement in term.match_fields:
            mask &= self._match_field(requirement, rows)
        return mask

    def _match_label(self, requirement: NodeSelectorRequirement, rows: Rows) -> Mask:
        column = self.column(requirement.key)
        ids = _ids(column, rows)
        match requirement.operator:
            case "In":
                return np.isin(ids, column.numbers_of(requirement.values))
            case "NotIn":
                return np.isin(ids, column.numbers_of(requirement.values), invert=True)
            case "Exists":
                return np.asarray(ids != ABSENT)
            case "DoesNotExist":
                return np.asarray(ids == ABSENT)
            case "Gt" | "Lt":
                return np.isin(ids, _compared(column, requirement))
        return np.zeros(rows.size, np.bool_)

    def _match_field(self, requirement: NodeSelectorRequirement, rows: Rows) -> Mask:
        if requirement.key != NAME_FIELD or requirement.operator not in ("In", "NotIn"):
            return np.zeros(rows.size, np.bool_)
        found = (self._table.row_of(name) for name in requirement.values)
        named = [row for row in found if row is not None]
        return np.isin(rows, named, invert=requirement.operator == "NotIn")


def _ids(column: LabelColumn, rows: Rows) -> npt.NDArray[np.int32]:
    """Numbers on the rows; rows that came after the column was made have none of its key's values yet."""
    if rows.size and int(rows[-1]) >= column.ids.size:
        column.reserve(2 * int(rows[-1]))
    return at(column.ids, rows)


def _compared(column: LabelColumn, requirement: NodeSelectorRequirement) -> list[int]:
    """Numbers of the values above (Gt) or below (Lt) the wanted 64-bit integer; other texts never match."""
    if len(requirement.values) != 1:
        return []
    try:
        limit = parse_int(requirement.values[0])
    except ScalarError:
        return []
    matching = []
    for number, text in enumerate(column.values):
        try:
            value = parse_int(text)
        except ScalarError:
            continue
        if value > limit if requirement.operator == "Gt" else value < limit:
            matching.append(number)
    return matching


class TaintColumns(RowKeeper):
    """`numbers` (rows,) say which of `sets` of taints a node has; `version` grows with each change of a node.

    Sets keep their numbers, and are never fewer: clusters have dozens of distinct ones.
    """

    def __init__(self, table: NodeTable) -> None:
        self.version = 0
        self.numbers: npt.NDArray[np.int32] = np.zeros(table.capacity, np.int32)
        self.sets: list[tuple[Taint, ...]] = [()]
        self._ids: dict[Hashable, int] = {(): 0}

    def node_changed(self, row: int, node: Node) -> None:
        key = tuple((taint.key, taint.value, taint.effect) for taint in node.spec.taints)
        number = self._ids.get(key)
        if number is None:
            number = self._ids[key] = len(self.sets)
            self.sets.append(tuple(node.spec.taints))
        if row >= self.numbers.size:
            self.numbers = grown(self.numbers, max(row + 1, 2 * self.numbers.size))
        if self.numbers[row] != number:
            self.numbers[row] = number
            self.version += 1

    def keep_out(self, bears: Tolerations, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return a mask (rows,) of nodes with a taint that forbids pods with these tolerations."""
        verdicts = np.array([tolerations.keeps_out(bears, taints) for taints in self.sets], np.bool_)
        return verdicts[self.numbers[rows]]
