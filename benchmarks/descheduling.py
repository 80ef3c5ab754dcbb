"""What a cycle of the descheduler costs on 5,000 nodes with 150,000 pods, and what plans save.

Prints, for random clusters whose pods use now more, now less: in how many minutes nodes are hot and how many pods
are evicted, chosen pod by pod and by plan. Then, each measured in a process of its own: the memory of the caches, and
the CPU time of a cycle of LowNodeLoad with every 20th node hot, of the same in plan mode, and of stock plugins.
"""

import argparse
import asyncio
import gc
import multiprocessing
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from benchmarks._descheduling_world import STEPS, Course, course
from koordinator import clock as clocks
from koordinator.api.apps import Deployment, ReplicaSet
from koordinator.api.core import Node, Pod
from koordinator.api.meta import Object
from koordinator.api.node_metric import NodeMetric
from koordinator.clock import FixedClock
from koordinator.cluster.proof import MoveAnswer, MoveQuestion
from koordinator.cluster.protocol import Cluster, Page, WatchEvent
from koordinator.descheduler import configuration
from koordinator.descheduler.descheduler import Descheduler
from koordinator.descheduler.plugins.built_in import installed_plugins

T = TypeVar("T", bound=Object)
Json = dict[str, Any]

NODES, PODS_PER_NODE, PODS_PER_WORKLOAD = 5_000, 30, 30
HOT_EVERY = 20
NOW_S = 1_700_000_000.0
NOW = clocks.rfc3339(NOW_S)
CYCLES = 3
STOCK = {
    "deschedule": (
        "RemovePodsViolatingInterPodAntiAffinity", "RemovePodsViolatingNodeAffinity", "RemovePodsViolatingNodeTaints",
        "RemoveFailedPods", "RemovePodsHavingTooManyRestarts", "PodLifeTime",
    ),
    "balance": (
        "RemoveDuplicates", "RemovePodsViolatingTopologySpreadConstraint", "LowNodeUtilization",
    ),
}  # fmt: skip
STOCK_ARGS: Json = {
    "RemovePodsHavingTooManyRestarts": {"podRestartThreshold": 100},
    "PodLifeTime": {"maxPodLifeTimeSeconds": 10_000_000},
    "LowNodeUtilization": {"thresholds": {"cpu": 20}, "targetThresholds": {"cpu": 90}},
    "RemovePodsViolatingNodeAffinity": {
        "nodeAffinityType": ["requiredDuringSchedulingIgnoredDuringExecution"]
    },
}


def load_config(**args: Any) -> Json:
    """A configuration with LowNodeLoad alone."""
    own = {
        "lowThresholds": {"cpu": 45, "memory": 60},
        "highThresholds": {"cpu": 65, "memory": 80},
        "anomalyCondition": {"consecutiveAbnormalities": 1},
        **args,
    }
    profile = {
        "plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}},
        "pluginConfig": [{"name": "LowNodeLoad", "args": own}],
    }
    return _config(profile)


def stock_config() -> Json:
    """A configuration with the stock plugins."""
    plugins = {point: {"enabled": [{"name": name} for name in names]} for point, names in STOCK.items()}
    given = [{"name": name, "args": args} for name, args in STOCK_ARGS.items()]
    return _config({"plugins": plugins, "pluginConfig": given})


def _config(profile: Json) -> Json:
    head = {"apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration", "dryRun": True}
    return {**head, "profiles": [profile]}


class Streamed:
    """As much of a cluster as informers need; its objects are made while they are listed, so that only what is cached
    stays in memory."""

    def __init__(self, nodes: int) -> None:
        self.clock = FixedClock(NOW_S)
        self._nodes = nodes
        self._bodies: dict[type[Object], Callable[[], Iterator[Json]]] = {
            Node: lambda: map(node_body, range(nodes)),
            Pod: lambda: (pod_body(number, nodes) for number in range(nodes * PODS_PER_NODE)),
            NodeMetric: lambda: (metric_body(number, nodes) for number in range(nodes)),
            ReplicaSet: lambda: map(replica_set_body, range(self.workloads)),
            Deployment: lambda: map(deployment_body, range(self.workloads)),
        }

    @property
    def workloads(self) -> int:
        return self._nodes * PODS_PER_NODE // PODS_PER_WORKLOAD

    async def list(
        self, view: type[T], namespace: str = "", *, transform: Callable[[T], T] | None = None, **_: str
    ) -> Page[T]:
        items = []
        decoder = msgspec.json.Decoder(view)
        for body in self._bodies.get(view, lambda: iter(()))():
            found = decoder.decode(msgspec.json.encode(body))
            items.append(found if transform is None else transform(found))
        return Page(items, "1")

    async def watch(
        self, view: type[T], namespace: str = "", **_: str
    ) -> AsyncIterator[Sequence[WatchEvent[T]]]:
        await asyncio.Event().wait()
        yield ()


