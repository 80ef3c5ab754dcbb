"""Say what NodeNUMAResource knows about a node, in words and figures, and what would have to be freed there; write a
node's allocations for other programs; and take CPUs and NUMA nodes that somebody chose for a pod before it is
scheduled. Pure. Source: behaviour/numa-cpu 12 and 16."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from koordinator.api import cpuset, resource_vector
from koordinator.api.annotations import placement
from koordinator.api.core import Pod
from koordinator.scheduler.plugin.capabilities import ApiAnswer, ApiRequest
from koordinator.scheduler.plugin.framework import Relief
from koordinator.scheduler.plugin.status import SUCCESS, Status, unschedulable
from koordinator.scheduler.plugins.node_numa_resource import allocate, holdings, policy
from koordinator.scheduler.plugins.node_numa_resource.admission import NUMAPlacement, NUMAPodTerms, OtherHints
from koordinator.scheduler.plugins.node_numa_resource.allocate import (
    NOTHING_GIVEN_BACK,
    FreeForPod,
    NUMANodeState,
)
from koordinator.scheduler.plugins.node_numa_resource.allocations import NUMAAllocations
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import (
    CPUMask,
    CPUPlace,
    Zones,
    cpus_of,
    mask_of,
)
from koordinator.scheduler.plugins.node_numa_resource.hint_merge import NUMATopologyHint
from koordinator.scheduler.plugins.node_numa_resource.holdings import NodeTopologyFacts
from koordinator.scheduler.plugins.node_numa_resource.node_allocation import (
    NOT_ENOUGH,
    NodeAllocation,
    NUMAStatus,
    PodHolding,
)
from koordinator.scheduler.plugins.node_numa_resource.node_view import NUMANodeView
from koordinator.scheduler.plugins.node_numa_resource.policy import PodPlan
from koordinator.scheduler.table.nodes import NodeTable

PLUGIN = "NodeNUMAResource"


def designated_for(pod: Pod, uid: str) -> PodHolding | None:
    """Return what was chosen for the pod, if its hint says that this is to be followed. Raises: ProtocolError when one
    of the annotations is malformed."""
    if not pod.metadata.annotations:
        return None
    hint = placement.scheduling_hint(pod.metadata.annotations, f"Pod {pod.key}")
    if hint is None or PLUGIN not in hint.extensions:
        return None
    return holdings.holding_of(pod, uid)


def place(
    plan: PodPlan,
    facts: NodeTopologyFacts,
    node_allocation: NodeAllocation,
    chosen: PodHolding,
    others: Sequence[OtherHints] = (),
) -> NUMAPlacement:
    """Return the chosen CPUs and amounts, if they are free on this node and all that the pod asks for."""
    merged = policy.merge_numa_policies(facts.numa_policy, plan.numa_policy)
    binding = policy.decide_binding(plan, facts.bind_policy)
    status = merged.status if not merged.status.is_success else binding.status
    if status.is_success:
        status = policy.check_binding(plan, binding, facts.options.cpus)
    state = facts.state(node_allocation)
    free = allocate.free_cpus(state, NOTHING_GIVEN_BACK)
    if status.is_success:
        status = _is_free(state, free.cpus, chosen)
    if not status.is_success:
        return NUMAPlacement(status=status)
    hint = NUMATopologyHint(mask_of(chosen.numa) if chosen.numa else None)
    cpus = state.options.cpus.mask_of(chosen.cpus)
    room = FreeForPod(msgspec.structs.replace(free, cpus=cpus), chosen.numa)
    allocation = allocate.allocate_in(room, state, policy.request_of(plan, binding), hint.numa_nodes)
    status = allocation.status
    if status.is_success and allocation.cpus != cpus:
        status = NOT_ENOUGH
    for other in others:
        if status.is_success:
            status = other.trial(hint)
    if not status.is_success:
        return NUMAPlacement(status=status)
    return NUMAPlacement(allocation, binding, merged.policy, hint)


def _is_free(state: NUMANodeState, free: CPUMask, chosen: PodHolding) -> Status:
    """Nothing that was chosen may be held by others, or be more than there is."""
    if any(not free >> cpu & 1 for cpu in chosen.cpus):
        return NOT_ENOUGH
    zones = allocate.free_zones(state, NOTHING_GIVEN_BACK)
    short = {
        name
        for numa, amounts in chosen.numa.items()
        for name, amount in amounts.items()
        if amount > zones.available.get(numa, {}).get(name, 0)
    }
    return unschedulable(*(f"Insufficient NUMA {name}" for name in sorted(short))) if short else SUCCESS


NEAR_NODES_MAX = 3


def facts(terms: NUMAPodTerms, view: NUMANodeView) -> tuple[str, ...]:
    """Return what the pod asks for on the node, and what is free there, by NUMA node."""
    return (*_demand(terms), *_free(view))


def _demand(terms: NUMAPodTerms) -> Iterator[str]:
    if terms.binding.binds_cpus:
        how = terms.binding.policy or "any"
        required = ", required" if terms.binding.is_required else ""
        yield f"binds {terms.request.cpu_count} CPUs ({how}{required})"
    if terms.policy:
        wanted = ", ".join(resource_vector.readable_lot(name, amount) for name, amount in terms.amounts)
        yield f"NUMA policy {terms.policy.value} for {wanted or 'nothing that NUMA nodes offer'}"


def _free(view: NUMANodeView) -> Iterator[str]:
    topology = view.facts.options.cpus
    for numa in view.facts.zones:
        left = ", ".join(
            resource_vector.readable_lot(name, amount)
            for name, amount in sorted(view.available[numa].items())
        )
        cpus = cpuset.text_of(cpus_of(view.free.cpus & topology.numa_nodes.get(numa, 0)))
        yield f"NUMA node {numa}: {left} left; CPUs {cpus or 'none'} not bound"


class NUMAShortage(msgspec.Struct, frozen=True):
    """The shortage that keeps a pod from a node: amounts, and CPUs that are bound to others, of a NUMA node or of the
    whole (None). `share` is the largest part of what is wanted that is missing."""

    numa: int | None
    amounts: dict[str, int]
    cpu_count: int
    share: float

    def text(self, node_name: str) -> str:
        parts = [resource_vector.readable_lot(name, n) for name, n in self.amounts.items()]
        if self.cpu_count:
            parts.append(f"{self.cpu_count} CPUs that are bound to pods")
        where = node_name if self.numa is None else f"NUMA node {self.numa} of {node_name}"
        return f"free {' and '.join(parts)} on {where}"


def reliefs(nodes: Iterable[tuple[int, str, NUMAPodTerms, NUMANodeView]]) -> list[Relief]:
    """Return what to free on the nodes that lack least, so that one NUMA node can hold the pod alone, or, where no NUMA
    policy is in force, that there are enough CPUs to bind."""
    near = sorted(
        (shortage.share, row, shortage.text(name))
        for row, name, terms, view in nodes
        if (shortage := shortage_of(terms, view)) is not None
    )
    return [Relief("room", text, (row,)) for _, row, text in near[:NEAR_NODES_MAX]]


def shortage_of(terms: NUMAPodTerms, view: NUMANodeView) -> NUMAShortage | None:
    """Return what a node that refuses the pod lacks, None where freeing does not help."""
    if not terms.status.is_success or not terms.late_status.is_success or view.facts.cpu_ratio > 1:
        return None  # amplified CPU is counted for the whole node besides
    if not terms.policy:
        wanted = terms.request.cpu_count
        missing = wanted - view.usable[terms.kind].bit_count()
        whole = sum(cpus.bit_count() for cpus in view.facts.options.cpus.numa_nodes.values())
        # Which CPUs come free decides whether they are whole cores: only "any CPU" can be counted, and of these a node
        # that refuses the pod has too few.
        if not terms.binding.binds_cpus or terms.kind or wanted > whole:
            return None
        return NUMAShortage(None, {}, missing, missing / wanted)
    if not terms.is_known or terms.kind:
        return None
    found = [
        shortage
        for slot, numa in enumerate(view.facts.zones)
        if not (terms.plan.is_exclusive and view.statuses.get(numa) is NUMAStatus.SHARED)
        and (shortage := _zone_shortage(terms, view, slot, numa)) is not None
    ]
    return min(found, key=lambda shortage: shortage.share, default=None)


def _zone_shortage(terms: NUMAPodTerms, view: NUMANodeView, slot: int, numa: int) -> NUMAShortage | None:
    capacity, available = view.facts.zones[numa], view.available[numa]
    if any(capacity.get(name, 0) < amount for name, amount in terms.amounts):
        return None
    wanted = dict(terms.amounts)
    short = {name: amount - available.get(name, 0) for name, amount in wanted.items()}
    short = {name: amount for name, amount in short.items() if amount > 0}
    cpu_count = max(0, terms.request.cpu_count - view.usable_counts[terms.kind][slot])
    if not short and not cpu_count:
        return None
    shares = [amount / wanted[name] for name, amount in short.items()]
    return NUMAShortage(numa, short, cpu_count, max([*shares, cpu_count / max(terms.request.cpu_count, 1)]))


Json = dict[str, Any]


def describe(name: str, facts: NodeTopologyFacts, node_allocation: NodeAllocation) -> Json:
    """Return the node's topology, what is left of it and who holds the rest, as a JSON value."""
    view = NUMANodeView.of(facts, node_allocation)
    return {
        "name": name,
        **_options(facts),
        "remainingNUMANodeResources": _zones(view.available),
        "allocatedNUMANodeResources": _zones(view.allocated),
        "availableCPUs": cpuset.text_of(cpus_of(view.free.cpus)),
        "allocatedCPUs": _allocated_cpus(facts, node_allocation),
        "allocatedPods": [
            {
                "uid": holding.uid,
                "cpuset": cpuset.text_of(holding.cpus),
                "exclusivePolicy": holding.exclusive,
                "numaNodeResources": _zones(holding.numa),
            }
            for holding in sorted(node_allocation.holdings.values(), key=lambda holding: holding.uid)
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
            "cpuDetails": {str(cpu): _place(cpu, place) for cpu, place in sorted(cpus.places.items())},
        },
        "reservedCPUs": cpuset.text_of(options.reserved),
        "maxRefCount": options.ref_count_max,
        "policy": facts.bind_policy.value,
        "numaTopologyPolicy": facts.numa_policy.value,
        "numaNodeResources": _zones(facts.zones),
        "amplificationRatios": dict(facts.ratios),
    }


