"""What pods cost that look at other pods: affinity, anti-affinity, topology spread, and the defaults of replicas.

Each figure is CPU time from the queue's pop to Reserve with the whole shipped profile, in this process, on one
core. Beside it stands the peer of the same run: equal placements with every pod evaluated anew (no shared
evaluations), and the same pods without any such wish. Options: `--nodes`, `--pods`, `--case`, `--growth`.
"""

import argparse
import gc
import time
from collections.abc import Callable
from typing import Any

from koordinator.api.apps import ReplicaSet
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.clock import FixedClock
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.evaluation_cache import CLASSES_MAX
from koordinator.scheduler.engine.profile import Profile
from koordinator.scheduler.engine.results import Placed
from koordinator.scheduler.plugin.status import SUCCESS
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.queue.scheduling_queue import QueuePolicy, SchedulingQueue
from koordinator.scheduler.table.pod_info import PodInfo

NOW_S = 1_700_000_000.0
NODES = 5_000
PODS = 2_000
APPS = 100
ZONE, RACK, HOST = "topology.kubernetes.io/zone", "example.com/rack", "kubernetes.io/hostname"
ZONES, RACKS = 5, 50
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

Json = dict[str, Any]
Wish = Callable[[Json], Json]
"""From a label selector to what a pod's spec says besides its containers."""


def node_body(number: int) -> Json:
    name = f"node-{number}"
    labels = {HOST: name, ZONE: f"zone-{number % ZONES}", RACK: f"rack-{number % RACKS}"}
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "256"}
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": amounts, "capacity": amounts},
    }


def pod_body(name: str, app: str, wish: Wish) -> Json:
    labels = {"app": app, "app.kubernetes.io/part-of": "shop", "tier": "backend"}
    container = {"name": "main", "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": app, "controller": True}
    spec = {"schedulerName": "koord-scheduler", "containers": [container]}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": name,
            "labels": labels,
            "ownerReferences": [owner],
        },
        "spec": {**spec, **wish({"matchLabels": {"app": app}})},
    }


def required(kind: str, key: str) -> Wish:
    return lambda who: {"affinity": {kind: {REQUIRED: [{"labelSelector": who, "topologyKey": key}]}}}


def preferred(kind: str, key: str) -> Wish:
    return lambda who: {
        "affinity": {
            kind: {PREFERRED: [{"weight": 50, "podAffinityTerm": {"labelSelector": who, "topologyKey": key}}]}
        }
    }


def spread(*rules: tuple[str, str]) -> Wish:
    return lambda who: {
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": when, "labelSelector": who}
            for key, when in rules
        ]
    }


def none(who: Json) -> Json:
    return {}


HARD, SOFT = "DoNotSchedule", "ScheduleAnyway"
CASES: dict[str, tuple[Wish, bool]] = {
    "no wish": (none, False),
    "replicas (default spread)": (none, True),
    "anti-affinity, hostname": (required("podAntiAffinity", HOST), False),
    "anti-affinity, racks": (required("podAntiAffinity", RACK), False),
    "preferred anti-affinity, hostname": (preferred("podAntiAffinity", HOST), False),
    "preferred affinity, zone": (preferred("podAffinity", ZONE), False),
    "affinity, zone": (required("podAffinity", ZONE), False),
    "hard spread, zone": (spread((ZONE, HARD)), False),
    "hard spread, hostname": (spread((HOST, HARD)), False),
    "soft spread, zone": (spread((ZONE, SOFT)), False),
    "spread, zone hard + hostname soft": (spread((ZONE, HARD), (HOST, SOFT)), False),
}
"""By name: the wish, and whether ReplicaSets are known (else the stock default constraints do not apply)."""


