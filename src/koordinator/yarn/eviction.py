"""Decide which batch pods and YARN containers of a node go first, and how many. Pure. Source: behaviour/yarn 8.6."""

import enum
import math
from collections.abc import Mapping, Sequence

import msgspec

from koordinator.yarn import containers

CPU = "cpu"
YARN = "yarn"
POD = "pod"

Amounts = Mapping[str, int]
"""Resource name → milli-cores or bytes."""


class ReleaseMode(enum.Enum):
    """The purpose of releasing CPU: to give others what they asked for, or to lower what is used."""

    SATISFACTION = "satisfaction"
    USAGE = "usage"


class EvictionCandidate(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A best-effort pod or a YARN container. A resource missing in `used` and an age of None are unknown."""

    kind: str
    id: str
    priority: int = 0
    eviction_priority: int = 0
    opportunistic: bool = False
    used: dict[str, int] = {}
    requested: dict[str, int] = {}
    age_seconds: float | None = None
    state: str = "RUNNING"

    @property
    def is_final(self) -> bool:
        """Return whether it ends already."""
        return self.state in containers.FINAL_STATES

    @property
    def is_master(self) -> bool:
        """Return whether it is an application master of YARN."""
        return self.kind == YARN and containers.is_master(self.id)

    def consumption(self, resource: str) -> int:
        """Return what it uses, else what it requests."""
        return self.used.get(resource, self.requested.get(resource, 0))


class YarnEviction(msgspec.Struct, frozen=True):
    """The containers to kill, in this order; what that and the already dying release; what is still missing."""

    victims: tuple[EvictionCandidate, ...]
    released: dict[str, int]
    shortfall: dict[str, int]


def order(candidates: Sequence[EvictionCandidate], resource: str) -> list[EvictionCandidate]:
    """Return the candidates that can be evicted for want of `resource`, in order; the same for any input order."""
    alive = [each for each in candidates if not each.is_final]
    # Of two equals the later id goes: newer YARN containers have larger ids. Sorting is stable.
    alive.sort(key=lambda each: each.id, reverse=True)
    return sorted(alive, key=lambda each: _rank(each, resource))


def select(
    candidates: Sequence[EvictionCandidate],
    resource: str,
    targets: Amounts,
    mode: ReleaseMode = ReleaseMode.SATISFACTION,
) -> YarnEviction:
    """Select as many victims as release every target, none that helps no target; all that help when that is too
    little.
    """
    wanted = {name: amount for name, amount in targets.items() if amount > 0}
    released = dict.fromkeys(targets, 0)
    for dying in candidates:
        if dying.is_final:
            _count(released, dying, mode)
    victims = []
    for each in order(candidates, resource):
        unmet = [name for name, amount in wanted.items() if released[name] < amount]
        if not unmet:
            break
        if any(_contribution(each, name, mode) > 0 for name in unmet):
            victims.append(each)
            _count(released, each, mode)
    shortfall = {name: max(amount - released[name], 0) for name, amount in wanted.items()}
    return YarnEviction(tuple(victims), released, shortfall)


def _rank(each: EvictionCandidate, resource: str) -> tuple[int, int, bool, bool, int, float]:
    age_s = math.inf if each.age_seconds is None else each.age_seconds
    return (
        each.eviction_priority,
        each.priority,
        not each.opportunistic,
        each.is_master,
        -each.consumption(resource),
        age_s,
    )


def _contribution(each: EvictionCandidate, resource: str, mode: ReleaseMode) -> int:
    """Return what its end releases of a resource."""
    if resource == CPU and mode is ReleaseMode.SATISFACTION:
        return each.requested.get(resource, 0)
    return each.consumption(resource)


def _count(released: dict[str, int], each: EvictionCandidate, mode: ReleaseMode) -> None:
    for name in released:
        released[name] += _contribution(each, name, mode)
