"""What a kubelet writes: node objects, leases and pod statuses, as JSON objects and patches. Pure."""

from collections.abc import Sequence
from typing import Any

from koordinator import clock
from koordinator.api.core import Container, Pod
from koordinator.local.nodes.behaviour import HOLLOW_LABEL
from koordinator.local.nodes.fleet import NodeShape

KUBELET_VERSION = "v1.32.0"
OOM_EXIT_CODE = 137
LEASE_NAMESPACE = "kube-node-lease"
RESTART_BACKOFF_S, RESTART_BACKOFF_S_MAX = 10.0, 300.0

_PRESSURES = (
    ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
)


_FIRST_HOST = 2  # .0 is the network's own address, .1 its gateway


def host_ip(row: int) -> str:
    """An address of 10.64.0.0/10."""
    return _address(64, row)


def pod_ip(slot: int) -> str:
    """An address of 10.128.0.0/10."""
    return _address(128, slot)


def _address(second: int, index: int) -> str:
    host = index + _FIRST_HOST
    return f"10.{second + host // 65_536 % 64}.{host // 256 % 256}.{host % 256}"


def node_object(shape: NodeShape, row: int, now_s: float) -> dict[str, Any]:
    """A Node as its kubelet registers it."""
    labels = {
        "beta.kubernetes.io/arch": shape.arch,
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/arch": shape.arch,
        "kubernetes.io/hostname": shape.name,
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": shape.instance_type,
        "topology.kubernetes.io/region": "local",
        "topology.kubernetes.io/zone": shape.zone,
        HOLLOW_LABEL: "true",
    }
    annotations = {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
    meta = {"name": shape.name, "labels": labels, "annotations": annotations}
    return {"metadata": meta, "spec": {"providerID": f"hollow://{shape.name}"}} | node_status(
        shape, row, now_s, now_s
    )


def node_status(shape: NodeShape, row: int, started_s: float, now_s: float) -> dict[str, Any]:
    """A patch of the node's status."""
    size = {"ephemeral-storage": "200Gi", "hugepages-1Gi": "0", "hugepages-2Mi": "0", "pods": str(shape.pods)}
    cpu_milli = shape.cpu_milli - shape.reserved_milli
    memory_ki = (shape.memory_bytes - shape.reserved_bytes) // 1024
    status = {
        "capacity": {"cpu": _cpu(shape.cpu_milli), "memory": f"{shape.memory_bytes // 1024}Ki"} | size,
        "allocatable": {"cpu": _cpu(cpu_milli), "memory": f"{memory_ki}Ki"} | size,
        "conditions": node_conditions(started_s, now_s),
        "addresses": [
            {"type": "InternalIP", "address": host_ip(row)},
            {"type": "Hostname", "address": shape.name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": {
            "architecture": shape.arch,
            "bootID": f"{row:08x}-0000-4000-8000-000000000000",
            "containerRuntimeVersion": "containerd://2.0.0",
            "kernelVersion": "6.12.0",
            "kubeProxyVersion": "",
            "kubeletVersion": KUBELET_VERSION,
            "machineID": f"{row:032x}",
            "operatingSystem": "linux",
            "osImage": "Hollow Linux",
            "systemUUID": f"{row:08x}-0000-4000-8000-000000000001",
        },
    }
    return {"status": status}


def node_conditions(since_s: float, now_s: float) -> list[dict[str, Any]]:
    """Conditions of a healthy node; `since_s` is when it became so."""
    times = {"lastHeartbeatTime": clock.rfc3339(now_s), "lastTransitionTime": clock.rfc3339(since_s)}
    healthy = [
        {"type": kind, "status": "False", "reason": why, "message": text} for kind, why, text in _PRESSURES
    ]
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    ready["message"] = "kubelet is posting ready status"
    return [condition | times for condition in [*healthy, ready]]


def lease_object(shape: NodeShape, owner_uid: str, duration_s: int, now_s: float) -> dict[str, Any]:
    """The heartbeat Lease of a node."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": shape.name, "uid": owner_uid}
    return {
        "metadata": {"name": shape.name, "namespace": LEASE_NAMESPACE, "ownerReferences": [owner]},
        "spec": {"holderIdentity": shape.name, "leaseDurationSeconds": duration_s} | lease_renewal(now_s),
    }


def lease_renewal(now_s: float) -> dict[str, Any]:
    """The part of a Lease's spec that a heartbeat changes; `now_s` is in seconds since 1970."""
    return {"renewTime": clock.rfc3339_micro(now_s)}


def running_status(
    pod: Pod, row: int, slot: int, now_s: float, restarts: int, last_state: Any
) -> dict[str, Any]:
    """A patch that says: all containers run. `last_state` is that of the container before a restart."""
    now = clock.rfc3339(now_s)
    containers = [
        _container(c, slot, restarts)
        | {"ready": True, "started": True, "state": {"running": {"startedAt": now}}, "lastState": last_state}
        for c in pod.spec.containers
    ]
    status: dict[str, Any] = {
        "phase": "Running",
        "conditions": _conditions(pod, now, ready=True),
        "containerStatuses": containers,
        "hostIP": host_ip(row),
        "hostIPs": [{"ip": host_ip(row)}],
        "podIP": pod_ip(slot),
        "podIPs": [{"ip": pod_ip(slot)}],
        "startTime": pod.status.start_time or now,
    }
    if pod.spec.init_containers:
        done = _terminated(0, "Completed", now, now)
        status["initContainerStatuses"] = [
            _container(c, slot, 0) | {"ready": True, "started": False, "state": done, "lastState": {}}
            for c in pod.spec.init_containers
        ]
    return {"status": status}


def waiting_status(pod: Pod, slot: int, ended: dict[str, Any], now_s: float, restarts: int) -> dict[str, Any]:
    """A patch that says: the containers ended and will be restarted after a pause."""
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off before the next restart"}
    containers = [
        _container(c, slot, restarts)
        | {"ready": False, "started": False, "state": {"waiting": waiting}, "lastState": ended}
        for c in pod.spec.containers
    ]
    conditions = _conditions(pod, clock.rfc3339(now_s), ready=False, reason="ContainersNotReady")
    return {"status": {"phase": "Running", "conditions": conditions, "containerStatuses": containers}}


def ended_status(pod: Pod, slot: int, ended: dict[str, Any], now_s: float, restarts: int) -> dict[str, Any]:
    """A patch that says: the pod is over, Succeeded or Failed by its exit code."""
    failed = ended["terminated"]["exitCode"] != 0
    containers = [
        _container(c, slot, restarts) | {"ready": False, "started": False, "state": ended, "lastState": {}}
        for c in pod.spec.containers
    ]
    reason = "PodFailed" if failed else "PodCompleted"
    conditions = _conditions(pod, clock.rfc3339(now_s), ready=False, reason=reason)
    phase = "Failed" if failed else "Succeeded"
    return {"status": {"phase": phase, "conditions": conditions, "containerStatuses": containers}}


def container_end(exit_code: int, oom_killed: bool, started_s: float, now_s: float) -> dict[str, Any]:
    """The `state` of a container that ended."""
    if oom_killed:
        return _terminated(OOM_EXIT_CODE, "OOMKilled", clock.rfc3339(started_s), clock.rfc3339(now_s))
    reason = "Error" if exit_code else "Completed"
    return _terminated(exit_code, reason, clock.rfc3339(started_s), clock.rfc3339(now_s))


def restarts_again(restart_policy: str, exit_code: int) -> bool:
    """Whether the kubelet starts the container anew; the API's default policy is Always."""
    if restart_policy == "Never":
        return False
    return (exit_code != 0) if restart_policy == "OnFailure" else True


def restart_backoff_s(restarts: int) -> float:
    """Pause before restart number `restarts` (from 1): 10 s doubling to 5 minutes."""
    return float(min(RESTART_BACKOFF_S * 2 ** min(restarts - 1, 10), RESTART_BACKOFF_S_MAX))


def _terminated(exit_code: int, reason: str, started: str, finished: str) -> dict[str, Any]:
    state = {"exitCode": exit_code, "reason": reason, "startedAt": started, "finishedAt": finished}
    return {"terminated": state}


def _container(container: Container, slot: int, restarts: int) -> dict[str, Any]:
    return {
        "name": container.name,
        "image": container.image,
        "imageID": f"hollow://{container.image}",
        "containerID": f"hollow://{slot:08x}-{container.name}-{restarts}",
        "restartCount": restarts,
    }


_KUBELET_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")


def _conditions(pod: Pod, now: str, *, ready: bool, reason: str = "") -> list[dict[str, Any]]:
    """All conditions of the pod: ours as they are now, those of others as they were."""
    before = {c.type: c for c in pod.status.conditions}
    kept: Sequence[str] = [
        kind for kind in before if kind not in _KUBELET_CONDITIONS and kind != "PodScheduled"
    ]
    wanted = {
        "PodReadyToStartContainers": True,
        "Initialized": True,
        "Ready": ready,
        "ContainersReady": ready,
    }
    wanted["PodScheduled"] = True
    result: list[dict[str, Any]] = []
    for kind, holds in wanted.items():
        status = "True" if holds else "False"
        old = before.get(kind)
        since = old.last_transition_time if (old is not None and old.status == status) else None
        condition = {"type": kind, "status": status, "lastTransitionTime": since or now}
        if not holds:
            condition["reason"] = reason
        result.append(condition)
    for kind in kept:
        old = before[kind]
        fields = {
            "reason": old.reason,
            "message": old.message,
            "lastTransitionTime": old.last_transition_time,
        }
        result.append({"type": kind, "status": old.status} | {k: v for k, v in fields.items() if v})
    return result


def _cpu(milli: int) -> str:
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"
