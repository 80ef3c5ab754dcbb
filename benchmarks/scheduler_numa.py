"""What CPU binding and NUMA alignment cost: pods placed per second, from the class key to Reserve.

The peer is the exact computation of each node on its own (`admission.place`), as schedulers do that walk nodes.
"""

import json
import time
from typing import Any

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.clock import FixedClock
from koordinator.cluster import garbage
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.results import Placed
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.plugins.node_numa_resource.plugin import NodeNUMAResource
from koordinator.scheduler.table.pod_info import PodInfo

NOW_S = 1_700_000_000.0
NODE_COUNTS = (1_000, 5_000, 20_000)
NODES = 5_000
PODS = 10_000
GROWTH_PODS = 2_000
PEER_NODES = 500
TEMPLATES = 100

Json = dict[str, Any]
SINGLE = {"numaTopologyPolicy": "SingleNUMANode"}


def machine(number: int, labels: Json) -> tuple[Json, Json]:
    """Two sockets with one or two NUMA nodes each, 64 or 128 CPUs, two threads per core; and its report."""
    numa_count = 2 + 2 * (number % 2)
    cores = 32 + 32 * (number // 2 % 2)
    per_numa = cores // numa_count
    detail = [
        {"id": core + thread * cores, "core": core, "socket": 2 * core // cores, "node": core // per_numa}
        for core in range(cores)
        for thread in range(2)
    ]
    name = f"node-{number}"
    amounts = {"cpu": str(2 * cores), "memory": "512Gi", "pods": "256"}
    zone = {"cpu": str(2 * per_numa), "memory": f"{512 // numa_count}Gi"}
    node = {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
        "status": {"allocatable": amounts, "capacity": amounts},
    }
    report = {
        "metadata": {
            "name": name,
            "annotations": {"node.koordinator.sh/cpu-topology": json.dumps({"detail": detail})},
        },
        "zones": [
            {
                "name": f"node-{numa}",
                "type": "Node",
                "resources": [
                    {"name": key, "capacity": amount, "allocatable": amount, "available": amount}
                    for key, amount in zone.items()
                ],
            }
            for numa in range(numa_count)
        ],
    }
    return node, report


def pod_body(
    number: int, *, cpu: int = 4, memory_gi: int = 8, qos: str = "", numa: Json | None = None
) -> Json:
    annotations: Json = {}
    if numa is not None:
        annotations["scheduling.koordinator.sh/numa-topology-spec"] = json.dumps(numa)
    return {
        "metadata": {
            "name": f"pod-{number}",
            "namespace": "default",
            "uid": f"uid-{number}",
            "labels": {"koordinator.sh/qosClass": qos} if qos else {},
            "annotations": annotations,
        },
        "spec": {
            "schedulerName": "koord-scheduler",
            "priority": 9_500 if qos else 0,
            "containers": [
                {"name": "main", "resources": {"requests": {"cpu": str(cpu), "memory": f"{memory_gi}Gi"}}}
            ],
        },
        "status": {"phase": "Pending"},
    }


def varied(number: int, **parts: Any) -> Json:
    """One of `TEMPLATES` kinds of pods."""
    kind = number % TEMPLATES
    return pod_body(number, cpu=2 + 2 * (kind % 4), memory_gi=1 + kind // 4, **parts)


CASES: dict[str, tuple[Json, Any]] = {
    "ordinary, no policies": ({}, lambda n: pod_body(n)),
    "SingleNUMANode, identical": ({}, lambda n: pod_body(n, numa=SINGLE)),
    "SingleNUMANode, 100 templates": ({}, lambda n: varied(n, numa=SINGLE)),
    "SingleNUMANode by node label": (
        {"node.koordinator.sh/numa-topology-policy": "SingleNUMANode"},
        lambda n: pod_body(n),
    ),
    "cpuset FullPCPUs, identical": ({}, lambda n: pod_body(n, qos="LSR")),
    "cpuset FullPCPUs, 100 templates": ({}, lambda n: varied(n, qos="LSR")),
    "cpuset and SingleNUMANode, 100 templates": ({}, lambda n: varied(n, qos="LSR", numa=SINGLE)),
}


def engine_of(nodes: int, labels: Json) -> Engine:
    config = default_plugins.shipped_config()
    engine = Engine(config, FixedClock(NOW_S), plugins=installed_plugins())
    [profile] = engine.profiles.values()
    plugin = next(p for p in profile.plugins if isinstance(p, NodeNUMAResource))
    for number in range(nodes):
        node, report = machine(number, labels)
        engine.table.set_node(from_builtins(node, Node))
        plugin.set_report(None, from_builtins(report, NodeResourceTopology))
    return engine


def rate(engine: Engine, pods: list[PodInfo]) -> float:
    """Pods per CPU second."""
    [profile] = engine.profiles.values()
    started_s = time.process_time()
    for pod in pods:
        placed = engine.cycle.run(profile, pod, profile.class_key(pod), 1, NOW_S)
        assert isinstance(placed, Placed), placed.status
    return len(pods) / (time.process_time() - started_s)


def pods_of(engine: Engine, make: Any, count: int) -> list[PodInfo]:
    return [PodInfo.of(from_builtins(make(n), Pod), engine.table.registry) for n in range(count)]


def peer_rate(engine: Engine, pod: PodInfo) -> float:
    """Pods per CPU second when each node is computed on its own, scaled up from some nodes."""
    [profile] = engine.profiles.values()
    plugin = next(p for p in profile.plugins if isinstance(p, NodeNUMAResource))
    state = plugin.prepare(pod)
    rows = engine.table.rows[:PEER_NODES].tolist()
    started_s = time.process_time()
    for row in rows:
        plugin.trial(state, pod, row)
    per_node_s = (time.process_time() - started_s) / len(rows)
    return 1 / (per_node_s * engine.table.node_count)


def main() -> None:
    with garbage.collected_rarely():  # as in the running scheduler
        measure()


def measure() -> None:
    for name, (labels, make) in CASES.items():
        engine = engine_of(NODES, labels)
        pods = pods_of(engine, make, PODS)
        found = rate(engine, pods)
        peer = (
            ""
            if name.startswith("ordinary")
            else f"; each node on its own: {peer_rate(engine, pods[0]):,.1f}"
        )
        print(f"{name:<42} {NODES:>6,} nodes: {found:>8,.0f} pods/s{peer}", flush=True)
    for name in ("SingleNUMANode, 100 templates", "cpuset FullPCPUs, 100 templates"):
        labels, make = CASES[name]
        for nodes in NODE_COUNTS:
            engine = engine_of(nodes, labels)
            found = rate(engine, pods_of(engine, make, GROWTH_PODS))
            print(f"{name:<42} {nodes:>6,} nodes: {found:>8,.0f} pods/s (first {GROWTH_PODS:,})", flush=True)


if __name__ == "__main__":
    main()
