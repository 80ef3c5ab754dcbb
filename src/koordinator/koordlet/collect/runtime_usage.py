"""CPU and memory of pods and containers whose groups cannot be read, by what their runtime tells (CRI).

Containers in virtual machines of their own (Kata) have no groups on the host, and an agent that is itself confined may
see none at all. Their runtimes are asked every `INTERVAL_S`, and nobody is while all groups are there. Values go to the
same series as those of groups, so that reports and evictions count such pods like any other. Off by default (gate
`RuntimeStats`): the reference has no figures of such pods.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping

import msgspec

from koordinator.api.feature_gates import FeatureGate, FeatureStage
from koordinator.host.cgroup_knobs import Knob
from koordinator.host.cgroup_layout import Runtime, parse_container_id
from koordinator.host.cri import RuntimeUsage
from koordinator.host.cri_messages import CPUUsage, MemoryUsage
from koordinator.host.errors import ContentError, LayoutError, RuntimeCallError
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.collect import rates
from koordinator.koordlet.collect.rates import LatestSamples, Total
from koordinator.koordlet.node_pods import NodeContainer, PodRecord
from koordinator.koordlet.parts import Shared, container_runtimes

log = logging.getLogger(__name__)

GATE = "RuntimeStats"
NEW_GATES = {
    GATE: FeatureGate(
        False,
        FeatureStage.ALPHA,
        "ask the container runtime what pods use whose groups cannot be read (not in the reference)",
    )
}
INTERVAL_S = 10.0
"""The interval at which containerd itself looks."""


class UsageReading(msgspec.Struct, frozen=True):
    """CPU time and memory of a pod or container, at a time in ns by the runtime's clock."""

    at_ns: int
    cpu_ns: int
    memory_bytes: int

    def cores_since(self, last: "UsageReading | None") -> float | None:
        """Return the cores in use since an earlier reading; None without one that fits."""
        return None if last is None else rates.cgroup_cores(last.cpu_ns, self.cpu_ns, self.at_ns - last.at_ns)


class RuntimeReadings(msgspec.Struct, frozen=True):
    """The newest readings of one runtime: pods by UID, containers by `<runtime>://<id>`."""

    pods: Mapping[str, UsageReading]
    containers: Mapping[str, UsageReading]


def reading(cpu: CPUUsage | None, memory: MemoryUsage | None) -> UsageReading | None:
    """Return what a runtime says; None where a figure is missing, as of a container that has just ended.

    Memory is counted as that of groups is: without page cache, where the runtime tells it apart.
    """
    if cpu is None or memory is None or cpu.usage_core_nano_seconds is None:
        return None
    used = memory.rss_bytes or memory.working_set_bytes
    return None if used is None else UsageReading(cpu.timestamp, cpu.usage_core_nano_seconds, used)


def readings(runtime: Runtime, usage: RuntimeUsage) -> RuntimeReadings:
    """Return the readings of all pods and containers; without those that miss a figure."""
    pods, containers = {}, {}
    for sandbox in usage.sandboxes:
        metadata = sandbox.attributes.metadata if sandbox.attributes is not None else None
        found = reading(sandbox.linux.cpu, sandbox.linux.memory) if sandbox.linux is not None else None
        if metadata is not None and found is not None:
            pods[metadata.uid] = found
    for container in usage.containers:
        found = reading(container.cpu, container.memory)
        if container.attributes is not None and found is not None:
            containers[f"{runtime}://{container.attributes.id}"] = found
    return RuntimeReadings(pods, containers)


def of_pod(record: PodRecord, found: RuntimeReadings) -> UsageReading | None:
    """Return the reading of a pod; that of its containers together where the runtime tells nothing of pods."""
    own = found.pods.get(record.uid)
    if own is not None:
        return own
    parts = [found.containers.get(each.id) for each in record.containers if each.is_running]
    known = [each for each in parts if each is not None]
    if not known or len(known) < len(parts):
        return None
    return UsageReading(
        min(each.at_ns for each in known),
        sum(each.cpu_ns for each in known),
        sum(each.memory_bytes for each in known),
    )


