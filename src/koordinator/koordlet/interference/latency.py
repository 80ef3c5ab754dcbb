"""A service's latency of the last moments against its objective: percentiles of windows, rate, slack. Pure."""

import math
from collections import deque
from collections.abc import Iterable, Mapping

import msgspec

REQUESTS_MIN = 5.0
"""So few requests within a window say nothing about a percentile."""
SAMPLES_MAX = 20_000
"""Single durations that a window keeps; of more, the oldest go."""


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """The latency of one service."""

    now_s: float
    """The percentile of the objective over its window, in seconds."""
    target_s: float
    rate: float
    """Requests per second over the window."""
    at_s: float
    """Time at which the newest requests were reported."""

    @property
    def slack(self) -> float:
        """Return (target - now) / target."""
        return slack(self.now_s, self.target_s)


def slack(now_s: float, target_s: float) -> float:
    """Return how much of the target is left: 1 with instant answers, 0 at the target, negative beyond it.

    Units: seconds, the target above 0. Source: Heracles (Lo et al., ISCA 2015), section 4.2.
    """
    return (target_s - now_s) / target_s


def percentile_of_buckets(increase: Mapping[float, float], share: float) -> float | None:
    """Return the percentile of requests counted in cumulative buckets by upper end, interpolated within its bucket;
    None without requests.

    Beyond the last finite end that end is the answer, as it is at least that: histograms cannot tell more. Within a
    bucket requests are taken to be spread evenly, from 0 in the first. Source: Prometheus, `histogram_quantile`.
    """
    below_end, below_count = 0.0, 0.0
    ends = sorted(increase)
    total = increase[ends[-1]] if ends else 0.0
    if total <= 0:
        return None
    rank = share * total
    for end in ends:
        count = max(increase[end], below_count)  # a series may have begun anew in between
        if count >= rank and count > below_count:
            if math.isinf(end):
                return below_end
            within = (rank - below_count) / (count - below_count)
            return min(below_end + (end - below_end) * within, end)  # rounding may pass the end
        below_end, below_count = (below_end if math.isinf(end) else end), count
    return below_end


def percentile_of_samples(samples: Iterable[float], share: float) -> float | None:
    """Return the smallest sample that at least this share of all do not exceed; None without samples."""
    ordered = sorted(samples)
    if not ordered:
        return None
    return ordered[min(max(math.ceil(share * len(ordered)) - 1, 0), len(ordered) - 1)]


class BucketWindow:
    """The increase of cumulative buckets over the last `window_s` seconds."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._parts: deque[tuple[float, float, Mapping[float, float]]] = deque()
        """(Time of the report, start of the count, increase by upper end)."""
        self._total: dict[float, float] = {}
        """The increase over all parts. Counts are whole, so what is added and taken away leaves nothing; an end stays,
        as a bound below which nobody was."""

    def add(self, at_s: float, since_s: float, increase: Mapping[float, float]) -> None:
        """Add what came between two readings."""
        self._parts.append((at_s, since_s, increase))
        total = self._total
        for end, count in increase.items():
            total[end] = total.get(end, 0.0) + count

    def latency(self, share: float, target_s: float, now_s: float) -> Latency | None:
        """Return the percentile of the window that ends now; None with too few requests."""
        parts, total = self._parts, self._total
        while parts and parts[0][0] <= now_s - self._window_s:
            _, _, gone = parts.popleft()
            for end, count in gone.items():
                total[end] -= count
        if not parts:
            total.clear()
            return None
        return _latency_of(total, parts[-1][0] - parts[0][1], parts[-1][0], share, target_s)

    def newest(self, share: float, target_s: float) -> Latency | None:
        """Return the percentile of what came between the last two readings; None with too few requests."""
        if not self._parts:
            return None
        at_s, since_s, increase = self._parts[-1]
        return _latency_of(increase, at_s - since_s, at_s, share, target_s)


def _latency_of(
    increase: Mapping[float, float], seconds: float, at_s: float, share: float, target_s: float
) -> Latency | None:
    requests = max(increase.values(), default=0.0)
    found = percentile_of_buckets(increase, share) if requests >= REQUESTS_MIN else None
    if found is None:
        return None
    return Latency(now_s=found, target_s=target_s, rate=requests / max(seconds, 1e-3), at_s=at_s)


class SampleWindow:
    """The durations of single requests over the last `window_s` seconds."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, float]] = deque(maxlen=SAMPLES_MAX)

    def add(self, at_s: float, durations_s: Iterable[float]) -> None:
        """Add requests that were reported now."""
        self._samples.extend((at_s, each) for each in durations_s)

    def latency(self, share: float, target_s: float, now_s: float) -> Latency | None:
        """Return the percentile of the window that ends now; None with too few requests."""
        while self._samples and self._samples[0][0] <= now_s - self._window_s:
            self._samples.popleft()
        return self._of([each for _, each in self._samples], share, target_s, self._window_s)

    def newest(self, share: float, target_s: float) -> Latency | None:
        """Return the percentile of what was reported last; None with too few requests."""
        last = [each for at_s, each in self._samples if at_s == self._samples[-1][0]]
        return self._of(last, share, target_s, 1.0)

    def _of(self, samples: list[float], share: float, target_s: float, seconds: float) -> Latency | None:
        found = percentile_of_samples(samples, share)
        if found is None or len(samples) < REQUESTS_MIN:
            return None
        at_s = self._samples[-1][0]
        return Latency(now_s=found, target_s=target_s, rate=len(samples) / seconds, at_s=at_s)
