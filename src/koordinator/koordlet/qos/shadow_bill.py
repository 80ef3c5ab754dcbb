"""The bill of a strategy, hour by hour: what it did to services and batch, or in shadow mode what it would have done.

Amounts are worked out from the limits that the strategy left behind and from what was measured, the same way for both:
so a bill in shadow mode is what the strategy costs once it is switched on, as far as what is measured stays the same.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from koordinator import clock

HOUR_S = 3_600
HOURS_MAX = 24
PODS_MAX = 20
"""Evicted pods named per hour; others are only counted."""


class BilledEviction(msgspec.Struct, frozen=True, rename="camel"):
    """A pod that went, or would have gone."""

    pod: str
    feature: str
    reason: str
    at: str


class StrategyHour(msgspec.Struct, rename="camel"):
    """One hour of one strategy. Core-seconds unless the name says otherwise."""

    hour_s: int
    rounds: int = 0
    writes: int = 0
    held_back_core_seconds: float = 0.0
    """CPU that best-effort pods used above the limit that they would have had (they wait for it once it is live)."""
    raised_core_seconds: float = 0.0
    """CPU that containers may use above their limits."""
    relieved_seconds: float = 0.0
    """Throttled time, over all containers whose quota was raised: what raising it is for."""
    lent_core_seconds: float = 0.0
    """CPU predicted free, and not offered."""
    evicted_count: int = 0
    evicted: list[BilledEviction] = []


class RoundCost(msgspec.Struct, frozen=True):
    """The cost of what one round of a strategy leads to, for as long as it stands."""

    held_back_cores: float = 0.0
    raised_cores: float = 0.0
    throttled_ratio: float = 0.0
    """Sum of the shares of time throttled, over containers whose quota is raised."""
    lent_cores: float = 0.0


NO_COST = RoundCost()


def held_back_cores(used_cores: float | None, limit_cores: float | None) -> float:
    """Return by how much use exceeds a limit; 0 where either is not known."""
    return 0.0 if used_cores is None or limit_cores is None else max(used_cores - limit_cores, 0.0)


class ShadowBill:
    """The bills of one node: by strategy and hour, the last `HOURS_MAX` of each."""

    def __init__(self) -> None:
        self._hours: dict[tuple[str, bool], list[StrategyHour]] = {}

    def hour(self, strategy: str, now_s: float, *, is_shadow: bool) -> StrategyHour:
        """Return the hour that is going on, of a strategy that only decides or one that acts."""
        hours = self._hours.setdefault((strategy, is_shadow), [])
        start_s = int(now_s) // HOUR_S * HOUR_S
        if not hours or hours[-1].hour_s != start_s:
            hours.append(StrategyHour(start_s, evicted=[]))
            del hours[:-HOURS_MAX]
        return hours[-1]

    def charge(
        self, strategy: str, now_s: float, seconds: float, cost: RoundCost, *, is_shadow: bool
    ) -> None:
        """Add what a round costs that stood for so many seconds."""
        hour = self.hour(strategy, now_s, is_shadow=is_shadow)
        hour.rounds += 1
        hour.held_back_core_seconds += cost.held_back_cores * seconds
        hour.raised_core_seconds += cost.raised_cores * seconds
        hour.relieved_seconds += cost.throttled_ratio * seconds
        hour.lent_core_seconds += cost.lent_cores * seconds

    def evict(self, strategy: str, now_s: float, found: BilledEviction, *, is_shadow: bool) -> None:
        """Add a pod that went or would have gone."""
        hour = self.hour(strategy, now_s, is_shadow=is_shadow)
        hour.evicted_count += 1
        if len(hour.evicted) < PODS_MAX:
            hour.evicted.append(found)

    def expire(self, now_s: float) -> None:
        """Forget hours of more than a day ago, and what a clock that was set back makes the future."""
        before_s = (int(now_s) // HOUR_S - HOURS_MAX) * HOUR_S
        for hours in self._hours.values():
            hours[:] = [each for each in hours if before_s < each.hour_s <= now_s]

    def strategies(self, *, is_shadow: bool) -> dict[str, list[StrategyHour]]:
        """Return the hours of each strategy, oldest first."""
        return {name: hours for (name, shadow), hours in sorted(self._hours.items()) if shadow is is_shadow}

    def body(self, in_shadow: Iterable[str]) -> dict[str, Any]:
        """Return the bills as JSON; `in_shadow` are the strategies that only decide now."""
        return {
            "strategies": sorted(in_shadow),
            "wouldHave": bodies(self.strategies(is_shadow=True)),
            "did": bodies(self.strategies(is_shadow=False)),
        }


def bodies(found: Mapping[str, list[StrategyHour]]) -> dict[str, list[dict[str, Any]]]:
    """Return hours as JSON, by strategy; hours in which nothing happened are left out."""
    return {name: bills for name, hours in found.items() if (bills := [_body(each) for each in hours])}


def _body(hour: StrategyHour) -> dict[str, Any]:
    """Return an hour as JSON, without what is 0."""
    found = {name: value for name, value in msgspec.to_builtins(hour).items() if value}
    found |= {name: round(value, 3) for name, value in found.items() if isinstance(value, float)}
    found.pop("hourS", None)
    return {"hour": clock.rfc3339(hour.hour_s), "rounds": hour.rounds, **found}
