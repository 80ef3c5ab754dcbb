"""Measurements as far as they can be true: eviction is never decided on numbers that no machine has."""

from collections.abc import Callable, Iterator, Mapping

SLACK_RATIO = 1.1
"""Rates are measured over a moment and may come out a little high."""


def plausible(value: float | None, capacity: float) -> float | None:
    """The value if a machine of that capacity can have it, else None."""
    return value if value is not None and 0 <= value <= capacity * SLACK_RATIO else None


class PlausibleUsage(Mapping[str, float]):
    """Usage by UID, without values that cannot be true; read only when somebody asks."""

    def __init__(self, read: Callable[[], Mapping[str, float]], capacity: float) -> None:
        self._read = read
        self._capacity = capacity
        self._known: dict[str, float] | None = None

    def __getitem__(self, uid: str) -> float:
        return self._values()[uid]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())

    def _values(self) -> dict[str, float]:
        if self._known is None:
            read = self._read().items()
            self._known = {uid: value for uid, value in read if plausible(value, self._capacity) is not None}
        return self._known
