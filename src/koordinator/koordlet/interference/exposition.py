"""Read one family of Prometheus' text format out of a body, without parsing the rest of it.

A body has hundreds of families and the agent wants one of them each second, of each service: the family is found by its
name (`bytes.find`), and while its series stand where they stood in the body before, only their numbers are read.
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


class _Layout(msgspec.Struct, frozen=True, eq=False):
    """Places of the wanted series in the lines of a family, in their order."""

    lines: int
    at: tuple[int, ...]
    cuts: tuple[int, ...]
    """Length of each line up to its number."""
    texts: list[bytes]
    """Text of each line up to there."""
    ends: tuple[float, ...]
    """The upper ends, each once."""
    end: tuple[int, ...]
    """Index into `ends` of each series."""


_NO_LAYOUT = _Layout(-1, (), (), [], (), ())


class BucketReader:
    """Counts per bucket since the last reading, over all series of the family; each series may begin anew."""

    def __init__(self, wanted: Family) -> None:
        self._wanted = wanted
        self._name = wanted.name + b"_bucket{"
        self._layout = _NO_LAYOUT
        self._counts: list[float] = []
        """The numbers of the layout's series in the last body."""
        self._gone: dict[bytes, float] = {}
        """Numbers of series of earlier layouts."""
        self._is_first = True
        self.is_there = False
        """The last body had the family."""
        self.largest_end = math.inf
        """The largest finite upper end; infinite without any."""

    def read(self, body: bytes) -> dict[float, float] | None:
        """Return the increase of cumulative buckets by upper end, without those that have none; None for a body without
        the family, and for the first one, which has nothing to compare with.

        A counter that went back began again at 0. Raises: FamilyError.
        """
        lines = self._block(body).split(b"\n")
        counts = self._as_before(lines)
        if counts is None:
            counts = self._relaid(lines)
        self.is_there = bool(counts)
        if not counts:
            return None
        if not (math.isfinite(sum(counts)) and min(counts) >= 0):
            raise FamilyError("a bucket's count is no number from 0 on")
        before, self._counts = self._counts, counts
        is_first, self._is_first = self._is_first, False
        if is_first or counts == before:
            return None if is_first else {}
        return self._increase(counts, before)

    def _increase(self, counts: list[float], before: list[float]) -> dict[float, float]:
        layout = self._layout
        came = [now - was for now, was in zip(counts, before, strict=True)]
        began_anew = min(came) < 0
        if began_anew:
            came = [now if more < 0 else more for now, more in zip(counts, came, strict=True)]
        sums = [0.0] * len(layout.ends)
        for at, more in zip(layout.end, came, strict=True):
            sums[at] += more
        return {end: more for end, more in zip(layout.ends, sums, strict=True) if more or began_anew}

    def _as_before(self, lines: list[bytes]) -> list[float] | None:
        """Return the numbers of the wanted series if all stand where they stood in the last body; else None."""
        layout = self._layout
        if len(lines) != layout.lines:
            return None
        own = [lines[at] for at in layout.at]
        if [line[:cut] for line, cut in zip(own, layout.cuts, strict=True)] != layout.texts:
            return None
        try:
            return [float(line[cut:]) for line, cut in zip(own, layout.cuts, strict=True)]
        except ValueError:  # a time or an exemplar follows a number
            return [number(_cut(line)[1]) for line in own]

    def _relaid(self, lines: list[bytes]) -> list[float]:
        """Look at each line: remember where the wanted series are, take over what was counted of them, and return
        their numbers. Raises: FamilyError."""
        if len(lines) > LINES_MAX:
            self._layout, self._counts, self._is_first = _NO_LAYOUT, [], True
            self._gone.clear()
            raise FamilyError(f"more than {LINES_MAX} series; choose by labels")
        found = []
        for at, line in enumerate(lines):
            if line.startswith(self._name):
                series, text = _cut(line)
                end = self._end(series)
                if not math.isnan(end):
                    found.append((at, series + b" ", number(text), end))
        if not found:
            return []
        places, texts, counts, of_series = zip(*found, strict=True)
        ends = tuple(sorted(set(of_series)))
        known = self._gone | dict(zip(self._layout.texts, self._counts, strict=True))
        # Most of what is gone may never come again.
        self._gone = known if len(known) <= LINES_MAX else {}
        self._layout = _Layout(
            len(lines), places, tuple(map(len, texts)), list(texts), ends, tuple(map(ends.index, of_series))
        )
        self._counts = [known.get(text, 0.0) for text in texts]
        self.largest_end = max((end for end in ends if math.isfinite(end)), default=math.inf)
        return list(counts)

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
            listed = ", ".join(f"{each:g}" for each in sorted(offered))
            raise FamilyError(f"the summary has no quantile {self._quantile:g}, only {listed}")
        known = [value for value in values if 0 <= value < math.inf]  # NaN while nobody asked
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
        if not math.isfinite(total):
            raise FamilyError("its count is no number")
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
