"""CPUs and NUMA nodes that somebody chose for a pod before it is scheduled. Source: behaviour/numa-cpu 12.

Another scheduler names this plugin in the extensions of its hint and writes what it chose as the pod's
`resource-status`; the pod then gets exactly that, or the node is refused.
"""

from collections.abc import Sequence

import msgspec

from koordinator.api.annotations import placement
from koordinator.api.core import Pod
from koordinator.scheduler.plugin.status import SUCCESS, Status, unschedulable
from koordinator.scheduler.plugins.node_numa_resource import allocate, holdings, policy
from koordinator.scheduler.plugins.node_numa_resource import node_allocation as node_allocations
from koordinator.scheduler.plugins.node_numa_resource.accumulator import NOT_ENOUGH
from koordinator.scheduler.plugins.node_numa_resource.admission import NUMAPlacement, OtherHints
from koordinator.scheduler.plugins.node_numa_resource.allocate import (
    NOTHING_GIVEN_BACK,
    FreeForPod,
    NUMANodeState,
)
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import mask_of
from koordinator.scheduler.plugins.node_numa_resource.hint_merge import NUMATopologyHint
from koordinator.scheduler.plugins.node_numa_resource.node_allocation import NodeAllocation, PodHolding
from koordinator.scheduler.plugins.node_numa_resource.node_facts import NodeTopologyFacts
from koordinator.scheduler.plugins.node_numa_resource.policy import PodPlan

PLUGIN = "NodeNUMAResource"


def designated_for(pod: Pod, uid: str) -> PodHolding | None:
    """Return what was chosen for the pod, if its hint says that this is to be followed.

    Raises: ProtocolError when one of the annotations is malformed.
    """
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
    if status.is_success:
        status = _is_free(state, chosen)
    if not status.is_success:
        return NUMAPlacement(status=status)
    hint = NUMATopologyHint(mask_of(chosen.numa) if chosen.numa else None)
    cpus = state.options.cpus.mask_of(chosen.cpus)
    free = allocate.free_cpus(state, NOTHING_GIVEN_BACK)
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


def _is_free(state: NUMANodeState, chosen: PodHolding) -> Status:
    """Nothing that was chosen may be held by others, or be more than there is."""
    free = allocate.free_cpus(state, NOTHING_GIVEN_BACK).cpus
    if any(not free >> cpu & 1 for cpu in chosen.cpus):
        return NOT_ENOUGH
    zones = node_allocations.free_zones(
        state.node_allocation, state.options.cpus, state.zones, {}, state.cpu_ratio
    )
    short = {
        name
        for numa, amounts in chosen.numa.items()
        for name, amount in amounts.items()
        if amount > zones.available.get(numa, {}).get(name, 0)
    }
    return unschedulable(*(f"Insufficient NUMA {name}" for name in sorted(short))) if short else SUCCESS
