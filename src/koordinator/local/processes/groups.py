"""The groups of pods, laid out as the kubelet does it, with real processes in them, and what they get. Amounts are
pure.

`<parent>/kubepods/{,burstable,besteffort}/pod<uid>/<container id>`, in every hierarchy that has controllers on v1.
Values are those of cgroup v1 (`host.cgroup_knobs` turns them into those of v2). Source: `ResourceConfigForPod`,
`qosContainerManagerImpl.setCPUCgroupConfig`, `calculateLinuxResources` and `GetContainerOOMScoreAdjust` of the kubelet.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Iterable

import msgspec

from koordinator.api import pod_resize, pod_resources, quantity, resources
from koordinator.api.core import Container, Pod
from koordinator.api.errors import SubjectError
from koordinator.api.qos import KubeQoS, kube
from koordinator.host import cgroup_knobs, cgroup_layout
from koordinator.host.cgroup_knobs import V1, V2, Knob
from koordinator.host.cgroup_layout import ContainerID, Driver
from koordinator.host.cgroups import V1_SUBSYSTEMS, Cgroups
from koordinator.host.errors import HostError
from koordinator.host.files import FileFailure, FileProblem

UNSET = 0
"""A quota or limit that is not written."""
SANDBOX_SHARES = cgroup_knobs.SHARES_MIN
SANDBOX_OOM_SCORE = -998
_GUARANTEED_OOM_SCORE, _BEST_EFFORT_OOM_SCORE = -997, 1000
_NODE_CRITICAL_PRIORITY = 2_000_001_000


class GroupAmounts(msgspec.Struct, frozen=True):
    """CPU shares, CFS quota in µs per 100 ms and memory limit in bytes; 0 leaves one as it is."""

    shares: int = UNSET
    quota_us: int = UNSET
    memory_bytes: int = UNSET


def of_pod(pod: Pod) -> GroupAmounts:
    """Return the group of a pod."""
    match kube(pod):
        case KubeQoS.BEST_EFFORT:
            return GroupAmounts(cgroup_knobs.SHARES_MIN)
        case KubeQoS.BURSTABLE | KubeQoS.GUARANTEED:
            request_milli = cpu_request_milli(pod)
            return GroupAmounts(
                cgroup_knobs.shares_of_milli(request_milli),
                _quota_us(max(pod_resources.cpu_limit_milli(pod), 0)),
                _memory_limit_bytes(pod),
            )


def of_container(container: Container) -> GroupAmounts:
    """Return the group of a container. Without a CPU request its limit stands for one."""
    wanted = container.resources
    limit_milli = quantity.milli(wanted.limits.get(resources.CPU, 0))
    request_milli = quantity.milli(wanted.requests.get(resources.CPU, 0))
    if resources.CPU not in wanted.requests:
        request_milli = limit_milli
    return GroupAmounts(
        cgroup_knobs.shares_of_milli(request_milli),
        _quota_us(limit_milli),
        quantity.value(wanted.limits.get(resources.MEMORY, 0)),
    )


def of_class(kube_qos: KubeQoS, pods: Iterable[Pod]) -> GroupAmounts:
    """Return the group of burstable or best-effort pods; `pods` are all that run on the node."""
    if kube_qos is KubeQoS.BEST_EFFORT:
        return GroupAmounts(cgroup_knobs.SHARES_MIN)
    requested_milli = sum(cpu_request_milli(pod) for pod in pods if kube(pod) is kube_qos)
    return GroupAmounts(cgroup_knobs.shares_of_milli(requested_milli))


def of_all_pods(allocatable_milli: int, allocatable_bytes: int) -> GroupAmounts:
    """Return the group of all pods."""
    return GroupAmounts(
        cgroup_knobs.shares_of_milli(allocatable_milli), memory_bytes=max(allocatable_bytes, 0)
    )


def cpu_request_milli(pod: Pod) -> int:
    """Return the CPU that the pod requests."""
    amount = pod_resources.requests(pod).get(resources.CPU)
    return 0 if amount is None else amount.milli


def oom_score_adj(pod: Pod, container: Container, memory_capacity_bytes: int) -> int:
    """Return the score by which the kernel kills a container's processes when memory ends; the larger, the sooner."""
    if (pod.spec.priority or 0) >= _NODE_CRITICAL_PRIORITY:
        return _GUARANTEED_OOM_SCORE
    match kube(pod):
        case KubeQoS.GUARANTEED:
            return _GUARANTEED_OOM_SCORE
        case KubeQoS.BEST_EFFORT:
            return _BEST_EFFORT_OOM_SCORE
        case KubeQoS.BURSTABLE:
            request = quantity.value(container.resources.requests.get(resources.MEMORY, 0))
            score = 1000 - 1000 * request // max(memory_capacity_bytes, 1)
            return min(max(score, 1000 + _GUARANTEED_OOM_SCORE), _BEST_EFFORT_OOM_SCORE - 1)


