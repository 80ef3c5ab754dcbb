"""The API by which another runtime on a node (YARN's NodeManager, through its agent) shows its containers to the node
agent and ends them: JSON over HTTP on a unix socket. Source: behaviour/yarn 8.5.

A container is told of as a pod is, so that whoever orders pods can order containers with them.
"""

import re

import msgspec

from koordinator.api.quantity import ResourceList

SOCKETS = "/var/run/yarn-copilot"
"""The folder in which agents of other runtimes have their sockets."""
SOCKET = f"{SOCKETS}/yarn-copilot.sock"

HEALTH, INFORMATION = "/health", "/information"
CONTAINERS, CONTAINER = "/v1/containers", "/v1/container"
KILL, RELEASE = "/v1/killContainer", "/v1/killContainersByResource"

CONTAINER_ID = "containerID"

UNSET = "0001-01-01T00:00:00Z"
"""The time that stands for none."""

LABEL = "koordinator.sh/copilot-container"
"""Marks what is told of as a pod and is a container of another runtime; inside the node agent only."""
YARN_NAMESPACE = "yarn"
PRIORITY = 1
"""Below every batch priority of Kubernetes, so YARN goes first where priority orders."""

_YARN_ID = re.compile(r"container_(?:e\d+_)?\d+_\d+_\d+_(?P<number>\d+)", re.ASCII)


def is_yarn_id(text: str) -> bool:
    """Return whether `text` is the id of a YARN container and nothing more: it becomes part of a path."""
    return _YARN_ID.fullmatch(text) is not None


def is_master(container_id: str) -> bool:
    """Return whether it is an application master: killing it fails the whole attempt."""
    found = _YARN_ID.fullmatch(container_id)
    return found is not None and int(found["number"]) == 1


def sub_priority(*, is_opportunistic: bool, is_master: bool) -> int:
    """Return the place among containers of one priority, lower goes first: what runs on spare capacity, tasks, and
    application masters last. Source: behaviour/yarn 8.6."""
    return 2 * (not is_opportunistic) + is_master


class CopilotInfo(msgspec.Struct, frozen=True):
    """The runtime that answers at a socket, and its version of the API."""

    name: str
    version: str


class ContainerAmounts(msgspec.Struct, frozen=True):
    """Requests and limits: `cpu` in cores and `memory` in bytes, as quantities."""

    requests: ResourceList = {}
    limits: ResourceList = {}


class ContainerInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One container of another runtime."""

    name: str
    uid: str
    namespace: str
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    priority: int
    create_timestamp: str = UNSET
    cgroup_dir: str
    """Its group, relative to the root of a controller."""
    host_network: bool = True
    resources: ContainerAmounts


class KillRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The container to end; `reason` is for the log (not in the reference)."""

    container_id: str = msgspec.field(name=CONTAINER_ID)
    reason: str = ""


class ReleaseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Amounts to give back. By `mode` CPU counts as requested (`satisfaction`) or as used (`usage`, not in the
    reference)."""

    resources: ResourceList
    mode: str = "satisfaction"
    reason: str = ""


class KillAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The containers that were ended, in order; what is still missing where that was not enough."""

    items: list[ContainerInfo]
    shortfall: dict[str, str] = {}


class CopilotProblem(msgspec.Struct, frozen=True):
    """The body of an answer that is none."""

    error: str