def node_body(number: int) -> Json:
    name = f"node-{number:05d}"
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "500Gi"}
    labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": f"zone-{number % 3}"}
    conditions = [{"type": "Ready", "status": "True", "lastHeartbeatTime": NOW}]
    images = [{"names": [f"registry.example/app-{n}:1.2.3"], "sizeBytes": 123456789} for n in range(20)]
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1", "labels": labels},
        "status": {"allocatable": amounts, "capacity": amounts, "conditions": conditions, "images": images},
    }


def pod_body(number: int, nodes: int) -> Json:
    """A pod as a Deployment makes them; those of a workload are on different nodes."""
    workload, since = number // PODS_PER_WORKLOAD, clocks.rfc3339(NOW_S - number)
    app, namespace = f"app-{workload}", f"team-{workload % 50}"
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{app}-5d8f7c9b6d", "controller": True}
    resources = {"requests": {"cpu": "1500m", "memory": "6Gi"}, "limits": {"cpu": "4", "memory": "8Gi"}}
    container = {
        "name": "main",
        "image": f"registry.example/{app}:1.2.3",
        "resources": resources,
        "env": [{"name": f"VARIABLE_{n}", "value": f"value-{n}"} for n in range(10)],
    }
    state = {
        "name": "main",
        "ready": True,
        "restartCount": 0,
        "image": container["image"],
        "imageID": "sha256:0",
        "containerID": f"containerd://{number:064d}",
    }
    return {
        "metadata": {
            "name": pod_name(number),
            "namespace": namespace,
            "uid": f"8a0f2e6c-0000-4000-8000-{number:012d}",
            "resourceVersion": str(number),
            "creationTimestamp": since,
            "labels": {"app": app, "pod-template-hash": "5d8f7c9b6d"},
            "annotations": {"prometheus.io/scrape": "true"},
            "ownerReferences": [owner | {"uid": f"uid-rs-{workload}"}],
        },
        "spec": {
            "nodeName": f"node-{node_of(number, nodes):05d}",
            "schedulerName": "koord-scheduler",
            "containers": [container],
            "priority": 9000,
            "volumes": [{"name": "token", "projected": {"sources": []}}],
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}
            ],
        },
        "status": {
            "phase": "Running",
            "qosClass": "Burstable",
            "startTime": since,
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": since}
                for kind in ("PodScheduled", "Initialized", "Ready")
            ],
            "containerStatuses": [{**state, "state": {"running": {"startedAt": since}}}],
        },
    }


def node_of(number: int, nodes: int) -> int:
    """The node of a pod."""
    return number % nodes


def pod_name(number: int) -> str:
    return f"app-{number // PODS_PER_WORKLOAD}-5d8f7c9b6d-{number:06d}"


def metric_body(number: int, nodes: int) -> Json:
    """A report of a node: 28 cores of 64 in use, 48 on hot ones."""
    milli = 1_600 if number % HOT_EVERY == 0 else 800
    pods = [
        {
            "namespace": f"team-{pod // PODS_PER_WORKLOAD % 50}",
            "name": pod_name(pod),
            "podUsage": {
                "resources": {"cpu": f"{milli + pod % 7 * 20}m", "memory": f"{3_000_000_000 + pod}"}
            },
        }
        for pod in range(number, nodes * PODS_PER_NODE, nodes)
    ]
    usage = {"resources": {"cpu": "1", "memory": "4Gi"}}
    return {
        "metadata": {"name": f"node-{number:05d}"},
        "status": {
            "updateTime": NOW,
            "nodeMetric": {"nodeUsage": usage, "systemUsage": usage},
            "podsMetric": pods,
        },
    }


def replica_set_body(number: int) -> Json:
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": f"app-{number}", "controller": True}
    meta = {"name": f"app-{number}-5d8f7c9b6d", "namespace": f"team-{number % 50}", "uid": f"uid-rs-{number}"}
    owners = [owner | {"uid": f"uid-deploy-{number}"}]
    return {"metadata": {**meta, "ownerReferences": owners}, "spec": {"replicas": PODS_PER_WORKLOAD}}


