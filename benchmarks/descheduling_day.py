"""The demo's day with a descheduler: hot nodes, evictions and budgets without one, pod by pod, and by plan.

The demo's cluster and its services, as ReplicaSets with a disruption budget each and busier than there, so that their
waves make nodes hot; no batch. The real scheduler, manager, descheduler and controllers of workloads and budgets on
virtual time: reports are a minute old, moves take the time of a reservation, an eviction and a start. Options:
`--nodes`, `--hours`, `--seeds` (so many, the first is `--from`), `--modes`, `--used` (mean CPU use of the services, a
share of the cluster).
"""

import argparse
import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from koordinator.api import labels
from koordinator.api.apps import ReplicaSet
from koordinator.api.core import ConfigMap, Namespace, Pod
from koordinator.api.groups import PodDisruptionBudget
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.clock import LoopClock
from koordinator.cluster import garbage
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.memory import MemoryCluster
from koordinator.cluster.proof import MoveAnswer, MoveQuestion
from koordinator.cluster.supervise import strictly
from koordinator.descheduler import configuration
from koordinator.descheduler.descheduler import Descheduler
from koordinator.descheduler.plugins.built_in import installed_plugins
from koordinator.local import cluster as local
from koordinator.local.controllers.disruption import DisruptionController
from koordinator.local.nodes.fleet import HollowFleet
from koordinator.local.nodes.hollow import HollowNodes
from koordinator.local.registry import in_memory
from koordinator.manager.manager import Manager
from koordinator.scheduler.explain.tries import PodToMove
from koordinator.scheduler.scheduler import Scheduler
from koordinator.scheduler.serve.explain_service import prove_live
from koordinator.simulate import run as demo
from koordinator.simulate import services
from koordinator.simulate.scenario import Scenario, fleet_policy, hollow_config, node_shapes
from koordinator.simulate.services import ServiceMix
from koordinator.simulate.virtual_time import run_virtual

HOT_PERCENT = 65
RETURNS_S = 3_600.0
"""A pod of a workload on a node that one of them left so long ago is a return."""
MODES = ("nobody", "pod by pod", "by plan")
REPORTS = {
    "enable": True,
    "metricReportIntervalSeconds": 60,
    "metricAggregateDurationSeconds": 60,
    "metricAggregatePolicy": {"durations": ["5m"]},
}


class DayCounts(msgspec.Struct):
    """Sums of one day: node-minutes above `HOT_PERCENT` of allocatable CPU, evictions, returns to a node that the
    workload had left in the hour before, service-seconds with more than one pod missing, failed jobs."""

    hot_minutes: float = 0.0
    evictions: int = 0
    returns: int = 0
    below_budget_s: float = 0.0
    failed_jobs: int = 0


def descheduler_config(by_plan: bool) -> dict[str, Any]:
    """A configuration with LowNodeLoad as documented, every minute."""
    load = {"lowThresholds": {"cpu": 45, "memory": 80}, "highThresholds": {"cpu": HOT_PERCENT, "memory": 95}}
    if by_plan:
        load["plan"] = {}
    return {
        "leaderElection": {"leaderElect": False},
        "deschedulingInterval": "60s",
        "profiles": [
            {
                "plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}},
                "pluginConfig": [{"name": "LowNodeLoad", "args": load}],
            }
        ],
    }


