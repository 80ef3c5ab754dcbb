"""Write what the process node says of itself: Node object, status and Lease. Pure."""

import platform
from typing import Any

import msgspec

from koordinator.api.quantity import ResourceList, text_of_milli
from koordinator.local.nodes import kubelet

PODS_MAX = 110
NODE_LABEL = "node.koordinator.sh/process-node"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """This machine as a node. `reserved_*` is kept from pods."""

    name: str
    cpu_milli: int
    memory_bytes: int
    storage_bytes: int
    reserved_milli: int = 0
    reserved_bytes: int = 0
    host_ip: str = "127.0.0.1"
    port: int = 0
    boot_id: str = ""
    started_s: float = 0.0

    @property
    def allocatable_milli(self) -> int:
        return max(self.cpu_milli - self.reserved_milli, 0)

    @property
    def allocatable_bytes(self) -> int:
        return max(self.memory_bytes - self.reserved_bytes, 0)


def amounts(facts: MachineFacts, *, is_allocatable: bool) -> ResourceList:
    """Capacity, or what of it pods may request."""
    cpu_milli = facts.allocatable_milli if is_allocatable else facts.cpu_milli
    memory_bytes = facts.allocatable_bytes if is_allocatable else facts.memory_bytes
    return {
        "cpu": text_of_milli(cpu_milli),
        "memory": f"{memory_bytes // 1024}Ki",
        "ephemeral-storage": f"{facts.storage_bytes // 1024}Ki",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "0",
        "pods": str(PODS_MAX),
    }


def node(facts: MachineFacts, now_s: float) -> dict[str, Any]:
    """Return the Node to register."""
    labels = labels_of(facts)
    annotations = {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
    meta = {"name": facts.name, "labels": labels, "annotations": annotations}
    return {"metadata": meta, "spec": {"providerID": f"process-node://{facts.name}"}} | {
        "status": status(facts, now_s)
    }


def labels_of(facts: MachineFacts) -> dict[str, str]:
    """Labels that a kubelet gives its node, and one by which process nodes are known."""
    return {**kubelet.labels_of(facts.name, _architecture()), NODE_LABEL: "true"}


def status(facts: MachineFacts, now_s: float) -> dict[str, Any]:
    """Return the node's status, extended resources of others left out."""
    return {
        "capacity": amounts(facts, is_allocatable=False),
        "allocatable": amounts(facts, is_allocatable=True),
        "conditions": kubelet.node_conditions(facts.started_s, now_s),
        "addresses": [
            {"type": "InternalIP", "address": facts.host_ip},
            {"type": "Hostname", "address": facts.name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": facts.port}},
        "nodeInfo": {
            "architecture": _architecture(),
            "bootID": facts.boot_id,
            "containerRuntimeVersion": "containerd://2.0.0",
            "kernelVersion": platform.release(),
            "kubeProxyVersion": "",
            "kubeletVersion": kubelet.KUBELET_VERSION,
            "machineID": facts.boot_id.replace("-", ""),
            "operatingSystem": "linux",
            "osImage": platform.system(),
            "systemUUID": facts.boot_id,
        },
    }


def _architecture() -> str:
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)
