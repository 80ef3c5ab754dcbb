"""Lists of CPUs as text: `0-3,8`. Source: behaviour/api 9."""

from collections.abc import Iterable

from koordinator.api import scalars
from koordinator.api.errors import KoordinatorError

CPUSet = frozenset[int]
"""CPU ids; the set operations are those of the language."""

RANGE_END_MAX = 4096
"""The highest id that a range may end at (single ids may be higher)."""


class CPUSetError(KoordinatorError, ValueError):
    """`text` is not a CPU list because of `item`."""

    def __init__(self, text: str, item: str, reason: str) -> None:
        super().__init__(text, item, reason)
        self.text, self.item, self.reason = text, item, reason

    def __str__(self) -> str:
        return f"{self.text[:80]!r} is not a CPU list: {self.item[:80]!r}: {self.reason}"


def parse(text: str) -> CPUSet:
    """Return the CPUs that the text lists; empty text is the empty set, a reversed range is none.

    Raises: CPUSetError.
    """
    cpus: set[int] = set()
    for item in text.split(",") if text else ():
        try:
            bounds = [scalars.parse_int(bound, 32) for bound in item.split("-")]
        except scalars.ScalarError as error:
            raise CPUSetError(text, item, "expected a number or a range like 0-3") from error
        if len(bounds) > 2:
            raise CPUSetError(text, item, "more than one dash")
        if len(bounds) == 2 and bounds[1] > RANGE_END_MAX:
            raise CPUSetError(text, item, f"a range ends at most at {RANGE_END_MAX}")
        cpus.update(range(bounds[0], bounds[-1] + 1))
    return frozenset(cpus)


def text_of(cpus: Iterable[int]) -> str:
    """Return the canonical text: ascending, runs of two and more as ranges."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def is_equal_text(a: str, b: str) -> bool:
    """Return whether both texts parse and list the same CPUs."""
    try:
        return parse(a) == parse(b)
    except CPUSetError:
        return False
