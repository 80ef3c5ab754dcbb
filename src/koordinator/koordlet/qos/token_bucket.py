"""Work out how long a container may use more CPU than its limit: a bucket of percent-seconds.

Source: behaviour/koordlet-act 8.5.
"""

import random

import msgspec

from koordinator.api.slo import CPUBurstStrategy

SAVING_PERCENT = 60
"""Below this usage a container saves tokens."""
FULL_PERCENT = 100
"""Above this usage it spends them."""
_START_SHARE_MAX = 0.5


class BurstTokenBucket(msgspec.Struct, frozen=True):
    """Tokens left, between plus and minus the capacity, and the part of a second not yet accounted."""

    capacity: int
    tokens: int
    rest_s: float = 0.0

    @property
    def allows(self) -> bool:
        """Return whether the container may go on above its limit."""
        return self.tokens > 0

    def step(self, elapsed_s: float, usage_percent: int) -> "BurstTokenBucket":
        """Return the bucket after `elapsed_s` at this usage (percent of the limit).

        Whole seconds are accounted; the rest is kept for the next step, so that a loop that is slightly
        faster than a second still accounts for its time.
        """
        seconds = int(elapsed_s + self.rest_s)
        tokens = self.tokens
        if usage_percent >= FULL_PERCENT:
            tokens -= (usage_percent - FULL_PERCENT) * seconds
        elif usage_percent < SAVING_PERCENT:
            tokens += (FULL_PERCENT - usage_percent) * seconds
        tokens = min(max(tokens, -self.capacity), self.capacity)
        return BurstTokenBucket(self.capacity, tokens, elapsed_s + self.rest_s - seconds)


def capacity_of(settings: CPUBurstStrategy) -> int | None:
    """Percent-seconds that the settings allow at once; None when the time is not limited."""
    period_s, percent = settings.cfs_quota_burst_period_seconds, settings.cfs_quota_burst_percent
    if period_s is None or period_s < 0:
        return None
    return period_s * (percent - FULL_PERCENT) if percent is not None and percent >= FULL_PERCENT else 0


def bucket_for(capacity: int, old: BurstTokenBucket | None, rng: random.Random) -> BurstTokenBucket:
    """Return the old bucket, or a new one where there is none of this capacity.

    A new bucket starts less than half full, at random: otherwise all containers of a restarted agent would
    burst and stop at the same time.
    """
    if old is not None and old.capacity == capacity:
        return old
    return BurstTokenBucket(capacity, int(capacity * rng.uniform(0.0, _START_SHARE_MAX)))


def usage_percent(used_cores: float | None, limit_milli: int) -> int:
    """Usage as a percentage of the limit; an unknown usage counts as the limit."""
    return FULL_PERCENT if used_cores is None else int(used_cores / (limit_milli / 1000) * 100)
