"""What placing pods costs the engine, from the queue to Reserve.

Kinds of pods (10,000 on 5,000 nodes), and growth with the number of nodes. All figures are placements per
second of CPU time on one core, with all plugins of the shipped profile and the load-aware filter on; pods
that bind CPUs are in `scheduler_numa`. Peers in the same run: classes off (every pod is evaluated anew),
and the same functions called for one node at a time, as schedulers do that walk nodes.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import numpy as np

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.node_metric import NodeMetric
from koordinator.clock import FixedClock, rfc3339
from koordinator.cluster import garbage
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.config.config import SchedulerConfig
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.engine.evaluation_cache import CLASSES_MAX
from koordinator.scheduler.engine.profile import Profile
from koordinator.scheduler.engine.results import Placed
from koordinator.scheduler.plugin.status import SUCCESS
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.plugins.load_aware.plugin import LoadAwareScheduling
from koordinator.scheduler.queue.scheduling_queue import QueuePolicy, SchedulingQueue
from koordinator.scheduler.table.pod_info import PodInfo

NODES = 5_000
PODS = 10_000
NODE_COUNTS = (1_000, 5_000, 20_000, 100_000)
TEMPLATES = 500
ZONES = 10
REPLICAS = 500
"""Pods of one workload, where its pods look at each other."""
FRESH_SHARE = 20
"""With classes off, one pod in so many is measured: they cost the same each."""
LOOPED_NODES = 500
NOW_S = 1_700_000_000.0
Json = dict[str, Any]


def loaded_config() -> SchedulerConfig:
    """The shipped profile with thresholds of the load-aware filter: every plugin that looks at all nodes has work."""
    profile = default_plugins.shipped_profile()
    args = [
        msgspec.structs.replace(each, args={**each.args, "usageThresholds": {"cpu": 65, "memory": 95}})
        if each.name == LoadAwareScheduling.name
        else each
        for each in profile.plugin_config
    ]
    return SchedulerConfig(profiles=[msgspec.structs.replace(profile, plugin_config=args)])


def node_body(number: int) -> Json:
    amounts = {
        "cpu": "32",
        "memory": "128Gi",
        "pods": "256",
        "kubernetes.io/batch-cpu": "12000",
        "kubernetes.io/batch-memory": "48Gi",
    }
    labels = {
        "kubernetes.io/hostname": f"node-{number}",
        "topology.kubernetes.io/zone": f"zone-{number % ZONES}",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"node-{number}", "labels": labels},
        "status": {"allocatable": amounts, "capacity": amounts},
    }


def pod_body(number: int, *, cpu_milli: int = 500, memory_mib: int = 1_024, **spec: Any) -> Json:
    requests = {"cpu": f"{cpu_milli}m", "memory": f"{memory_mib}Mi"}
    resources = {"requests": requests, "limits": {"cpu": f"{2 * cpu_milli}m", "memory": f"{memory_mib}Mi"}}
    labels = spec.pop("labels", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-{number}", "namespace": "default", "labels": labels},
        "spec": {
            "schedulerName": "koord-scheduler",
            "containers": [{"name": "main", "image": "app:v1", "resources": resources}],
            **spec,
        },
        "status": {"phase": "Pending"},
    }


# Kinds of pods


def identical(number: int) -> Json:
    return pod_body(number)


def of_templates(number: int) -> Json:
    template = number % TEMPLATES
    return pod_body(number, cpu_milli=100 + template, memory_mib=256 + template)


def all_different(number: int) -> Json:
    return pod_body(number, cpu_milli=100 + number % 97, memory_mib=128 + number)


def anti_affinity(number: int) -> Json:
    """Workloads whose pods stay away from each other's nodes."""
    labels = {"app": f"app-{number // REPLICAS}"}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return pod_body(number, labels=labels, affinity=affinity)


def zone_spread(number: int) -> Json:
    """Workloads whose pods spread evenly over zones."""
    labels = {"app": f"app-{number // REPLICAS}"}
    constraint = {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": labels},
    }
    return pod_body(number, labels=labels, topologySpreadConstraints=[constraint])


KINDS: dict[str, Callable[[int], Json]] = {
    "identical": identical,
    f"{TEMPLATES} templates": of_templates,
    "all different": all_different,
    "anti-affinity": anti_affinity,
    "zone spread": zone_spread,
}
GROWING = ("identical", f"{TEMPLATES} templates", "all different")
"""Kinds that are measured on clusters of several sizes."""


