"""Track where a container is in its life, and work out the status of a pod from those of its containers: phase and
conditions, as the kubelet does. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from koordinator import clock
from koordinator.api.core import ContainerStatus
from koordinator.local.nodes import kubelet
from koordinator.local.processes.pod_spec import Container

BACKOFF_S, BACKOFF_S_MAX = 10.0, 300.0
COMPLETED, ERROR, OOM_KILLED = "Completed", "Error", "OOMKilled"
KILLED_CODE = 137
_FORGIVEN_S = 2 * BACKOFF_S_MAX


class ContainerWaiting(msgspec.Struct, frozen=True):
    """Not running, and why."""

    reason: str = "ContainerCreating"
    message: str = ""


class Running(msgspec.Struct, frozen=True):
    """Running since."""

    since_s: float


class Terminated(msgspec.Struct, frozen=True):
    """It ended."""

    exit_code: int
    reason: str
    started_s: float
    finished_s: float
    container_id: str
    signal: int = 0
    message: str = ""


State = ContainerWaiting | Running | Terminated


class ContainerRecord:
    """A container of a pod over all its runs."""

    def __init__(self, spec: Container, *, is_init: bool) -> None:
        self.spec = spec
        self.is_init = is_init
        self.restarts = 0
        self.id = ""
        self.state: State = ContainerWaiting("PodInitializing" if not is_init else "ContainerCreating")
        self.last: Terminated | None = None
        self.is_started = False
        """Running, and past its startup probe."""
        self.is_ready = False
        """Well, as its readiness probe says (running, without one)."""

    @property
    def is_step(self) -> bool:
        """Return whether this is an init container that must end before the next begins."""
        return self.is_init and not self.spec.is_sidecar

    @property
    def has_succeeded(self) -> bool:
        return isinstance(self.state, Terminated) and self.state.exit_code == 0

    def restore(self, before: ContainerStatus, now_s: float) -> None:
        """Take up what the API knows of a container whose processes an earlier run of this node lost."""
        self.restarts, self.id = before.restart_count, before.container_id
        ended = before.state.terminated
        if ended is not None:
            self.state = Terminated(
                ended.exit_code,
                ended.reason,
                clock.parse_rfc3339_or(ended.started_at, now_s),
                clock.parse_rfc3339_or(ended.finished_at, now_s),
                ended.container_id,
                message=ended.message,
            )
        elif before.container_id:
            running = before.state.running
            begun_s = now_s if running is None else clock.parse_rfc3339_or(running.started_at, now_s)
            self.state = Terminated(
                KILLED_CODE, ERROR, begun_s, now_s, before.container_id, message="the node was restarted"
            )

    def status(self) -> dict[str, Any]:
        """Return the status as it stands in the pod's."""
        status: dict[str, Any] = {
            "name": self.spec.name,
            "image": self.spec.image,
            "imageID": "",
            "restartCount": self.restarts,
            "ready": self.has_succeeded if self.is_step else self.is_ready,
            "started": self.is_started,
            "state": _wire(self.state),
            "lastState": {} if self.last is None else _wire(self.last),
        }
        if self.id:
            status["containerID"] = self.id
        return status


def restarts_again(restart_policy: str, exit_code: int, *, is_step: bool, is_sidecar: bool) -> bool:
    """Return whether a container that ended is started anew."""
    if is_sidecar:
        return True
    if is_step:
        return exit_code != 0 and restart_policy != "Never"
    return kubelet.restarts_again(restart_policy, exit_code)


class RestartBackoff:
    """Pauses before restarts: none before the first, then 10 s doubling to five minutes.

    Ten minutes without a restart begin it anew.
    """

    def __init__(self) -> None:
        self._next_s = 0.0
        self._last_s = float("-inf")

    def next_s(self, finished_s: float) -> float:
        """Return how long to wait after a run that ended. Source: `flowcontrol.Backoff` as the kubelet uses it."""
        if finished_s - self._last_s > _FORGIVEN_S:
            self._next_s = 0.0
        pause_s = self._next_s
        self._next_s = min(max(2 * self._next_s, BACKOFF_S), BACKOFF_S_MAX)
        self._last_s = finished_s + pause_s
        return pause_s


def _wire(state: State) -> dict[str, Any]:
    match state:
        case ContainerWaiting(reason=reason, message=message):
            return {"waiting": {"reason": reason} | ({"message": message} if message else {})}
        case Running(since_s=since_s):
            return {"running": {"startedAt": clock.rfc3339(since_s)}}
        case Terminated():
            ended: dict[str, Any] = {
                "exitCode": state.exit_code,
                "reason": state.reason,
                "startedAt": clock.rfc3339(state.started_s),
                "finishedAt": clock.rfc3339(state.finished_s),
                "containerID": state.container_id,
            }
            if state.signal and state.reason not in (ERROR, OOM_KILLED):
                ended["signal"] = state.signal
            return {"terminated": ended | ({"message": state.message} if state.message else {})}


OVER = ("Succeeded", "Failed")
OURS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


class PodFailure(msgspec.Struct, frozen=True):
    """The reason why the kubelet itself ended a pod (OutOfcpu, DeadlineExceeded, …)."""

    reason: str
    message: str


class PodStatusFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that a status is made of, besides containers."""

    restart_policy: str
    host_ip: str
    pod_ip: str
    started_s: float
    has_sandbox: bool
    is_stopped: bool = False
    """Nothing of it will run any more."""
    failure: PodFailure | None = None
    readiness_gates: tuple[str, ...] = ()


def status(
    facts: PodStatusFacts,
    steps: Sequence[ContainerRecord],
    containers: Sequence[ContainerRecord],
    before: Mapping[str, Any],
    now_s: float,
) -> dict[str, Any]:
    """Return the fields of the status that are the kubelet's. `before` is the status that the API has."""
    reached = phase(facts, steps, containers)
    result: dict[str, Any] = {
        "phase": reached,
        "conditions": _conditions(facts, reached, steps, containers, before, now_s),
        "hostIP": facts.host_ip,
        "hostIPs": [{"ip": facts.host_ip}],
        "startTime": before.get("startTime") or clock.rfc3339(facts.started_s),
        "containerStatuses": [record.status() for record in containers],
    }
    if steps:
        result["initContainerStatuses"] = [record.status() for record in steps]
    if facts.has_sandbox:
        result |= {"podIP": facts.pod_ip, "podIPs": [{"ip": facts.pod_ip}]}
    if facts.failure is not None:
        result |= {"reason": facts.failure.reason, "message": facts.failure.message}
    return result


def phase(
    facts: PodStatusFacts, steps: Sequence[ContainerRecord], containers: Sequence[ContainerRecord]
) -> str:
    """Pending, Running, Succeeded or Failed. Source: the kubelet's `getPhase`."""
    if facts.failure is not None:
        return "Failed"
    if not _is_initialized(steps):
        failed = [
            r for r in steps if r.is_step and isinstance(r.state, Terminated) and r.state.exit_code != 0
        ]
        if failed and (facts.restart_policy == "Never" or facts.is_stopped):
            return "Failed"
        return "Failed" if facts.is_stopped else "Pending"
    if any(isinstance(r.state, ContainerWaiting) and r.last is None for r in containers):
        return "Failed" if facts.is_stopped else "Pending"
    if any(isinstance(record.state, Running) for record in containers):
        return "Running"
    if facts.is_stopped or facts.restart_policy in ("Never", "OnFailure"):
        return _ended_phase(facts, steps, containers)
    return "Running"


def _ended_phase(
    facts: PodStatusFacts, steps: Sequence[ContainerRecord], containers: Sequence[ContainerRecord]
) -> str:
    if any(isinstance(record.state, Running) for record in steps):
        return "Running"  # sidecars are still to be stopped
    if all(record.has_succeeded for record in containers):
        return "Succeeded"
    return "Failed" if facts.is_stopped or facts.restart_policy == "Never" else "Running"


def _is_initialized(steps: Sequence[ContainerRecord]) -> bool:
    return all(record.has_succeeded if record.is_step else _has_begun(record) for record in steps)


def _has_begun(sidecar: ContainerRecord) -> bool:
    return sidecar.is_started or sidecar.last is not None or isinstance(sidecar.state, Terminated)


def _conditions(
    facts: PodStatusFacts,
    reached: str,
    steps: Sequence[ContainerRecord],
    containers: Sequence[ContainerRecord],
    before: Mapping[str, Any],
    now_s: float,
) -> list[dict[str, Any]]:
    known = {each["type"]: each for each in before.get("conditions") or []}
    wanted = {
        "PodReadyToStartContainers": _met(facts.has_sandbox),
        "Initialized": _initialized(reached, steps),
    }
    ready = _containers_ready(reached, steps, containers)
    missing = [gate for gate in facts.readiness_gates if (known.get(gate) or {}).get("status") != "True"]
    wanted["Ready"] = ready
    if missing and ready["status"] == "True":
        text = f'the status of pod readiness gates is not "True": {" ".join(missing)}'
        wanted["Ready"] = {"status": "False", "reason": "ReadinessGatesNotReady", "message": text}
    wanted |= {"ContainersReady": ready, "PodScheduled": _met(True)}
    now = clock.rfc3339(now_s)
    return [_since(kind, condition, known.get(kind), now) for kind, condition in wanted.items()]


def _met(holds: bool) -> dict[str, Any]:
    return {"status": "True" if holds else "False"}


def _initialized(reached: str, steps: Sequence[ContainerRecord]) -> dict[str, Any]:
    if reached == "Succeeded":
        return {"status": "True", "reason": "PodCompleted"}
    if _is_initialized(steps):
        return {"status": "True"}
    left = [r.spec.name for r in steps if not (r.has_succeeded if r.is_step else _has_begun(r))]
    text = f"containers with incomplete status: [{' '.join(left)}]"
    return {"status": "False", "reason": "ContainersNotInitialized", "message": text}


def _containers_ready(
    reached: str, steps: Sequence[ContainerRecord], containers: Sequence[ContainerRecord]
) -> dict[str, Any]:
    if reached == "Succeeded":
        return {"status": "False", "reason": "PodCompleted"}
    if reached == "Failed":
        return {"status": "False", "reason": "PodFailed"}
    unready = [r.spec.name for r in (*steps, *containers) if not r.is_step and not r.is_ready]
    if not unready:
        return {"status": "True"}
    text = f"containers with unready status: [{' '.join(unready)}]"
    return {"status": "False", "reason": "ContainersNotReady", "message": text}


def _since(kind: str, condition: dict[str, Any], old: Mapping[str, Any] | None, now: str) -> dict[str, Any]:
    is_same = old is not None and old.get("status") == condition["status"]
    since = (
        old["lastTransitionTime"] if is_same and old is not None and old.get("lastTransitionTime") else now
    )
    return {"type": kind, "lastProbeTime": None, "lastTransitionTime": since} | condition
