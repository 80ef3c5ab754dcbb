"""One simulated day: a cluster in this process, the real scheduler and manager, on virtual time.

The scheduler runs the shipped profile, with or without load awareness. Admission webhooks are answered in this
process, by the review protocol word for word, only without a socket.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec
import numpy as np

from koordinator.api import crd, defaults, kinds
from koordinator.api.core import Namespace, Node, Pod
from koordinator.api.groups import ClusterColocationProfile
from koordinator.clock import LoopClock
from koordinator.cluster import garbage
from koordinator.cluster.informer import Informer
from koordinator.cluster.memory import MemoryCluster
from koordinator.cluster.supervise import strictly
from koordinator.local.admission import WebhookAdmission
from koordinator.local.admission.client import INPROC
from koordinator.local.nodes.fleet import HollowFleet
from koordinator.local.nodes.hollow import HollowNodes
from koordinator.local.nodes.usage import read_trace
from koordinator.local.registry import ObjectRegistry, in_memory
from koordinator.manager.manager import Manager
from koordinator.manager.webhooks import configuration, review
from koordinator.scheduler.config import config, default_plugins
from koordinator.scheduler.config.config import PluginSet, SchedulerConfig
from koordinator.scheduler.scheduler import Scheduler
from koordinator.simulate import batch_jobs, batch_platform, services
from koordinator.simulate.batch_platform import BatchPlatform
from koordinator.simulate.recorder import RecordedSeries, Recorder
from koordinator.simulate.scenario import (
    CLOSED_LOOP_COLOCATION,
    CLOSED_LOOP_USAGE_PERCENT,
    HEADROOM_RATIO,
    LOAD_AWARE_ARGS,
    PENDING_PODS_MAX,
    REPORT_POLICY,
    SAMPLE_S,
    USAGE_PERCENT,
    Scenario,
    fleet_policy,
    hollow_config,
    node_shapes,
)
from koordinator.simulate.virtual_time import run_virtual

Progress = Callable[[float], Any]

# Changes kept per kind: in-process watchers read all there is before time moves on, so little is enough.
HISTORY_MAX = 512
# Long enough for all services to be placed and started; a third of the warm-up.
PLACING_S = 600.0


class RunResult(msgspec.Struct, kw_only=True):
    """The result of one run; see `Recorder.means` for the units of `means`."""

    colocation: bool
    cores: float
    means: dict[str, float]
    series: RecordedSeries
    utilisation: list[int]
    waits_s: list[float]
    jobs_arrived: int
    jobs_finished: int
    tasks_finished: int
    evictions: int
    lost_core_hours: float
    services_unplaced: int
    slow_minutes: int
    """See `Recorder.slow_minutes`."""
    longest_slow_s: float
    """See `Recorder.longest_slow_s`."""
    memory_gib: float
    """Memory of all nodes."""
    shown_nodes: list[str]
    """Names of the columns of `RecordedSeries.node_percent`."""
    slowed_nodes: dict[str, float]
    """See `Recorder.slowed_nodes`."""


def simulate(scenario: Scenario, *, colocation: bool, on_progress: Progress | None = None) -> RunResult:
    """Run one day. Raises: TraceError when the trace cannot be read."""

    async def main(clock: LoopClock) -> RunResult:
        with strictly():
            return await _Day(scenario, clock, colocation).run(on_progress)

    with garbage.collected_rarely():
        return run_virtual(main)


class _Day:
    """The parts of a run, wired together."""

    def __init__(self, scenario: Scenario, clock: LoopClock, colocation: bool) -> None:
        self.scenario = scenario
        self.clock = clock
        self.colocation = colocation
        self.starts_s = clock.now()
        # Streams of chance are separate, so that one more draw here changes nothing there.
        shapes_rng, services_rng, jobs_rng, trace_rng = np.random.default_rng(scenario.seed).spawn(4)
        self.shapes = node_shapes(scenario, shapes_rng)
        policy = fleet_policy(scenario)
        self.service_pods = services.pods(
            self.shapes, policy, services_rng, scenario.services, follows_trace=scenario.trace is not None
        )
        cores = sum(shape.cpu_milli for shape in self.shapes) / 1000
        self.jobs = batch_jobs.stream(
            cores * scenario.batch_demand_ratio, scenario.hours, jobs_rng, scenario.jobs
        )
        trace = None
        if scenario.trace is not None:
            trace = read_trace(scenario.trace).sample(len(self.shapes), trace_rng)
        self.fleet = HollowFleet(self.shapes, policy, trace)
        self.registry: ObjectRegistry = in_memory(
            clock, seed=scenario.seed, checks=False, history_max=HISTORY_MAX
        )
        self.cluster = MemoryCluster(self.registry)
        self.node_informer: Informer[Node] = Informer(self.cluster, Node, rng=random.Random(0))
        self.recorder = Recorder(self.fleet, self.node_informer)
        self._stepped_s = clock.now()

    async def run(self, on_progress: Progress | None) -> RunResult:
        scenario = self.scenario
        await self._install()
        nodes = HollowNodes(
            self.cluster, self.fleet, hollow_config(), rng=random.Random(scenario.seed), on_step=self._on_step
        )
        platform = BatchPlatform(
            self.cluster,
            self.jobs,
            starts_s=self.starts_s + scenario.warm_up_s,
            pending_max=PENDING_PODS_MAX,
            quota_milli=self._batch_quota_milli(),
            rng=random.Random(scenario.seed),
            says_duration=scenario.lend_ahead_minutes > 0,
        )
        async with asyncio.TaskGroup() as group:
            tasks: list[asyncio.Task[Any]] = []

            def start(work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
                tasks.append(group.create_task(work, name=name))
                return tasks[-1]

            start(self.node_informer.run(), "demo nodes")
            start(nodes.run(), "hollow nodes")
            await nodes.registered.wait()
            # Services come first, onto a plain cluster: both days have the same ones on the same nodes.
            for pod in self.service_pods:
                await self.cluster.create(Pod, pod, services.NAMESPACE)
            plain = start(self._scheduler(load_aware=False).run(), "scheduler of services")
            await asyncio.sleep(PLACING_S)
            plain.cancel()
            await asyncio.wait([plain])
            if self.colocation:
                # Not before: what is random in the API (uids) must be the same for the services of both days.
                await self.cluster.create(ClusterColocationProfile, _profile())
                manager = Manager(self.cluster)
                start(manager.run(), "manager")
                await manager.synced.wait()
                await admit_by(manager.handlers, self.registry, random.Random(scenario.seed))
            else:
                self.fleet.has_agents = False  # a plain cluster
            scheduler = self._scheduler(load_aware=scenario.load_aware and self.colocation)
            start(scheduler.run(), "scheduler")
            start(platform.run(), "batch platform")
            await self._watch(platform, on_progress)
            for task in tasks:
                task.cancel()
        return self._result(platform)

    def _batch_quota_milli(self) -> float:
        """Return what batch may request: lent CPUs have no quota, ordinary ones leave the services' headroom free."""
        if self.colocation:
            return float("inf")
        ratio = 1 - self.scenario.services.cpu_requested_ratio - HEADROOM_RATIO
        return max(ratio, 0.0) * float(self.fleet.capacity.sum())

    def _scheduler(self, *, load_aware: bool) -> Scheduler:
        percent = CLOSED_LOOP_USAGE_PERCENT if self.scenario.closed_loop else USAGE_PERCENT
        config = scheduler_config(load_aware=load_aware, usage_percent=percent)
        return Scheduler(self.cluster, config, seed=self.scenario.seed)

    async def _install(self) -> None:
        """Create what an installation brings, and the two namespaces."""
        for obj in (*crd.manifests(), *defaults.objects()):
            if obj["kind"] == "Namespace":
                continue  # the registry has it
            if obj["kind"] == "ConfigMap":
                lent = CLOSED_LOOP_COLOCATION if self.scenario.closed_loop else {}
                obj["data"]["colocation-config"] = msgspec.json.encode(
                    {"enable": True, "lendAheadMinutes": self.scenario.lend_ahead_minutes}
                    | REPORT_POLICY
                    | lent
                ).decode()
            namespace = obj["metadata"].get("namespace", "")
            await self.registry.create(kinds.resource_of(obj), namespace, obj)
        for name in (services.NAMESPACE, batch_platform.NAMESPACE):
            namespace = {"metadata": {"name": name, "labels": {"workload": name}}}
            await self.registry.create(Namespace.resource, "", namespace)

    def _on_step(self, now_s: float) -> None:
        elapsed_s, self._stepped_s = now_s - self._stepped_s, now_s
        if now_s > self.starts_s + self.scenario.warm_up_s:
            self.recorder.step(elapsed_s)

    async def _watch(self, platform: BatchPlatform, on_progress: Progress | None) -> None:
        """Sample until the day is over."""
        scenario = self.scenario
        # A second late, so that a tick at the same time is over.
        day_starts_s = self.starts_s + scenario.warm_up_s + 1
        ends_s = day_starts_s + scenario.hours * 3_600
        at_s = day_starts_s
        while at_s < ends_s:
            at_s = min(at_s + SAMPLE_S, ends_s)
            await asyncio.sleep(at_s - self.clock.now())
            progress = platform.progress
            self.recorder.sample(
                (at_s - day_starts_s) / 3_600,
                platform.queue_length,
                progress.jobs_arrived,
                progress.jobs_finished,
            )
            if on_progress is not None:
                on_progress((self.clock.now() - self.starts_s) / scenario.end_s)

    def _result(self, platform: BatchPlatform) -> RunResult:
        progress = platform.progress
        waits_s = progress.waits_s + platform.waits_so_far_s(self.clock.now())
        placed = int((self.fleet.running & self.fleet.is_service).sum())
        return RunResult(
            colocation=self.colocation,
            cores=float(self.fleet.capacity.sum()) / 1000,
            means={name: round(value, 6) for name, value in self.recorder.means.items()},
            series=self.recorder.series,
            utilisation=self.recorder.utilisation.tolist(),
            waits_s=[round(wait_s, 1) for wait_s in waits_s],
            jobs_arrived=progress.jobs_arrived,
            jobs_finished=progress.jobs_finished,
            tasks_finished=progress.tasks_finished,
            evictions=progress.evictions,
            lost_core_hours=round(self.fleet.lost_milli_s / 1000 / 3600, 3),
            slow_minutes=self.recorder.slow_minutes,
            longest_slow_s=self.recorder.longest_slow_s,
            services_unplaced=len(self.service_pods) - placed,
            memory_gib=round(float(self.fleet.capacity_bytes.sum()) / 2**30, 2),
            shown_nodes=[self.fleet.shapes[row].name for row in self.recorder.shown.tolist()],
            slowed_nodes=self.recorder.slowed_nodes(),
        )


