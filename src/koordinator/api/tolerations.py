"""Which taints a pod bears. Pure. Source: the scheduler's rules of tolerations (TaintToleration)."""

from collections.abc import Iterable

from koordinator.api.core import Taint, Toleration

Tolerations = tuple[Toleration, ...]

NO_SCHEDULE = "NoSchedule"
NO_EXECUTE = "NoExecute"
PREFER_NO_SCHEDULE = "PreferNoSchedule"


def text_of(taint: Taint) -> str:
    """As kubectl writes it: `key=value:Effect`."""
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether one toleration matches a taint. An empty key is valid with `Exists` only."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key:
        if toleration.key != taint.key:
            return False
    elif toleration.operator != "Exists":
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in ("", "Equal") and toleration.value == taint.value


def is_tolerated(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    return any(tolerates(toleration, taint) for toleration in tolerations)


def keeps_out(tolerations: Tolerations, taints: Iterable[Taint]) -> bool:
    """Whether some taint forbids the pod to be scheduled to the node."""
    return any(
        taint.effect in (NO_SCHEDULE, NO_EXECUTE) and not is_tolerated(tolerations, taint) for taint in taints
    )


def untolerated_preferences(tolerations: Tolerations, taints: Iterable[Taint]) -> int:
    """How many taints would rather not have the pod."""
    soft = [toleration for toleration in tolerations if toleration.effect in ("", PREFER_NO_SCHEDULE)]
    return sum(taint.effect == PREFER_NO_SCHEDULE and not is_tolerated(soft, taint) for taint in taints)
