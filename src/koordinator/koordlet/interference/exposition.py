"""Read one family of Prometheus' text format out of a body, without parsing the rest of it.

A body has hundreds of families and the agent wants one of them each second, of each service: the family is found by its
name (`bytes.find`), and of a line that was there before only the number is read.
"""

import math
import re

import msgspec

LINES_MAX = 20_000
"""Series of one family that are looked at; a target with more is refused."""
_LABEL = re.compile(rb'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


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
    """Counts per bucket since the last reading, over all series of the family; each series may begin anew."""

    def __init__(self, wanted: Family) -> None:
        self._wanted = wanted
        self._name = wanted.name + b"_bucket{"
        self._end_of: dict[bytes, float] = {}
        """Series as text up to the number → its upper end; NaN: not wanted."""
        self._last: dict[bytes, bytes] = {}
        """Series → its number, as text: most have not changed."""
        self._keys: list[tuple[bytes, bytes]] = []
        """The wanted series of the last body, and the text before their numbers, in order."""
        self._line_count = 0
        self._is_first = True
        self.is_there = False
        """The last body had the family."""

    @property
    def largest_end(self) -> float:
        """Return the largest finite upper end; infinite without any."""
        finite = [end for end in self._end_of.values() if math.isfinite(end)]
        return max(finite, default=math.inf)

    def read(self, body: bytes) -> dict[float, float] | None:
        """Return the increase of cumulative buckets by upper end, without those that have none; None for a body without
        the family, and for the first one, which has nothing to compare with.

        A counter that went back began again at 0. Raises: FamilyError.
        """
        block = self._block(body)
        wanted = self._as_before(block)
        if wanted is None:
            wanted = self._wanted_lines(block)
        self.is_there = bool(wanted)
        if not wanted:
            return None
        ends, last = self._end_of, self._last
        increase: dict[float, float] = {}
        for series, text in wanted:
            before = last.get(series)
            if before == text:
                continue
            last[series] = text
            end, count, was = ends[series], number(text), 0.0 if before is None else float(before)
            increase[end] = increase.get(end, 0.0) + (count - was if count >= was else count)
        is_first, self._is_first = self._is_first, False
        if len(ends) > LINES_MAX:
            ends.clear()  # most may have gone long ago: begin anew
            last.clear()
            self._keys = []
            self._is_first = True
            raise FamilyError(f"more than {LINES_MAX} series; choose by labels")
        return None if is_first else increase

    def _as_before(self, block: bytes) -> list[tuple[bytes, bytes]] | None:
        """Return the wanted series and their numbers if they are those of the last body, in the same order; else None.

        Only their own lines are looked at: with another series the number of lines is another, or one is missing.
        """
        if not self._keys or block.count(b"\n") != self._line_count:
            return None
        found, end = [], 0
        for series, key in self._keys:
            start = block.find(key, end)
            if start < 0:
                return None
            start += len(key)
            end = block.find(b"\n", start)
            if end < 0:
                end = len(block)
            text = block[start:end]
            found.append((series, text.split(None, 1)[0] if b" " in text else text))
        return found

    def _wanted_lines(self, block: bytes) -> list[tuple[bytes, bytes]]:
        """Return the wanted series and their numbers, and remember which they are."""
        found = []
        for line in block.split(b"\n"):
            if not line.startswith(self._name):
                continue
            series, text = _cut(line)
            end = self._end_of.get(series)
            if end is None:
                end = self._end_of[series] = self._end(series)
            if not math.isnan(end):
                found.append((series, text))
        self._keys = [(series, series + b" ") for series, _ in found]
        self._line_count = block.count(b"\n")
        return found

    def _block(self, body: bytes) -> bytes:
        """Return the part of the body that has the family."""
        is_first = body.startswith(self._name)
        start = 0 if is_first else body.find(b"\n" + self._name) + 1
        if not start and not is_first:
            return b""
        end = body.find(b"\n", max(body.rfind(b"\n" + self._name) + 1, start))
        return body[start:] if end < 0 else body[start:end]

    def _end(self, series: bytes) -> float:
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
    """Return the lines that begin with a prefix, as series (name and labels) and their number."""
    whole = b"\n" + body
    found, start = [], whole.find(b"\n" + prefix)
    while start >= 0:
        end = whole.find(b"\n", start + 1)
        found.append(_cut(whole[start + 1 :] if end < 0 else whole[start + 1 : end]))
        start = whole.find(b"\n" + prefix, start + 1)
    return found


def _cut(line: bytes) -> tuple[bytes, bytes]:
    """Return the name with labels, and the number; a time or an exemplar may follow it."""
    cut = line.find(b"} ") + 1 or line.find(b" ")
    words = line[cut:].split(None, 1) if cut > 0 else []
    return (line[:cut], words[0]) if words else (line, b"")


def number(text: bytes) -> float:
    """Return a number. Raises: FamilyError."""
    try:
        return float(text)
    except ValueError as error:
        raise FamilyError(f"{text[:40]!r} is no number") from error