def _memory_limit_bytes(pod: Pod) -> int:
    """Return the sum of memory limits, with init containers in their order; unset where any has none."""
    whole = pod.spec.resources
    if whole is not None and resources.MEMORY in whole.limits:
        return quantity.value(whole.limits[resources.MEMORY])
    total = sidecars = 0
    for container in pod.spec.containers:
        if (limit := _limit_bytes(container)) <= 0:
            return UNSET
        total += limit
    largest_step = 0
    for container in pod.spec.init_containers:
        if (limit := _limit_bytes(container)) <= 0:
            return UNSET
        if pod_resize.is_sidecar(container):
            sidecars += limit
            largest_step = max(largest_step, sidecars)
        else:
            largest_step = max(largest_step, sidecars + limit)
    return max(total + sidecars, largest_step)


def _limit_bytes(container: Container) -> int:
    return quantity.value(container.resources.limits.get(resources.MEMORY, 0))


def _quota_us(limit_milli: int) -> int:
    return cgroup_knobs.quota_of_milli(limit_milli) if limit_milli > 0 else UNSET


log = logging.getLogger(__name__)

_V2_CONTROLLERS = ("cpu", "cpuset", "memory", "io", "pids")
_KILL_POLL_S, _KILL_POLLS_MAX = 0.01, 500
"""A killed process is gone as soon as it has left the kernel; five seconds are more than a disk that hangs needs."""
_DEPTH_MAX = 16
CLASSES = (KubeQoS.BURSTABLE, KubeQoS.BEST_EFFORT)


class GroupError(SubjectError, HostError):
    """A group could not be made, filled or removed."""

    kind = "cgroup "