class Stage:
    """An engine with nodes, pods on them, and a queue."""

    def __init__(self, nodes: int, existing: int, case: str, classes_max: int = CLASSES_MAX) -> None:
        self.engine = Engine(
            default_plugins.shipped_config(),
            FixedClock(NOW_S),
            classes_max=classes_max,
            plugins=installed_plugins(),
        )
        [self.profile] = self.engine.profiles.values()
        self.wish, self.has_owners = CASES[case]
        for number in range(nodes):
            self.engine.table.set_node(from_builtins(node_body(number), Node))
        for number in range(existing):
            body = pod_body(f"old-{number}", f"old-{number % 1000}", none)
            self.engine.table.assign(self.info(body), f"node-{number % nodes}")

    def info(self, body: Json) -> PodInfo:
        return PodInfo.of(from_builtins(body, Pod), self.engine.table.registry)

    def own(self, app: str) -> None:
        body = {
            "metadata": {"name": app, "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": app}}},
        }
        for handle in self.engine.handles:
            for watch in handle.watches:
                if watch.view is ReplicaSet:
                    watch.on_add(from_builtins(body, ReplicaSet))

    def queue(self, pods: int, apps: int) -> SchedulingQueue:
        queue = SchedulingQueue(queue_policy(self.profile))
        if self.has_owners:
            for number in range(apps):
                self.own(f"app-{number}")
        for number in range(pods):
            info = self.info(pod_body(f"pod-{number}", f"app-{number % apps}", self.wish))
            queue.add(info, self.profile.name, self.profile.class_key(info), NOW_S)
        return queue


def queue_policy(profile: Profile) -> QueuePolicy:
    return QueuePolicy(
        initial_backoff_s=1,
        max_backoff_s=10,
        sort_key=profile.queue_sort.sort_key,
        gate=lambda _entry, _but: SUCCESS,
        plugins=lambda _: {plugin.name: plugin for plugin in profile.plugins},
    )


def drain(stage: Stage, queue: SchedulingQueue) -> int:
    """Place all pods of the queue; how many found a node."""
    placed = 0
    while (entry := queue.pop(NOW_S)) is not None:
        result = stage.engine.cycle.run(stage.profile, entry.pod, entry.class_key, entry.attempt_count, NOW_S)
        placed += isinstance(result, Placed)
        queue.done(entry.pod.uid)
    return placed


def place_s(
    case: str, nodes: int, pods: int, apps: int, existing: int = 0, classes: int = CLASSES_MAX
) -> float:
    """CPU seconds per pod, the best of two runs: neighbours on the machine do not count."""
    found = []
    for _ in range(2):
        stage = Stage(nodes, existing, case, classes)
        queue = stage.queue(pods, apps)
        gc.collect()  # what set-up left behind is not the placements' doing
        started_s = time.process_time()
        placed = drain(stage, queue)
        found.append(time.process_time() - started_s)
        assert placed == pods, (case, placed, pods)
    return min(found) / pods


def cases(nodes: int, pods: int, wanted: str) -> None:
    """Every wish, from one workload to one per pod, and the peer without shared evaluations."""
    print(f"{nodes:,} nodes, {pods:,} pods; pods/s (µs per pod)")
    print(f"{'':36}{'100 workloads':>18}{'each its own':>18}{'evaluated anew':>18}")
    for case in CASES:
        if wanted not in case:
            continue
        found = [
            place_s(case, nodes, pods, APPS),
            place_s(case, nodes, pods, pods),
            place_s(case, nodes, max(pods // 10, APPS), APPS, classes=0),
        ]
        print(f"{case:36}" + "".join(f"{1 / s:>9,.0f} ({s * 1e6:>5,.0f})" for s in found), flush=True)


def growth(pods: int, wanted: str) -> None:
    """The same placements on more nodes, and beside more pods."""
    print(f"growth, {APPS} workloads; µs per pod")
    sizes = ((1_000, 0), (5_000, 0), (20_000, 0), (5_000, 10_000), (5_000, 100_000))
    print(f"{'nodes / pods there':36}" + "".join(f"{f'{n:,} / {p:,}':>17}" for n, p in sizes))
    for case in CASES:
        if wanted not in case:
            continue
        found = [place_s(case, nodes, pods, APPS, existing) for nodes, existing in sizes]
        print(f"{case:36}" + "".join(f"{s * 1e6:>17,.0f}" for s in found), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--pods", type=int, default=PODS)
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--growth", action="store_true", help="only how costs grow")
    options = parser.parse_args()
    if not options.growth:
        cases(options.nodes, options.pods, options.case)
    growth(min(options.pods, 1_000), options.case)
