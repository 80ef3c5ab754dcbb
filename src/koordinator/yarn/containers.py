"""YARN containers of one node, as the NodeManager tells of them. Pure. Source: behaviour/yarn 8.5 and 8.7."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from koordinator.api import quantity
from koordinator.api.errors import ProtocolError
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

NAMESPACE = "yarn"
PRIORITY = 1
"""Below every batch priority of Kubernetes, so YARN goes first where priority orders."""

SHARES_PER_VCORE = 1024

_ID = re.compile(r"container_(?:e\d+_)?\d+_\d+_\d+_(?P<number>\d+)", re.ASCII)


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


class YarnContainerResources(msgspec.Struct, frozen=True):
    """Requests and limits: what YARN gave the container, both the same."""

    requests: dict[str, str]
    limits: dict[str, str]


class ContainerInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One container in the agent's API."""

    name: str
    uid: str
    namespace: str = NAMESPACE
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    priority: int = PRIORITY
    create_timestamp: str = "0001-01-01T00:00:00Z"
    cgroup_dir: str
    host_network: bool = True
    resources: YarnContainerResources


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


def info(container: NMContainer, cgroup_path: str) -> ContainerInfo:
    """Return a container in the agent's API; `cgroup_path` is YARN's, relative to the root of a controller."""
    amounts = {
        "cpu": quantity.text_of_value(container.total_vcores_needed),
        "memory": quantity.text_of_value(container.total_memory_needed_mb * MEBIBYTE),
    }
    return ContainerInfo(
        name=container.id,
        uid=container.id,
        cgroup_dir=f"{cgroup_path.rstrip('/')}/{container.id}",
        resources=YarnContainerResources(amounts, amounts),
    )


def live(containers: Sequence[NMContainer], cgroup_path: str) -> list[ContainerInfo]:
    """Return what `GET /v1/containers` answers: containers that do not end yet, in the NodeManager's order."""
    return [info(container, cgroup_path) for container in containers if not container.is_final]


def parent_shares(containers: Sequence[NMContainer]) -> int | None:
    """`cpu.shares` of the cgroup above all YARN containers; None: leave it as it is."""
    vcores = sum(container.total_vcores_needed for container in containers if not container.is_final)
    return vcores * SHARES_PER_VCORE if vcores > 0 else None


def is_id(text: str) -> bool:
    """Return whether `text` is a container id and nothing more: it becomes part of a path."""
    return _ID.fullmatch(text) is not None


def is_master(container_id: str) -> bool:
    """Return whether it is an application master: killing it fails the whole attempt."""
    found = _ID.fullmatch(container_id)
    return found is not None and int(found["number"]) == 1