class PodGroups:
    """Makes, fills and removes groups. `parent` is the group below which kubepods stands, the root for ''."""

    def __init__(self, cgroups: Cgroups, *, driver: Driver = Driver.CGROUPFS, parent: str = "") -> None:
        self.cgroups = cgroups
        self.driver = driver
        self.parent = parent.strip("/")
        self.root = self.class_group(KubeQoS.GUARANTEED)

    # Names

    def class_group(self, kube_qos: KubeQoS) -> str:
        """Group of a class; that of guaranteed pods is the group of all pods."""
        return cgroup_layout.join(self.parent, cgroup_layout.class_dir(self.driver, kube_qos))

    def pod_group(self, kube_qos: KubeQoS, uid: str) -> str:
        """Group of a pod."""
        return cgroup_layout.join(self.parent, cgroup_layout.pod_dir(self.driver, kube_qos, uid))

    def container_group(self, of_pod: str, container: ContainerID) -> str:
        """Group of a container, or of the sandbox, below its pod's."""
        return cgroup_layout.container_dir(self.driver, of_pod, container)

    # Making

    def make_tree(self) -> None:
        """Create the groups of all pods and of the classes. Raises: GroupError."""
        for group in self.missing_parents():
            self.make(group, can_hold_groups=True)
        for group in (self.root, *map(self.class_group, CLASSES)):
            self.make(group, can_hold_groups=True)

    def make(self, group: str, *, can_hold_groups: bool) -> None:
        """Create a group, ready for processes: with CPUs and memory nodes of its parent on v1, with controllers on v2.

        Raises: GroupError.
        """
        above = os.path.dirname(group)
        if self.cgroups.version == V2:
            self._enable_controllers(above)
        if (problem := self.cgroups.create(group)) is not None:
            raise GroupError(group, problem)
        if self.cgroups.version == V1:
            self._inherit_cpus(group, above)
        elif can_hold_groups:
            self._enable_controllers(group)

    def set_amounts(self, group: str, amounts: GroupAmounts) -> None:
        """Write what a group gets. A group that an agent made idle keeps the weight that idle groups have: the kernel
        refuses any other. Raises: GroupError."""
        for knob, value in (
            (Knob.CPU_SHARES, amounts.shares),
            (Knob.CPU_QUOTA, amounts.quota_us),
            (Knob.MEMORY_LIMIT, amounts.memory_bytes),
        ):
            if value == UNSET:
                continue
            problem = self.cgroups.write(knob, group, str(value))
            if problem is not None and not (knob is Knob.CPU_SHARES and self._is_idle(group)):
                raise GroupError(group, problem)

    def _is_idle(self, group: str) -> bool:
        return (self.cgroups.files.read(self.cgroups.path(Knob.CPU_IDLE, group)) or "").strip() == "1"

    def die_together(self, group: str) -> None:
        """Have the kernel kill all processes of the group at once when memory ends, where it can (v2)."""
        if self.cgroups.version == V2:
            self.cgroups.write(Knob.MEMORY_OOM_GROUP, group, "1")

    def enter(self, pid: int, group: str) -> None:
        """Move a process into a group. Raises: GroupError."""
        if (problem := self.cgroups.move(pid, group)) is not None:
            raise GroupError(group, problem)

    def _inherit_cpus(self, group: str, above: str) -> None:
        base = self.cgroups.directory("", "cpuset")
        if not self.cgroups.files.exists(base):
            return
        for file in ("cpuset.cpus", "cpuset.mems"):
            path = cgroup_layout.join(group, file)
            if (self.cgroups.files.read(f"{base}/{path}") or "").strip():
                continue  # it was set before, by an agent perhaps
            text = self.cgroups.files.read(f"{base}/{cgroup_layout.join(above, file)}")
            problem = self.cgroups.files.write(f"{base}/{path}", (text or "").strip())
            if problem is not None:
                raise GroupError(group, problem)

    def _enable_controllers(self, group: str) -> None:
        """Controllers for the groups below; those that the kernel does not offer here are left out."""
        directory = self.cgroups.directory(group)
        offered = (self.cgroups.files.read(f"{directory}/cgroup.controllers") or "").split()
        enabled = (self.cgroups.files.read(f"{directory}/cgroup.subtree_control") or "").split()
        for name in _V2_CONTROLLERS:
            if name in offered and name not in enabled:
                problem = self.cgroups.files.write(f"{directory}/cgroup.subtree_control", f"+{name}")
                if problem is not None:
                    raise GroupError(group or "/", problem)

    # Looking

    def missing_parents(self) -> list[str]:
        """Groups above that of all pods which do not exist yet, in any hierarchy; the outermost first."""
        names = self.parent.split("/") if self.parent else []
        above = ["/".join(names[: depth + 1]) for depth in range(len(names))]
        return [group for group in above if not self._is_there(group)]

    def exists(self) -> bool:
        """Return whether there is a group of all pods, in any hierarchy."""
        return self._is_there(self.root)

    def _is_there(self, group: str) -> bool:
        return any(self.cgroups.exists(group, each) for each in self._hierarchies())

    def processes(self, group: str) -> set[int]:
        """Ids of all processes in a group and below, in any hierarchy."""
        found: set[int] = set()
        for subsystem in self._hierarchies():
            for each in self.cgroups.walk(group, _DEPTH_MAX, subsystem):
                found.update(self.cgroups.procs(each, subsystem) or ())
        return {pid for pid in found if pid > 0}

    def oom_kills(self, group: str) -> int:
        """Return how many processes of the group the kernel has killed for want of memory."""
        v1 = self.cgroups.version == V1
        file = "memory.oom_control" if v1 else "memory.events"
        text = self.cgroups.files.read(f"{self.cgroups.directory(group, 'memory')}/{file}") or ""
        for line in text.splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.isdigit():
                return int(count)
        return 0

    # Ending

    def signal_all(self, group: str, number: int) -> None:
        """Send a signal to every process of a group and below; never to ourselves."""
        for pid in self.processes(group) - {os.getpid()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    async def kill(self, group: str) -> None:
        """Kill whatever runs in a group and below, until nothing does. Raises: GroupError after five seconds."""
        left: set[int] = set()
        for _ in range(_KILL_POLLS_MAX):
            left = self.processes(group) - {os.getpid()}
            if not left:
                return
            self.signal_all(group, signal.SIGKILL)
            await asyncio.sleep(_KILL_POLL_S)
        raise GroupError(group, f"processes {sorted(left)} do not end although they were killed")

    async def remove(self, group: str) -> None:
        """Kill what runs in a group and remove it with all below. Raises: GroupError."""
        await self.kill(group)
        problem: FileProblem | None = None
        for _ in range(_KILL_POLLS_MAX):
            problem = self._remove_directories(group)
            if problem is None:
                self.cgroups.forget(group)
                return
            if problem.failure is not FileFailure.BUSY:
                break
            await self.kill(group)
            await asyncio.sleep(_KILL_POLL_S)
        raise GroupError(group, problem or "is still there")

    def remove_parents(self, made: Iterable[str]) -> None:
        """Take away groups above that of all pods which were made for it; those that others use meanwhile stay."""
        for group in sorted(made, key=lambda each: -each.count("/")):
            problem = self.cgroups.remove(group)
            if problem is not None and problem.failure is not FileFailure.GONE:
                log.debug("cgroup not removed: still in use", extra={"problem": str(problem)})

    def _remove_directories(self, group: str) -> FileProblem | None:
        below = {each for one in self._hierarchies() for each in self.cgroups.walk(group, _DEPTH_MAX, one)}
        deepest_first = sorted(below, key=lambda each: -each.count("/"))
        problems = [self.cgroups.remove(each) for each in deepest_first]
        return next((problem for problem in problems if problem is not None), None)

    def _hierarchies(self) -> tuple[str, ...]:
        """Return one subsystem for each place in which groups are."""
        if self.cgroups.version == V2:
            return ("cpu",)
        bases: dict[str, str] = {}
        for subsystem in V1_SUBSYSTEMS:
            base = self.cgroups.where.directory(subsystem)
            if self.cgroups.files.exists(base):
                bases.setdefault(base, subsystem)
        return tuple(bases.values())
