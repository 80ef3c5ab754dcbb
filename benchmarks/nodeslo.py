"""NodeSLO and NodeMetric policies of many nodes: working them out, and rolling out a change for one pool.

Figures are CPU seconds, best of three. Each node has labels of its own (host name) besides its pool; 20 node
strategies per key.
"""

import asyncio
import json
import logging
import random
import time
from collections.abc import Callable
from typing import Any

import msgspec

from koordinator import clock as clocks
from koordinator.api import crd, defaults
from koordinator.api.core import ConfigMap, Namespace, Node
from koordinator.api.decode import from_builtins
from koordinator.api.groups import CustomResourceDefinition
from koordinator.api.slo import NodeSLO, NodeSLOSpec
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import registry
from koordinator.manager.config import colocation_config, node_slo_spec
from koordinator.manager.config.colocation_config import ColocationState, StrategyTable
from koordinator.manager.config.validation import validate_config_map
from koordinator.manager.manager import Manager
from koordinator.manager.options import ManagerOptions
from koordinator.manager.per_node import node_objects
from koordinator.manager.webhooks import review
from koordinator.manager.webhooks.node_status import NodeStatusHandler
from koordinator.simulate import virtual_time

SIZES = (100, 1_000, 10_000)
POOLS = 20
ROUNDS = 3


def entries(**strategy: Any) -> list[dict[str, Any]]:
    return [
        {"name": f"pool-{n}", "nodeSelector": {"matchLabels": {"pool": f"pool-{n}"}}, **strategy}
        for n in range(POOLS)
    ]


def data(suppress_percent: int = 60) -> dict[str, str]:
    threshold = entries(cpuSuppressThresholdPercent=60)
    threshold[3]["cpuSuppressThresholdPercent"] = suppress_percent
    sections: dict[str, Any] = {
        "colocation-config": {"enable": True, "nodeConfigs": entries(cpuReclaimThresholdPercent=70)},
        "resource-threshold-config": {"clusterStrategy": {"enable": True}, "nodeStrategies": threshold},
        "resource-qos-config": {
            "clusterStrategy": {"beClass": {"cpuQOS": {"enable": True, "groupIdentity": -1}}},
            "nodeStrategies": entries(lsClass={"memoryQOS": {"enable": True, "wmarkRatio": 90}}),
        },
        "cpu-burst-config": {"nodeStrategies": entries(policy="auto")},
        "system-config": {"nodeStrategies": entries(minFreeKbytesFactor=120)},
    }
    return {key: json.dumps(section) for key, section in sections.items()}


def node_body(number: int) -> dict[str, Any]:
    own = {"pool": f"pool-{number % (POOLS + 5)}", "kubernetes.io/hostname": f"n{number}", "zone": "z1"}
    return {"metadata": {"name": f"n{number}", "labels": own, "uid": str(number)}}


def best_s(work: Callable[[], object]) -> float:
    found = []
    for _ in range(ROUNDS):
        began_s = time.process_time()
        work()
        found.append(time.process_time() - began_s)
    return min(found)


def pure(size: int) -> list[float]:
    nodes = [from_builtins(node_body(number), Node) for number in range(size)]
    config = node_slo_spec.sync(node_slo_spec.DEFAULT_CONFIG, data()).config
    state = colocation_config.sync(ColocationState(), data()).state
    table = node_slo_spec.SpecTable(config)
    written = [from_builtins(msgspec.to_builtins(table.of(node)), NodeSLOSpec) for node in nodes]

    def all_specs() -> None:
        fresh = node_slo_spec.SpecTable(config)
        for node in nodes:
            fresh.of(node)

    def all_strategies() -> None:
        fresh = StrategyTable(state.config)
        for node in nodes:
            fresh.of(node)

    def all_compared() -> None:
        for node, old in zip(nodes, written, strict=True):
            assert not node_objects.changed_sections(old, table.of(node))

    labels = {node.metadata.name: node.metadata.labels for node in nodes}

    def validated() -> None:
        assert validate_config_map({}, data(), labels).allowed

    return [best_s(all_specs), best_s(all_strategies), best_s(all_compared), best_s(validated)]


