"""Token buckets: so many actions per second on average, so many at once."""

import asyncio

import msgspec


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """`per_s` actions per second in the long run, `burst` at once."""

    per_s: float
    burst: int

    def __post_init__(self) -> None:
        if self.per_s <= 0 or self.burst < 1:
            raise ValueError(f"rate: per_s {self.per_s} must be above 0 and burst {self.burst} at least 1")


class TokenBucket:
    """Grants actions in the order they are asked for; what exceeds the rate is told to wait."""

    __slots__ = ("_rate", "_refilled_s", "_tokens")

    def __init__(self, rate: Rate, now_s: float) -> None:
        self._rate = rate
        self._tokens = float(rate.burst)
        self._refilled_s = now_s

    def reserve(self, now_s: float) -> float:
        """Take a token, on credit when there is none; seconds until the action may happen."""
        self._refill(now_s)
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._rate.per_s)

    def try_take(self, now_s: float) -> bool:
        """Take a token if there is one."""
        self._refill(now_s)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    async def wait(self) -> float:
        """Take a token and sleep until it is due; how many seconds that is. When cancelled meanwhile, the token is
        given back."""
        pause_s = self.reserve(asyncio.get_running_loop().time())
        if pause_s <= 0.0:
            return 0.0
        try:
            await asyncio.sleep(pause_s)
        except asyncio.CancelledError:
            self._tokens += 1.0
            raise
        return pause_s

    def _refill(self, now_s: float) -> None:
        earned = max(0.0, now_s - self._refilled_s) * self._rate.per_s
        self._tokens = min(float(self._rate.burst), self._tokens + earned)
        self._refilled_s = max(now_s, self._refilled_s)
