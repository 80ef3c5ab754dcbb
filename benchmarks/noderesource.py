"""What it costs to keep Batch, Mid, ratios and devices on 10,000 nodes with 30 pods each.

Prints, for fleets that grow: a full recomputation (as after a change of the configuration), the same with all
pods summed anew, and the peer: one node after the other, its pods summed and the formula written out in plain
Python, as a controller does that reconciles node by node. Then the steady state: a NodeMetric per node per minute
from the bytes of the watch on, and kubelets' status updates, in CPU seconds per second; and what was written.
"""

import asyncio
import gc
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec

from koordinator import clock as clocks
from koordinator.api import labels
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.meta import Object
from koordinator.api.node_metric import NodeMetric
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.cluster import garbage
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.protocol import Cluster, Page, WatchEvent
from koordinator.cluster.wire import WatchReader
from koordinator.manager import caches
from koordinator.manager.config.slo_configs import SLOConfigs
from koordinator.manager.metrics import ManagerMetrics
from koordinator.manager.noderesource import target as targets
from koordinator.manager.noderesource.controller import NodeResourceController
from koordinator.manager.noderesource.rows import NodeRow, zones_target
from koordinator.manager.options import ManagerOptions
from koordinator.manager.parts import ManagerContext

T = TypeVar("T", bound=Object)

SIZES = (100, 1_000, 10_000)
PODS = 30
BATCH_PODS = 10  # of them
NOW_S = 1_700_000_000.0
REPORT_PERIOD_S = 60.0
HEARTBEAT_PERIOD_S = 300.0
ROUND = 16  # reports of 10,000 nodes that arrive while a round gathers
BUSIER_EVERY = 20  # nodes of which one has become busier
TRIES = 3

CONFIG = {
    "colocation-config": json.dumps({"enable": True, "midUnallocatedPercent": 10}),
    "cpu-normalization-config": json.dumps(
        {"enable": True, "defaultRatio": 1.0, "ratioModel": {"Xeon A": {"hyperThreadTurboEnabledRatio": 1.2}}}
    ),
    "resource-amplification-config": json.dumps({"enable": True, "resourceAmplificationRatio": {"cpu": 1.5}}),
}


class FrozenClock(clocks.Clock):
    """Time as the benchmark says."""

    now_s = NOW_S

    def now(self) -> float:
        return self.now_s


class Fed:
    """As much of a cluster as the controller needs: watches are fed with bytes, patches are counted."""

    def __init__(self, clock: clocks.Clock) -> None:
        self.clock = clock
        self.patches: list[tuple[type[Object], str, Mapping[str, Any]]] = []

    async def list(self, view: type[T], namespace: str = "", **_: str) -> Page[T]:
        return Page([], "1")

    async def watch(
        self, view: type[T], namespace: str = "", **_: str
    ) -> AsyncIterator[Sequence[WatchEvent[T]]]:
        await asyncio.Event().wait()
        yield ()

    async def patch(self, view: type[T], name: str, patch: Mapping[str, Any], *_: Any, **__: Any) -> T:
        self.patches.append((view, name, patch))
        return cast(T, Node())


def node_body(number: int, version: int = 1) -> dict[str, Any]:
    """A node as kubelets report them: 64 cores, conditions, addresses, 50 images."""
    amounts = {
        "cpu": "64",
        "memory": "256Gi",
        "pods": "110",
        "ephemeral-storage": "500Gi",
        "hugepages-2Mi": "0",
    }
    when = clocks.rfc3339(NOW_S + version)
    return {
        "metadata": {
            "name": f"node-{number:05d}",
            "uid": f"node-uid-{number}",
            "resourceVersion": str(version),
            "labels": {"pool": f"pool-{number % 4}", "kubernetes.io/hostname": f"node-{number:05d}"},
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
        },
        "status": {
            "capacity": amounts,
            "allocatable": {**amounts, "cpu": "63", "memory": "250Gi"},
            "conditions": [
                {"type": t, "status": "False", "lastHeartbeatTime": when, "reason": "Ok", "message": "fine"}
                for t in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
            ],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "images": [
                {"names": [f"registry.example/shop/app-{n}:1.2.3"], "sizeBytes": 123456789 + n}
                for n in range(50)
            ],
        },
    }