def _profile() -> dict[str, Any]:
    """Return what turns the pods of the batch namespace into best-effort pods on Batch resources."""
    return {
        "metadata": {"name": "batch"},
        "spec": {
            "namespaceSelector": {"matchLabels": {"workload": batch_platform.NAMESPACE}},
            "qosClass": "BE",
            "priorityClassName": "koord-batch",
            "schedulerName": "koord-scheduler",
            "labels": {"koordinator.sh/mutated": "true"},
        },
    }


_NAME = "koord-manager"


async def admit_by(
    handlers: Mapping[str, review.Handler], registry: ObjectRegistry, rng: random.Random
) -> None:
    """Ask `handlers` (by path) whatever the manager's webhook configurations say, from now on."""
    admission = WebhookAdmission.on(registry, rng)
    for path, handler in handlers.items():
        admission.register_handler(f"{_NAME}{path}", _answering(handler))
    registry.admission = admission
    for wanted in configuration.configurations(f"{INPROC}://{_NAME}", paths=handlers.keys()):
        await registry.create(kinds.resource_of(wanted), "", wanted)


def _answering(handler: review.Handler) -> review.Answering:
    async def answer(body: bytes) -> bytes:
        return await review.review(handler, body)

    return answer


LOAD_AWARE = "LoadAwareScheduling"


def scheduler_config(*, load_aware: bool, usage_percent: int = USAGE_PERCENT) -> SchedulerConfig:
    """Return the shipped profile; load awareness keeps batch off nodes that use so much CPU, or is not there at all."""
    shipped = default_plugins.shipped_profile()
    assert shipped.plugins is not None
    plugins = shipped.plugins
    args = [c for c in shipped.plugin_config if c.name != LOAD_AWARE]
    if load_aware:
        thresholds = LOAD_AWARE_ARGS["usageThresholds"] | {"cpu": usage_percent}
        wanted = LOAD_AWARE_ARGS | {"usageThresholds": thresholds}
        args.append(config.PluginConfig(name=LOAD_AWARE, args=wanted))
    else:
        points = {name: _without(getattr(plugins, name), LOAD_AWARE) for name in plugins.__struct_fields__}
        plugins = config.Plugins(**points)
    profile = msgspec.structs.replace(shipped, plugins=plugins, plugin_config=args)
    return SchedulerConfig(profiles=[profile])


def _without(points: PluginSet, plugin: str) -> PluginSet:
    return PluginSet(
        enabled=[ref for ref in points.enabled if ref.name != plugin], disabled=list(points.disabled)
    )
