"""Decide which taints a pod tolerates. Pure. Source: the scheduler's rules of tolerations (TaintToleration)."""

import re
from collections.abc import Iterable

from koordinator.api.affinity import Taint, Toleration

Tolerations = tuple[Toleration, ...]

NO_SCHEDULE = "NoSchedule"
NO_EXECUTE = "NoExecute"
PREFER_NO_SCHEDULE = "PreferNoSchedule"


def text_of(taint: Taint) -> str:
    """Return the taint as kubectl writes it: `key=value:Effect`."""
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Return whether one toleration matches a taint. No effect and no key mean all of them; `Lt` and `Gt` say what the
    taint's value must be beside the toleration's, both as 64-bit integers."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    if toleration.operator in ("Lt", "Gt"):
        bound, value = integer(toleration.value), integer(taint.value)
        if bound is None or value is None:
            return False
        return value < bound if toleration.operator == "Lt" else value > bound
    return toleration.operator in ("", "Equal") and toleration.value == taint.value


def integer(text: str) -> int | None:
    """Return the number that `Lt` and `Gt` compare; None unless it is written without sign, zeros or spaces that it
    does not need, and fits 64 bits."""
    if not _INTEGER.fullmatch(text) or len(text) > _DIGITS_MAX:
        return None
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 63 else None


_INTEGER = re.compile(r"0|-?[1-9][0-9]*")
_DIGITS_MAX = 20


def is_tolerated(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    return any(tolerates(toleration, taint) for toleration in tolerations)


def keeps_out(tolerations: Tolerations, taints: Iterable[Taint]) -> bool:
    """Return whether some taint forbids the pod to be scheduled to the node."""
    return any(
        taint.effect in (NO_SCHEDULE, NO_EXECUTE) and not is_tolerated(tolerations, taint) for taint in taints
    )


def untolerated_preferences(tolerations: Tolerations, taints: Iterable[Taint]) -> int:
    """Return how many taints would rather not have the pod."""
    soft = [toleration for toleration in tolerations if toleration.effect in ("", PREFER_NO_SCHEDULE)]
    return sum(taint.effect == PREFER_NO_SCHEDULE and not is_tolerated(soft, taint) for taint in taints)