class RuntimeUsageCollector:
    """Asks only for what has no group; series of groups are never touched."""

    name = "RuntimeStatsCollector"
    interval_s = INTERVAL_S

    def __init__(self, shared: Shared, known: LatestSamples) -> None:
        self._shared = shared
        self._known = known
        self._runtimes = container_runtimes(shared)
        self._last: dict[str, UsageReading] = {}
        """By UID or container id."""
        self._problems: dict[Runtime, str] = {}

    async def collect(self) -> bool:
        """One round; good when all runtimes answered that had to be asked."""
        pods, containers = self._unseen()
        asked = {runtime for runtime in map(_runtime_of, _containers_of(pods, containers)) if runtime}
        found = RuntimeReadings({}, {})
        is_good = True
        for runtime in sorted(asked):
            answer = await self._readings(runtime)
            is_good = is_good and answer is not None
            if answer is not None:
                found = RuntimeReadings(
                    {**found.pods, **answer.pods}, {**found.containers, **answer.containers}
                )
        self._take(pods, containers, found)
        return is_good

    def _unseen(self) -> tuple[list[PodRecord], list[NodeContainer]]:
        """Return pods, and containers of any pod, that run without a group of their own."""
        active = [each for each in self._shared.view.pods.values() if each.is_active]
        running = [each for record in active for each in record.containers if each.is_running]
        return (
            [each for each in active if not self._is_seen(each.group)],
            [each for each in running if not self._is_seen(each.group)],
        )

    def _is_seen(self, group: str) -> bool:
        """Return whether a group is there: by the descriptor that is kept of what is read all the time."""
        cgroups = self._shared.host.cgroups
        return cgroups.files.identity(cgroups.path(Knob.CPU_USAGE, group)) is not None

    async def _readings(self, runtime: Runtime) -> RuntimeReadings | None:
        try:
            found = readings(runtime, await self._runtimes.used(runtime))
        except (RuntimeCallError, ContentError) as error:
            if self._problems.get(runtime) != str(error):
                log.warning("runtime not asked", extra={"runtime": runtime, "problem": str(error)})
            self._problems[runtime] = str(error)
            return None
        self._problems.pop(runtime, None)
        return found

    def _take(self, pods: list[PodRecord], containers: list[NodeContainer], found: RuntimeReadings) -> None:
        former, self._last = self._last, {}
        total_cores, total_bytes = 0.0, 0
        for pod in pods:
            now = of_pod(pod, found)
            cores = self._store(_POD_KINDS, pod.uid, now, former)
            if now is not None and cores is not None:
                total_cores, total_bytes = total_cores + cores, total_bytes + now.memory_bytes
        for container in containers:
            self._store(_CONTAINER_KINDS, container.id, found.containers.get(container.id), former)
        loop_s = asyncio.get_running_loop().time()
        self._known.unseen_pods = Total(total_cores, total_bytes, loop_s) if pods else None

    def _store(
        self,
        of: tuple[str, str, str],
        name: str,
        now: UsageReading | None,
        former: Mapping[str, UsageReading],
    ) -> float | None:
        """Store points of a pod or container; its cores since the last round, None when that is not known. A kind of
        memory may be empty: nobody asks for that of containers."""
        if now is None:
            return None
        self._last[name] = now
        cores = now.cores_since(former.get(name))
        if cores is None:
            return None
        property_name, cpu_kind, memory_kind = of
        store, at_ms = self._shared.store, int(self._shared.clock.now() * 1000)
        store.ring(cpu_kind, {property_name: name}).append(at_ms, cores)
        if memory_kind:
            store.ring(memory_kind, {property_name: name}).append(at_ms, now.memory_bytes)
        return cores


_POD_KINDS = (kinds.POD_UID, kinds.POD_CPU, kinds.POD_MEMORY)
_CONTAINER_KINDS = (kinds.CONTAINER_ID, kinds.CONTAINER_CPU, "")


def _containers_of(pods: Iterable[PodRecord], containers: Iterable[NodeContainer]) -> list[NodeContainer]:
    return [*(each for pod in pods for each in pod.containers), *containers]


def _runtime_of(container: NodeContainer) -> Runtime | None:
    try:
        return parse_container_id(container.id).runtime
    except LayoutError:
        return None
