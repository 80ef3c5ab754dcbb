"""Track where a container is in its life: the pure part of it. The pure part of it."""

from typing import Any

import msgspec

from koordinator import clock
from koordinator.api.core import ContainerStatus
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
        """An init container that must end before the next begins."""
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
                _seconds(ended.started_at, now_s),
                _seconds(ended.finished_at, now_s),
                ended.container_id,
                message=ended.message,
            )
        elif before.container_id:
            running = before.state.running
            begun_s = now_s if running is None else _seconds(running.started_at, now_s)
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


def _seconds(text: str | None, otherwise_s: float) -> float:
    try:
        return otherwise_s if text is None else clock.parse_rfc3339(text)
    except ValueError:
        return otherwise_s


def restarts_again(restart_policy: str, exit_code: int, *, is_step: bool, is_sidecar: bool) -> bool:
    """Return whether a container that ended is started anew."""
    if is_sidecar:
        return True
    if is_step:
        return exit_code != 0 and restart_policy != "Never"
    if restart_policy == "Never":
        return False
    return exit_code != 0 if restart_policy == "OnFailure" else True


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