def _allocated_cpus(facts: NodeTopologyFacts, node_allocation: NodeAllocation) -> Json:
    places, nowhere = facts.options.cpus.places, CPUPlace(-1, -1, -1)
    return {
        str(cpu): {
            **_place(cpu, places.get(cpu, nowhere)),
            "refCount": hold.ref_count,
            "exclusivePolicy": hold.exclusive,
        }
        for cpu, hold in sorted(node_allocation.holds.items())
    }


def _place(cpu: int, place: CPUPlace) -> Json:
    return {"cpuID": cpu, "coreID": place.core, "nodeID": place.numa, "socketID": place.socket}


def _zones(zones: Zones) -> list[Json]:
    return [
        {"node": numa, "resources": resource_vector.texts(dict(sorted(amounts.items())))}
        for numa, amounts in sorted(zones.items())
    ]


def answer(table: NodeTable, books: NUMAAllocations, request: ApiRequest) -> ApiAnswer:
    """Return what the endpoint says about a node."""
    name = request.path["name"]
    row = table.row_of(name)
    if row is None:
        return ApiAnswer({"message": f"node {name} is not known"}, 500)
    record = books.at(row)
    if not record.facts.options.cpus.is_valid:
        return ApiAnswer({"message": f"node {name}: {policy.INVALID_TOPOLOGY.message}"}, 500)
    return ApiAnswer(describe(name, record.facts, record.node_allocation))
