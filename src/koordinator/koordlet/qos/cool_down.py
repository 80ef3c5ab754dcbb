"""The rest after an eviction, in which what it brought becomes visible."""


class CoolDown:
    """No round within `cool_s` after one that evicted. Times are those of a clock that never goes back."""

    def __init__(self, cool_s: float, since_s: float | None = None) -> None:
        """`since_s`: when the first rest begins; None for none."""
        self._cool_s = cool_s
        self._since_s = since_s

    def is_over(self, now_s: float) -> bool:
        """Whether a round may evict."""
        return self._since_s is None or now_s - self._since_s >= self._cool_s

    def begin(self, now_s: float) -> None:
        """Somebody was evicted."""
        self._since_s = now_s
