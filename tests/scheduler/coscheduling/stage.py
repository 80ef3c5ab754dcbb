"""A cluster on which schedulers play gangs and die: one after the other, each cut off at a chosen moment."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from koordinator.api import crd
from koordinator.api.core import Node, Pod
from koordinator.api.groups import CustomResourceDefinition
from koordinator.api.meta import Object
from koordinator.clock import LoopClock
from koordinator.cluster import errors
from koordinator.cluster.memory import MemoryCluster
from koordinator.cluster.write_through import ClusterWrite, WriteThrough
from koordinator.local import registry
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.config.config import PluginConfig, PluginRef, SchedulerConfig
from koordinator.scheduler.plugin.framework import PermitPlugin, PermitResult, PluginType, ReservePlugin
from koordinator.scheduler.plugin.status import SUCCESS, Status
from koordinator.scheduler.plugins import built_in
from koordinator.scheduler.scheduler import Scheduler
from koordinator.scheduler.table.pod_info import PodInfo
from tests.cluster.faulty_cluster import Faults, FaultyCluster
from tests.scheduler.world import EPOCH_S, node, pod

Json = dict[str, Any]
T = TypeVar("T", bound=Object)
R = TypeVar("R")
Moment = Callable[[str], None]

PREFIX = "gang.scheduling.koordinator.sh"
FLUSH_S = 1e9
"""No pod is tried again for no better reason than that it has waited long: each wake-up has to come from an event."""
REQUEST_S = 0.01
"""How long a request takes to get there, and its answer to come back."""

URGENT = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "urgent"},
    "value": 9000,
    "preemptionPolicy": "Never",
}


def member(name: str, gang: str, minimum: int, cpu: str = "1", **parts: Any) -> Json:
    """A pod of a gang that annotations describe; `annotations` are more of them without their prefix, all other
    parts are those of a pod."""
    more = parts.pop("annotations", {})
    body = pod(name, cpu=cpu, **parts)
    body["metadata"]["annotations"] = {
        f"{PREFIX}/name": gang,
        f"{PREFIX}/min-available": str(minimum),
        **{f"{PREFIX}/{key}": value for key, value in more.items()},
    }
    return body


class Line(WriteThrough):
    """One scheduler's line to the API, which tells the moments of its requests about pods. Once it is cut
    nothing gets through any more: to the cluster the process behind it is dead."""

    def __init__(self, backend: Any, moment: Moment) -> None:
        super().__init__(MemoryCluster(backend))
        self.is_cut = False
        self._moment = moment

    async def _send(self, write: ClusterWrite, effect: Callable[[], Awaitable[R]]) -> R:
        is_reported = write.verb in ("bind", "patch", "delete") and write.kind == "Pod"
        verb = "status" if write.subresource == "status" else write.verb
        what = f"{verb} {write.name}" if is_reported else ""
        await self._on_the_way(what and f"before {what}")
        answer = await effect()
        await self._on_the_way(what and f"after {what}")
        return answer

    async def _on_the_way(self, what: str) -> None:
        if what and not self.is_cut:
            self._moment(what)
        await asyncio.sleep(REQUEST_S)
        if self.is_cut:
            raise errors.ConnectionFailed("connection refused")


class Stage:
    """The cluster (`api`), and the scheduler that runs now, to which the API behaves as `faults` say. `moment`
    hears of every step with a member: when it is reserved and permitted, and before and after each request
    about it."""

    def __init__(self, settings: SchedulerConfig | None = None, *, seed: int = 0) -> None:
        clock = LoopClock(asyncio.get_running_loop(), EPOCH_S)
        self.backend = registry.in_memory(clock, checks=False)
        self.api = MemoryCluster(self.backend)
        self.moment: Moment = lambda _: None
        self.faults = Faults()
        self._rng = random.Random(seed)
        self._settings = settings or with_moments()
        self._task: asyncio.Task[None] | None = None

    # Schedulers

    async def start(self) -> None:
        """A scheduler that knows nothing yet, and has read everything when this returns."""
        self.line = Line(self.backend, lambda what: self.moment(what))
        self.api_of_scheduler = FaultyCluster(
            self.line, self.faults, random.Random(self._rng.getrandbits(64))
        )
        self.scheduler = Scheduler(
            self.api_of_scheduler, self._settings, plugins=self.plugins(), unschedulable_s_max=FLUSH_S
        )
        self._task = asyncio.create_task(self.scheduler.run(), name="scheduler")
        await self.scheduler.synced.wait()
        self._started_s = asyncio.get_running_loop().time()

    @property
    def age_s(self) -> float:
        """How long the scheduler runs; 0 for a dead one."""
        return 0.0 if self.line.is_cut else asyncio.get_running_loop().time() - self._started_s

    def cut(self) -> None:
        """The scheduler's process is killed; what it still does nobody sees."""
        self.line.is_cut = True

    async def bury(self) -> None:
        """The end of a scheduler, killed before or stopped by this."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def plugins(self) -> dict[str, PluginType]:
        """All plugins, with one that tells moments."""
        stage = self

        class Moments(ReservePlugin[None], PermitPlugin[None]):
            """Tells what happens to placed pods."""

            name = "Moments"

            def reserve(self, state: None, pod: PodInfo, row: int) -> Status:
                stage.moment(f"reserve {pod.pod.metadata.name}")
                return SUCCESS

            def unreserve(self, state: None, pod: PodInfo, node_name: str) -> None:
                """Nothing was booked."""

            def permit(self, state: None, pod: PodInfo, node_name: str) -> PermitResult:
                stage.moment(f"permit {pod.pod.metadata.name}")
                return PermitResult()

        return {**built_in.PLUGINS, "Moments": Moments}

    def heal(self) -> None:
        """The API misbehaves no more."""
        self.faults = Faults()
        self.api_of_scheduler.heal()

    def rng_of(self, seed: int) -> random.Random:
        """Chance of the story's own, apart from that of the faults."""
        return random.Random(f"story {seed}")

    def attempts(self) -> int:
        """Attempts of the scheduler that runs now."""
        results = ("scheduled", "unschedulable", "error")
        of = self.scheduler.metrics.attempt_duration.of
        return sum(sum(of(result, "koord-scheduler").counts) for result in results)

    # Objects

    async def nodes(self, *cpus: str) -> None:
        """`node-0` and so on, one for each amount; with them come the priority class `urgent` and the CRDs."""
        for manifest in crd.manifests():
            await self.api.create(CustomResourceDefinition, manifest)
        await self.api.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", URGENT)
        for number, cpu in enumerate(cpus):
            await self.api.create(Node, node(f"node-{number}", cpu=cpu))

    async def pods(self, *bodies: Json) -> None:
        for body in bodies:
            del body["spec"]["priority"]  # the API server fills it in
            await self.api.create(Pod, body, body["metadata"]["namespace"])

    async def bound(self, prefix: str = "") -> list[str]:
        """Names of pods on nodes."""
        found = (await self.api.list(Pod)).items
        return sorted(
            each.metadata.name
            for each in found
            if each.spec.node_name and each.metadata.name.startswith(prefix)
        )


def with_moments(**coscheduling_args: Any) -> SchedulerConfig:
    """The shipped configuration with the plugin that tells moments, and arguments of Coscheduling."""
    profile = default_plugins.shipped_profile()
    replace, also = msgspec.structs.replace, PluginRef(name="Moments")
    plugins = replace(
        profile.plugins,
        reserve=replace(profile.plugins.reserve, enabled=[*profile.plugins.reserve.enabled, also]),
        permit=replace(profile.plugins.permit, enabled=[*profile.plugins.permit.enabled, also]),
    )
    args = PluginConfig(name="Coscheduling", args=coscheduling_args)
    ours = replace(profile, plugins=plugins, plugin_config=[*profile.plugin_config, args])
    return replace(default_plugins.shipped_config(), profiles=[ours])


@contextlib.asynccontextmanager
async def stage(settings: SchedulerConfig | None = None, *, seed: int = 0) -> AsyncIterator[Stage]:
    found = Stage(settings, seed=seed)
    try:
        yield found
    finally:
        await found.bury()
