"""A token bucket that is told the time. Source: behaviour/descheduler 7.6 and 7.7."""


class TokenBucket:
    """Holds up to `size` tokens, refilled at `rate` a second; full when made."""

    def __init__(self, rate: float, size: int, now_s: float) -> None:
        self.rate = rate
        self._size = size
        self._tokens = float(size)
        self._at_s = now_s

    def has_token(self, now_s: float) -> bool:
        self._refill(now_s)
        return self._tokens >= 1

    def take(self, now_s: float) -> bool:
        """Take a token if there is one; whether there was."""
        if not self.has_token(now_s):
            return False
        self._tokens -= 1
        return True

    def set_rate(self, rate: float, now_s: float) -> None:
        """From now on refill at another rate."""
        self._refill(now_s)
        self.rate = rate

    def _refill(self, now_s: float) -> None:
        if now_s > self._at_s:
            self._tokens = min(float(self._size), self._tokens + (now_s - self._at_s) * self.rate)
            self._at_s = now_s
