"""YARN containers of one node, as the NodeManager tells of them, and which batch pods and YARN containers of a node go
first, and how many. Pure. Source: behaviour/yarn 8.5 to 8.7."""

import enum
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from koordinator.api import copilot, labels, quantity
from koordinator.api.copilot import ContainerAmounts, ContainerInfo
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import ResourceList
from koordinator.yarn.amounts import MEBIBYTE

FINAL_STATES = frozenset(
    {
        "KILLING",
        "DONE",
        "LOCALIZATION_FAILED",
        "CONTAINER_RESOURCES_CLEANINGUP",
        "CONTAINER_CLEANEDUP_AFTER_KILL",
        "EXITED_WITH_FAILURE",
        "EXITED_WITH_SUCCESS",
    }
)
"""States of containers that end; any other, unknown ones too, is alive."""

SHARES_PER_VCORE = 1024


class NMContainer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One item of `GET /ws/v1/node/containers`, as far as we read it."""

    id: str = ""
    state: str = ""
    total_memory_needed_mb: int = msgspec.field(name="totalMemoryNeededMB", default=0)
    total_vcores_needed: int = msgspec.field(name="totalVCoresNeeded", default=0)
    execution_type: str = ""

    @property
    def is_final(self) -> bool:
        """Return whether it ends already."""
        return self.state in FINAL_STATES

    @property
    def is_opportunistic(self) -> bool:
        """Return whether it runs on spare capacity of the node (YARN's opportunistic containers)."""
        return self.execution_type == "OPPORTUNISTIC"


def parse(body: Any) -> list[NMContainer]:
    """Return the containers of the NodeManager's answer; it says none with null or empty text, one without a list.

    Raises: ProtocolError.
    """
    if not isinstance(body, dict):
        raise ProtocolError("NodeManager", "containers", "the answer is not an object")
    outer = body.get("containers") or {}
    inner = outer.get("container") if isinstance(outer, dict) else outer
    items = inner if isinstance(inner, list) else [inner] if inner else []
    try:
        return msgspec.convert(items, list[NMContainer])
    except msgspec.ValidationError as error:
        raise ProtocolError("NodeManager", "containers", str(error)) from error


def info(container: NMContainer, cgroup_path: str, created: str | None = None) -> ContainerInfo:
    """Return a container in the agent's API; `cgroup_path` is YARN's, relative to the root of a controller, `created`
    when it was made (RFC 3339), where that is known."""
    amounts: ResourceList = {
        "cpu": quantity.text_of_value(container.total_vcores_needed),
        "memory": quantity.text_of_value(container.total_memory_needed_mb * MEBIBYTE),
    }
    told = ContainerInfo(
        name=container.id,
        uid=container.id,
        namespace=copilot.YARN_NAMESPACE,
        labels={labels.PRIORITY: str(_place(container.is_opportunistic, copilot.is_master(container.id)))},
        priority=copilot.PRIORITY,
        cgroup_dir=f"{cgroup_path.rstrip('/')}/{container.id}",
        resources=ContainerAmounts(amounts, amounts),
    )
    return told if created is None else msgspec.structs.replace(told, create_timestamp=created)


def parent_shares(containers: Sequence[NMContainer]) -> int | None:
    """`cpu.shares` of the cgroup above all YARN containers; None: leave it as it is."""
    vcores = sum(container.total_vcores_needed for container in containers if not container.is_final)
    return vcores * SHARES_PER_VCORE if vcores > 0 else None


CPU = "cpu"
YARN = "yarn"

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
        return self.state in FINAL_STATES

    @property
    def is_master(self) -> bool:
        """Return whether it is an application master of YARN."""
        return self.kind == YARN and copilot.is_master(self.id)

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
    little."""
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


def _rank(each: EvictionCandidate, resource: str) -> tuple[int, int, int, int, float]:
    age_s = math.inf if each.age_seconds is None else each.age_seconds
    return (
        each.eviction_priority,
        each.priority,
        _place(each.opportunistic, each.is_master),
        -each.consumption(resource),
        age_s,
    )


def _place(is_opportunistic: bool, is_master: bool) -> int:
    return copilot.sub_priority(is_opportunistic=is_opportunistic, is_master=is_master)


def _contribution(each: EvictionCandidate, resource: str, mode: ReleaseMode) -> int:
    """Return what its end releases of a resource."""
    if resource == CPU and mode is ReleaseMode.SATISFACTION:
        return each.requested.get(resource, 0)
    return each.consumption(resource)


def _count(released: dict[str, int], each: EvictionCandidate, mode: ReleaseMode) -> None:
    for name in released:
        released[name] += _contribution(each, name, mode)
