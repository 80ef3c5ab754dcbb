"""Rows of nodes and of pods: what the STATUS, READY and RESTARTS columns say; and of what makes pods: Deployments,
ReplicaSets, StatefulSets, DaemonSets, Jobs, CronJobs and autoscalers.

Source: kubernetes/kubernetes pkg/printers/internalversion (printPod), told by its observable rules.
"""

from typing import Any

from koordinator import clock
from koordinator.local.apiserver.printers.column import (
    AGE,
    NAME,
    NONE,
    UNKNOWN,
    Json,
    PrintedColumn,
    Printer,
    age,
    columns,
    containers_text,
    duration,
    field,
    integer,
    join,
    labels_text,
    name_of,
    number,
    objects,
    selector_text,
    since,
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


_NODE_COLUMNS = columns(
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


_COLUMNS = (
    NAME,
    PrintedColumn("Ready", description="The aggregate readiness state of this pod for accepting traffic."),
    PrintedColumn("Status", description="The aggregate status of the containers in this pod."),
    PrintedColumn(
        "Restarts", description="How often the containers in this pod were restarted, and when last."
    ),
    AGE,
    wide("IP"),
    wide("Node"),
    wide("Nominated Node"),
    wide("Readiness Gates"),
)
_GONE_PHASES = frozenset({"Failed", "Succeeded"})


def pod_row(pod: Json, now_s: float) -> list[Any]:
    """Return the cells of a pod."""
    spec, status = field(pod, "spec"), field(pod, "status")
    reason, restarts = pod_status(pod, now_s)
    statuses = objects(status, "containerStatuses")
    sidecars = _sidecar_names(spec)
    counted = statuses + [
        item for item in objects(status, "initContainerStatuses") if text(item, "name") in sidecars
    ]
    ready = sum(1 for item in counted if item.get("ready") and "running" in (item.get("state") or {}))
    total = len(objects(spec, "containers")) + len(sidecars)
    return [
        name_of(pod),
        f"{ready}/{total}",
        reason,
        restarts,
        age(pod, now_s),
        _pod_ip(status),
        text(spec, "nodeName") or NONE,
        text(status, "nominatedNodeName") or NONE,
        _gates(spec, status),
    ]


def pod_status(pod: Json, now_s: float) -> tuple[str, str]:
    """Return the words under STATUS and RESTARTS."""
    spec, status = field(pod, "spec"), field(pod, "status")
    phase = text(status, "phase")
    reason = text(status, "reason") or phase
    if any(
        text(item, "type") == "PodScheduled" and text(item, "reason") == "SchedulingGated"
        for item in objects(status, "conditions")
    ):
        reason = "SchedulingGated"
    sidecars = _sidecar_names(spec)
    init_reason, restarts, last_s = _init_status(spec, status, sidecars)
    if init_reason is None or _has_condition(status, "Initialized"):
        sidecar_restarts = restarts if init_reason is None else 0
        reason, restarts, last_s = _container_status(status, reason, sidecar_restarts, last_s)
    else:
        reason = init_reason
    if field(pod, "metadata", "deletionTimestamp"):
        if text(status, "reason") == "NodeLost":
            reason = "Unknown"
        elif phase not in _GONE_PHASES:
            reason = "Terminating"
    ago = f" ({duration(now_s - last_s)} ago)" if restarts and last_s is not None else ""
    return reason, f"{restarts}{ago}"


def _init_status(spec: Any, status: Any, sidecars: set[str]) -> tuple[str | None, int, float | None]:
    """`Init:...` while an init container is not done, else None; restarts so far and the last one's time."""
    restarts, last_s = 0, None
    total = len(objects(spec, "initContainers"))
    for index, item in enumerate(objects(status, "initContainerStatuses")):
        restarts += number(item, "restartCount")
        last_s = _later(last_s, item)
        state = field(item, "state") or {}
        done, waiting = field(state, "terminated"), field(state, "waiting")
        if done is not None and number(done, "exitCode") == 0:
            continue
        if text(item, "name") in sidecars and item.get("started"):
            continue
        if done is not None:
            return "Init:" + _terminated_word(done), restarts, last_s
        word = text(waiting, "reason")
        if word and word != "PodInitializing":
            return f"Init:{word}", restarts, last_s
        return f"Init:{index}/{total}", restarts, last_s
    return None, _sidecar_restarts(status, sidecars), last_s


def _container_status(
    status: Any, reason: str, restarts: int, last_s: float | None
) -> tuple[str, int, float | None]:
    """Return the word of the first container in trouble, restarts of all."""
    running = False
    for item in reversed(objects(status, "containerStatuses")):
        restarts += number(item, "restartCount")
        last_s = _later(last_s, item)
        state = field(item, "state") or {}
        waiting, done = text(state, "waiting", "reason"), field(state, "terminated")
        if waiting:
            reason = waiting
        elif done is not None:
            reason = _terminated_word(done)
        elif item.get("ready") and field(state, "running") is not None:
            running = True
    if reason == "Completed" and running:
        reason = "Running" if _has_condition(status, "Ready") else "NotReady"
    return reason, restarts, last_s


def _terminated_word(done: Any) -> str:
    word = text(done, "reason")
    if word:
        return word
    signal = number(done, "signal")
    return f"Signal:{signal}" if signal else f"ExitCode:{number(done, 'exitCode')}"


def _sidecar_names(spec: Any) -> set[str]:
    return {
        text(item, "name")
        for item in objects(spec, "initContainers")
        if text(item, "restartPolicy") == "Always"
    }


def _sidecar_restarts(status: Any, sidecars: set[str]) -> int:
    return sum(
        number(item, "restartCount")
        for item in objects(status, "initContainerStatuses")
        if text(item, "name") in sidecars
    )


def _later(last_s: float | None, container: Json) -> float | None:
    finished = text(container, "lastState", "terminated", "finishedAt")
    if not finished:
        return last_s
    try:
        finished_s = clock.parse_rfc3339(finished)
    except ValueError:
        return last_s
    return finished_s if last_s is None else max(last_s, finished_s)


def _has_condition(status: Any, kind: str) -> bool:
    return any(
        text(item, "type") == kind and text(item, "status") == "True"
        for item in objects(status, "conditions")
    )


def _pod_ip(status: Any) -> str:
    ips = objects(status, "podIPs")
    return (text(ips[0], "ip") if ips else text(status, "podIP")) or NONE


def _gates(spec: Any, status: Any) -> str:
    gates = objects(spec, "readinessGates")
    if not gates:
        return NONE
    ready = sum(1 for gate in gates if _has_condition(status, text(gate, "conditionType")))
    return f"{ready}/{len(gates)}"


PRINTERS = {("", "Node"): Printer(_NODE_COLUMNS, node_row), ("", "Pod"): Printer(_COLUMNS, pod_row)}


_WIDE = (wide("Containers"), wide("Images"), wide("Selector"))


def _wide_cells(obj: Json) -> list[Any]:
    return [
        *containers_text(field(obj, "spec", "template", "spec")),
        selector_text(field(obj, "spec", "selector")),
    ]


def _replicas(obj: Json) -> int:
    wanted = field(obj, "spec", "replicas")
    return wanted if isinstance(wanted, int) else 1


def deployment_row(obj: Json, now_s: float) -> list[Any]:
    status = field(obj, "status")
    ready = f"{number(status, 'readyReplicas')}/{_replicas(obj)}"
    counts = [number(status, "updatedReplicas"), number(status, "availableReplicas")]
    return [name_of(obj), ready, *counts, age(obj, now_s), *_wide_cells(obj)]


def replica_set_row(obj: Json, now_s: float) -> list[Any]:
    status = field(obj, "status")
    counts = [_replicas(obj), number(status, "replicas"), number(status, "readyReplicas")]
    return [name_of(obj), *counts, age(obj, now_s), *_wide_cells(obj)]


def replication_controller_row(obj: Json, now_s: float) -> list[Any]:
    row = replica_set_row(obj, now_s)
    return [*row[:-1], labels_text(field(obj, "spec", "selector"))]


def stateful_set_row(obj: Json, now_s: float) -> list[Any]:
    ready = f"{number(obj, 'status', 'readyReplicas')}/{_replicas(obj)}"
    return [name_of(obj), ready, age(obj, now_s), *_wide_cells(obj)[:2]]


def daemon_set_row(obj: Json, now_s: float) -> list[Any]:
    status = field(obj, "status")
    counts = [
        number(status, key)
        for key in (
            "desiredNumberScheduled",
            "currentNumberScheduled",
            "numberReady",
            "updatedNumberScheduled",
            "numberAvailable",
        )
    ]
    selector = labels_text(field(obj, "spec", "template", "spec", "nodeSelector"))
    return [name_of(obj), *counts, selector, age(obj, now_s), *_wide_cells(obj)]


def job_row(obj: Json, now_s: float) -> list[Any]:
    completions = field(obj, "spec", "completions")
    parallelism = number(obj, "spec", "parallelism")
    done = number(obj, "status", "succeeded")
    if completions is not None:
        finished = f"{done}/{completions}"
    else:
        finished = f"{done}/1 of {parallelism}" if parallelism > 1 else f"{done}/1"
    return [
        name_of(obj),
        _job_status(obj),
        finished,
        _job_duration(obj, now_s),
        age(obj, now_s),
        *_wide_cells(obj),
    ]


def _job_status(obj: Json) -> str:
    holding = {
        text(item, "type") for item in objects(obj, "status", "conditions") if item.get("status") == "True"
    }
    if "Complete" in holding:
        return "Complete"
    if "Failed" in holding:
        return "Failed"
    if field(obj, "metadata", "deletionTimestamp"):
        return "Terminating"
    for kind in ("Suspended", "FailureTarget", "SuccessCriteriaMet"):
        if kind in holding:
            return kind
    return "Running"


def _job_duration(obj: Json, now_s: float) -> str:
    start, end = text(obj, "status", "startTime"), text(obj, "status", "completionTime")
    if not start:
        return ""
    try:
        end_s = clock.parse_rfc3339(end) if end else now_s
        return duration(end_s - clock.parse_rfc3339(start))
    except ValueError:
        return UNKNOWN


def cron_job_row(obj: Json, now_s: float) -> list[Any]:
    spec, last = field(obj, "spec"), field(obj, "status", "lastScheduleTime")
    return [
        name_of(obj),
        text(spec, "schedule"),
        text(spec, "timeZone") or NONE,
        "True" if field(spec, "suspend") else "False",
        len(objects(obj, "status", "active")),
        since(last, now_s) if last else NONE,
        age(obj, now_s),
        *containers_text(field(spec, "jobTemplate", "spec", "template", "spec")),
        selector_text(field(spec, "jobTemplate", "spec", "selector")),
    ]


_REPLICAS = (NAME, integer("Desired"), integer("Current"), integer("Ready"), AGE, *_WIDE)
WORKLOAD_PRINTERS = {
    ("apps", "Deployment"): Printer(
        columns(NAME, "Ready", integer("Up-to-date"), integer("Available"), AGE, *_WIDE), deployment_row
    ),
    ("apps", "ReplicaSet"): Printer(_REPLICAS, replica_set_row),
    ("", "ReplicationController"): Printer(_REPLICAS, replication_controller_row),
    ("apps", "StatefulSet"): Printer(columns(NAME, "Ready", AGE, *_WIDE[:2]), stateful_set_row),
    ("apps", "DaemonSet"): Printer(
        columns(
            NAME,
            *(integer(name) for name in ("Desired", "Current", "Ready", "Up-to-date", "Available")),
            "Node Selector",
            AGE,
            *_WIDE,
        ),
        daemon_set_row,
    ),
    ("batch", "Job"): Printer(columns(NAME, "Status", "Completions", "Duration", AGE, *_WIDE), job_row),
    ("batch", "CronJob"): Printer(
        columns(
            NAME,
            "Schedule",
            "Timezone",
            PrintedColumn("Suspend", "boolean"),
            integer("Active"),
            "Last Schedule",
            AGE,
            *_WIDE,
        ),
        cron_job_row,
    ),
}
