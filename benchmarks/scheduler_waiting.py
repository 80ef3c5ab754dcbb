"""Pods that cannot run yet: what events cost while 10,000 of them sleep, and what a preemption costs.

Peers in the same run: asking each class of sleeping pods by itself; trying each node by itself.
"""

import random
import time
from typing import Any

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.groups import PodDisruptionBudget
from koordinator.clock import FixedClock, rfc3339
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.engine.post_filter import CycleDiagnosis
from koordinator.scheduler.engine.view import View
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.plugins.preemption.plugin import DefaultPreemption
from koordinator.scheduler.queue.queued_pod import QueuedPod
from koordinator.scheduler.queue.unschedulable_pods import UnschedulablePods, wakeup_of
from koordinator.scheduler.table.pod_info import PodInfo

NOW_S = 1_800_000_000.0
SLEEPERS = 10_000
EVENTS = 1_000
CHURNED = (
    ClusterEvent.ASSIGNED_POD_DELETED,
    ClusterEvent.ASSIGNED_POD_ADDED,
    ClusterEvent.NODE_ALLOCATABLE,
    ClusterEvent.NODE_LABELS,
)
PODS_PER_NODE = 30
NODE_COUNTS = (1_000, 5_000)
TRIED_NODES = 50


def node_body(name: str, cpu: int) -> dict[str, Any]:
    allocatable = {"cpu": str(cpu), "memory": f"{2 * cpu}Gi", "pods": "110"}
    labels = {"kubernetes.io/hostname": name}
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": allocatable}}


def pod_body(
    name: str, cpu_milli: int, *, priority: int = 0, app: str = "", age_s: int = 0
) -> dict[str, Any]:
    requests = {"cpu": f"{cpu_milli}m", "memory": f"{2 * cpu_milli}Mi"}
    meta = {"name": name, "namespace": "default", "uid": name, "labels": {"app": app} if app else {}}
    return {
        "metadata": meta,
        "spec": {"priority": priority, "containers": [{"name": "main", "resources": {"requests": requests}}]},
        "status": {"startTime": rfc3339(NOW_S - age_s)},
    }


class Cluster:
    """Nodes and pods without a running scheduler."""

    def __init__(self) -> None:
        self.engine = Engine(default_plugins.shipped_config(), FixedClock(NOW_S), plugins=installed_plugins())
        self.table = self.engine.table
        [self.profile] = self.engine.profiles.values()

    def info(self, body: dict[str, Any]) -> PodInfo:
        return PodInfo.of(from_builtins(body, Pod), self.table.registry)

    def fill(self, node_count: int, pods_per_node: int) -> None:
        """Full nodes, their pods of seven priorities and fifty applications."""
        cpu = 32
        for number in range(node_count):
            self.table.set_node(from_builtins(node_body(f"node-{number}", cpu), Node))
            for place in range(pods_per_node):
                each = number * pods_per_node + place
                body = pod_body(
                    f"pod-{each}",
                    1_000 * cpu // pods_per_node,
                    priority=each % 7,
                    app=f"app-{each % 50}",
                    age_s=each % 1_000,
                )
                self.table.assign(self.info(body), f"node-{number}")


def best_ms(work: Any, tries: int = 5) -> float:
    """CPU milliseconds, best of several."""
    found = []
    for _ in range(tries):
        began_s = time.process_time()
        work()
        found.append(time.process_time() - began_s)
    return min(found) * 1_000


def events(kinds: int) -> None:
    """Churn on full nodes beside sleeping pods of so many kinds."""
    cluster = Cluster()
    cluster.fill(1_000, 1)
    plugins = {plugin.name: plugin for plugin in cluster.profile.plugins}
    unschedulable = UnschedulablePods(lambda _: plugins)
    entries = []
    for number in range(SLEEPERS):
        info = cluster.info(pod_body(f"sleeper-{number}", 1_000 + number % kinds))
        key = cluster.profile.class_key(info)
        refused_by = frozenset(("NodeResourcesFit",))
        entries.append(QueuedPod(info, cluster.profile.name, key, 0.0, rejected_by=refused_by))
        unschedulable.add(entries[-1])
    rng = random.Random(1)
    churn = [QueueingEvent(rng.choice(CHURNED), rng.randrange(1_000)) for _ in range(EVENTS)]
    together_ms = best_ms(lambda: [unschedulable.woken_by(each) for each in churn])
    sample = entries[: min(kinds, 500)]
    one = next(each for each in churn if each.kind is ClusterEvent.ASSIGNED_POD_DELETED)
    each_us = best_ms(lambda: [wakeup_of(entry, plugins, one) for entry in sample]) * 1_000 / len(sample)
    print(
        f"{EVENTS} events beside {SLEEPERS:,} sleeping pods of {kinds:,} kinds: {together_ms:.1f} ms "
        f"(asking one kind by itself: {each_us:.0f} µs per event)"
    )


def preemption(node_count: int) -> None:
    """One attempt of a pod that fits nowhere, beside fifty budgets."""
    cluster = Cluster()
    cluster.fill(node_count, PODS_PER_NODE)
    plugin = next(each for each in cluster.profile.plugins if isinstance(each, DefaultPreemption))
    for number in range(50):
        body = {
            "metadata": {"name": f"budget-{number}", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": f"app-{number}"}}},
            "status": {"disruptionsAllowed": 1},
        }
        plugin.preemptor.budgets.set(from_builtins(body, PodDisruptionBudget))
    pod = cluster.info(pod_body("preemptor", 4_000, priority=100))
    view = View(cluster.profile, cluster.table, cluster.engine.nominations, pod)
    asked = CycleDiagnosis(view, Evaluation(cluster.profile, cluster.table, pod), {})
    rows = cluster.table.rows
    attempt_ms = best_ms(lambda: plugin.preemptor.dry_run(pod, rows, asked).best)
    found = len(plugin.preemptor.dry_run(pod, rows, asked).options)
    tried_ms = best_ms(
        lambda: [plugin.preemptor.search.try_row(pod, row, asked) for row in rows[:TRIED_NODES].tolist()], 2
    )
    peer_ms = tried_ms / TRIED_NODES * found
    print(
        f"preemption, {node_count:,} full nodes with {PODS_PER_NODE} pods each: {attempt_ms:.0f} ms for "
        f"{found} candidates (one node at a time: {peer_ms:,.0f} ms, {peer_ms / attempt_ms:.0f} times as much)"
    )


def main() -> None:
    for kinds in (1, 500, SLEEPERS):
        events(kinds)
    for node_count in NODE_COUNTS:
        preemption(node_count)


if __name__ == "__main__":
    main()
