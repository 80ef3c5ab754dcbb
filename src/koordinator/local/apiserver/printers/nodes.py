"""Rows of nodes."""

from typing import Any

from koordinator.local.apiserver.printers.column import (
    AGE,
    NAME,
    NONE,
    UNKNOWN,
    Json,
    PrintedColumn,
    Printer,
    age,
    field,
    join,
    name_of,
    objects,
    text,
    wide,
)

_ROLE_PREFIX = "node-role.kubernetes.io/"
_ROLE = "kubernetes.io/role"


def node_row(node: Json, now_s: float) -> list[Any]:
    info = field(node, "status", "nodeInfo")
    return [
        name_of(node),
        _status(node),
        _roles(node),
        age(node, now_s),
        text(info, "kubeletVersion"),
        _address(node, "InternalIP"),
        _address(node, "ExternalIP"),
        text(info, "osImage") or UNKNOWN,
        text(info, "kernelVersion") or UNKNOWN,
        text(info, "containerRuntimeVersion") or UNKNOWN,
    ]


def _status(node: Json) -> str:
    ready = [item for item in objects(node, "status", "conditions") if text(item, "type") == "Ready"]
    word = "Unknown" if not ready else "Ready" if text(ready[0], "status") == "True" else "NotReady"
    return f"{word},SchedulingDisabled" if field(node, "spec", "unschedulable") else word


def _roles(node: Json) -> str:
    labels = field(node, "metadata", "labels") or {}
    roles = {key.removeprefix(_ROLE_PREFIX) for key in labels if key.startswith(_ROLE_PREFIX)}
    if labels.get(_ROLE):
        roles.add(labels[_ROLE])
    return join(sorted(filter(None, roles)))


def _address(node: Json, kind: str) -> str:
    found = [item for item in objects(node, "status", "addresses") if text(item, "type") == kind]
    return text(found[0], "address") if found else NONE


_COLUMNS = (
    NAME,
    PrintedColumn("Status", description="The status of the node"),
    PrintedColumn("Roles", description="The roles of the node"),
    AGE,
    PrintedColumn("Version", description="Kubelet Version reported by the node."),
    wide("Internal-IP"),
    wide("External-IP"),
    wide("OS-Image"),
    wide("Kernel-Version"),
    wide("Container-Runtime"),
)

PRINTERS = {("", "Node"): Printer(_COLUMNS, node_row)}
