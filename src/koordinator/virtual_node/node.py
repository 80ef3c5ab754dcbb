"""The virtual node's own objects in the borrower: the Node, its status, its Lease. Pure.
Source: behaviour/tidal 5; conditions and lease as a kubelet writes them."""

import json
from collections.abc import Mapping

import msgspec

from koordinator import __version__, clock
from koordinator.api import labels
from koordinator.api.core import Node
from koordinator.api.quantity import ResourceList
from koordinator.api.resource_vector import I64, amount_text
from koordinator.virtual_node import offer
from koordinator.virtual_node.objects import Json

TYPE_LABEL, TYPE = "type", "virtual-kubelet"
TAINT_KEY, TAINT_VALUE = "virtual-kubelet.io/provider", "koordinator"
LEASE_NAMESPACE = "kube-node-lease"
LEASE_S = 40
_KUBERNETES = "v1.34.0"  # whose pods it understands; clients read a kubelet's version from here
_PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure")


class KubeletAddress(msgspec.Struct, frozen=True):
    """The address at which the borrower's API server reaches the process for logs and commands; port 0: nowhere."""

    host: str = ""
    port: int = 0


class NodeOffer(msgspec.Struct, frozen=True):
    """The amounts of a virtual node (4,), its largest hole (4,; zeros without), and why it is not ready, if so."""

    amounts: I64
    hole: I64
    trouble: str = ""


def body(name: str, source: str, group: Mapping[str, str]) -> Json:
    """Return the Node to register; `group` holds the label that its nodes in the lender have in common."""
    own = {
        TYPE_LABEL: TYPE,
        labels.VIRTUAL_NODE_SOURCE: source,
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/role": "agent",
        **group,
    }
    taint = {"key": TAINT_KEY, "value": TAINT_VALUE, "effect": "NoSchedule"}
    return {"metadata": {"name": name, "labels": own}, "spec": {"taints": [taint]}}


def hole_text(hole: I64) -> str:
    """Return the annotation that tells the largest hole (4,): its CPU and memory."""
    names = offer.RESOURCES[: offer.MEMORY + 1]
    return json.dumps({name: amount_text(name, int(hole[column])) for column, name in enumerate(names)})


def status(offered: NodeOffer, address: KubeletAddress, now_s: float, before: Node | None) -> Json:
    """Return the status as a strategic merge patch; `before` is the node as it was, for times of transitions."""
    amounts: ResourceList = offer.wire(offered.amounts)
    found: Json = {
        "capacity": amounts,
        "allocatable": amounts,
        "conditions": _conditions(offered.trouble, now_s, before),
        "nodeInfo": {
            "kubeletVersion": f"{_KUBERNETES}-koordinator-{__version__}",
            "operatingSystem": "linux",
            "osImage": "virtual node",
        },
    }
    if address.port:
        found["addresses"] = [{"type": "InternalIP", "address": address.host}]
        found["daemonEndpoints"] = {"kubeletEndpoint": {"Port": address.port}}
    return {"status": found}


def _conditions(trouble: str, now_s: float, before: Node | None) -> list[Json]:
    ready = (
        ("False", "LenderUnreachable", trouble) if trouble else ("True", "KubeletReady", "offers idle nodes")
    )
    wanted = {"Ready": ready} | {
        kind: ("False", f"KubeletHasNo{kind}", "the lender's nodes look after themselves")
        for kind in _PRESSURES
    }
    known = {one.type: one for one in before.status.conditions} if before is not None else {}
    now, found = clock.rfc3339(now_s), []
    for kind, (state, reason, message) in wanted.items():
        old = known.get(kind)
        since = old.last_transition_time if old is not None and old.status == state else None
        found.append(
            {
                "type": kind,
                "status": state,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": now,
                "lastTransitionTime": since or now,
            }
        )
    return found


def lease(name: str, uid: str, now_s: float) -> Json:
    """Return the Lease by which others know that the node lives."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}
    return {"metadata": {"name": name, "ownerReferences": [owner]}, "spec": lease_spec(name, now_s)}


def lease_spec(name: str, now_s: float) -> Json:
    """Return what is renewed every ten seconds."""
    return {
        "holderIdentity": name,
        "leaseDurationSeconds": LEASE_S,
        "renewTime": clock.rfc3339_micro(now_s),
    }
