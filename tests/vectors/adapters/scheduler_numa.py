"""Areas `numa-*`: NUMA nodes and bound CPUs."""

from typing import Any

import msgspec

from koordinator.api import cpuset, labels, pod_resources, quantity, resource_list, resource_vector
from koordinator.api.annotations.node import KubeletCPUManagerPolicy
from koordinator.api.annotations.placement import NUMATopologyPolicy, ResourceSpec
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.node_labels import cpu_bind_policy
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.scheduler.plugin.status import Status
from koordinator.scheduler.plugins.node_numa_resource import node_allocation, policy, score
from koordinator.scheduler.plugins.node_numa_resource.admission import hints_of, terms_of
from koordinator.scheduler.plugins.node_numa_resource.allocate import Allocation, allocate
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import cpus_of, mask_of
from koordinator.scheduler.plugins.node_numa_resource.hint_merge import Exclusivity, NUMATopologyHint, admit
from koordinator.scheduler.plugins.node_numa_resource.holdings import NodeTopologyFacts
from koordinator.scheduler.plugins.node_numa_resource.node_allocation import NUMAStatus
from koordinator.scheduler.plugins.node_numa_resource.score import NodeUsage, NUMAScoringStrategy
from koordinator.scheduler.plugins.node_numa_resource.topology_options import TopologyOptions, options_of
from tests.vectors.adapters.scheduler_numa_machine import (
    machine,
    node_allocation_of,
    node_of,
    request_of,
    wire,
    zones_of,
)

Case = dict[str, Any]


def topology_options(case: Case) -> Any:
    report = from_builtins(
        {
            "metadata": {"name": "node", "annotations": case["annotations"]},
            "zones": case["zones"],
            "topologyPolicies": case["topologyPolicies"],
        },
        NodeResourceTopology,
    )
    options = options_of(report)
    return {
        "reservedCPUs": cpuset.text_of(options.reserved),
        "numaTopologyPolicy": options.kubelet_policy,
        "zones": {str(numa): amounts for numa, amounts in options.zones.items()},
        "counts": {
            "sockets": options.cpus.socket_count,
            "numaNodes": options.cpus.numa_node_count,
            "cores": options.cpus.core_count,
            "cpus": options.cpus.cpu_count,
        },
    }


def available(case: Case) -> Any:
    topology = machine(case["topology"])
    if case["kind"] == "cpu":
        free = node_allocation.free_cpus(
            node_allocation_of([{"cpuset": cpus} for cpus in case["podCPUSets"]]),
            topology,
            topology.mask_of(cpuset.parse(case["reservedCPUs"])),
            [topology.mask_of(cpuset.parse(cpus)) for cpus in case["givenBack"]],
            case["maxRefCount"],
        )
        return {"available": cpuset.text_of(cpus_of(free.cpus))}
    left = node_allocation.free_zones(
        node_allocation_of(case["pods"]),
        topology,
        zones_of(case["zones"]),
        zones_of(case["reusable"]),
        case["cpuAmplificationRatio"],
    )
    return {
        "available": {str(numa): amounts for numa, amounts in left.available.items()},
        "allocated": {str(numa): amounts for numa, amounts in left.allocated.items()},
    }


def numa_allocate(case: Case) -> Any:
    hint = None if case["hint"] is None else mask_of(case["hint"])
    allocation = allocate(node_of(case), request_of(case), hint)
    if not allocation.status.is_success:
        return {"error": True, "reasons": list(allocation.status.reasons)}
    return {
        "numaNodeResources": {str(numa): wire(amounts) for numa, amounts in allocation.numa.items()},
        "cpuset": cpuset.text_of(cpus_of(allocation.cpus)),
    }


def _nodes(hint: NUMATopologyHint) -> list[int] | None:
    return None if hint.numa_nodes is None else list(cpus_of(hint.numa_nodes))


