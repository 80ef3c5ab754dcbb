"""Areas `cpu-accumulator` and `numa-topology-options`."""

from typing import Any

from koordinator.api import cpuset
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import cpus_of, topology_of
from koordinator.scheduler.plugins.node_numa_resource.node_allocation import (
    CPUHold,
    CPURequest,
    FreeCPUs,
    take_preferred,
)

Case = dict[str, Any]


def cpu_accumulator(case: Case) -> Any:
    topology = topology_of(tuple(row) for row in case["topology"])
    holds = {
        held["cpu"]: CPUHold(held["refCount"], held.get("exclusivePolicy", "")) for held in case["allocated"]
    }
    free = FreeCPUs(
        topology.mask_of(cpuset.parse(case["availableCPUs"])), holds, ref_count_max=case["maxRefCount"]
    )
    request = CPURequest(
        case["needed"], case["bindPolicy"], case["exclusivePolicy"], case["numaAllocateStrategy"]
    )
    preferred = topology.mask_of(cpuset.parse(case["preferredCPUs"]))
    decision = take_preferred(topology, free, preferred, request)
    if not decision.status.is_success:
        return {"error": decision.status.message}
    return {"cpus": cpuset.text_of(cpus_of(decision.cpus))}


ADAPTERS = {"cpu-accumulator": cpu_accumulator}