def pod_body(node: int, number: int) -> dict[str, Any]:
    is_batch = number < BATCH_PODS
    own = {"koordinator.sh/qosClass": "BE" if is_batch else "LS"}
    if is_batch:
        requests = {"kubernetes.io/batch-cpu": "1000", "kubernetes.io/batch-memory": "2Gi"}
    else:
        requests = {"cpu": "1500m", "memory": "4Gi"}
    return {
        "metadata": {
            "name": f"app-5d8f7c9b6d-{node:05d}-{number:02d}",
            "namespace": f"team-{number % 7}",
            "uid": f"pod-uid-{node}-{number}",
            "resourceVersion": "1",
            "labels": own,
        },
        "spec": {
            "nodeName": f"node-{node:05d}",
            "priority": 5500 if is_batch else 9500,
            "containers": [{"name": "main", "image": "x", "resources": {"requests": requests}}],
        },
        "status": {"phase": "Running", "qosClass": "Burstable"},
    }


def metric_body(node: int, version: int, rng: random.Random, system_milli: int = 1_500) -> dict[str, Any]:
    """A report of 30 pods with percentiles of the node's usage; usage moves by some percent each time."""

    def amounts(cpu_milli: int, memory: int) -> dict[str, Any]:
        return {
            "resources": {
                "cpu": f"{int(cpu_milli * rng.uniform(0.98, 1.02))}m",
                "memory": str(int(memory * rng.uniform(0.99, 1.01))),
            }
        }

    percentiles = {kind: amounts(20_000, 2**36) for kind in ("avg", "p50", "p90", "p95", "p99")}
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeMetric",
        "metadata": {
            "name": f"node-{node:05d}",
            "uid": f"metric-uid-{node}",
            "resourceVersion": str(version),
            "managedFields": [
                {"manager": "koordlet", "fieldsV1": {f"f:x{n}": {"f:y": {}} for n in range(20)}}
            ],
        },
        "spec": {"metricCollectPolicy": {"aggregateDurationSeconds": 300, "reportIntervalSeconds": 60}},
        "status": {
            "updateTime": clocks.rfc3339(NOW_S + version),
            "nodeMetric": {
                "nodeUsage": amounts(20_000, 2**36),
                "systemUsage": amounts(system_milli, 2**32),
                "aggregatedNodeUsages": [
                    {"duration": duration, "usage": percentiles} for duration in ("5m0s", "10m0s", "30m0s")
                ],
            },
            "podsMetric": [
                {
                    "name": f"app-5d8f7c9b6d-{node:05d}-{number:02d}",
                    "namespace": f"team-{number % 7}",
                    "priority": "koord-batch" if number < BATCH_PODS else "koord-prod",
                    "qos": "BE" if number < BATCH_PODS else "LS",
                    "podUsage": amounts(600, 3 * 2**30),
                }
                for number in range(PODS)
            ],
            "prodReclaimableMetric": {"resource": amounts(9_000, 20 * 2**30)},
        },
    }


def topology_body(node: int) -> dict[str, Any]:
    info = {"cpuModel": "Xeon A" if node % 2 else "Xeon B", "hyperThreadEnabled": True, "turboEnabled": True}
    rows = [
        {"name": name, "capacity": half, "allocatable": half, "available": half}
        for name, half in (("cpu", "32"), ("memory", "128Gi"))
    ]
    return {
        "metadata": {
            "name": f"node-{node:05d}",
            "resourceVersion": "1",
            "annotations": {labels.NODE_CPU_BASIC_INFO: json.dumps(info)},
        },
        "topologyPolicies": [],
        "zones": [{"name": f"node-{zone}", "type": "Node", "resources": rows} for zone in range(2)],
    }


