"""Act as a kubelet for hollow pods that run: say what their probes find, and give them other amounts if the node has
room. Source of resizing: KEP-1287 as the kubelet of 1.35 follows it.
"""

import enum
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from koordinator.api import pod_resize, pod_resources
from koordinator.api.core import Pod, PodSpec, ResourceRequirements
from koordinator.clock import Clock
from koordinator.local.nodes import kubelet
from koordinator.local.nodes.fleet import HollowFleet
from koordinator.local.nodes.kubelet import Health, PodRun, Timeline
from koordinator.local.nodes.pod_shape import HollowPodShape

DEFERRED = "Deferred"
RETRY_S = 10.0
ACTUATE_S = 1.0


class ResizeRefusal(NamedTuple):
    """The reason why the new amounts are not given (now)."""

    reason: str
    message: str


class ResizeHeadroom(NamedTuple):
    """CPU in milli-cores and memory in bytes: what pods may have of a node, and what the others have."""

    allocatable_milli: float
    allocatable_bytes: float
    others_milli: float
    others_bytes: float


def differs(old: PodSpec, new: PodSpec) -> bool:
    """Return whether a container has other amounts than before."""
    return _amounts(old) != _amounts(new)


def refusal(wanted: HollowPodShape, room: ResizeHeadroom) -> ResizeRefusal | None:
    """None when the node has room."""
    for name, asked, allocatable, others in (
        ("cpu", wanted.request_milli, room.allocatable_milli, room.others_milli),
        ("memory", wanted.request_bytes, room.allocatable_bytes, room.others_bytes),
    ):
        if asked > allocatable:
            text = f"Node didn't have enough capacity: {name}, requested: {int(asked)}, capacity: {int(allocatable)}"
            return ResizeRefusal(pod_resize.INFEASIBLE, text)
        if asked + others > allocatable:
            return ResizeRefusal(DEFERRED, f"Node didn't have enough resource: {name}")
    return None


def _amounts(spec: PodSpec) -> list[tuple[str, ResourceRequirements]]:
    return [(one.name, one.resources) for one in (*spec.containers, *spec.init_containers)]


class PodAction(enum.Enum):
    """The action that is due for a pod."""

    START = "start"
    STOP = "stop"
    RETRY_END = "retry end"
    PROBE = "probe"
    RESIZE = "resize"


class HollowPod:
    """The state of a pod beside its object."""

    __slots__ = (
        "allocated",
        "applied",
        "ended",
        "last_state",
        "lines",
        "obj",
        "probe_s",
        "resize",
        "restarts",
        "row",
        "slot",
        "started_s",
        "stopping",
    )

    def __init__(self, obj: Pod, slot: int, row: int) -> None:
        self.obj = obj
        self.slot = slot
        self.row = row
        self.restarts = 0
        self.started_s = 0.0
        self.last_state: dict[str, Any] = {}
        self.ended: dict[str, Any] | None = None
        self.stopping = False
        self.lines: dict[str, Timeline] | None = None
        """Results of the probes of this run; None without probes."""
        self.probe_s = 0.0
        """Time of the next change by that; other wake-ups are old."""
        self.allocated: PodSpec | None = None
        """The spec whose amounts are promised, while they are not those of the pod's own."""
        self.applied: PodSpec | None = None
        """The same for what runs."""
        self.resize: tuple[dict[str, Any], ...] = ()
        """Conditions about a change of amounts."""

    @property
    def runs(self) -> bool:
        """Return whether its containers run."""
        return self.started_s > 0.0 and self.ended is None

    def run(self, health: Health | None = None) -> PodRun:
        """Return the facts of its status."""
        return PodRun(
            row=self.row,
            slot=self.slot,
            since_s=self.started_s,
            restarts=self.restarts,
            last_state=self.last_state,
            health=health,
            allocated=self.allocated,
            applied=self.applied,
            resize=self.resize,
        )


Plan = Callable[[float, PodAction, HollowPod], None]
"""Has something done after so many seconds."""
WriteStatus = Callable[[HollowPod, dict[str, Any]], Awaitable[None]]


