"""Limit a wanted number of replicas: bounds, stabilisation and rates. Pure but for the history it keeps.

Source: kube-controller-manager's podautoscaler (how it normalises with and without `behavior`).
"""

import math
from typing import NamedTuple

import msgspec

from koordinator.api.groups import Behavior, ScalingRules

DOWNSCALE_WINDOW_S = 300.0
KEPT_S = 3_600.0
"""The longest window that the API accepts."""
_GROWTH_FACTOR, _GROWTH_MIN = 2.0, 4.0
_UNBOUNDED = 2**31 - 1
_RISING = "recent recommendations were lower than current one, applying the lowest recent recommendation"
_FALLING = "recent recommendations were higher than current one, applying the highest recent recommendation"
_FASTER = "the desired replica count is {} faster than the maximum scale rate"
_TOO_MANY = "the desired replica count is more than the maximum replica count"
_TOO_FEW = "the desired replica count is less than the minimum replica count"
_FINE = "DesiredWithinRange", "the desired count is within the acceptable range"


class Said(NamedTuple):
    """A condition: whether it holds, reason and message."""

    holds: bool
    reason: str
    message: str


class LimitedReplicas(NamedTuple):
    """The replicas to have, and what to say under `AbleToScale` and `ScalingLimited`."""

    replicas: int
    able: Said
    limited: Said


class ReplicaBounds(NamedTuple):
    least: int
    most: int


class History(msgspec.Struct):
    """The recommendations and the changes so far, with their times (seconds since 1970)."""

    recommendations: list[tuple[int, float]] = []
    added: list[tuple[int, float]] = []
    removed: list[tuple[int, float]] = []

    def begin(self, replicas: int, now_s: float) -> None:
        """The first look: what there is counts as recommended."""
        if not self.recommendations:
            self.recommendations.append((replicas, now_s))

    def scaled(self, before: int, after: int, now_s: float) -> None:
        """Replicas were changed."""
        if after > before:
            self.added.append((after - before, now_s))
        else:
            self.removed.append((before - after, now_s))

    def recommend(self, replicas: int, now_s: float) -> None:
        """Note a recommendation, and forget what is too old for every window."""
        self.recommendations.append((replicas, now_s))
        for entries in (self.recommendations, self.added, self.removed):
            entries[:] = [entry for entry in entries if entry[1] > now_s - KEPT_S]

    def change(self, period_s: float, now_s: float) -> int:
        """Replicas gained within the last `period_s`."""
        return sum(c for c, at_s in self.added if at_s > now_s - period_s) - sum(
            c for c, at_s in self.removed if at_s > now_s - period_s
        )


def limited(
    history: History,
    behavior: Behavior | None,
    current: int,
    wanted: int,
    bounds: ReplicaBounds,
    now_s: float,
) -> LimitedReplicas:
    """Return the replicas that may be had now; notes the recommendation."""
    if behavior is None:
        return _by_default(history, current, wanted, bounds, now_s)
    up, down = behavior.scale_up or ScalingRules(), behavior.scale_down or ScalingRules()
    stable = _stabilised(history, up, down, current, wanted, now_s)
    history.recommend(wanted, now_s)
    if stable == wanted:
        able = _ready()
    elif wanted >= current:
        able = Said(True, "ScaleUpStabilized", _RISING)
    else:
        able = Said(True, "ScaleDownStabilized", _FALLING)
    replicas, reason, message = _at_rate(history, up, down, current, stable, bounds, now_s)
    return LimitedReplicas(replicas, able, Said(replicas != stable, reason, message))


def _by_default(
    history: History, current: int, wanted: int, bounds: ReplicaBounds, now_s: float
) -> LimitedReplicas:
    """Without `behavior`: growth is at most twofold at a time, and shrinking waits for five minutes."""
    recent = (r for r, at_s in history.recommendations if at_s >= now_s - DOWNSCALE_WINDOW_S)
    stable = max([wanted, *recent])
    history.recommend(wanted, now_s)
    able = _ready() if stable == wanted else Said(True, "ScaleDownStabilized", _FALLING)
    fastest = int(max(_GROWTH_FACTOR * current, _GROWTH_MIN))
    most = min(bounds.most, fastest)
    if stable < bounds.least:
        return LimitedReplicas(bounds.least, able, Said(True, "TooFewReplicas", _TOO_FEW))
    if stable > most:
        why = ("ScaleUpLimit", _FASTER.format("increasing")) if bounds.most > fastest else (
            "TooManyReplicas", _TOO_MANY
        )  # fmt: skip
        return LimitedReplicas(most, able, Said(True, *why))
    return LimitedReplicas(stable, able, Said(False, *_FINE))


def _ready() -> Said:
    return Said(True, "ReadyForNewScale", "recommended size matches current size")


def _stabilised(
    history: History, up: ScalingRules, down: ScalingRules, current: int, wanted: int, now_s: float
) -> int:
    """Return the number as near to `current` as the recommendations of both windows allow."""
    up_s = float(up.stabilization_window_seconds or 0)
    down_s = DOWNSCALE_WINDOW_S
    if down.stabilization_window_seconds is not None:
        down_s = float(down.stabilization_window_seconds)
    least = min([wanted, *(r for r, at_s in history.recommendations if at_s > now_s - up_s)])
    most = max([wanted, *(r for r, at_s in history.recommendations if at_s > now_s - down_s)])
    return min(max(current, least), most)


def _at_rate(
    history: History,
    up: ScalingRules,
    down: ScalingRules,
    current: int,
    wanted: int,
    bounds: ReplicaBounds,
    now_s: float,
) -> tuple[int, str, str]:
    """Return how far the policies let replicas change, and why not more."""
    if wanted > current:
        fastest = max(_fastest(history, up, current, now_s, sign=1), current)
        if bounds.most > fastest:
            most, why = fastest, ("ScaleUpLimit", _FASTER.format("increasing"))
        else:
            most, why = bounds.most, ("TooManyReplicas", _TOO_MANY)
        if wanted > most:
            return most, *why
    elif wanted < current:
        fastest = min(_fastest(history, down, current, now_s, sign=-1), current)
        if bounds.least < fastest:
            least, why = fastest, ("ScaleDownLimit", _FASTER.format("decreasing"))
        else:
            least, why = bounds.least, ("TooFewReplicas", _TOO_FEW)
        if wanted < least:
            return least, *why
    return wanted, *_FINE


def _fastest(history: History, rules: ScalingRules, current: int, now_s: float, *, sign: int) -> int:
    """Return where the policies let replicas get in one direction (`sign` 1 up, -1 down), seen from the start of
    each policy's period.
    """
    if rules.select_policy == "Disabled":
        return current
    reached: list[int] = []
    for policy in rules.policies:
        start = current - history.change(policy.period_seconds, now_s)
        if policy.type == "Pods":
            reached.append(start + sign * policy.value)
        elif sign > 0:
            # Rounded up: a small percentage of few replicas would otherwise never allow any.
            reached.append(math.ceil(start * (1 + policy.value / 100)))
        else:
            reached.append(int(start * (1 - policy.value / 100)))
    takes_farthest = rules.select_policy != "Min"
    if not reached:
        return sign * _UNBOUNDED if not takes_farthest else -sign * _UNBOUNDED
    return max(reached) if takes_farthest == (sign > 0) else min(reached)
