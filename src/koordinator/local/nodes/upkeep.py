"""Act as a kubelet for hollow pods that run: say what their probes find, and give them other amounts."""

import enum
from collections.abc import Awaitable, Callable
from typing import Any

from koordinator.api import pod_resize
from koordinator.api.core import Pod, PodSpec
from koordinator.api.pod_resize import is_sidecar
from koordinator.clock import Clock
from koordinator.local.nodes import kubelet, probes, resizing
from koordinator.local.nodes.fleet import HollowFleet
from koordinator.local.nodes.kubelet import PodRun
from koordinator.local.nodes.probes import Health, Timeline


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
        """What the probes of this run find; None without probes."""
        self.probe_s = 0.0
        """When something changes next by that; other wake-ups are old."""
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
        health = None if pod.lines is None else probes.health(pod.lines, 0.0)
        return pod.run(health)._replace(since_s=now_s)

    def begin(self, pod: HollowPod) -> None:
        """The containers have started."""
        pod.lines = self._lines(pod)
        self._plan_probe(pod, 0.0)

    def spec_changed(self, pod: HollowPod, new: Pod) -> None:
        """Other amounts are a matter of the node; containers that do not run yet start with them."""
        if not pod.runs or not resizing.differs(pod.obj.spec, new.spec):
            return
        if pod.applied is None:
            pod.allocated = pod.applied = pod.obj.spec
        self._plan(0.0, PodAction.RESIZE, pod)

    async def probe(self, pod: HollowPod, now_s: float) -> bool:
        """Say how the containers are by their probes; whether one failed for good, so that they must end."""
        if not pod.runs or pod.stopping:
            return False
        ran_s = now_s - pod.started_s
        if probes.is_killed(pod.lines or {}, ran_s):
            return True
        await self._say_running(pod, now_s)
        if pod.probe_s <= now_s:
            self._plan_probe(pod, ran_s)
        return False

    async def resize(self, pod: HollowPod, now_s: float) -> None:
        """Give a pod the amounts that its spec asks for: promise them, then apply them, if the node has room."""
        if pod.applied is None or not pod.runs or pod.stopping:
            return
        shape, _ = self._fleet.read(pod.obj)
        refusal = resizing.refusal(shape, self._room(pod))
        if refusal is not None:
            pod.allocated = pod.applied
            pod.resize = (kubelet.resize_condition(pod.obj, pod_resize.PENDING, *refusal),)
            if refusal.reason == resizing.DEFERRED:
                self._plan(resizing.RETRY_S, PodAction.RESIZE, pod)
        elif pod.allocated is not None:
            self._fleet.resize(pod.slot, shape)
            pod.allocated = None
            pod.resize = (kubelet.resize_condition(pod.obj, resizing.IN_PROGRESS),)
            self._plan(resizing.ACTUATE_S, PodAction.RESIZE, pod)
        else:
            self._fleet.resize(pod.slot, shape)
            pod.applied = None
            pod.resize = ()
        await self._say_running(pod, now_s)

    async def _say_running(self, pod: HollowPod, now_s: float) -> None:
        """Write the status of a pod that runs, if it is not what the API has."""
        health = None if pod.lines is None else probes.health(pod.lines, now_s - pod.started_s)
        patch = kubelet.running_status(pod.obj, pod.run(health), now_s)
        if kubelet.says_more(patch, pod.obj):
            await self._write_status(pod, patch)

    def _lines(self, pod: HollowPod) -> dict[str, Timeline] | None:
        if not probes.has_probes(pod.obj):
            return None
        spec, behaviour = pod.obj.spec, self._fleet.shape_of[pod.slot].behaviour
        return probes.timelines((*spec.containers, *filter(is_sidecar, spec.init_containers)), behaviour)

    def _plan_probe(self, pod: HollowPod, ran_s: float) -> None:
        """Wake up when the probes find something else."""
        next_s = probes.next_change_s(pod.lines or {}, ran_s)
        if next_s is not None:
            pod.probe_s = pod.started_s + next_s
            self._plan(pod.probe_s - self._clock.now(), PodAction.PROBE, pod)

    def _room(self, pod: HollowPod) -> resizing.ResizeHeadroom:
        fleet, row = self._fleet, pod.row
        others = [slot for slot in fleet.pods_on[row] if slot != pod.slot]
        return resizing.ResizeHeadroom(
            float(fleet.capacity[row] - fleet.reserved[row]),
            float(fleet.capacity_bytes[row] - fleet.reserved_bytes[row]),
            float(fleet.request[others].sum()),
            float(fleet.request_bytes[others].sum()),
        )
