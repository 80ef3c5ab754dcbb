"""Work out how the replicas of a Deployment move from old ReplicaSets to the new one. Pure.

Source: kube-controller-manager's deployment controller (rolling, recreate, proportional scaling).
"""

from collections.abc import Iterable, Sequence

import msgspec

from koordinator.api.apps import Deployment, ReplicaSet
from koordinator.api.errors import ProtocolError
from koordinator.api.schema import IntOrString

DESIRED = "deployment.kubernetes.io/desired-replicas"
MAX_REPLICAS = "deployment.kubernetes.io/max-replicas"

RECREATE = "Recreate"
BOUND_DEFAULT = "25%"


class ScaleTo(msgspec.Struct, frozen=True):
    """One ReplicaSet gets another size."""

    replica_set: ReplicaSet
    replicas: int


class RolloutBounds(msgspec.Struct, frozen=True):
    """The limits: how many pods there may be above the wanted number, and how many of it may be missing."""

    surge: int
    unavailable: int


def resolved(value: IntOrString, total: int, field: str, *, up: bool) -> int:
    """Return a count, or a percentage of `total` rounded up or down.

    Raises: ProtocolError when the text is no percentage.
    """
    if isinstance(value, int):
        return value
    digits = value.removesuffix("%")
    if digits == value or not (digits.isascii() and digits.isdecimal()):
        raise ProtocolError("", field, f"{value!r} is neither a count nor a percentage")
    product = int(digits) * total
    return -(-product // 100) if up else product // 100


def bounds(
    surge: IntOrString, unavailable: IntOrString, total: int, field: str, *, up: bool
) -> RolloutBounds:
    """Surge rounds up, unavailable as `up` says; when both come out as 0, one may be missing (else nothing moves).

    Raises: ProtocolError.
    """
    found = RolloutBounds(
        resolved(surge, total, f"{field}.maxSurge", up=True),
        resolved(unavailable, total, f"{field}.maxUnavailable", up=up),
    )
    return found if found.surge or found.unavailable else RolloutBounds(0, 1)


def is_rolling(deployment: Deployment) -> bool:
    return deployment.spec.strategy.type != RECREATE


def bounds_of(deployment: Deployment) -> RolloutBounds:
    """Return the bounds of a Deployment; a recreating one is whole or not. Raises: ProtocolError."""
    replicas = deployment.spec.replicas
    if not is_rolling(deployment):
        return RolloutBounds(0, 0)
    rolling = deployment.spec.strategy.rolling_update
    surge = rolling.max_surge if rolling is not None else None
    unavailable = rolling.max_unavailable if rolling is not None else None
    found = bounds(
        BOUND_DEFAULT if surge is None else surge,
        BOUND_DEFAULT if unavailable is None else unavailable,
        replicas,
        "spec.strategy.rollingUpdate",
        up=False,
    )
    return RolloutBounds(found.surge, min(found.unavailable, replicas))


def wanted(sets: Iterable[ReplicaSet]) -> int:
    return sum(one.spec.replicas for one in sets)


def _available(one: ReplicaSet) -> int:
    return min(one.status.available_replicas, one.spec.replicas)


def new_size(deployment: Deployment, have: int, others: Sequence[ReplicaSet]) -> int:
    """Return how far the new ReplicaSet may grow now, beside the pods of the others."""
    replicas = deployment.spec.replicas
    if not is_rolling(deployment):
        return replicas
    room = replicas + bounds_of(deployment).surge - wanted(others) - have
    return have + max(min(room, replicas - have), 0)


def plan_new(deployment: Deployment, new: ReplicaSet, old: Sequence[ReplicaSet]) -> list[ScaleTo]:
    """Grow the new ReplicaSet as far as the surge allows, or cut it to the wanted number."""
    have, replicas = new.spec.replicas, deployment.spec.replicas
    size = replicas if have > replicas else new_size(deployment, have, old)
    return [ScaleTo(new, size)] if size != have else []


def plan_old(deployment: Deployment, new: ReplicaSet, old: Sequence[ReplicaSet]) -> list[ScaleTo]:
    """Shrink old ReplicaSets: pods that are not available first, then as many as availability allows."""
    left = [one for one in _oldest_first(old) if one.spec.replicas > 0]
    minimum = deployment.spec.replicas - bounds_of(deployment).unavailable
    # New pods that are not available yet may fall to the last: nobody may count on them.
    surplus = wanted([*left, new]) - minimum - (new.spec.replicas - _available(new))
    if surplus <= 0:
        return []
    sizes = {one.metadata.uid: one.spec.replicas for one in left}
    for one in left:
        unhealthy = min(surplus, sizes[one.metadata.uid] - _available(one))
        sizes[one.metadata.uid] -= unhealthy
        surplus -= unhealthy
    for one in left:  # what is left of the surplus is available pods: all others are gone by now
        taken = min(surplus, sizes[one.metadata.uid])
        sizes[one.metadata.uid] -= taken
        surplus -= taken
    return [
        ScaleTo(one, sizes[one.metadata.uid]) for one in left if sizes[one.metadata.uid] != one.spec.replicas
    ]


def plan_recreate(
    deployment: Deployment, new: ReplicaSet | None, old: Sequence[ReplicaSet], *, old_pods_left: bool
) -> list[ScaleTo]:
    """Take all old pods down; only when they are gone, bring all new ones up."""
    down = [ScaleTo(one, 0) for one in old if one.spec.replicas > 0]
    if down or old_pods_left or new is None or new.spec.replicas == deployment.spec.replicas:
        return down
    return [ScaleTo(new, deployment.spec.replicas)]


def is_scaling(deployment: Deployment, sets: Iterable[ReplicaSet]) -> bool:
    """Return whether the Deployment was resized since its ReplicaSets were last written."""
    for one in sets:
        text = one.metadata.annotations.get(DESIRED, "")
        if one.spec.replicas > 0 and text.isdecimal() and int(text) != deployment.spec.replicas:
            return True
    return False


def plan_scaling(deployment: Deployment, new: ReplicaSet | None, old: Sequence[ReplicaSet]) -> list[ScaleTo]:
    """Spread a change of size in the middle of a rollout over the ReplicaSets, in proportion to theirs.

    Sets that keep their size are named too: their annotations must learn the new wanted number.
    """
    replicas = deployment.spec.replicas
    every = [*old, *([new] if new is not None else [])]
    active = [one for one in every if one.spec.replicas > 0]
    if len(active) <= 1:
        only = active[0] if active else (new or _newest(every))
        return [ScaleTo(only, replicas)] if only is not None else []
    if new is not None and _is_saturated(deployment, new):
        return [ScaleTo(one, 0) for one in old if one.spec.replicas > 0]
    if not is_rolling(deployment):
        return []
    limit = replicas + bounds_of(deployment).surge if replicas > 0 else 0
    return _proportional(deployment, active, limit - wanted(active))


def _proportional(deployment: Deployment, active: Sequence[ReplicaSet], to_add: int) -> list[ScaleTo]:
    """Larger sets first; growing prefers the newer of equals, shrinking the older."""
    grows = to_add > 0
    ordered = sorted(active, key=lambda one: one.metadata.creation_timestamp or "", reverse=grows)
    ordered.sort(key=lambda one: -one.spec.replicas)
    sizes: dict[str, int] = {}
    added = 0
    for one in ordered:
        share = _share(deployment, one, to_add, added) if to_add else 0
        sizes[one.metadata.uid] = one.spec.replicas + share
        added += share
    left = to_add - added
    for one in ordered:  # what rounding left over is the largest's, and of the next where that is too small
        uid = one.metadata.uid
        size = max(sizes[uid] + left, 0)
        left -= size - sizes[uid]
        sizes[uid] = size
    return [ScaleTo(one, sizes[one.metadata.uid]) for one in ordered]


def _share(deployment: Deployment, one: ReplicaSet, to_add: int, added: int) -> int:
    """Return what one set gains or loses: its part of the whole, never more than is left to give."""
    total = deployment.spec.replicas + bounds_of(deployment).surge if deployment.spec.replicas else 0
    text = one.metadata.annotations.get(MAX_REPLICAS, "")
    before = int(text) if text.isdecimal() and int(text) > 0 else deployment.status.replicas
    fraction = _rounded(one.spec.replicas * total, before) - one.spec.replicas if before else 0
    allowed = to_add - added
    return min(fraction, allowed) if to_add > 0 else max(fraction, allowed)


def _rounded(numerator: int, denominator: int) -> int:
    """Return the quotient, halves rounded up; both are not negative."""
    return (2 * numerator + denominator) // (2 * denominator)


def _is_saturated(deployment: Deployment, new: ReplicaSet) -> bool:
    replicas = deployment.spec.replicas
    text = new.metadata.annotations.get(DESIRED, "")
    return (
        new.spec.replicas == replicas and text == str(replicas) and new.status.available_replicas == replicas
    )


def _oldest_first(sets: Iterable[ReplicaSet]) -> list[ReplicaSet]:
    return sorted(sets, key=lambda one: (one.metadata.creation_timestamp or "", one.metadata.name))


def _newest(sets: Sequence[ReplicaSet]) -> ReplicaSet | None:
    ordered = _oldest_first(sets)
    return ordered[-1] if ordered else None