class Upkeep:
    """Serves the pods of a fleet."""

    def __init__(self, fleet: HollowFleet, clock: Clock, plan: Plan, write_status: WriteStatus) -> None:
        self._fleet = fleet
        self._clock = clock
        self._plan = plan
        self._write_status = write_status

    def first_run(self, pod: HollowPod, now_s: float) -> PodRun:
        """Return the status of containers that start now: with the amounts that they ask for now."""
        pod.allocated = pod.applied = None
        pod.resize = ()
        pod.lines = self._lines(pod)
        health = None if pod.lines is None else kubelet.health(pod.lines, 0.0)
        return pod.run(health)._replace(since_s=now_s)

    def begin(self, pod: HollowPod) -> None:
        """The containers have started."""
        pod.lines = self._lines(pod)
        self._plan_probe(pod, 0.0)

    def spec_changed(self, pod: HollowPod, new: Pod) -> None:
        """Other amounts are a matter of the node; containers that do not run yet start with them."""
        if not pod.runs or not differs(pod.obj.spec, new.spec):
            return
        if pod.applied is None:
            pod.allocated = pod.applied = pod.obj.spec
        self._plan(0.0, PodAction.RESIZE, pod)

    async def probe(self, pod: HollowPod, now_s: float) -> bool:
        """Say how the containers are by their probes; whether one failed for good, so that they must end."""
        if not pod.runs or pod.stopping:
            return False
        ran_s = now_s - pod.started_s
        if kubelet.is_killed(pod.lines or {}, ran_s):
            return True
        await self._report_running(pod, now_s)
        if pod.probe_s <= now_s:
            self._plan_probe(pod, ran_s)
        return False

    async def resize(self, pod: HollowPod, now_s: float) -> None:
        """Give a pod the amounts that its spec asks for: promise them, then apply them, if the node has room."""
        if pod.applied is None or not pod.runs or pod.stopping:
            return
        shape, _ = self._fleet.read(pod.obj)
        refused = refusal(shape, self._room(pod))
        if refused is not None:
            pod.allocated = pod.applied
            pod.resize = (kubelet.resize_condition(pod.obj, pod_resize.PENDING, *refused),)
            if refused.reason == DEFERRED:
                self._plan(RETRY_S, PodAction.RESIZE, pod)
        elif pod.allocated is not None:
            self._fleet.resize(pod.slot, shape)
            pod.allocated = None
            pod.resize = (kubelet.resize_condition(pod.obj, kubelet.RESIZE_IN_PROGRESS),)
            self._plan(ACTUATE_S, PodAction.RESIZE, pod)
        else:
            self._fleet.resize(pod.slot, shape)
            pod.applied = None
            pod.resize = ()
        await self._report_running(pod, now_s)

    async def _report_running(self, pod: HollowPod, now_s: float) -> None:
        """Write the status of a pod that runs, if it is not what the API has."""
        health = None if pod.lines is None else kubelet.health(pod.lines, now_s - pod.started_s)
        patch = kubelet.running_status(pod.obj, pod.run(health), now_s)
        if kubelet.changes_status(patch, pod.obj):
            await self._write_status(pod, patch)

    def _lines(self, pod: HollowPod) -> dict[str, Timeline] | None:
        if not kubelet.has_probes(pod.obj):
            return None
        spec, behaviour = pod.obj.spec, self._fleet.shape_of[pod.slot].behaviour
        return kubelet.timelines(pod_resources.running_together(spec), behaviour)

    def _plan_probe(self, pod: HollowPod, ran_s: float) -> None:
        """Wake up when the probes find something else."""
        next_s = kubelet.next_change_s(pod.lines or {}, ran_s)
        if next_s is not None:
            pod.probe_s = pod.started_s + next_s
            self._plan(pod.probe_s - self._clock.now(), PodAction.PROBE, pod)

    def _room(self, pod: HollowPod) -> ResizeHeadroom:
        fleet, row = self._fleet, pod.row
        others = [slot for slot in fleet.pods_on[row] if slot != pod.slot]
        return ResizeHeadroom(
            float(fleet.capacity[row] - fleet.reserved[row]),
            float(fleet.capacity_bytes[row] - fleet.reserved_bytes[row]),
            float(fleet.request[others].sum()),
            float(fleet.request_bytes[others].sum()),
        )
