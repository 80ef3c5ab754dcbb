"""Write node objects, leases and pod statuses as a kubelet does: JSON objects and patches. Pure.

Probes of hollow containers ask nobody: they succeed, unless the pod's behaviour says otherwise.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from koordinator import clock
from koordinator.api import pod_resize
from koordinator.api.core import Container, Pod, PodSpec, PodStatus, Probe, ResourceRequirements
from koordinator.api.meta import Condition
from koordinator.api.pod_resize import is_sidecar
from koordinator.api.quantity import text_of_milli
from koordinator.local import interfaces
from koordinator.local.nodes.behaviour import HOLLOW_LABEL, Behaviour
from koordinator.local.nodes.fleet import NodeShape

PERIOD_S, SUCCESSES, FAILURES = 10, 1, 3  # the API's defaults

Health = Mapping[str, tuple[bool, bool]]
"""Container → whether it is started, and ready."""


class Timeline(NamedTuple):
    """Seconds since the start of a container at which something changes; infinite for what never happens."""

    started_s: float
    ready_s: float
    unready_s: float
    ready_again_s: float
    killed_s: float

    def at(self, ran_s: float) -> tuple[bool, bool]:
        """Return whether the container is started, and ready."""
        is_started = ran_s >= self.started_s
        fails = self.unready_s <= ran_s < self.ready_again_s
        return is_started, is_started and ran_s >= self.ready_s and not fails


def has_probes(pod: Pod) -> bool:
    """Return whether any container has one."""
    return any(
        one.readiness_probe is not None or one.liveness_probe is not None or one.startup_probe is not None
        for one in (*pod.spec.containers, *pod.spec.init_containers)
    )


def timeline(container: Container, behaviour: Behaviour) -> Timeline:
    """Return what the container's probes find, over time."""
    startup, readiness, liveness = (
        container.startup_probe,
        container.readiness_probe,
        container.liveness_probe,
    )
    started_s, killed_s = 0.0, math.inf
    if startup is not None:
        started_s = float(startup.initial_delay_seconds)
        if behaviour.startup_fails:
            started_s, killed_s = math.inf, started_s + _until_failed_s(startup)
    ready_s, unready_s, ready_again_s = started_s, math.inf, math.inf
    if readiness is not None:
        ready_s = max(started_s, float(readiness.initial_delay_seconds)) + _until_succeeded_s(readiness)
        fails_s = behaviour.readiness_fails_after_seconds
        if fails_s is not None:
            unready_s = max(fails_s, ready_s) + _until_failed_s(readiness)
            lasts_s = behaviour.readiness_fails_for_seconds
            if lasts_s is not None:
                ready_again_s = max(fails_s + lasts_s + _until_succeeded_s(readiness), unready_s)
    if liveness is not None and behaviour.liveness_fails_after_seconds is not None:
        first_s = max(
            behaviour.liveness_fails_after_seconds, started_s, float(liveness.initial_delay_seconds)
        )
        killed_s = min(killed_s, first_s + _until_failed_s(liveness))
    return Timeline(started_s, ready_s, unready_s, ready_again_s, killed_s)


def timelines(containers: Iterable[Container], behaviour: Behaviour) -> dict[str, Timeline]:
    return {one.name: timeline(one, behaviour) for one in containers}


def health(lines: Mapping[str, Timeline], ran_s: float) -> Health:
    """Return how all containers are `ran_s` after their start."""
    return {name: line.at(ran_s) for name, line in lines.items()}


def next_change_s(lines: Mapping[str, Timeline], ran_s: float) -> float | None:
    """Return when (since the start) something changes next; None when nothing will."""
    moments = (moment for line in lines.values() for moment in line if ran_s < moment < math.inf)
    return min(moments, default=None)


def is_killed(lines: Mapping[str, Timeline], ran_s: float) -> bool:
    """Return whether a probe has failed so often that a container is killed."""
    return any(line.killed_s <= ran_s for line in lines.values())


def _until_succeeded_s(probe: Probe) -> float:
    return float(((probe.success_threshold or SUCCESSES) - 1) * (probe.period_seconds or PERIOD_S))


def _until_failed_s(probe: Probe) -> float:
    return float(((probe.failure_threshold or FAILURES) - 1) * (probe.period_seconds or PERIOD_S))


