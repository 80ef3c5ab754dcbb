"""Area `topology-report`."""

import json
from typing import Any

from koordinator.api import cpuset, quantity, resource_list
from koordinator.api.annotations import node as node_annotations
from koordinator.api.annotations.node import POD_CPU_ALLOCS, CPUSharedPool, SystemQOSResource
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.meta import ObjectMeta
from koordinator.api.node_topology import NodeResourceTopology, Zone, ZoneResource
from koordinator.api.resource_list import Amounts
from koordinator.host import sysfs
from koordinator.host.sysfs import HostCPUTopology, Processor
from koordinator.koordlet.report import reserved_cpus, topology
from koordinator.koordlet.report.topology import NUMANode
from tests.vectors.compare import quantities


def topology_report(case: dict[str, Any]) -> Any:
    return {
        "cpu-manager-state": _cpu_manager_state,
        "share-pools": _share_pools,
        "node-reservation": _node_reservation,
        "topology-policy": _topology_policy,
        "kubelet-reserve": _kubelet_reserve,
        "numa-reserve": _numa_reserve,
        "zones": _zones,
        "merge-zones": _merge_zones,
        "changed": _changed,
    }[case["op"]](case)


def _pods(case: dict[str, Any]) -> list[Pod]:
    return [from_builtins(raw, Pod) for raw in case["pods"]]


def _machine(case: dict[str, Any]) -> HostCPUTopology:
    return sysfs.topology_of(
        Processor(node=node, socket=socket, core=core, cpu=cpu)
        for cpu, core, socket, node in case["topology"]
    )


def _cpu_manager_state(case: dict[str, Any]) -> Any:
    found = reserved_cpus.allocations(case["state"], _pods(case))
    allocations = json.loads(POD_CPU_ALLOCS.encode(list(found.pods)))
    return {"allocations": allocations, "takenCPUs": cpuset.text_of(found.cpus)}


def _share_pools(case: dict[str, Any]) -> Any:
    system = case.get("systemQOS")
    pools = reserved_cpus.shared_pools(
        _machine(case),
        _pods(case),
        cpuset.parse(case.get("kubeletTakenCPUs") or ""),
        cpuset.parse(case.get("reservedCPUs") or ""),
        None if system is None else from_builtins(system, SystemQOSResource),
    )
    return {"shared": _pool_list(pools.shared), "beShared": _pool_list(pools.best_effort)}


def _pool_list(pools: tuple[CPUSharedPool, ...]) -> list[dict[str, Any]]:
    return [{"socket": pool.socket, "node": pool.node, "cpuset": pool.cpuset} for pool in pools]


def _node_reservation(case: dict[str, Any]) -> Any:
    resolved = reserved_cpus.resolved_reservation(_machine(case), case["annotations"])
    return json.loads(node_annotations.NODE_RESERVATION.encode(resolved))


def _topology_policy(case: dict[str, Any]) -> Any:
    return {"policy": reserved_cpus.topology_policy(case["policy"], case["scope"])}


def _kubelet_reserve(case: dict[str, Any]) -> Any:
    capacity, allocatable = resource_list.of(case["capacity"]), resource_list.of(case["allocatable"])
    return {"milli": _milli(topology.reserved_of(capacity, allocatable))}


def _numa_reserve(case: dict[str, Any]) -> Any:
    zones = [resource_list.of(zone) for zone in case["zones"]]
    left = topology.less_reserved(zones, resource_list.of(case["reserved"]))
    return {"allocatableMilli": [_milli(zone) for zone in left]}


def _milli(amounts: Amounts) -> dict[str, int]:
    return {name: amount.milli for name, amount in amounts.items()}


def _zones(case: dict[str, Any]) -> Any:
    nodes = []
    for raw in case["numaNodes"]:
        # The format does not name the member: the only one with numbers of pages by their size in KiB.
        by_size = next((each for each in raw.values() if isinstance(each, dict)), {})
        pages = {int(kib): count for kib, count in by_size.items()}
        nodes.append(NUMANode(len(raw["cpus"]), raw["memTotalKiB"], pages))
    amounts = topology.zone_amounts(nodes, reports_huge_pages=case["hugePageReport"])
    return {
        "zones": [
            {
                "name": zone.name,
                "type": zone.type,
                "resources": {each.name: quantity.value(each.capacity) for each in zone.resources},
            }
            for zone in topology.zones_of(amounts, amounts)
        ]
    }


def _zone(raw: dict[str, Any]) -> Zone:
    amounts = [
        ZoneResource(name=name, capacity=amount, allocatable=amount, available=amount)
        for name, amount in raw["resources"].items()
    ]
    return Zone(name=raw["name"], type=raw.get("type", topology.ZONE_TYPE), resources=amounts)


def _merge_zones(case: dict[str, Any]) -> Any:
    merged = topology.merge_zones([_zone(raw) for raw in case["old"]], [_zone(raw) for raw in case["new"]])
    return {
        "zones": [
            {"name": zone.name, "resources": {each.name: each.allocatable for each in zone.resources}}
            for zone in merged
        ]
    }


def _object(raw: dict[str, Any]) -> NodeResourceTopology:
    return NodeResourceTopology(
        metadata=ObjectMeta(annotations=raw.get("annotations") or {}, labels=raw.get("labels") or {}),
        topology_policies=raw["policies"] if "policies" in raw else [raw["policy"]],
        zones=[_zone(each) for each in raw["zones"]],
    )


def _changed(case: dict[str, Any]) -> Any:
    old = None if case["old"] is None else _object(case["old"])
    return {"changed": topology.is_changed(old, _object(case["new"]))}


def _without_empty_sets(raw: Any) -> Any:
    """An empty CPU list of a pool may be left out."""
    if isinstance(raw, dict):
        return {key: _without_empty_sets(each) for key, each in raw.items() if (key, each) != ("cpuset", "")}
    return [_without_empty_sets(each) for each in raw] if isinstance(raw, list) else raw


def _same(expected: Any, actual: Any) -> bool:
    return quantities(_without_empty_sets(expected), _without_empty_sets(actual))


ADAPTERS = {"topology-report": topology_report}
COMPARE = {"topology-report": _same}
