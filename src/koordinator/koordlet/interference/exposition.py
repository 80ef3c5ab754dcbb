"""Read one family of Prometheus' text format out of a body, without parsing the rest of it.

A body has hundreds of families and the agent wants one of them each second, of each service: the family is found by its
name (`bytes.find`), and of a line that was there before only the number is read.
"""

import math
import re

import msgspec

LINES_MAX = 10_000
"""Series of one family that are read; more are refused, since labels choose too little."""
_LABEL = re.compile(rb'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_OTHER = -1
"""Series whose labels are not those wanted."""


class FamilyError(ValueError):
    """A family that cannot be used; the message says why."""


class Family(msgspec.Struct, frozen=True):
    """The wanted family and labels; `labels` as they are written in the text, escaped."""

    name: bytes
    labels: frozenset[tuple[bytes, bytes]]


def family(name: str, labels: dict[str, str]) -> Family:
    """Return the family of that name with exactly these values of labels, and any others."""
    return Family(name.encode(), frozenset((key.encode(), _escaped(value)) for key, value in labels.items()))


def _escaped(value: str) -> bytes:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").encode()


class BucketReader:
    """Counts per bucket since the last reading, over all series of the family; each series may begin anew.

    `bounds` are the upper ends that were seen, ascending; the last is infinite.
    """

    def __init__(self, wanted: Family) -> None:
        self._wanted = wanted
        self._prefix = wanted.name + b"_bucket{"
        self._bound_of: dict[bytes, float] = {}
        """Series as text up to the number → its upper end; NaN: not wanted."""
        self._last: dict[bytes, float] = {}
        self._is_first = True
        self.is_there = False
        """The last body had the family."""

    @property
    def largest_end(self) -> float:
        """Return the largest finite upper end; infinite without any."""
        finite = [end for end in self._bound_of.values() if math.isfinite(end)]
        return max(finite, default=math.inf)

    def read(self, body: bytes) -> dict[float, float] | None:
        """Return the increase of each cumulative bucket by its upper end; None for a body without the family, and for
        the first one, which has nothing to compare with.

        A counter that went back began again at 0. Raises: FamilyError.
        """
        found = self._lines(body)
        self.is_there = bool(found)
        if not found:
            return None
        last, bounds = self._last, self._bound_of
        increase: dict[float, float] = {}
        for series, number in found:
            bound = bounds[series]
            before = last.get(series, 0.0)
            last[series] = number
            increase[bound] = increase.get(bound, 0.0) + (number - before if number >= before else number)
        if len(last) > LINES_MAX:  # series that went; those that are left are read anew
            last.clear()
            self._is_first = True
            return None
        is_first, self._is_first = self._is_first, False
        return None if is_first else increase

    def _lines(self, body: bytes) -> list[tuple[bytes, float]]:
        bounds, found = self._bound_of, []
        for series, rest in lines_of(body, self._prefix):
            bound = bounds.get(series)
            if bound is None:
                bound = bounds[series] = self._bound(series)
            if not math.isnan(bound):
                found.append((series, number(rest)))
        if len(bounds) > 2 * LINES_MAX:
            bounds.clear()
            return []
        return found

    def _bound(self, series: bytes) -> float:
        pairs = dict(_LABEL.findall(series))
        upper = pairs.pop(b"le", None)
        if upper is None or not self._wanted.labels <= pairs.items():
            return math.nan
        return math.inf if upper == b"+Inf" else number(upper)


class QuantileReader:
    """One quantile of a summary; over several series the largest counts."""

    def __init__(self, wanted: Family, quantile: float) -> None:
        self._wanted = wanted
        self._prefix = wanted.name + b"{"
        self._count_prefix = wanted.name + b"_count"
        self._quantile = quantile
        self._last_count: float | None = None
        self.is_there = False
        """The last body had the summary."""

    def read(self, body: bytes) -> tuple[float, float] | None:
        """Return the quantile, and how many requests came since the last reading; None for a body without.

        Raises: FamilyError when the summary has no such quantile.
        """
        values, offered = [], set()
        for series, rest in lines_of(body, self._prefix):
            pairs = dict(_LABEL.findall(series))
            quantile = pairs.pop(b"quantile", None)
            if quantile is None or not self._wanted.labels <= pairs.items():
                continue
            offered.add(number(quantile))
            if math.isclose(number(quantile), self._quantile):
                values.append(number(rest))
        self.is_there = bool(offered)
        if not offered:
            return None
        if not values:
            told = ", ".join(f"{each:g}" for each in sorted(offered))
            raise FamilyError(f"the summary has no quantile {self._quantile:g}, only {told}")
        known = [value for value in values if not math.isnan(value)]
        count = self._count(body)
        before, self._last_count = self._last_count, count
        came = 0.0 if before is None else (count - before if count >= before else count)
        return (max(known), came) if known and came > 0 else None

    def _count(self, body: bytes) -> float:
        total = 0.0
        for series, rest in lines_of(body, self._count_prefix):
            is_own = series[len(self._count_prefix) :][:1] in (b"", b"{")
            if is_own and self._wanted.labels <= set(_LABEL.findall(series)):
                total += number(rest)
        return total


def lines_of(body: bytes, prefix: bytes) -> list[tuple[bytes, bytes]]:
    """Return the lines that begin with a prefix, as series (name and labels) and what follows it.

    Raises: FamilyError when there are too many.
    """
    found: list[tuple[bytes, bytes]] = []
    start = 0 if body.startswith(prefix) else body.find(b"\n" + prefix) + 1
    if not start and not body.startswith(prefix):
        return found
    while True:
        end = body.find(b"\n", start)
        line = body[start:] if end < 0 else body[start:end]
        if line.startswith(prefix):
            cut = line.find(b"} ") + 1 or line.find(b" ")
            if cut > 0:
                found.append((line[:cut], line[cut:]))
        else:  # the rest of the family usually follows at once; else look for it
            start = body.find(b"\n" + prefix, start) + 1
            if not start:
                return found
            continue
        if len(found) > LINES_MAX:
            raise FamilyError(f"more than {LINES_MAX} series; choose by labels")
        if end < 0:
            return found
        start = end + 1


def number(text: bytes) -> float:
    """Return the first word as a number; a time or an exemplar may follow. Raises: FamilyError."""
    word = text.split(None, 1)[0] if text.strip() else b""
    try:
        return float(word)
    except ValueError as error:
        raise FamilyError(f"{word[:40]!r} is no number") from error