def deployment_body(number: int) -> Json:
    meta = {"name": f"app-{number}", "namespace": f"team-{number % 50}", "uid": f"uid-deploy-{number}"}
    return {"metadata": meta, "spec": {"replicas": PODS_PER_WORKLOAD}}


# Speed


class Cost(msgspec.Struct, frozen=True):
    """The cost of cycles: MiB of the process (before, with full caches, at the most), CPU seconds of each cycle."""

    bare_mib: float
    cached_mib: float
    peak_mib: float
    cpu_s: list[float]
    counts: Mapping[str, int]
    error: str


def memory_mib(field: str) -> float:
    """A line of this process' status: VmRSS or VmHWM."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


async def _accept(moves: Sequence[MoveQuestion]) -> list[MoveAnswer]:
    """The scheduler's part runs in the scheduler; here it is free."""
    return [MoveAnswer(one.nodes[0]) for one in moves]


async def cost_of(config: Json) -> Cost:
    bare_mib = memory_mib("VmRSS")
    cluster = cast(Cluster, Streamed(NODES))
    settings = configuration.decode(config, installed_plugins())
    made = Descheduler(cluster, settings, installed_plugins(), rng=random.Random(1), prove=_accept)
    async with made.following():
        gc.collect()
        gc.freeze()
        cached_mib = memory_mib("VmRSS")
        spent = []
        for _ in range(CYCLES):
            began_s = time.process_time()
            report = await made.cycle()
            spent.append(time.process_time() - began_s)
    return Cost(bare_mib, cached_mib, memory_mib("VmHWM"), spent, report.counts, report.error)


def _measure(pipe: Connection, config: Json) -> None:
    pipe.send_bytes(msgspec.json.encode(asyncio.run(cost_of(config))))


def cost_in_a_process(config: Json) -> Cost:
    """The cost of a configuration, measured where nothing else has been."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_measure, args=(there, config))
    process.start()
    there.close()
    found = msgspec.json.decode(here.recv_bytes(), type=Cost)
    process.join()
    return found


def compare(nodes: int, first: int, seeds: int) -> None:
    """Print what both ways do to the same clusters, summed over the seeds so far."""
    ways = {"pod by pod": False, "by plan": True}
    found: dict[str, list[Course]] = {name: [] for name in ways}
    spent_s = dict.fromkeys(ways, 0.0)
    for seed in range(first, first + seeds):
        for name, by_plan in ways.items():
            began_s = time.process_time()
            found[name].append(course(nodes, seed, by_plan=by_plan))
            spent_s[name] += time.process_time() - began_s
        done = seed + 1 - first
        if done in (seeds, 1) or done % 5 == 0:
            for name, courses in found.items():
                print(_sums(nodes, first, name, courses, spent_s[name]), flush=True)


def _sums(nodes: int, first: int, name: str, courses: Sequence[Course], spent_s: float) -> str:
    return (
        f"{nodes:,} nodes, {len(courses)} seeds from {first}, {STEPS} minutes, {name}: "
        f"{sum(one.hot_minutes for one in courses):,} hot node-minutes, "
        f"{sum(one.evictions for one in courses):,} evictions, {sum(one.returns for one in courses)} returns, "
        f"{sum(one.violations for one in courses)} limits exceeded; "
        f"{spent_s / len(courses) / STEPS:.2f} s of CPU a minute"
    )


def main() -> None:
    """Measure and print; `--seeds 50 --nodes 100,1000,5000` takes hours."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--nodes", default="100,1000")
    parser.add_argument("--courses", action="store_true", help="compare only")
    asked = parser.parse_args()
    for nodes in map(int, asked.nodes.split(",")):
        compare(nodes, asked.first, asked.seeds)
    if asked.courses:
        return
    for name, config in (
        ("LowNodeLoad", load_config()),
        ("by plan", load_config(plan={})),
        ("stock", stock_config()),
    ):
        found = cost_in_a_process(config)
        print(
            f"{name}: {NODES:,} nodes, {NODES * PODS_PER_NODE:,} pods; a cycle takes "
            f"{' '.join(f'{one:.2f}' for one in found.cpu_s)} s of CPU; {found.cached_mib:.0f} MiB with full caches "
            f"({found.bare_mib:.0f} before), {found.peak_mib:.0f} at the most; {dict(found.counts)}{found.error}",
            flush=True,
        )


if __name__ == "__main__":
    main()
