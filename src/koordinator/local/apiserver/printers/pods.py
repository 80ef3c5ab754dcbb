"""Rows of nodes and of pods: what the STATUS, READY and RESTARTS columns say; and of what makes pods: Deployments,
ReplicaSets, StatefulSets, DaemonSets, Jobs, CronJobs and autoscalers.

Source: kubernetes/kubernetes pkg/printers/internalversion (printPod), told by its observable rules.
"""

from collections.abc import Callable
from typing import Any

from koordinator import clock
from koordinator.local.apiserver.printers.column import (
    AGE,
    AGED,
    NAME,
    NAMED,
    NONE,
    UNKNOWN,
    Column,
    Json,
    OverTime,
    PrintedColumn,
    Printer,
    age,
    aged,
    count,
    duration,
    field,
    figure,
    given,
    integer,
    join,
    labels_text,
    name_of,
    number,
    objects,
    selector_text,
    since,
    table,
    text,
    wide,
)

_ROLE_PREFIX = "node-role.kubernetes.io/"
_ROLE = "kubernetes.io/role"


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


def _address(kind: str) -> Callable[[Json], str]:
    def cell(node: Json) -> str:
        found = [item for item in objects(node, "status", "addresses") if text(item, "type") == kind]
        return text(found[0], "address") if found else NONE

    return cell


_NODE = table(
    NAMED,
    (PrintedColumn("Status", description="The status of the node"), _status),
    (PrintedColumn("Roles", description="The roles of the node"), _roles),
    AGED,
    (
        PrintedColumn("Version", description="Kubelet Version reported by the node."),
        "status.nodeInfo.kubeletVersion",
    ),
    (wide("Internal-IP"), _address("InternalIP")),
    (wide("External-IP"), _address("ExternalIP")),
    (wide("OS-Image"), given("status.nodeInfo.osImage", UNKNOWN)),
    (wide("Kernel-Version"), given("status.nodeInfo.kernelVersion", UNKNOWN)),
    (wide("Container-Runtime"), given("status.nodeInfo.containerRuntimeVersion", UNKNOWN)),
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


PRINTERS = {("", "Node"): _NODE, ("", "Pod"): Printer(_COLUMNS, pod_row)}


def _of_template(*spec: str, selector: Callable[[Any], str] = selector_text) -> tuple[Column, Column, Column]:
    """Return the columns of `-o wide` about the pods that the workload at a path makes."""

    def containers(name: str) -> Callable[[Json], str]:
        return lambda obj: join(
            (text(item, name) for item in objects(obj, *spec, "template", "spec", "containers")), ""
        )

    return (
        (wide("Containers"), containers("name")),
        (wide("Images"), containers("image")),
        (wide("Selector"), lambda obj: selector(field(obj, *spec, "selector"))),
    )


def _replicas(obj: Json) -> int:
    wanted = field(obj, "spec", "replicas")
    return wanted if isinstance(wanted, int) else 1


def _ready(obj: Json) -> str:
    return f"{number(obj, 'status', 'readyReplicas')}/{_replicas(obj)}"


def _completions(obj: Json) -> str:
    wanted, done = field(obj, "spec", "completions"), number(obj, "status", "succeeded")
    if wanted is not None:
        return f"{done}/{wanted}"
    parallelism = number(obj, "spec", "parallelism")
    return f"{done}/1 of {parallelism}" if parallelism > 1 else f"{done}/1"


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


def _last_schedule(obj: Json, now_s: float) -> str:
    last = field(obj, "status", "lastScheduleTime")
    return since(last, now_s) if last else NONE


def _controller(obj: Json) -> str:
    """`deployment.apps/web` of the controller that owns an object."""
    owner = next((one for one in objects(obj, "metadata", "ownerReferences") if one.get("controller")), None)
    if owner is None:
        return NONE
    group = text(owner, "apiVersion").rpartition("/")[0]
    return f"{'.'.join(filter(None, [text(owner, 'kind').lower(), group]))}/{text(owner, 'name')}"


_REPLICAS = (
    NAMED,
    (integer("Desired"), _replicas),
    (integer("Current"), figure("status.replicas")),
    (integer("Ready"), figure("status.readyReplicas")),
    AGED,
)
_WIDE = _of_template("spec")
WORKLOAD_PRINTERS = {
    ("apps", "Deployment"): table(
        NAMED,
        ("Ready", _ready),
        ("Up-to-date", figure("status.updatedReplicas")),
        ("Available", figure("status.availableReplicas")),
        AGED,
        *_WIDE,
    ),
    ("apps", "ReplicaSet"): table(*_REPLICAS, *_WIDE),
    ("", "ReplicationController"): table(*_REPLICAS, *_of_template("spec", selector=labels_text)),
    ("", "PodTemplate"): table(
        NAMED,
        ("Containers", _of_template()[0][1]),
        ("Images", _of_template()[1][1]),
        ("Pod Labels", lambda obj: labels_text(field(obj, "template", "metadata", "labels"))),
    ),
    ("apps", "ControllerRevision"): aged(("Controller", _controller), ("Revision", figure("revision"))),
    ("apps", "StatefulSet"): table(NAMED, ("Ready", _ready), AGED, *_WIDE[:2]),
    ("apps", "DaemonSet"): table(
        NAMED,
        (integer("Desired"), figure("status.desiredNumberScheduled")),
        (integer("Current"), figure("status.currentNumberScheduled")),
        (integer("Ready"), figure("status.numberReady")),
        (integer("Up-to-date"), figure("status.updatedNumberScheduled")),
        (integer("Available"), figure("status.numberAvailable")),
        ("Node Selector", lambda obj: labels_text(field(obj, "spec", "template", "spec", "nodeSelector"))),
        AGED,
        *_WIDE,
    ),
    ("batch", "Job"): table(
        NAMED,
        ("Status", _job_status),
        ("Completions", _completions),
        ("Duration", OverTime(_job_duration)),
        AGED,
        *_WIDE,
    ),
    ("batch", "CronJob"): table(
        NAMED,
        ("Schedule", "spec.schedule"),
        ("Timezone", given("spec.timeZone", NONE)),
        (
            PrintedColumn("Suspend", "boolean"),
            lambda obj: "True" if field(obj, "spec", "suspend") else "False",
        ),
        (integer("Active"), count("status.active")),
        ("Last Schedule", OverTime(_last_schedule)),
        AGED,
        *_of_template("spec", "jobTemplate", "spec"),
    ),
}
