"""Days of pods coming and going, and whether the scheduler still knows exactly what is there.

The real scheduler runs on the in-process API under virtual time, while pods of many kinds are created, run
for a while and end, and nodes are cordoned, relabelled, resized and replaced. In the end `differences`
compares its node table, and what it would answer for new pods, with a scheduler that starts afresh.
"""

import asyncio
import heapq
import random
import resource
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from koordinator.api.core import Node, Pod
from koordinator.api.node_metric import NodeMetric
from koordinator.clock import Clock, rfc3339
from koordinator.cluster import errors
from koordinator.cluster.garbage import collected_rarely
from koordinator.cluster.informer import Informer
from koordinator.cluster.memory import MemoryCluster
from koordinator.local.cluster import install
from koordinator.local.registry import in_memory
from koordinator.scheduler.scheduler import Scheduler
from koordinator.simulate.run import scheduler_config
from koordinator.simulate.virtual_time import run_virtual
from tests.churn import objects
from tests.churn.table_differences import differences

NAMESPACE = objects.NAMESPACE
HISTORY_MAX = 2_000
NODE_ACTION_EVERY_S = 60.0
REPORTS_PER_STEP = 40
SETTLE_S = 120.0
"""After the last arrival, so that bindings end and informers are current."""
GIVE_UP_S = 600.0
"""A pod that found no node by then is deleted by its owner."""
SUCCEEDED = {"status": {"phase": "Succeeded"}}

Progress = Callable[[float], None]


class ChurnScenario(msgspec.Struct, frozen=True, kw_only=True):
    """How much happens: `pods` arrive evenly over `hours`, each runs `run_s_mean` seconds on average."""

    nodes: int = 1_000
    pods: int = 200_000
    hours: float = 24.0
    run_s_mean: float = 3_600.0
    seed: int = 0


