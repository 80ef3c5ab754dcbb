"""An engine with machines and pods for the tests of NodeNUMAResource."""

import json
from typing import Any

from koordinator.api import cpuset
from koordinator.api.annotations.placement import RESOURCE_STATUS
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.clock import FixedClock
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.results import Placed, Unplaced
from koordinator.scheduler.plugin.status import PodPatch
from koordinator.scheduler.plugins import built_in
from koordinator.scheduler.plugins.node_numa_resource.allocations import NUMAColumns
from koordinator.scheduler.plugins.node_numa_resource.plugin import NodeNUMAResource
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler import world

Json = dict[str, Any]
NOW_S = 1_700_000_000.0


def node(name: str, *, cpus: int = 16, memory_gi: int = 32, **parts: Any) -> Json:
    return world.node(name, cpu=str(cpus), memory=f"{memory_gi}Gi", **parts)


def report(
    name: str,
    *,
    sockets: int = 2,
    numa_per_socket: int = 1,
    cores: int = 4,
    threads: int = 2,
    memory_gi: int = 16,
    annotations: Json | None = None,
    policies: tuple[str, ...] = (),
    extra: Json | None = None,
    numa_step: int = 1,
) -> Json:
    """A NodeResourceTopology; `cores` and `memory_gi` per NUMA node, ids of NUMA nodes in steps."""
    count = sockets * numa_per_socket
    detail = [
        {
            "id": core * threads + thread,
            "core": core,
            "socket": core // (cores * numa_per_socket),
            "node": core // cores * numa_step,
        }
        for core in range(count * cores)
        for thread in range(threads)
    ]
    amounts = {"cpu": str(cores * threads), "memory": f"{memory_gi}Gi", **(extra or {})}
    return {
        "metadata": {
            "name": name,
            "annotations": {
                "node.koordinator.sh/cpu-topology": json.dumps({"detail": detail}),
                **(annotations or {}),
            },
        },
        "topologyPolicies": list(policies),
        "zones": [
            {
                "name": f"node-{numa * numa_step}",
                "type": "Node",
                "resources": [
                    {"name": key, "capacity": amount, "allocatable": amount, "available": amount}
                    for key, amount in amounts.items()
                ],
            }
            for numa in range(count)
        ],
    }


def pod(
    name: str,
    *,
    cpu: str = "4",
    memory: str = "1Gi",
    qos: str = "",
    spec: Json | None = None,
    numa: Json | None = None,
    requests: Json | None = None,
    **parts: Any,
) -> Json:
    body = world.pod(name, cpu=cpu, memory=memory, requests=requests, **parts)
    metadata = body["metadata"]
    metadata["uid"] = f"uid-{name}"
    metadata["labels"] = {"koordinator.sh/qosClass": qos} if qos else {}
    metadata["annotations"] = {}
    if qos:
        body["spec"]["priority"] = 9_500
    if spec is not None:
        metadata["annotations"]["scheduling.koordinator.sh/resource-spec"] = json.dumps(spec)
    if numa is not None:
        metadata["annotations"]["scheduling.koordinator.sh/numa-topology-spec"] = json.dumps(numa)
    return body


class Cluster:
    """An engine, driven as the scheduler drives it, with the API played by hand."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("plugins", built_in.PLUGINS)
        config = options.pop("config", None) or default_plugins.shipped_config()
        self.engine = Engine(config, FixedClock(NOW_S), **options)
        [self.profile] = self.engine.profiles.values()
        self.plugin = next(p for p in self.profile.plugins if isinstance(p, NodeNUMAResource))
        self.table = self.engine.table

    def set_node(self, body: Json) -> None:
        self.table.set_node(from_builtins(body, Node))

    def set_report(self, body: Json) -> None:
        self.plugin.set_report(None, from_builtins(body, NodeResourceTopology))

    def remove_report(self, body: Json) -> None:
        self.plugin.set_report(from_builtins(body, NodeResourceTopology), None)

    def machine(self, name: str, *, labels: Json | None = None, **parts: Any) -> None:
        body = report(name, **parts)
        cpus = len(json.loads(body["metadata"]["annotations"]["node.koordinator.sh/cpu-topology"])["detail"])
        self.set_node(node(name, cpus=cpus, memory_gi=64, labels=labels or {}))
        self.set_report(body)

    def info(self, body: Json) -> PodInfo:
        return PodInfo.of(from_builtins(body, Pod), self.table.registry)

    def run(self, body: Json) -> Placed | Unplaced:
        info = self.info(body)
        return self.engine.cycle.run(self.profile, info, self.profile.class_key(info), 1, NOW_S)

    async def place(self, body: Json) -> Json:
        """The pod as the API shows it once it is bound."""
        placed = self.run(body)
        assert isinstance(placed, Placed), placed.status
        bound = bound_to(body, placed.node_name, await self.written(placed.pod, placed.node_name))
        self.assign(bound)
        return bound

    async def written(self, info: PodInfo, node_name: str) -> Json:
        """The annotations that PreBind writes."""
        patch = PodPatch()
        status = await self.plugin.pre_bind(self.plugin.prepare(info), info, node_name, patch)
        assert status.is_success
        return patch.annotations

    def assign(self, body: Json) -> None:
        """A pod that the API shows on a node."""
        info = self.info(body)
        self.table.assign(info, info.node_name)


def bound_to(body: Json, node_name: str, annotations: Json) -> Json:
    metadata = {**body["metadata"], "annotations": {**body["metadata"]["annotations"], **annotations}}
    return {**body, "metadata": metadata, "spec": {**body["spec"], "nodeName": node_name}}


def cpus_of(body: Json) -> frozenset[int]:
    """The CPUs that a bound pod got."""
    status = RESOURCE_STATUS.read(body["metadata"]["annotations"])
    return cpuset.parse(status.cpuset) if status is not None else frozenset()


def numa_of(body: Json) -> dict[int, Json]:
    """What a bound pod got of each NUMA node."""
    status = RESOURCE_STATUS.read(body["metadata"]["annotations"])
    return {part.node: dict(part.resources) for part in status.numa_node_resources} if status else {}


def books_of(cluster: Cluster) -> dict[str, tuple[Any, ...]]:
    """All that is known of each node, as values: who holds what, the sums, and what columns say."""
    books = cluster.plugin.books
    books.sync()
    found = {}
    for row in cluster.table.rows.tolist():
        node_allocation = books.at(row).node_allocation
        found[cluster.table.name_of(row)] = (
            dict(sorted(node_allocation.holdings.items())),
            dict(sorted(node_allocation.holds.items())),
            dict(sorted(node_allocation.numa.items())),
            columns_of(books.columns, row),
        )
    return found


def columns_of(columns: NUMAColumns, row: int) -> dict[str, Any]:
    """What columns say of a row, whatever order resources were met in."""
    every, index_of = columns.all, columns.resources
    names = sorted(index_of)
    slots = range(int(every.zone_count[row]))
    return {
        "zones": [
            {
                name: tuple(int(values[slot, index_of[name], row]) for values in arrays)
                for name in names
                if every.offers[index_of[name], row]
            }
            for slot in slots
            for arrays in ((every.capacity, every.used, every.available),)
        ],
        "usable": every.usable[:, : len(slots), row].tolist(),
        "total": every.usable_total[:, row].tolist(),
        "status": every.status[: len(slots), row].tolist(),
        "pinned": (int(every.pinned_count[row]), int(every.pinned_milli[row])),
    }
