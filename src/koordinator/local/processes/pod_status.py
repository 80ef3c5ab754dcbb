"""The status of a pod from those of its containers: phase and conditions, as the kubelet works them out. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from koordinator import clock
from koordinator.local.processes.container_state import ContainerRecord, ContainerWaiting, Running, Terminated

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