def hints_generate(case: Case) -> Any:
    scoring = case["numaScoring"]
    strategy = None
    if scoring is not None:
        resources = [{"name": name, "weight": weight} for name, weight in scoring["resources"].items()]
        strategy = msgspec.convert({"type": scoring["type"], "resources": resources}, NUMAScoringStrategy)
    node, numa_policy = node_of(case), NUMATopologyPolicy(case["policy"])
    hints = hints_of(node, request_of(case), numa_policy, strategy)
    result: Case = {
        "hints": {
            name: [
                {"affinity": _nodes(hint), "preferred": hint.is_preferred, "score": hint.score}
                for hint in found
            ]
            for name, found in hints.items()
        }
    }
    merged = _nodes(admit(numa_policy, mask_of(node.zones), [hints]).hint)
    return {**result, "mergedAffinity": merged}


def _same_hints(expected: Any, actual: Any) -> bool:
    """The merged choice is compared only where the case names it."""
    return all(actual.get(key) == value for key, value in expected.items())


def hints_merge(case: Case) -> Any:
    providers = [
        {name: None if hints is None else [_hint(hint) for hint in hints] for name, hints in provider.items()}
        for provider in case["providers"]
    ]
    statuses = {numa: NUMAStatus(status) for numa, status in enumerate(case["numaStatus"])}
    admission = admit(
        NUMATopologyPolicy(case["policy"]),
        mask_of(case["numaNodes"]),
        providers,
        Exclusivity(case["exclusivePolicy"] == "Required", statuses),
    )
    return {
        "affinity": _nodes(admission.hint),
        "preferred": admission.hint.is_preferred,
        "unsatisfied": admission.hint.is_unsatisfied,
        "score": admission.hint.score,
        "admit": admission.status.is_success,
        "reasons": list(admission.status.reasons),
    }


def _hint(flat: Case) -> NUMATopologyHint:
    nodes = None if flat["affinity"] is None else mask_of(flat["affinity"])
    return NUMATopologyHint(nodes, flat["preferred"], flat["score"], flat["unsatisfied"])


def _refusal(status: Status) -> Case:
    return {"code": status.code.word, **({"reason": status.message} if status.reasons else {})}


def numa_policy(case: Case) -> Any:
    return {
        "prefilter": _prefilter,
        "filter": _filter,
        "nodeCPUBindPolicy": lambda c: {"policy": _node_policy(c["nodeLabels"], c["kubeletPolicy"])},
        "mergeTopologyPolicy": _merge,
        "resourceSpecWriteback": _writeback,
    }[case["kind"]](case)


def _node_policy(node_labels: dict[str, str], kubelet: Case | None) -> Any:
    decoded = None if kubelet is None else msgspec.convert(kubelet, KubeletCPUManagerPolicy)
    return cpu_bind_policy(node_labels, decoded)


def _plan(case: Case) -> policy.PodPlan:
    pod = from_builtins(case["pod"], Pod)
    amounts = resource_list.without_zeros(pod_resources.requests(pod))
    requests = resource_vector.integers(resource_list.to_wire(amounts))
    return policy.plan_pod(pod, case["defaultCPUBindPolicy"], requests)


def _prefilter(case: Case) -> Any:
    plan = _plan(case)
    if not plan.status.is_success:
        return _refusal(plan.status)
    return {
        "code": "Success",
        "bind": plan.binds_cpus,
        "requiredPolicy": plan.required_policy,
        "policy": plan.policy,
        "exclusivePolicy": plan.exclusive,
        "numCPUs": plan.cpu_count,
    }


def _filter(case: Case) -> Any:
    plan = _plan(case)
    if plan.status.is_skip:
        return {"code": "Success"}
    if not plan.status.is_success:
        return _refusal(plan.status)
    node_labels = case["node"]["labels"]
    facts = NodeTopologyFacts(
        TopologyOptions(machine(case["topology"])),
        zones={0: {}},  # NUMA admission is another area
        bind_policy=_node_policy(node_labels, case["kubeletPolicy"]),
        numa_policy=policy.node_numa_policy(node_labels),
    )
    terms = terms_of(plan, facts)
    status = terms.check(None, facts.cpu_ratio)
    if status.is_success and terms.binding.is_required and not terms.policy:
        held = node_allocation_of([{"cpuset": cpus} for cpus in case.get("existingCPUSets", ())])
        status = allocate(facts.state(held), terms.request, None).status
    return _refusal(status)