class World:
    """A controller with `size` nodes; its loops do not run, the benchmark calls what they call."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.clock = FrozenClock()
        self.rng = random.Random(size)
        self.cluster = Fed(self.clock)
        cluster = cast(Cluster, self.cluster)
        self.factory = InformerFactory(cluster, self.rng, transforms=caches.TRANSFORMS)
        events = EventRecorder(cluster, "benchmark", rng=self.rng)
        self.shared = ManagerContext(
            cluster=cluster,
            clock=self.clock,
            rng=self.rng,
            factory=self.factory,
            events=events,
            options=ManagerOptions(),
            gates=FeatureGates.of(Component.MANAGER),
            metrics=ManagerMetrics(self.clock),
            configs=SLOConfigs(self.factory, events),
        )
        self.shared.configs._apply(None, CONFIG)
        self.controller = NodeResourceController(self.shared)
        self.names = [f"node-{number:05d}" for number in range(size)]
        self.bytes_of_facts = self._fill()

    def _fill(self) -> int:
        put = self.put
        for number in range(self.size):
            put(NodeResourceTopology, topology_body(number))
        before = _resident()
        for number in range(self.size):
            for pod in range(PODS):
                put(Pod, pod_body(number, pod))
        grown = _resident() - before
        for number in range(self.size):
            put(Node, node_body(number))
            put(NodeMetric, metric_body(number, 1, self.rng))
        return grown

    def put(self, view: type[T], body: dict[str, Any]) -> None:
        self.factory.informer(view)._store(from_builtins(body, view))


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def cpu_s(work: Callable[[], Any], prepare: Callable[[], Any] = lambda: None) -> float:
    """The least CPU seconds of some tries."""
    best = float("inf")
    for _ in range(TRIES):
        prepare()
        gc.collect()
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return best


def scalar(row: NodeRow) -> tuple[int, int]:
    """Batch of one node in plain Python: the peer. Usage policy, 60 and 65 percent."""
    assert row.facts is not None
    report = row.reading.report
    used_cpu = used_memory = 0
    requested = [0, 0]
    for key, pod in row.pods.items():
        if not pod.is_high_priority:
            continue
        usage = report.pods.get(key)
        requested[0] += pod.request[0]
        requested[1] += pod.request[1]
        used_cpu += pod.request[0] * 10**6 if usage is None else usage[0]
        used_memory += pod.request[1] if usage is None else usage[1]
    for key, (cpu, memory, counts) in report.pods.items():
        if counts and key not in row.pods:
            used_cpu += cpu
            used_memory += memory
    (cpu, memory), (reserved_cpu, reserved_memory) = row.facts.capacity, row.facts.reserved
    margin_cpu, margin_memory = int(cpu * 0.4), int(-(-memory // 1000) * 0.35) * 1000
    system_cpu, system_memory = report.system_usage
    return (
        max(cpu - margin_cpu - (max(system_cpu, reserved_cpu * 10**6) + used_cpu) // 10**6, 0),
        max(memory - margin_memory - max(system_memory, reserved_memory) - used_memory, 0),
    )


def recomputation(world: World) -> tuple[float, float, float, float]:
    """CPU seconds: with sums kept, with sums anew, node by node through the same code, and the plain peer."""
    controller, fleet = world.controller, world.controller.fleet

    def forget() -> None:
        for row in fleet.rows.values():
            row.forget_demand()

    def anew() -> None:
        controller._on_colocation()
        for at in range(0, world.size, 256):
            controller.look_at(world.names[at : at + 256])

    def one_by_one() -> None:
        controller._on_colocation()
        for name in world.names:
            controller.look_at([name])

    anew()
    kept_s = cpu_s(anew)
    cold_s = cpu_s(anew, forget)
    single_s = cpu_s(one_by_one)
    peer_s = cpu_s(lambda: [scalar(row) for row in fleet.rows.values()])
    return kept_s, cold_s, single_s, peer_s


def stream(bodies: Sequence[dict[str, Any]]) -> list[bytes]:
    """Lines of a watch stream; they come one by one."""
    return [msgspec.json.encode({"type": "MODIFIED", "object": body}) + b"\n" for body in bodies]


def follow(world: World, view: type[T], lines: Sequence[bytes]) -> tuple[float, float]:
    """CPU seconds of decoding alone, and of all that the controller does with these changes."""

    def decode() -> None:
        reader = WatchReader(view)
        for line in lines:
            reader.feed(line)

    decode_s = cpu_s(decode)
    informer, controller = world.factory.informer(view), world.controller
    reader = WatchReader(view)
    gc.collect()
    started = time.process_time()
    for number, line in enumerate(lines, 1):
        informer._apply(reader.feed(line))
        if number % ROUND == 0 or number == len(lines):
            controller.look_at(_take_queue(controller))
    return decode_s, time.process_time() - started


def _take_queue(controller: NodeResourceController) -> list[str]:
    names = []
    while len(controller._queue):
        names.append(controller._queue._ready.get_nowait())
        controller._queue._dirty.discard(names[-1])
    return names


def steady_state(world: World) -> None:
    rng = random.Random(1)
    controller = world.controller
    controller.look_at(world.names)
    _take_all_writes(world)
    for name in world.names:  # no refresh is due within the next minutes
        controller._written_s[name] = controller._zones_written_s[name] = NOW_S
    world.clock.now_s = NOW_S + 30
    busier_milli = dict.fromkeys(range(0, world.size, BUSIER_EVERY), 12000)
    reports = stream(
        [metric_body(number, 30, rng, busier_milli.get(number, 1_500)) for number in range(world.size)],
    )
    heartbeats = stream([_beat(world, number) for number in range(world.size)])
    report_decode_s, report_s = follow(world, NodeMetric, reports)
    past = controller.writer.pending_count
    _take_all_writes(world)
    beat_decode_s, beat_s = follow(world, Node, heartbeats)
    load = report_s / REPORT_PERIOD_S + beat_s / HEARTBEAT_PERIOD_S
    decode = report_decode_s / REPORT_PERIOD_S + beat_decode_s / HEARTBEAT_PERIOD_S
    print(
        f"steady state of {world.size:,} nodes: {world.size / REPORT_PERIOD_S:.0f} reports/s of "
        f"{len(reports[0]) / 1024:.1f} KiB, {world.size / HEARTBEAT_PERIOD_S:.0f} status updates/s:"
    )
    print(f"  {load:.1%} of a core, of which decoding {decode:.1%}")
    print(
        f"  per report {report_s / world.size * 1e6:.0f} µs (decoding {report_decode_s / world.size * 1e6:.0f}), "
        f"per status update {beat_s / world.size * 1e6:.0f} µs (decoding {beat_decode_s / world.size * 1e6:.0f})"
    )
    print(
        f"  usage moved by 2 %, on {len(busier_milli):,} nodes by 10 cores: "
        f"{past:,} of {world.size:,} nodes are past the threshold and written"
    )


def _beat(world: World, number: int) -> dict[str, Any]:
    """A status update in which nothing has changed but times."""
    row = world.controller.fleet.rows[world.names[number]]
    assert row.node is not None
    body = node_body(number, 40)
    body["metadata"]["annotations"] = row.node.metadata.annotations
    body["status"]["capacity"], body["status"]["allocatable"] = (
        row.node.status.capacity,
        row.node.status.allocatable,
    )
    return body


def _take_all_writes(world: World) -> None:
    """What the writer would do, with the API's answer made up."""
    writer, fleet = world.controller.writer, world.controller.fleet
    for name, planned in list(writer._planned.items()):
        writer.plan(name, None)
        row = fleet.rows[name]
        assert row.node is not None
        patch = targets.node_patch(row.node, planned.target, with_status=planned.with_status)
        body = msgspec.to_builtins(row.node)
        for field, changes in patch.get("status", {}).items():
            body["status"][field] = _merged(body["status"][field], changes)
        meta = patch.get("metadata", {})
        body["metadata"]["annotations"] = _merged(
            body["metadata"].get("annotations", {}), meta.get("annotations", {})
        )
        body["metadata"]["resourceVersion"] = "2"
        node = from_builtins(body, Node)
        world.controller._on_written(name, node, planned.with_status)
        world.factory.informer(Node)._cache[("", name)] = node
        if planned.zone_threshold is not None and row.topology is not None:
            zoned, _ = zones_target(row.topology.zones, planned.target.zones, planned.zone_threshold)
            row.see_topology(msgspec.structs.replace(row.topology, zones=zoned))
            world.controller._on_zones_written(name)
    _take_queue(world.controller)


