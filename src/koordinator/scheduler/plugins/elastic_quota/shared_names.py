"""The resources that the quotas below the root share: those in the max of any. Source: behaviour/elastic-quota 6.3."""

from collections import Counter
from collections.abc import Iterable


class SharedNames:
    """How many quotas count each resource."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._sorted: tuple[str, ...] | None = ()

    def count(self, names: Iterable[str], sign: int) -> None:
        """A quota that counts these came (1) or went (-1)."""
        for name in names:
            self._counts[name] += sign
        self._sorted = None

    def names(self) -> tuple[str, ...]:
        """Those that any quota counts, sorted."""
        if self._sorted is None:
            self._sorted = tuple(sorted(name for name, count in self._counts.items() if count))
        return self._sorted
