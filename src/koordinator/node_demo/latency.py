"""Latencies of one run as the load generator wrote them, and what they amount to. Percentiles are exact."""

from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from koordinator.node_demo.errors import DemoError

I64 = NDArray[np.int64]

_FIELDS = 3  # due, latency, lateness of sending: loadgen.c
_NS_PER_MS = 1e6
_NS_PER_S = 1e9


class Latency(msgspec.Struct, frozen=True, rename="camel"):
    """The latency that clients saw, from the moment that each request was due."""

    requests: int
    unanswered: int
    answered_per_s: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    sent_late_p99_ms: float


class Records(msgspec.Struct, frozen=True):
    """Requests of one run in the order they were due; nanoseconds, arrays of (requests,).

    A request without an answer has the negated time that it had waited when the run ended.
    """

    due_ns: I64
    latency_ns: I64
    late_ns: I64


def read(path: Path) -> Records:
    """Raises: DemoError when the file is not what a load generator writes."""
    numbers = np.fromfile(path, dtype=np.int64)
    if numbers.size == 0 or numbers.size % _FIELDS:
        raise DemoError(f"{path}: {numbers.size} numbers are no list of requests")
    due, latency, late = numbers.reshape(-1, _FIELDS).T
    return Records(due, latency, late)


def percentile(values: I64, percent: float) -> int:
    """Return the smallest of `values` (requests,) that at least `percent` of all do not exceed (nearest rank)."""
    assert values.size > 0, values.shape
    rank = max(int(np.ceil(round(percent / 100 * values.size, 9))), 1)
    return int(np.partition(values, rank - 1)[rank - 1])


def summarise(records: Records, window_s: float) -> Latency:
    """Figures of a run whose requests were due within `window_s`.

    Requests without an answer count with what they had waited: their latency is at least that.
    """
    is_answered = records.latency_ns > 0
    waited = np.abs(records.latency_ns)
    in_time = is_answered & (records.due_ns + waited <= window_s * _NS_PER_S)
    return Latency(
        requests=int(waited.size),
        unanswered=int(waited.size - is_answered.sum()),
        answered_per_s=float(in_time.sum() / window_s),
        p50_ms=percentile(waited, 50) / _NS_PER_MS,
        p99_ms=percentile(waited, 99) / _NS_PER_MS,
        p999_ms=percentile(waited, 99.9) / _NS_PER_MS,
        max_ms=int(waited.max()) / _NS_PER_MS,
        sent_late_p99_ms=percentile(records.late_ns, 99) / _NS_PER_MS,
    )