def _merged(have: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in {**have, **changes}.items() if value is not None}


async def measure() -> None:
    print(
        f"{'nodes':>7} {'pods':>8} | {'full':>9} {'pods anew':>9} | {'1 by 1':>9} {'ratio':>6} | {'plain':>9}"
    )
    last = None
    for size in SIZES:
        world = World(size)
        kept_s, cold_s, single_s, peer_s = recomputation(world)
        print(
            f"{size:>7,} {size * PODS:>8,} | {kept_s * 1e3:>6.1f} ms {cold_s * 1e3:>6.1f} ms | "
            f"{single_s * 1e3:>6.1f} ms {single_s / kept_s:>5.1f}x | {peer_s * 1e3:>6.1f} ms",
            flush=True,
        )
        last = world
    assert last is not None
    print(
        "full: all six plugins, two zones per node, all diffs; 1 by 1: the same, a node at a time; "
        "plain: pods summed and the Batch formula of nodes, nothing else"
    )
    per_pod = last.bytes_of_facts / (last.size * PODS)
    print(f"memory: {per_pod:.0f} bytes per pod; {_resident() / 2**20:,.0f} MiB resident with the last fleet")
    steady_state(last)


def main() -> None:
    with garbage.collected_rarely():  # as koord-manager does
        asyncio.run(measure())


if __name__ == "__main__":
    main()
