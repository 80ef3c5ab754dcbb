"""What placing pods costs: Filter and Score over all nodes, placements of equal pods, and end to end.

Each figure has its peer in the same run: the same functions called for one node at a time, as schedulers
do that walk nodes; and evaluation of every pod anew instead of shared evaluations.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.node_metric import NodeMetric
from koordinator.clock import FixedClock, SystemClock, rfc3339
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import registry
from koordinator.scheduler import config, default_plugins
from koordinator.scheduler.cycle import Placed
from koordinator.scheduler.engine import Engine
from koordinator.scheduler.evaluation import Evaluation
from koordinator.scheduler.evaluation_cache import CLASSES_MAX
from koordinator.scheduler.events import ClusterEvent
from koordinator.scheduler.plugins.load_aware.plugin import LoadAwareScheduling
from koordinator.scheduler.pod_info import PodInfo
from koordinator.scheduler.profile import Profile
from koordinator.scheduler.scheduler import Scheduler

NODE_COUNTS = (1_000, 5_000, 20_000)
PLACEMENTS = 2_000
LOOPED_NODES = 500
END_TO_END_NODES = 1_000
END_TO_END_PODS = 5_000
NOW_S = 1_700_000_000.0

# The shipped profile with the load-aware filter on: every plugin that looks at all nodes has work.
LOADED_CONFIG = config.decode(
    {
        "profiles": [
            {
                "plugins": {
                    "filter": {"enabled": [{"name": "LoadAwareScheduling"}]},
                    "score": {"enabled": [{"name": "LoadAwareScheduling", "weight": 1}]},
                },
                "pluginConfig": [
                    {"name": "LoadAwareScheduling", "args": {"usageThresholds": {"cpu": 65, "memory": 95}}}
                ],
            }
        ]
    }
)


def node_body(number: int) -> dict[str, Any]:
    amounts = {
        "cpu": "32",
        "memory": "128Gi",
        "pods": "256",
        "kubernetes.io/batch-cpu": "12000",
        "kubernetes.io/batch-memory": "48Gi",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"node-{number}", "labels": {"kubernetes.io/hostname": f"node-{number}"}},
        "status": {"allocatable": amounts, "capacity": amounts},
    }


def pod_body(number: int) -> dict[str, Any]:
    resources = {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-{number}", "namespace": "default"},
        "spec": {
            "schedulerName": "koord-scheduler",
            "containers": [{"name": "main", "image": "app:v1", "resources": resources}],
        },
        "status": {"phase": "Pending"},
    }


def engine_of(nodes: int, classes_max: int = CLASSES_MAX) -> tuple[Engine, Profile]:
    """An engine with nodes whose measured usage differs."""
    engine = Engine(LOADED_CONFIG, FixedClock(NOW_S), classes_max=classes_max)
    [profile] = engine.profiles.values()
    plugin = next(p for p in profile.plugins if isinstance(p, LoadAwareScheduling))
    for number in range(nodes):
        engine.table.set_node(from_builtins(node_body(number), Node))
        usage = {"cpu": f"{number * 7 % 20}", "memory": f"{number * 3 % 64}Gi"}
        metric = {
            "metadata": {"name": f"node-{number}"},
            "status": {
                "updateTime": rfc3339(NOW_S),
                "nodeMetric": {"nodeUsage": {"resources": usage}},
            },
        }
        plugin.set_metric(from_builtins(metric, NodeMetric), ClusterEvent.NODE_METRIC_ADDED)
    return engine, profile


def info_of(number: int, engine: Engine) -> PodInfo:
    return PodInfo.of(from_builtins(pod_body(number), Pod), engine.table.registry)


def best_s(run: Callable[[], object], times: int) -> float:
    """The shortest of several runs, in CPU seconds: neighbours on the machine do not count."""
    found = []
    for _ in range(times):
        started_s = time.process_time()
        run()
        found.append(time.process_time() - started_s)
    return min(found)


def full_scan() -> None:
    """Filter and Score of one pod over all nodes, against the same functions node by node."""
    for nodes in NODE_COUNTS:
        engine, profile = engine_of(nodes)
        pod = info_of(0, engine)
        scan_s = best_s(partial(Evaluation, profile, engine.table, pod), 20)
        looped_s = best_s(partial(one_by_one, engine, profile, pod), 3) * nodes / LOOPED_NODES
        print(
            f"filter+score over {nodes:>6,} nodes: {scan_s * 1e6:>8,.0f} µs; "
            f"one node at a time {looped_s * 1e6:>10,.0f} µs ({looped_s / scan_s:,.0f} times)"
        )


def one_by_one(engine: Engine, profile: Profile, pod: PodInfo) -> None:
    """What a scheduler does that walks nodes, on the first nodes of the table."""
    states = {plugin.name: plugin.prepare(pod) for plugin in profile.evaluators}
    for row in engine.table.rows[:LOOPED_NODES].tolist():
        rows = np.array([row], np.intp)
        if all(plugin.filter(states[plugin.name], rows)[0] == 0 for plugin in profile.filters):
            for plugin, _ in profile.scorers:
                plugin.score(states[plugin.name], rows)


def placements() -> None:
    """Equal pods placed one after the other, with and without shared evaluations."""
    for nodes in NODE_COUNTS:
        shared_s = place_s(nodes, PLACEMENTS, CLASSES_MAX)
        fresh_s = place_s(nodes, PLACEMENTS // 10, 0)
        print(
            f"placements on {nodes:>6,} nodes: {1 / shared_s:>8,.0f}/s with classes, "
            f"{1 / fresh_s:>7,.0f}/s without ({fresh_s / shared_s:.1f} times)"
        )


def place_s(nodes: int, count: int, classes_max: int) -> float:
    """CPU seconds per placement, class key included."""
    engine, profile = engine_of(nodes, classes_max)
    pods = [info_of(number, engine) for number in range(count)]
    started_s = time.process_time()
    for pod in pods:
        placed = engine.cycle.run(profile, pod, profile.class_key(pod), 1, NOW_S)
        assert isinstance(placed, Placed), placed
    return (time.process_time() - started_s) / count


async def end_to_end_s(classes_max: int) -> float:
    """CPU seconds per pod from create to bound: API in this process, watch, cycle, binding, events."""
    backend = registry.in_memory(SystemClock(), checks=False)
    cluster = MemoryCluster(backend)
    for number in range(END_TO_END_NODES):
        await cluster.create(Node, node_body(number))
    scheduler = Scheduler(cluster, default_plugins.shipped_config(), classes_max=classes_max)
    task = asyncio.create_task(scheduler.run())
    await scheduler.synced.wait()
    started_s = time.process_time()
    for number in range(END_TO_END_PODS):
        await cluster.create(Pod, pod_body(number), "default")
    async with asyncio.timeout(120):
        while scheduler.metrics.placed_count < END_TO_END_PODS:  # noqa: ASYNC110 (counting is the claim)
            await asyncio.sleep(0)
    took_s = time.process_time() - started_s
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return took_s / END_TO_END_PODS


def end_to_end() -> None:
    shared_s = asyncio.run(end_to_end_s(CLASSES_MAX))
    fresh_s = asyncio.run(end_to_end_s(0))
    print(
        f"end to end on {END_TO_END_NODES:,} nodes, API in this process: {1 / shared_s:,.0f} pods/s with "
        f"classes, {1 / fresh_s:,.0f} without ({fresh_s / shared_s:.1f} times)"
    )


def main() -> None:
    full_scan()
    placements()
    end_to_end()
