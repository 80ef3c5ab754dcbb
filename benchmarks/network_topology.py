"""What planning a gang over the network costs: slots of nodes, sums over the tree, the choice; and how it grows.

A plan is made as in the scheduler, with the whole shipped profile over a node table that is partly full, on one
core. The peer is the same plan (sums and choice only) on a tree of objects; slots of the peer are free.
Figures are CPU time, the best of a few runs. Options: `--nodes`, `--sizes`.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from benchmarks import _topology_objects as objects
from koordinator.api.annotations.placement import GatherStrategy
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.network_topology import NODE_LAYER, NetworkTopologySpec
from koordinator.clock import FixedClock
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.config.config import SchedulerConfig
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.plugin.topology_tree import PathFinder, TopologyTree, assemble
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.plugins.coscheduling.plugin import Coscheduling
from koordinator.scheduler.plugins.network_topology import placement, slots
from koordinator.scheduler.plugins.network_topology.planner import JobPlan, Planner, PlanningJob
from koordinator.scheduler.plugins.network_topology.slots import TreeRows
from koordinator.scheduler.table.pod_info import PodInfo

NODES = (1_000, 5_000, 20_000, 100_000)
SIZES = (100, 1_000)
NODES_PER_BLOCK, BLOCKS_PER_SPINE = 32, 16
GPU, GPUS_PER_NODE = "nvidia.com/gpu", 8
MEMORY_GIB = 2_048
RUNS = 5
LAYERS = [
    NetworkTopologySpec(topology_layer="Spine", label_key=["spine"]),
    NetworkTopologySpec(topology_layer="Block", parent_topology_layer="Spine", label_key=["block"]),
    NetworkTopologySpec(topology_layer=NODE_LAYER, parent_topology_layer="Block"),
]
RULES = (GatherStrategy(layer="Spine", strategy="MustGather"),)

T = TypeVar("T")


def best_ms(work: Callable[[], T], runs: int = RUNS) -> tuple[float, T]:
    """CPU milliseconds of the fastest run, with what the last one answered."""
    fastest, found = float("inf"), work()
    for _ in range(runs):
        began_s = time.process_time()
        found = work()
        fastest = min(fastest, time.process_time() - began_s)
    return fastest * 1e3, found


def labels_of(number: int) -> dict[str, str]:
    block = number // NODES_PER_BLOCK
    return {"spine": f"s{block // BLOCKS_PER_SPINE}", "block": f"b{block}"}


def node_body(number: int) -> dict[str, Any]:
    amounts = {"cpu": "128", "memory": f"{MEMORY_GIB}Gi", "pods": "110", GPU: str(GPUS_PER_NODE)}
    return {
        "metadata": {
            "name": f"node-{number}",
            "labels": labels_of(number) | {"kubernetes.io/hostname": f"node-{number}"},
        },
        "status": {"allocatable": amounts, "capacity": amounts},
    }


def pod_body(name: str, gpus: int, cpu: str, **spec: Any) -> dict[str, Any]:
    requests = {"cpu": cpu, "memory": "64Gi", **({GPU: str(gpus)} if gpus else {})}
    container = {"name": "main", "resources": {"requests": requests, "limits": requests}}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"schedulerName": "koord-scheduler", "containers": [container], **spec},
    }


class Desk:
    """A deciding scheduler over a cluster in which every third node is busy with something else."""

    def __init__(self, count: int) -> None:
        self.engine = Engine(
            SchedulerConfig(profiles=[default_plugins.shipped_profile()]),
            FixedClock(0.0),
            plugins=installed_plugins(),
        )
        for number in range(count):
            self.engine.table.set_node(from_builtins(node_body(number), Node))
            if number % 3 == 0:
                busy = self.pod(f"busy-{number}", 1 + number % 7, "8")
                self.engine.table.assign(busy, f"node-{number}")
        profile = self.engine.profiles["koord-scheduler"]
        (gangs,) = [each for each in profile.plugins if isinstance(each, Coscheduling)]
        self.handle = gangs.handle
        self.planner = Planner(self.handle)
        finder = PathFinder(LAYERS)
        self.paths = [path for n in range(count) if (path := finder.path(f"node-{n}", labels_of(n)))]
        self.layers = finder.layers

    def pod(self, name: str, gpus: int, cpu: str) -> PodInfo:
        body = from_builtins(pod_body(name, gpus, cpu), Pod)
        return PodInfo.of(body, self.engine.table.registry)

    def workers(self, count: int) -> tuple[PodInfo, ...]:
        return tuple(self.pod(f"worker-{number}", 1, "8") for number in range(count))

    def servers(self, count: int) -> tuple[PodInfo, ...]:
        return tuple(self.pod(f"server-{number}", 0, "32") for number in range(count))

    def plan(self, tree: TopologyTree, members: Sequence[PodInfo]) -> JobPlan:
        return self.planner.plan(tree, PlanningJob(members=tuple(members), rules=RULES))


def peer_ms(desk: Desk, members: Sequence[PodInfo], by_leaf: Any, tree: TopologyTree) -> float:
    """The same choice on objects. A gang that a spine holds is looked for below the root to the same end."""
    root = objects.build(desk.paths)
    counts = dict(zip(tree.levels[-1].names, by_leaf.tolist(), strict=True))
    names = [member.key for member in members]
    return best_ms(lambda: objects.plan(root, names, counts, {}), 1)[0]


def measure(desk: Desk, size: int) -> None:
    """One line of the table."""
    count = desk.engine.table.node_count
    build_ms, tree = best_ms(lambda: assemble(desk.layers, desk.paths), 2)
    members = desk.workers(size)
    prospects = desk.engine.prospects(members[0])
    assert prospects is not None
    began_s = time.process_time()
    first = desk.plan(tree, members)
    first_ms = (time.process_time() - began_s) * 1e3
    assert first.plan.is_placed, first.message
    total_ms, _ = best_ms(lambda: desk.plan(tree, members))
    slots_ms, counted = best_ms(lambda: slots.count(desk.handle, prospects, members))
    by_leaf = desk.engine.table.shared(TreeRows).by_leaf(tree, counted.counts)
    demand, none = placement.demand_of(RULES, tree.layers), np.zeros_like(by_leaf)
    sums_ms, offers = best_ms(lambda: placement.Offers(tree, demand, by_leaf, none))
    depth, top = placement.places_to_gather(tree, demand)

    def choose() -> list[tuple[int, int]]:
        at, index = next(offers.candidates(depth, top, size))
        return offers.distribute(at, index, size)

    choice_ms, _ = best_ms(choose)
    old_ms = peer_ms(desk, members, by_leaf, tree)
    mixed = (*desk.servers(max(1, size // 50)), *members)
    mixed_ms, mixture = best_ms(lambda: desk.plan(tree, mixed), 2)
    assert mixture.plan.is_placed, mixture.message
    print(
        f"{count:>8,} {size:>7,} {first_ms:>8.1f} {total_ms:>7.1f} {slots_ms:>7.2f} {sums_ms:>7.2f} "
        f"{choice_ms:>7.2f} {mixed_ms:>8.1f} {build_ms:>8.1f} {old_ms / (sums_ms + choice_ms):>11.1f} x"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="network_topology", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=list(NODES))
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    options = parser.parse_args()
    print(
        f"blocks of {NODES_PER_BLOCK} nodes, spines of {BLOCKS_PER_SPINE} blocks; must gather in a spine; CPU ms"
    )
    print(
        f"{'nodes':>8} {'members':>7} {'first':>8} {'plan':>7} {'slots':>7} {'sums':>7} {'choice':>7} "
        f"{'2 kinds':>8} {'tree':>8} {'on objects':>13}"
    )
    for count in options.nodes:
        desk = Desk(count)
        for size in options.sizes:
            measure(desk, size)


if __name__ == "__main__":
    main()