Json = dict[str, Any]

KUBELET_VERSION = f"v{interfaces.KUBERNETES}"
OOM_EXIT_CODE = KILLED_EXIT_CODE = 137
LEASE_NAMESPACE = "kube-node-lease"
RESTART_BACKOFF_S, RESTART_BACKOFF_S_MAX = 10.0, 300.0

_PRESSURES = (
    ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
)


_FIRST_HOST = 2  # .0 is the network's own address, .1 its gateway


def host_ip(row: int) -> str:
    """Return an address of 10.64.0.0/10."""
    return _address(64, row)


def pod_ip(slot: int) -> str:
    """Return an address of 10.128.0.0/10."""
    return _address(128, slot)


def _address(second: int, index: int) -> str:
    host = index + _FIRST_HOST
    return f"10.{second + host // 65_536 % 64}.{host // 256 % 256}.{host % 256}"


def node_object(shape: NodeShape, row: int, now_s: float) -> dict[str, Any]:
    """Return a Node as its kubelet registers it."""
    labels = labels_of(shape.name, shape.arch) | {
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


def labels_of(name: str, architecture: str) -> dict[str, str]:
    """Return the labels that every kubelet gives its node."""
    return {
        "beta.kubernetes.io/arch": architecture,
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/arch": architecture,
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
    }


def node_status(shape: NodeShape, row: int, started_s: float, now_s: float) -> dict[str, Any]:
    """Return a patch of the node's status."""
    size = {"ephemeral-storage": "200Gi", "hugepages-1Gi": "0", "hugepages-2Mi": "0", "pods": str(shape.pods)}
    cpu_milli = shape.cpu_milli - shape.reserved_milli
    memory_ki = (shape.memory_bytes - shape.reserved_bytes) // 1024
    status = {
        "capacity": {"cpu": text_of_milli(shape.cpu_milli), "memory": f"{shape.memory_bytes // 1024}Ki"}
        | size,
        "allocatable": {"cpu": text_of_milli(cpu_milli), "memory": f"{memory_ki}Ki"} | size,
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


def lease_object(node: str, owner_uid: str, duration_s: int, now_s: float) -> dict[str, Any]:
    """Return the heartbeat Lease of a node."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": owner_uid}
    return {
        "metadata": {"name": node, "namespace": LEASE_NAMESPACE, "ownerReferences": [owner]},
        "spec": {"holderIdentity": node, "leaseDurationSeconds": duration_s} | lease_renewal(now_s),
    }


def lease_renewal(now_s: float) -> dict[str, Any]:
    """Return the part of a Lease's spec that a heartbeat changes; `now_s` is in seconds since 1970."""
    return {"renewTime": clock.rfc3339_micro(now_s)}


class PodRun(NamedTuple):
    """One run of a pod's containers: where, since when (seconds since 1970), after how many restarts, the state of the
    one before, and how the containers are.

    `health` is None when all are started and ready. `allocated` and `applied` are the specs whose amounts the kubelet
    has promised and the runtime applies, None for the pod's own; `resize` are the conditions about that.
    """

    row: int
    slot: int
    since_s: float
    restarts: int = 0
    last_state: Json = {}
    health: Health | None = None
    allocated: PodSpec | None = None
    applied: PodSpec | None = None
    resize: tuple[Json, ...] = ()


def running_status(pod: Pod, run: PodRun, now_s: float) -> Json:
    """Return a patch that says: the containers run, and how they are."""
    since, now = clock.rfc3339(run.since_s), clock.rfc3339(now_s)
    unready = [name for name, (_, ready) in run.health.items() if not ready] if run.health else []
    address = host_ip(run.row)
    status: Json = {
        "phase": "Running",
        "conditions": _conditions(pod, now, run, unready=unready),
        "containerStatuses": [_running(c, run, since) for c in pod.spec.containers],
        "hostIP": address,
        "hostIPs": [{"ip": address}],
        "podIP": pod_ip(run.slot),
        "podIPs": [{"ip": pod_ip(run.slot)}],
        "startTime": pod.status.start_time or now,
    }
    if pod.spec.init_containers:
        done = _terminated(0, "Completed", since, since)
        status["initContainerStatuses"] = [
            _running(c, run, since)
            if is_sidecar(c)
            else _container(c, run.slot, 0)
            | {"ready": True, "started": False, "state": done, "lastState": {}}
            for c in pod.spec.init_containers
        ]
    return {"status": status}


def running_since_s(pod: Pod) -> float | None:
    """Return when the pod's containers started (seconds since 1970), as its status says; None when it does not."""
    for status in pod.status.container_statuses:
        running = status.state.running
        if running is not None and running.started_at:
            return clock.parse_rfc3339(running.started_at)
    return None


def changes_status(patch: Json, pod: Pod) -> bool:
    """Return whether a status that says that the pod runs says anything that its object does not say yet."""
    new = msgspec.convert(patch["status"], PodStatus)
    old = pod.status
    return (
        new.container_statuses != old.container_statuses
        or new.init_container_statuses != old.init_container_statuses
        or {c.type: _essence(c) for c in new.conditions} != {c.type: _essence(c) for c in old.conditions}
    )


def resize_condition(pod: Pod, kind: str, reason: str = "", message: str = "") -> Json:
    """Return a condition about amounts that change; without a reason all is well."""
    said = {"reason": reason, "message": message} if reason else {}
    return {"type": kind, "status": "True", "observedGeneration": pod.metadata.generation, **said}


def _essence(condition: Condition) -> tuple[str, str, str, int]:
    return condition.status, condition.reason, condition.message, condition.observed_generation


def waiting_status(pod: Pod, run: PodRun, ended: Json, now_s: float) -> Json:
    """Return a patch that says: the containers ended and will be restarted after a pause; sidecars run on."""
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off before the next restart"}
    containers = [
        _container(c, run.slot, run.restarts)
        | {"ready": False, "started": False, "state": {"waiting": waiting}, "lastState": ended}
        for c in pod.spec.containers
    ]
    unready = [c.name for c in pod.spec.containers]
    conditions = _conditions(pod, clock.rfc3339(now_s), run, unready=unready)
    return {"status": {"phase": "Running", "conditions": conditions, "containerStatuses": containers}}


def ended_status(pod: Pod, run: PodRun, ended: Json, now_s: float) -> Json:
    """Return a patch that says: the pod is over, Succeeded or Failed by its exit code; its sidecars were stopped
    then.
    """
    failed = ended["terminated"]["exitCode"] != 0
    over = {"ready": False, "started": False, "lastState": {}}
    containers = [
        _container(c, run.slot, run.restarts) | over | {"state": ended} for c in pod.spec.containers
    ]
    reason = "PodFailed" if failed else "PodCompleted"
    conditions = _conditions(pod, clock.rfc3339(now_s), run, over=reason)
    phase = "Failed" if failed else "Succeeded"
    status: Json = {"phase": phase, "conditions": conditions, "containerStatuses": containers}
    if any(is_sidecar(c) for c in pod.spec.init_containers):
        since, now = clock.rfc3339(run.since_s), clock.rfc3339(now_s)
        stopped, done = _terminated(0, "Completed", since, now), _terminated(0, "Completed", since, since)
        status["initContainerStatuses"] = [
            _container(c, run.slot, 0)
            | over
            | {"ready": not is_sidecar(c), "state": stopped if is_sidecar(c) else done}
            for c in pod.spec.init_containers
        ]
    return {"status": status}


def container_end(exit_code: int, oom_killed: bool, started_s: float, now_s: float) -> dict[str, Any]:
    """Return the `state` of a container that ended."""
    if oom_killed:
        return _terminated(OOM_EXIT_CODE, "OOMKilled", clock.rfc3339(started_s), clock.rfc3339(now_s))
    reason = "Error" if exit_code else "Completed"
    return _terminated(exit_code, reason, clock.rfc3339(started_s), clock.rfc3339(now_s))


def restarts_again(restart_policy: str, exit_code: int) -> bool:
    """Return whether the kubelet starts the container anew; the API's default policy is Always."""
    if restart_policy == "Never":
        return False
    return (exit_code != 0) if restart_policy == "OnFailure" else True


def restart_backoff_s(restarts: int) -> float:
    """Pause before restart number `restarts` (from 1): 10 s doubling to 5 minutes."""
    return float(min(RESTART_BACKOFF_S * 2 ** min(restarts - 1, 10), RESTART_BACKOFF_S_MAX))


def _terminated(exit_code: int, reason: str, started: str, finished: str) -> dict[str, Any]:
    state = {"exitCode": exit_code, "reason": reason, "startedAt": started, "finishedAt": finished}
    return {"terminated": state}


def _container(container: Container, slot: int, restarts: int) -> Json:
    return {
        "name": container.name,
        "image": container.image,
        "imageID": f"hollow://{container.image}",
        "containerID": f"hollow://{slot:08x}-{container.name}-{restarts}",
        "restartCount": restarts,
    }


def _running(container: Container, run: PodRun, since: str) -> Json:
    """Return the status of a container or sidecar that runs; sidecars have not restarted with the others."""
    restarts = 0 if is_sidecar(container) else run.restarts
    started, ready = (True, True) if run.health is None else run.health.get(container.name, (True, True))
    status = _container(container, run.slot, restarts)
    status |= {
        "ready": ready,
        "started": started,
        "state": {"running": {"startedAt": since}},
        "lastState": {} if is_sidecar(container) else run.last_state,
    }
    allocated = _amounts(container, run.allocated)
    applied = _amounts(container, run.applied)
    if allocated.requests:
        status["allocatedResources"] = allocated.requests
    if applied.requests or applied.limits:
        both = {"limits": applied.limits, "requests": applied.requests}
        status["resources"] = {name: amounts for name, amounts in both.items() if amounts}
    return status


def _amounts(container: Container, spec: PodSpec | None) -> ResourceRequirements:
    """Return what `spec` says about the container, the container itself without."""
    if spec is None:
        return container.resources
    named = (one for one in (*spec.containers, *spec.init_containers) if one.name == container.name)
    return next(named, container).resources


RESIZE_IN_PROGRESS = "PodResizeInProgress"
_RESIZE_CONDITIONS = (pod_resize.PENDING, RESIZE_IN_PROGRESS)
_READY: Json = {"status": "True"}


def _conditions(
    pod: Pod, now: str, run: PodRun, *, unready: Sequence[str] = (), over: str = ""
) -> list[Json]:
    """Return all conditions of the pod: ours as they are now, those of others as they were. `unready` names
    containers; `over` is the reason of a pod that ended.
    """
    before = {c.type: c for c in pod.status.conditions}
    ready = contained = _READY
    if over:
        ready = contained = {"status": "False", "reason": over}
    elif unready:
        text = f"containers with unready status: [{' '.join(unready)}]"
        ready = contained = {"status": "False", "reason": "ContainersNotReady", "message": text}
    elif pod.spec.readiness_gates:
        ready = _gated(pod, before)
    wanted = {
        "PodReadyToStartContainers": _READY,
        "Initialized": _READY,
        "Ready": ready,
        "ContainersReady": contained,
        "PodScheduled": _READY,
    }
    result: list[Json] = []
    for kind, condition in wanted.items():
        old = before.get(kind)
        since = old.last_transition_time if old is not None and old.status == condition["status"] else None
        result.append({"type": kind, **condition, "lastTransitionTime": since or now})
    for kind, old in before.items():
        if kind in wanted or kind in _RESIZE_CONDITIONS:
            continue
        fields = {
            "reason": old.reason,
            "message": old.message,
            "lastTransitionTime": old.last_transition_time,
        }
        result.append({"type": kind, "status": old.status} | {k: v for k, v in fields.items() if v})
    for condition in () if over else run.resize:
        old = before.get(condition["type"])
        result.append(
            {**condition, "lastTransitionTime": old.last_transition_time if old is not None else now}
        )
    return result


def _gated(pod: Pod, before: Mapping[str, Condition]) -> Json:
    """Return whether a pod whose containers are ready is ready by its gates, too."""
    missing: list[str] = []
    for gate in pod.spec.readiness_gates:
        condition = before.get(gate.condition_type)
        if condition is None:
            missing.append(
                f'corresponding condition of pod readiness gate "{gate.condition_type}" does not exist.'
            )
        elif condition.status != "True":
            text = f'the status of pod readiness gate "{gate.condition_type}" is not "True", but {condition.status}'
            missing.append(text)
    if not missing:
        return _READY
    return {"status": "False", "reason": "ReadinessGatesNotReady", "message": ", ".join(missing)}
