"""Generate the CPU that pods would use if nobody was in their way: a generator, or a recorded trace.

Both are pure functions of time: the same pod wants the same CPU at the same moment in every run, whatever
else happens on its node. That is what makes two runs comparable.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api import user_files
from koordinator.api.errors import KoordinatorError

F64 = npt.NDArray[np.float64]
U64 = npt.NDArray[np.uint64]
Index = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

DAY_S = 86_400.0
# Load changes within minutes (user behaviour) and within the hour (campaigns, batches of requests).
NOISE_FAST_S = 300.0
NOISE_SLOW_S = 3_600.0
TRACE_STEP_S = 300.0
"""Seconds that one value of a trace stands for."""


def per_node(node: Index, values: F64, nodes: int) -> F64:
    """Sums of the pods' values on each of `nodes` nodes; `node` and `values` are (pods,)."""
    return np.bincount(node, values, minlength=nodes).astype(np.float64, copy=False)


def demand_milli(
    mean_milli: F64, amplitude_ratio: F64, peak_s: F64, noise_sigma: F64, noise: F64, time_s: float
) -> F64:
    """CPU that each pod wants now; over a whole day it averages `mean_milli`.

    All arguments are (pods,): `amplitude_ratio` (0–1) of the daily wave, `peak_s` seconds after midnight at
    which it is highest, `noise_sigma` of the logarithm of the noise, `noise` now (`Noise.at`).
    """
    daily = daily_wave(amplitude_ratio, peak_s, time_s)
    return mean_milli * daily * np.exp(noise_sigma * noise - noise_sigma * noise_sigma / 2)


def daily_wave(amplitude_ratio: F64, peak_s: F64, time_s: float) -> F64:
    """Return a factor around 1 with one high in the day and a flatter low at night; all arrays are (pods,)."""
    angle = (time_s - peak_s) * (2 * math.pi / DAY_S)
    return np.maximum(1 + amplitude_ratio * (0.85 * np.cos(angle) + 0.15 * np.cos(2 * angle)), 0.0)


class Noise:
    """Standard normal noise per seed that moves smoothly, over minutes and over the hour; the same every time.

    The values drawn for a step are kept until the next one: drawing costs more than all the rest of a tick.
    """

    def __init__(self, seed: U64) -> None:
        self.seed = seed
        self._fast = _SmoothNoise(seed, NOISE_FAST_S)
        self._slow = _SmoothNoise(seed ^ np.uint64(0x5851F42D4C957F2D), NOISE_SLOW_S)

    def at(self, time_s: float) -> F64:
        """Return the noise of every seed at a moment: (seeds,)."""
        return math.sqrt(0.5) * (self._fast.at(time_s) + self._slow.at(time_s))


class _SmoothNoise:
    """Noise on a grid of steps. Between the grid points it is their weighted mean, rescaled so that the
    variance stays 1 all along."""

    def __init__(self, seed: U64, step_s: float) -> None:
        self._seed = seed
        self._step_s = step_s
        self._step: int | None = None
        self._before = self._after = np.empty(0)

    def at(self, time_s: float) -> F64:
        position, along = divmod(time_s / self._step_s, 1.0)
        step = int(position)
        if step != self._step:
            self._before, self._after = _normal(self._seed, step), _normal(self._seed, step + 1)
            self._step = step
        scale = 1 / math.hypot(1 - along, along)
        return (self._before * (1 - along) + self._after * along) * scale


def _normal(seed: U64, step: int) -> F64:
    """Return a standard normal variate for each seed at a step, by hashing: no state, so no order matters."""
    bits = _mix(seed + np.uint64((step * 0x9E3779B97F4A7C15) % 2**64))
    first = ((bits >> np.uint64(32)).astype(np.float64) + 0.5) / 2**32
    second = ((bits & np.uint64(0xFFFFFFFF)).astype(np.float64) + 0.5) / 2**32
    normal: F64 = np.sqrt(-2 * np.log(first)) * np.cos(2 * math.pi * second)  # Box and Muller
    return normal


def _mix(bits: U64) -> U64:
    """Return the finaliser of splitmix64: every input bit changes half of the output bits."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


class TraceError(KoordinatorError):
    """A trace file cannot be read; `line` and `column` count from 1, 0 when the whole file is meant."""

    def __init__(self, path: str, line: int, column: int, reason: str) -> None:
        super().__init__(path, line, column, reason)
        self.path, self.line, self.column, self.reason = path, line, column, reason

    def __str__(self) -> str:
        where = f", line {self.line}" if self.line else ""
        where += f", column {self.column}" if self.column else ""
        return f"{self.path}{where}: {self.reason}"


class Trace(msgspec.Struct, frozen=True):
    """CPU use of machines over time: `ratio` is (machines, steps), each 0–1 of the machine."""

    names: tuple[str, ...]
    ratio: F64

    def at(self, time_s: float) -> F64:
        """Use of every machine at a moment, (machines,); the trace starts over when it ends."""
        step = int(time_s // TRACE_STEP_S) % self.ratio.shape[1]
        column: F64 = self.ratio[:, step]
        return column

    def sample(self, count: int, rng: np.random.Generator) -> "Trace":
        """`count` machines drawn at random, each at most once as long as there are enough."""
        machines = len(self.names)
        rounds = [rng.permutation(machines) for _ in range(-(-count // machines))]
        rows = np.concatenate(rounds)[:count]
        return Trace(tuple(self.names[row] for row in rows), self.ratio[rows])


def read_trace(path: Path) -> Trace:
    """Read `name,v0,v1,…` lines, values in percent of the machine per five minutes; `.gz` is unpacked.

    A first line that starts with `name,` is a header.
    Raises: TraceError naming file, line, column and reason.
    """
    where = str(path)
    names: list[str] = []
    rows: list[list[float]] = []
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip() or (number == 1 and line.startswith("name,")):
            continue
        name, *cells = line.split(",")
        if rows and len(cells) != len(rows[0]):
            reason = f"has {len(cells)} values where the lines before have {len(rows[0])}"
            raise TraceError(where, number, 0, reason)
        if not cells:
            raise TraceError(where, number, 0, "has no values; expected name,v0,v1,…")
        names.append(name.strip())
        rows.append([_percent(where, number, column, cell) for column, cell in enumerate(cells, start=2)])
    if not rows:
        raise TraceError(where, 0, 0, "is empty; expected lines of name,v0,v1,…")
    return Trace(tuple(names), np.array(rows, dtype=np.float64) / 100)


def _lines(path: Path) -> Iterator[str]:
    """Raises: TraceError."""
    try:
        yield from (line.rstrip("\r\n") for line in user_files.lines(path))
    except user_files.FileError as error:
        raise TraceError(str(path), 0, 0, ": ".join(filter(None, (error.place, error.reason)))) from error
    except OSError as error:
        raise TraceError(str(path), 0, 0, error.strerror or str(error)) from error


def _percent(path: str, line: int, column: int, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        raise TraceError(path, line, column, f"{cell.strip()!r} is not a number") from None
    if not 0 <= value <= 100:  # NaN is not, either
        raise TraceError(path, line, column, f"{cell.strip()} is not a percentage from 0 to 100")
    return value
