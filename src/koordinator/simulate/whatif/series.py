"""Usage over time from CSV files: a line for each node or pod, in the layout of public traces.

`name,v0,v1,…`: of nodes percent of their CPU, as `local.nodes.usage.read_trace` reads it; of pods (`namespace/name`)
cores or bytes. An empty cell is a time of which nothing is known.
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api import user_files
from koordinator.local.nodes.usage import F64
from koordinator.simulate.whatif.cluster import WhatIfError

HEADER = "name,"
UNKNOWN = 2**16 - 1
"""Stands for a time of which nothing is known; the largest value of a line is one less."""
VALUE_MAX = 1e16


class PodSeries(msgspec.Struct, eq=False):
    """The use of each pod, one value per step. Whole weeks of clusters must fit into memory, so each line is kept in
    parts of its largest value: (pods, steps) 16-bit numbers, exact to 1/65,534 of that, and a part's size, (pods,)."""

    names: list[str]
    parts: npt.NDArray[np.uint16]
    unit: F64

    @property
    def steps(self) -> int:
        """Return the number of values in each line."""
        return int(self.parts.shape[1])

    def between(self, first: int, last: int) -> F64:
        """Return the values of steps `first` to `last` (not included), (steps, pods); NaN where unknown."""
        block = np.ascontiguousarray(self.parts[:, first:last].T)
        values = block * self.unit
        values[block == UNKNOWN] = np.nan
        return values


class SeriesBuilder:
    """Takes lines of values, one pod at a time."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._parts: list[npt.NDArray[np.uint16]] = []
        self._unit: list[float] = []

    def add(self, name: str, values: npt.NDArray[np.floating]) -> None:
        """Add a pod's values, (steps,), NaN where unknown; none is negative."""
        known = ~np.isnan(values)
        largest = float(values[known].max()) if known.any() else 0.0
        unit = largest / (UNKNOWN - 1) or 1.0
        parts = np.full(values.size, UNKNOWN, np.uint16)
        parts[known] = np.rint(values[known] / unit)
        self._names.append(name)
        self._parts.append(parts)
        self._unit.append(unit)

    def built(self) -> PodSeries:
        """Return all of them; what was taken is given away."""
        steps = self._parts[0].size if self._parts else 0
        table = np.full((len(self._parts), steps), UNKNOWN, np.uint16)
        for row in range(len(self._parts)):
            table[row] = self._parts[row]
            self._parts[row] = table[row]  # the line of its own is let go
        return PodSeries(self._names, table, np.array(self._unit))


def is_of_pods(path: Path) -> bool:
    """Return whether the lines of a file are about pods: the first name has a namespace. Raises: FileError."""
    return any("/" in name for _, name, _ in itertools.islice(_lines(path), 1))


def read(path: Path) -> PodSeries:
    """Return the lines of a file about pods. Raises: WhatIfError naming file, line, column and reason; FileError."""
    builder = SeriesBuilder()
    width = 0
    for number, name, cells in _lines(path):
        if "/" not in name:
            raise WhatIfError(f"{path}, line {number}: {name!r} is no pod: expected namespace/name")
        if width and len(cells) != width:
            raise WhatIfError(
                f"{path}, line {number}: has {len(cells)} values where the lines before have {width}"
            )
        if not cells:
            raise WhatIfError(f"{path}, line {number}: has no values; expected namespace/name,v0,v1,…")
        width = len(cells)
        builder.add(name, _values(path, number, cells))
    if not width:
        raise WhatIfError(f"{path}: is empty; expected lines of namespace/name,v0,v1,…")
    return builder.built()


def _lines(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    for number, line in enumerate(user_files.lines(path), start=1):
        if line.strip() and not (number == 1 and line.startswith(HEADER)):
            name, *cells = line.rstrip("\r\n").split(",")
            yield number, name.strip(), cells


def _values(path: Path, number: int, cells: Sequence[str]) -> F64:
    try:
        values = np.array(cells, np.float64)
    except ValueError:
        values = np.array(
            [_value(path, number, column, cell) for column, cell in enumerate(cells, start=2)], np.float64
        )
    if (values < 0).any() or (values > VALUE_MAX).any():
        column = int(np.flatnonzero((values < 0) | (values > VALUE_MAX))[0])
        raise WhatIfError(
            f"{path}, line {number}, column {column + 2}: {cells[column].strip()} cannot be true"
        )
    return values


def _value(path: Path, number: int, column: int, cell: str) -> float:
    if not cell.strip():
        return float("nan")
    try:
        return float(cell)
    except ValueError:
        raise WhatIfError(
            f"{path}, line {number}, column {column}: {cell.strip()!r} is not a number"
        ) from None


def write(file: IO[str], series: PodSeries) -> None:
    """Write the lines as `read` takes them."""
    for row, name in enumerate(series.names):
        parts = series.parts[row]
        texts = ["" if part == UNKNOWN else f"{part * series.unit[row]:.6g}" for part in parts.tolist()]
        file.write(f"{name},{','.join(texts)}\n")