async def roll_out(clock: clocks.LoopClock, size: int) -> tuple[float, float, int, int]:
    """CPU seconds of creating all objects and of a change for one pool, nodes of that pool, writes."""
    cluster = MemoryCluster(registry.in_memory(clock, checks=False))
    for manifest in crd.manifests():
        await cluster.create(CustomResourceDefinition, manifest)
    if defaults.NAMESPACE not in {ns.metadata.name for ns in (await cluster.list(Namespace)).items}:
        await cluster.create(Namespace, defaults.namespace())
    config = defaults.slo_config() | {"data": data()}
    await cluster.create(ConfigMap, config, defaults.NAMESPACE)
    for number in range(size):
        await cluster.create(Node, node_body(number))
    manager = Manager(
        cluster, ManagerOptions(controllers=("nodeslo",), seed=random.Random(1).getrandbits(32))
    )
    async with asyncio.TaskGroup() as group:
        began_s = time.process_time()
        task = group.create_task(manager.run())
        await asyncio.sleep(60)
        created_s = time.process_time() - began_s
        assert len((await cluster.list(NodeSLO)).items) == size

        began_s = time.process_time()
        changed = {"data": data(suppress_percent=40)}
        await cluster.patch(ConfigMap, defaults.SLO_CONFIG_NAME, changed, defaults.NAMESPACE)
        await asyncio.sleep(60)
        changed_s = time.process_time() - began_s
        task.cancel()
    writes = manager.shared.metrics.nodeslo_reconciles.values.get(("succeeded", "updateNodeSLO"), 0)
    pool = sum(number % (POOLS + 5) == 3 for number in range(size))
    return created_s, changed_s, pool, int(writes)


def status_update(ratio: str) -> bytes:
    """A kubelet's report as the API server asks about it: 50 images, conditions, what was stored before."""
    amounts = {"cpu": "31500m", "memory": "126Gi", "ephemeral-storage": "200Gi", "pods": "110"}
    image = {"names": ["registry.example/team/image@sha256:" + "0" * 64, "registry.example/team/image:1.0"]}
    condition = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "m" * 40}
    status = {
        "capacity": amounts,
        "allocatable": amounts,
        "conditions": [condition] * 4,
        "images": [{**image, "sizeBytes": 10**8}] * 50,
    }
    annotations = {f"example.com/annotation-{n}": "v" * 60 for n in range(20)}
    if ratio:
        annotations["node.koordinator.sh/resource-amplification-ratio"] = ratio
    metadata = {"name": "n1", "labels": {f"label-{n}": "v" for n in range(20)}, "annotations": annotations}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": status}
    request = {
        "uid": "1",
        "resource": {"group": "", "version": "v1", "resource": "nodes"},
        "subResource": "status",
        "operation": "UPDATE",
        "name": "n1",
        "object": node,
        "oldObject": node,
    }
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "request": request})


def admission_us(ratio: str, count: int = 1_000) -> float:
    """CPU microseconds of one status update at `/mutate-node-status`, JSON in, JSON out."""
    handler, body = NodeStatusHandler(), status_update(ratio)

    async def ask() -> None:
        for _ in range(count):
            await review.review(handler, body)

    return 1e6 * best_s(lambda: asyncio.run(ask())) / count


def main() -> None:
    logging.disable(logging.WARNING)
    print(f"{'nodes':>7} {'specs':>9} {'strategies':>11} {'compared':>9} {'validated':>10}   (ms)")
    last: list[float] = []
    for size in SIZES:
        found = pure(size)
        growth = " ".join(f"{now / before:.1f}" for now, before in zip(found, last, strict=False))
        row = "{:>7} {:>9.2f} {:>11.2f} {:>9.2f} {:>10.2f}".format(size, *(1e3 * each for each in found))
        print(row + (f"   growth ×{growth}" if growth else ""), flush=True)
        last = found
    print(
        f"{'nodes':>7} {'all created':>12} {'one pool changed':>17} {'of the pool':>12} {'writes':>7}   (s)"
    )
    before_s = 0.0
    for size in SIZES:

        async def run(clock: clocks.LoopClock, size: int = size) -> tuple[float, float, int, int]:
            return await roll_out(clock, size)

        created_s, changed_s, pool, writes = virtual_time.run_virtual(run)
        growth = f"   growth ×{changed_s / before_s:.1f}" if before_s else ""
        print(f"{size:>7} {created_s:>12.2f} {changed_s:>17.3f} {pool:>12} {writes:>7}{growth}", flush=True)
        before_s = changed_s
    plain, amplified = admission_us(""), admission_us('{"cpu":1.50}')
    print(f"status update of a node at the webhook: {plain:.0f} µs, of an amplified one {amplified:.0f} µs")


if __name__ == "__main__":
    main()