def engine_of(
    nodes: int, classes_max: int = CLASSES_MAX, config: SchedulerConfig | None = None
) -> tuple[Engine, Profile]:
    """An engine with nodes whose measured usage differs."""
    engine = Engine(
        config or loaded_config(), FixedClock(NOW_S), classes_max=classes_max, plugins=installed_plugins()
    )
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
        plugin.set_metric(None, from_builtins(metric, NodeMetric))
    return engine, profile


def info_of(body: Json, engine: Engine) -> PodInfo:
    return PodInfo.of(from_builtins(body, Pod), engine.table.registry)


def best_s(run: Callable[[], object], times: int) -> float:
    """The shortest of several runs, in CPU seconds: neighbours on the machine do not count."""
    found = []
    for _ in range(times):
        started_s = time.process_time()
        run()
        found.append(time.process_time() - started_s)
    return min(found)


def queue_of(profile: Profile) -> SchedulingQueue:
    plugins = {plugin.name: plugin for plugin in profile.plugins}
    policy = QueuePolicy(
        initial_backoff_s=1.0,
        max_backoff_s=10.0,
        sort_key=profile.queue_sort.sort_key,
        gate=lambda _entry, _but: SUCCESS,
        plugins=lambda _: plugins,
    )
    return SchedulingQueue(policy)


def place_s(nodes: int, bodies: Iterator[Json], classes_max: int = CLASSES_MAX) -> float:
    """CPU seconds per placement: class key, into the queue and out, a cycle up to Reserve."""
    engine, profile = engine_of(nodes, classes_max)
    queue = queue_of(profile)
    pods = [info_of(body, engine) for body in bodies]
    with garbage.collected_rarely():  # as in the running scheduler
        started_s = time.process_time()
        for pod in pods:
            queue.add(pod, profile.name, profile.class_key(pod), NOW_S)
        while entry := queue.pop(NOW_S):
            placed = engine.cycle.run(profile, entry.pod, entry.class_key, entry.attempt_count, NOW_S)
            assert isinstance(placed, Placed), placed
            queue.done(entry.pod.uid)
        return (time.process_time() - started_s) / len(pods)


def kinds_of_pods() -> None:
    """Each kind of pods on one cluster, with and without classes."""
    for name, body in KINDS.items():
        shared_s = place_s(NODES, map(body, range(PODS)))
        fresh_s = place_s(NODES, map(body, range(0, PODS, FRESH_SHARE)), 0)
        print(
            f"{name:>14} on {NODES:,} nodes: {1 / shared_s:>7,.0f} pods/s, classes off {1 / fresh_s:>6,.0f} "
            f"({fresh_s / shared_s:.1f} times)",
            flush=True,
        )


def growth() -> None:
    """The same with more and more nodes, against walking the nodes."""
    for nodes in NODE_COUNTS:
        figures = []
        for name in GROWING:
            pods = PODS if nodes <= NODES else 2_000
            found_s = place_s(nodes, map(KINDS[name], range(pods)))
            figures.append(f"{name} {1 / found_s:,.0f}")
        looped_s = walk_s(nodes)
        print(f"{nodes:>7,} nodes, pods/s: {', '.join(figures)}, node by node {1 / looped_s:.2f}", flush=True)


def walk_s(nodes: int) -> float:
    """Seconds for one pod when the same functions are called for one node at a time."""
    engine, profile = engine_of(min(nodes, LOOPED_NODES))
    pod = info_of(pod_body(0), engine)
    return best_s(partial(_walk, engine, profile, pod), 3) * nodes / LOOPED_NODES


def _walk(engine: Engine, profile: Profile, pod: PodInfo) -> None:
    states = {plugin.name: plugin.prepare(pod) for plugin in profile.evaluators}
    skipped = {each.name for each in profile.pre_scorers if each.pre_score(states[each.name]).is_skip}
    for row in engine.table.rows[:LOOPED_NODES].tolist():
        rows = np.array([row], np.intp)
        if all(plugin.filter(states[plugin.name], rows)[0] == 0 for plugin in profile.filters):
            for plugin, _ in profile.scorers:
                if plugin.name not in skipped and plugin.scores(state := states[plugin.name]):
                    plugin.score(state, rows)


def full_scan() -> None:
    """Filter and Score of one pod over all nodes."""
    for nodes in NODE_COUNTS:
        engine, profile = engine_of(nodes)
        pod = info_of(pod_body(0), engine)
        scan_s = best_s(partial(Evaluation, profile, engine.table, pod), 20)
        print(f"filter and score of {nodes:>7,} nodes: {scan_s * 1e6:>6,.0f} µs", flush=True)


def main() -> None:
    full_scan()
    kinds_of_pods()
    growth()
