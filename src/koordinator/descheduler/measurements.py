"""Keep the usage of a node's pods as arrays, read once when the NodeMetric comes; and what one cycle looks at. Pure."""

import logging
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, KeysView, Mapping, Sequence
from typing import ClassVar, TypeVar

import msgspec

from koordinator.api import interference, quantity
from koordinator.api.core import Node, Pod
from koordinator.api.interference import NodeInterference
from koordinator.api.meta import Object, Resource
from koordinator.api.node_metric import NodeMetric, PodMetricInfo
from koordinator.api.quantity import NANO

V = TypeVar("V")

log = logging.getLogger(__name__)

Nanos = dict[str, int]
"""Amounts by resource, in billionths."""
ABSENT = -(1 << 63)
"""In place of an amount that was not reported."""


class Column(msgspec.Struct, frozen=True, gc=False):
    """One resource of all pods of a node; an amount times `scale` is in billionths, or `ABSENT`."""

    scale: int
    amounts: Sequence[int]

    @classmethod
    def of(cls, nanos: Sequence[int]) -> "Column":
        """Return the column of these amounts, eight bytes each where they fit: bytes do as whole units."""
        is_whole = all(one == ABSENT or one % NANO == 0 for one in nanos)
        scale = NANO if is_whole else 1
        amounts = [one if one == ABSENT else one // scale for one in nanos]
        try:
            return cls(scale, array("q", amounts))
        except OverflowError:
            return cls(scale, tuple(amounts))

    def nanos(self, row: int) -> int | None:
        """Return the amount of a pod, None when it was not reported."""
        amount = self.amounts[row]
        return None if amount == ABSENT else amount * self.scale

    def total(self, rows: Iterable[int] | None) -> int:
        """Return the sum over rows, None: all, in billionths."""
        amounts = self.amounts if rows is None else [self.amounts[row] for row in rows]
        return (sum(amounts) - amounts.count(ABSENT) * ABSENT) * self.scale


class PodAmounts(Mapping[str, Nanos]):
    """The usage of each pod by namespace/name, as reported. Of a pod that is reported twice, as one that was made anew
    under its name, the last report is its usage, and sums have all of them."""

    __slots__ = ("_columns", "_count", "_earlier", "_rows")

    def __init__(self, entries: Sequence[PodMetricInfo]) -> None:
        """Raises: QuantityError."""
        pods = [one.pod_usage.resources for one in entries]
        names = dict.fromkeys(name for one in pods for name in one)
        self._count = len(pods)
        self._rows: dict[str, int] = {}
        self._earlier: dict[str, list[int]] = {}
        for row, one in enumerate(entries):
            key = f"{one.namespace}/{one.name}"
            if (before := self._rows.get(key)) is not None:
                self._earlier.setdefault(key, []).append(before)
            self._rows[key] = row
        self._columns = {
            name: Column.of([quantity.of(one[name]).nanos if name in one else ABSENT for one in pods])
            for name in names
        }

    def __getitem__(self, key: str) -> Nanos:
        row = self._rows[key]
        found = ((name, column.nanos(row)) for name, column in self._columns.items())
        return {name: nanos for name, nanos in found if nanos is not None}

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def keys(self) -> KeysView[str]:
        return self._rows.keys()

    def rows(self, keys: Iterable[str]) -> list[int]:
        """Return the rows of pods, of those that are known; for `total`."""
        if not self._earlier:
            return [row for key in keys if (row := self._rows.get(key)) is not None]
        known = [(key, row) for key in keys if (row := self._rows.get(key)) is not None]
        return [each for key, row in known for each in (row, *self._earlier.get(key, ()))]

    def total(self, name: str, rows: Collection[int] | None = None) -> int:
        """Return what all pods use of a resource in billionths, or those of `rows`."""
        column = self._columns.get(name)
        if column is None:
            return 0
        return column.total(None if rows is None or len(rows) == self._count else rows)


NOTHING = PodAmounts(())


class MeasuredNode(Object, frozen=True, kw_only=True):
    """A NodeMetric as decisions read it. `system` is what the node uses besides its pods, None before the first report;
    `problem` says why a report cannot be read."""

    resource: ClassVar[Resource] = NodeMetric.resource

    update_time: str | None = None
    system: Nanos | None = None
    pods: PodAmounts = NOTHING
    problem: str = ""
    interference: NodeInterference | None = None
    """The node's report of services that suffer from batch."""


def measured(metric: NodeMetric) -> MeasuredNode:
    """Return what is kept of a report."""
    status = metric.status
    node = status.node_metric
    try:
        return MeasuredNode(
            metadata=metric.metadata,
            update_time=status.update_time,
            system=None
            if node is None
            else {name: quantity.of(raw).nanos for name, raw in node.system_usage.resources.items()},
            pods=PodAmounts(status.pods_metric),
            interference=_interference(metric),
        )
    except ValueError as error:
        return MeasuredNode(metadata=metric.metadata, update_time=status.update_time, problem=str(error))


def _interference(metric: NodeMetric) -> NodeInterference | None:
    """Return what cannot be read as nothing: a hint is no reason to look away from a node."""
    try:
        return interference.of_report(metric.status.extensions)
    except (msgspec.ValidationError, ValueError) as error:
        facts = {"node": metric.metadata.name, "error": str(error)}
        log.warning("NodeMetric extension invalid", extra=facts)
        return None


class ByNode(Mapping[str, V]):
    """Values of some nodes by name, each as it was when it was first asked for."""

    def __init__(self, names: Iterable[str], value_of: Callable[[str], V]) -> None:
        self._names = dict.fromkeys(names)
        self._value_of = value_of
        self._known: dict[str, V] = {}

    def __getitem__(self, name: str) -> V:
        if (found := self._known.get(name)) is None:
            if name not in self._names:
                raise KeyError(name)
            found = self._known[name] = self._value_of(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Observation(msgspec.Struct, frozen=True):
    """The cluster in one cycle: the nodes that take part, with their pods and measurements. `pods_of` and `metrics` are
    by node name."""

    now_s: float
    nodes: Sequence[Node]
    pods_of: Mapping[str, Sequence[Pod]]
    metrics: Mapping[str, MeasuredNode]