def _merge(case: Case) -> Any:
    node = policy.node_numa_policy(
        {labels.NODE_NUMA_TOPOLOGY_POLICY: case["nodeLabelPolicy"]},
        NUMATopologyPolicy(case["kubeletTopologyPolicy"]),
    )
    decision = policy.merge_numa_policies(node, policy.numa_policy_of(case["podPolicy"]))
    return {"policy": decision.policy} if decision.status.is_success else {"error": decision.status.message}


def _writeback(case: Case) -> Any:
    plan = policy.PodPlan(
        {"cpu": 4_000}, bool(case["podPolicy"]), case["podRequiredPolicy"], case["podPolicy"]
    )
    binding = policy.decide_binding(plan, _node_policy(case["nodeLabels"], case["kubeletPolicy"]))
    spec = policy.completed_spec(msgspec.convert(case["resourceSpec"], ResourceSpec), binding)
    return {"resourceSpec": {key: value for key, value in msgspec.to_builtins(spec).items() if value}}


def amplified_filter(case: Case) -> Any:
    usage = policy.BoundCPUUsage(
        quantity.milli(case["nodeAllocatableCPU"]),
        quantity.milli(case["nodeRequestedCPU"]),
        case["pinnedCPUs"],
    )
    ratio = case["cpuAmplificationRatio"]
    status = policy.check_amplified(quantity.milli(case["podCPU"]), case["podCpuset"], usage, ratio)
    return {"fits": status.is_success, "reason": status.message}


def numa_score(case: Case) -> Any:
    strategy = msgspec.convert(case["strategy"], NUMAScoringStrategy)
    request = resource_vector.integers(case["podRequests"])
    node = NodeUsage(
        resource_vector.integers(case["nodeAllocatable"]),
        resource_vector.integers(case["nodeRequested"]),
        case["cpuAmplificationRatio"],
        case["pinnedCPUs"],
    )
    binds = case["podCpuset"]
    if case["kind"] == "node":
        return {"score": score.node_score(strategy, node, request, binds_cpus=binds)}
    capacity = {zone["node"]: resource_vector.integers(zone["capacity"]) for zone in case["zones"]}
    allocated = {zone["node"]: resource_vector.integers(zone["allocated"]) for zone in case["zones"]}
    # Only which zones and whether there are CPUs counts.
    allocation = Allocation({numa: {} for numa in case["allocatedZones"]}, cpus=1 if binds else 0)
    return {"score": score.numa_score(strategy, node, capacity, allocated, request, allocation)}


def _same_or_error(expected: Any, actual: Any) -> bool:
    """The reasons of a refusal are informative."""
    if expected.get("error"):
        return bool(actual.get("error")) and expected.get("reasons", []) in ([], actual["reasons"])
    return bool(expected == actual)


def _same_but_json_errors(expected: Any, actual: Any) -> bool:
    """Texts about broken JSON are each language's own."""
    if expected.get("code") == "Error":
        return bool(actual.get("code") == "Error")
    return bool(expected == actual)


ADAPTERS = {
    "numa-topology-options": topology_options,
    "numa-available": available,
    "numa-allocate": numa_allocate,
    "numa-hints-generate": hints_generate,
    "numa-hints-merge": hints_merge,
    "numa-policy": numa_policy,
    "numa-amplified-filter": amplified_filter,
    "numa-score": numa_score,
}
COMPARE = {
    "numa-hints-generate": _same_hints,
    "numa-allocate": _same_or_error,
    "numa-policy": _same_but_json_errors,
}
