"""Write a node's books for people and other programs. Source: behaviour/numa-cpu 16."""

from typing import Any

from koordinator.api import cpuset, resource_vector
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import cpus_of
from koordinator.scheduler.plugins.node_numa_resource.node_allocation import NodeAllocation
from koordinator.scheduler.plugins.node_numa_resource.node_facts import NodeTopologyFacts
from koordinator.scheduler.plugins.node_numa_resource.node_view import NUMANodeView
from koordinator.scheduler.plugins.node_numa_resource.zones import Zones

Json = dict[str, Any]


def describe(name: str, facts: NodeTopologyFacts, ledger: NodeAllocation) -> Json:
    """The node's topology, what is left of it and who holds the rest, as a JSON value."""
    view = NUMANodeView.of(facts, ledger)
    return {
        "name": name,
        **_options(facts),
        "remainingNUMANodeResources": _zones(view.available),
        "allocatedNUMANodeResources": _zones(view.allocated),
        "availableCPUs": cpuset.text_of(cpus_of(view.free.cpus)),
        "allocatedCPUs": _allocated_cpus(facts, ledger),
        "allocatedPods": [
            {
                "uid": holding.uid,
                "cpuset": cpuset.text_of(holding.cpus),
                "exclusivePolicy": holding.exclusive,
                "numaNodeResources": _zones(holding.numa),
            }
            for holding in sorted(ledger.holdings.values(), key=lambda holding: holding.uid)
        ],
    }


def _options(facts: NodeTopologyFacts) -> Json:
    options = facts.options
    cpus = options.cpus
    return {
        "cpuTopology": {
            "numCPUs": cpus.cpu_count,
            "numCores": cpus.core_count,
            "numNodes": cpus.numa_node_count,
            "numSockets": cpus.socket_count,
            "cpuDetails": {
                str(cpu): {
                    "cpuID": cpu,
                    "coreID": place.core,
                    "nodeID": place.numa,
                    "socketID": place.socket,
                }
                for cpu, place in sorted(cpus.places.items())
            },
        },
        "reservedCPUs": cpuset.text_of(options.reserved),
        "maxRefCount": options.ref_count_max,
        "policy": facts.bind_policy.value,
        "numaTopologyPolicy": facts.numa_policy.value,
        "numaNodeResources": _zones(facts.zones),
        "amplificationRatios": dict(facts.ratios),
    }


def _allocated_cpus(facts: NodeTopologyFacts, ledger: NodeAllocation) -> Json:
    found: Json = {}
    for cpu, hold in sorted(ledger.holds.items()):
        place = facts.options.cpus.places.get(cpu)
        found[str(cpu)] = {
            "cpuID": cpu,
            "coreID": place.core if place else -1,
            "nodeID": place.numa if place else -1,
            "socketID": place.socket if place else -1,
            "refCount": hold.ref_count,
            "exclusivePolicy": hold.exclusive,
        }
    return found


def _zones(zones: Zones) -> list[Json]:
    return [
        {
            "node": numa,
            "resources": {
                name: resource_vector.amount_text(name, amount) for name, amount in sorted(amounts.items())
            },
        }
        for numa, amounts in sorted(zones.items())
    ]