class DemoDay:
    """One cluster and what is counted of it."""

    def __init__(self, scenario: Scenario, clock: LoopClock) -> None:
        self.scenario, self.clock = scenario, clock
        self.starts_s = clock.now()
        shapes_rng, services_rng = np.random.default_rng(scenario.seed).spawn(2)
        shapes = node_shapes(scenario, shapes_rng)
        self.pods = services.pods(shapes, fleet_policy(scenario), services_rng, scenario.services)
        self.replicas = Counter(one["metadata"]["labels"]["app"] for one in self.pods)
        self.fleet = HollowFleet(shapes, fleet_policy(scenario))
        reserved = np.array([shape.reserved_milli for shape in shapes])
        self._limit_milli = (self.fleet.capacity - reserved) * HOT_PERCENT / 100
        self.cluster = MemoryCluster(in_memory(clock, seed=scenario.seed, checks=False, history_max=4_096))
        self.counts = DayCounts()
        self.factory = InformerFactory(self.cluster, random.Random(scenario.seed))
        self._stepped_s = self.starts_s
        self._left: dict[tuple[str, str], float] = {}

    def follow(self) -> None:
        """Count evictions and returns by the jobs, and pods that run by the pods."""
        self._jobs = self.factory.informer(PodMigrationJob)
        self._jobs.add_handler(None, lambda old, new: self._on_job(old, new), None)
        self._running = self.factory.informer(Pod)

    def _on_job(self, old: PodMigrationJob, new: PodMigrationJob) -> None:
        if old.status.phase == new.status.phase or new.status.phase not in ("Succeeded", "Failed"):
            return
        app = new.spec.pod_ref.name.rpartition("-")[0] if new.spec.pod_ref is not None else ""
        if new.status.phase == "Failed":
            self.counts.failed_jobs += 1
            return
        self.counts.evictions += 1
        now_s = self.clock.now()
        came_back = self._left.get((app, new.status.node_name), -RETURNS_S)
        self.counts.returns += now_s - came_back < RETURNS_S
        self._left[app, new.metadata.annotations.get(labels.JOB_SOURCE_NODE, "")] = now_s

    def on_step(self, now_s: float) -> None:
        """Count what the last step of the fleet was."""
        elapsed_s, self._stepped_s = now_s - self._stepped_s, now_s
        if now_s <= self.starts_s + self.scenario.warm_up_s:
            return
        self.counts.hot_minutes += float((self.fleet.used > self._limit_milli).sum()) * elapsed_s / 60
        ready = Counter(
            pod.metadata.labels.get("app", "")
            for pod in self._running.list()
            if pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None
        )
        missing = sum(ready[app] < count - 1 for app, count in self.replicas.items())
        self.counts.below_budget_s += missing * elapsed_s

    async def fill(self) -> None:
        """Create the services: what the demo has as pods, as ReplicaSets of the first pod of each."""
        await self.cluster.create(Namespace, {"metadata": {"name": services.NAMESPACE}})
        made: set[str] = set()
        for pod in self.pods:
            meta = pod["metadata"]
            app = meta["labels"]["app"]
            if app in made:
                continue
            made.add(app)
            template = {
                "metadata": {"labels": meta["labels"], "annotations": meta["annotations"]},
                "spec": pod["spec"],
            }
            selector = {"matchLabels": {"app": app}}
            spec = {"replicas": self.replicas[app], "selector": selector, "template": template}
            await self.cluster.create(
                ReplicaSet, {"metadata": {"name": app}, "spec": spec}, services.NAMESPACE
            )
            budget = {"metadata": {"name": app}, "spec": {"maxUnavailable": 1, "selector": selector}}
            await self.cluster.create(PodDisruptionBudget, budget, services.NAMESPACE)

    async def run(self, mode: str) -> DayCounts:
        """Live through the day."""
        scenario, cluster, rng = self.scenario, self.cluster, random.Random(self.scenario.seed)
        await local.install(cluster)
        reports = msgspec.json.encode(REPORTS).decode()
        await cluster.patch(
            ConfigMap, "slo-controller-config", {"data": {"colocation-config": reports}}, "koordinator-system"
        )
        scheduler = Scheduler(cluster, demo.scheduler_config(load_aware=True), seed=scenario.seed)

        async def prove(moves: Sequence[MoveQuestion]) -> list[MoveAnswer]:
            found = prove_live(scheduler, [PodToMove(one.uid, one.nodes) for one in moves])
            return [MoveAnswer(one.node, one.why) for one in found]

        nodes = HollowNodes(cluster, self.fleet, hollow_config(), rng=rng, on_step=self.on_step)
        events = EventRecorder(cluster, "controllers", rng=rng)
        work = [
            nodes.run(),
            Manager(cluster).run(),
            scheduler.run(),
            *(each.run() for each in local.workloads(cluster, self.factory, rng)),
            DisruptionController(cluster, self.factory, events).run(),
            events.run(),
        ]
        if mode != "nobody":
            config = configuration.decode(descheduler_config(mode == "by plan"), installed_plugins())
            work.append(Descheduler(cluster, config, installed_plugins(), rng=rng, prove=prove).run())
        self.follow()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
            self.factory.start(group)
            await nodes.registered.wait()
            await self.fill()
            await asyncio.sleep(scenario.end_s)
            await self.factory.stop()
            for task in tasks:
                task.cancel()
        return self.counts


def day(scenario: Scenario, mode: str) -> DayCounts:
    """Return what one day came to."""

    async def main(clock: LoopClock) -> DayCounts:
        with strictly():
            return await DemoDay(scenario, clock).run(mode)

    with garbage.collected_rarely():
        return run_virtual(main)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=30)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--from", type=int, default=1, dest="first")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--used", type=float, default=0.38)
    asked = parser.parse_args()
    mix = ServiceMix(cpu_used_ratio=asked.used, utilisation_max=0.9, pressed_node_ratio=0.0)
    for seed in range(asked.first, asked.first + asked.seeds):
        scenario = Scenario(nodes=asked.nodes, hours=asked.hours, seed=seed, services=mix)
        for mode in asked.modes:
            began_s = time.process_time()
            found = day(scenario, mode)
            print(
                f"{asked.nodes} nodes, {asked.hours:g} hours, seed {seed}, {mode}: {found.hot_minutes:,.0f} hot "
                f"node-minutes, {found.evictions:,} evictions, {found.returns} returns, "
                f"{found.below_budget_s:,.0f} s below a budget, {found.failed_jobs} jobs failed; "
                f"{time.process_time() - began_s:.0f} s of CPU",
                flush=True,
            )


if __name__ == "__main__":
    main()