class ChurnResult(msgspec.Struct, frozen=True):
    """What came of it. `differences` is empty when the table is exact; `memory_mib` is the resident set at
    the end of each hour."""

    created: int
    bound: int
    finished: int
    given_up: int
    node_actions: int
    left_running: int
    differences: list[str]
    memory_mib: list[float]

    def memory_growth(self) -> float:
        """MiB per hour over the second half: the slope of a least-squares line (caches are full by then)."""
        half = self.memory_mib[len(self.memory_mib) // 2 :]
        if len(half) < 2:
            return 0.0
        middle = (len(half) - 1) / 2
        mean = sum(half) / len(half)
        above = sum((hour - middle) * (value - mean) for hour, value in enumerate(half))
        return above / sum((hour - middle) ** 2 for hour in range(len(half)))


def run(scenario: ChurnScenario, on_progress: Progress | None = None) -> ChurnResult:
    """Play the scenario to its end; `on_progress` hears the share that is done."""
    with collected_rarely():
        return run_virtual(lambda clock: _Churn(scenario, clock).run(on_progress))


class _Churn:
    def __init__(self, scenario: ChurnScenario, clock: Clock) -> None:
        self._scenario = scenario
        self._clock = clock
        self._rng = random.Random(scenario.seed)
        self._registry = in_memory(clock, seed=scenario.seed, checks=False, history_max=HISTORY_MAX)
        self._cluster = MemoryCluster(self._registry)
        self._pods: Informer[Pod] = Informer(self._cluster, Pod, rng=random.Random(1))
        self._pods.add_handler(on_update=self._pod_changed)
        self._due: list[tuple[float, int, str, str]] = []
        """(when, tie, what, pod): "finish" a running pod, "remove" a finished one, "give up" a pending one."""
        self._ties = 0
        self._templates = objects.templates(self._rng)
        self._bound = self._created = self._finished = self._given_up = self._node_actions = 0
        self._memory_mib: list[float] = []

    async def run(self, on_progress: Progress | None) -> ChurnResult:
        await self._install()
        scheduler = self._scheduler()
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(scheduler.run()),
                group.create_task(self._pods.run()),
                group.create_task(self._churn_nodes()),
                group.create_task(self._report_usage()),
            ]
            await scheduler.synced.wait()
            await self._churn_pods(on_progress)
            for task in tasks[2:]:
                task.cancel()
            await asyncio.sleep(SETTLE_S)
            found = await self._compare(scheduler)
            for task in tasks:
                task.cancel()
        return ChurnResult(
            created=self._created,
            bound=self._bound,
            finished=self._finished,
            given_up=self._given_up,
            node_actions=self._node_actions,
            left_running=sum(1 for pod in self._pods.list() if pod.spec.node_name),
            differences=found,
            memory_mib=self._memory_mib,
        )

    def _scheduler(self) -> Scheduler:
        return Scheduler(self._cluster, scheduler_config(load_aware=True), seed=self._scenario.seed)

    async def _install(self) -> None:
        await install(self._cluster)
        namespaces = self._registry.resolve("", "v1", "namespaces")
        await self._registry.create(namespaces, "", {"metadata": {"name": NAMESPACE}})
        for number in range(self._scenario.nodes):
            await self._cluster.create(Node, objects.node(number, self._rng))
            await self._cluster.create(NodeMetric, objects.metric(number))

    # Pods

    async def _churn_pods(self, on_progress: Progress | None) -> None:
        """Arrivals, ends and deletions, in the order of time; then memory once an hour."""
        scenario = self._scenario
        started_s = self._clock.now()
        ends_s = started_s + scenario.hours * 3_600
        gap_s = scenario.hours * 3_600 / scenario.pods
        next_arrival_s, next_sample_s = started_s, started_s + 3_600
        while self._clock.now() < ends_s:
            now_s = self._clock.now()
            while next_arrival_s <= now_s and self._created < scenario.pods:
                await self._arrive()
                next_arrival_s += gap_s
            while self._due and self._due[0][0] <= now_s:
                _, _, what, name = heapq.heappop(self._due)
                await self._carry_out(what, name)
            if now_s >= next_sample_s:
                self._memory_mib.append(_resident_mib())
                next_sample_s += 3_600
                if on_progress is not None:
                    on_progress((now_s - started_s) / (ends_s - started_s))
            next_due_s = self._due[0][0] if self._due else ends_s
            wake_s = min(max(next_arrival_s, now_s), next_due_s, next_sample_s, ends_s)
            await asyncio.sleep(max(wake_s - self._clock.now(), 0.01))
        self._memory_mib.append(_resident_mib())

    async def _arrive(self) -> None:
        name = f"pod-{self._created}"
        body = objects.of_template(self._rng.choice(self._templates), name)
        self._created += 1
        await self._cluster.create(Pod, body, NAMESPACE)
        self._plan(GIVE_UP_S, "give up", name)

    def _pod_changed(self, old: Pod, new: Pod) -> None:
        if new.spec.node_name and not old.spec.node_name:
            self._bound += 1
            self._plan(self._rng.expovariate(1 / self._scenario.run_s_mean), "finish", new.metadata.name)

    def _plan(self, in_s: float, what: str, name: str) -> None:
        self._ties += 1
        heapq.heappush(self._due, (self._clock.now() + in_s, self._ties, what, name))

    async def _carry_out(self, what: str, name: str) -> None:
        try:
            if what == "give up":
                pod = self._pods.get(name, NAMESPACE)
                if pod is not None and not pod.spec.node_name:
                    self._given_up += 1
                    await self._cluster.delete(Pod, name, NAMESPACE)
            elif what == "finish" and self._rng.random() < 0.7:
                self._finished += 1
                await self._cluster.patch(Pod, name, SUCCEEDED, NAMESPACE, subresource="status")
                self._plan(60.0, "remove", name)
            else:  # deleted while it runs, or cleaned up
                self._finished += what == "finish"
                await self._cluster.delete(Pod, name, NAMESPACE, grace_period_s=0)
        except errors.NotFound:
            pass  # its node went, and the pod with it

    # Nodes

    async def _churn_nodes(self) -> None:
        while True:
            await asyncio.sleep(NODE_ACTION_EVERY_S)
            number = self._rng.randrange(self._scenario.nodes)
            name = objects.node_name(number)
            self._node_actions += 1
            action = self._rng.choice(("cordon", "uncordon", "relabel", "resize", "replace"))
            if action == "replace":
                await self._replace(number)
            else:
                patch, subresource = objects.node_patch(action, self._rng)
                await self._cluster.patch(Node, name, patch, subresource=subresource)

    async def _replace(self, number: int) -> None:
        """The node object goes and comes back; half of the time its pods are deleted in between."""
        name = objects.node_name(number)
        await self._cluster.delete(Node, name)
        await asyncio.sleep(self._rng.uniform(0.0, 5.0))
        if self._rng.random() < 0.5:
            for pod in [pod for pod in self._pods.list() if pod.spec.node_name == name]:
                await self._carry_out("remove", pod.metadata.name)
        await self._cluster.create(Node, objects.node(number, self._rng))

    async def _report_usage(self) -> None:
        """NodeMetrics, a few nodes at a time."""
        number = 0
        while True:
            await asyncio.sleep(60.0)
            for _ in range(min(REPORTS_PER_STEP, self._scenario.nodes)):
                status = objects.usage(number, rfc3339(self._clock.now()), self._rng)
                name = objects.node_name(number)
                await self._cluster.patch(NodeMetric, name, {"status": status}, subresource="status")
                number = (number + 1) % self._scenario.nodes

    # The end

    async def _compare(self, scheduler: Scheduler) -> list[str]:
        probes = objects.probes(random.Random(self._scenario.seed + 1))
        fresh = self._scheduler()
        async with fresh.following():
            return differences(scheduler, fresh, probes)


def _resident_mib() -> float:
    """The resident set of this process now, where the system tells; else its peak."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return pages * resource.getpagesize() / 2**20


def summary(result: ChurnResult, scenario: ChurnScenario, took_s: float) -> Sequence[str]:
    """Lines for people."""
    memory = result.memory_mib
    return (
        f"{scenario.hours:g} simulated hours, {scenario.nodes:,} nodes: {result.created:,} pods created, "
        f"{result.bound:,} bound, {result.finished:,} finished, {result.given_up:,} given up, "
        f"{result.node_actions:,} node changes, in {took_s:,.0f} s",
        f"node table against one rebuilt from the objects: "
        f"{'equal' if not result.differences else f'{len(result.differences)} differences'}",
        f"memory: {memory[0]:,.0f} MiB after the first hour, {max(memory):,.0f} MiB at most, "
        f"{memory[-1]:,.0f} MiB in the end; {result.memory_growth():+.2f} MiB per hour in the second half",
    )
