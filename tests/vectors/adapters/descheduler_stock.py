"""Area `descheduler-stock-plugins`."""

from typing import Any

from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.descheduler.plugins.stock import (
    duplicates,
    failed_pods,
    node_taints,
    pod_life_time,
    too_many_restarts,
    topology_balance,
)
from tests.vectors.adapters.descheduler_small import ORIGIN_S, nodes_of, on_node, pods_of


def stock(case: dict[str, Any]) -> Any:
    return PLUGINS[case["plugin"]](case)


def any_pod(_: Pod) -> bool:
    return True


def names(pods: list[Pod]) -> list[str]:
    return [pod.metadata.name for pod in pods]


def spread(case: dict[str, Any]) -> Any:
    found = topology_balance.balance(case["domain_sizes"], case["max_skew"])
    return {
        "evicted_total": sum(found.moved),
        "sizes_after": found.sizes,
        "evicted_per_domain": found.moved,
    }


def crowded(case: dict[str, Any]) -> Any:
    counts = case["identical_pods_per_node"]
    total, feasible = sum(counts), case["feasible_nodes"]
    return {"evicted_per_node": [duplicates.surplus(count, total, feasible) for count in counts]}


def life_time(case: dict[str, Any]) -> Any:
    args = from_builtins(case["args"], pod_life_time.PodLifeTimeArgs)
    pod_life_time.check(args)
    found = pod_life_time.victims(args, pods_of(case["pods"]), any_pod, ORIGIN_S + case["now"])
    return {"evicted_in_order": names(found)}


def failed(case: dict[str, Any]) -> Any:
    args = from_builtins(case["args"], failed_pods.RemoveFailedPodsArgs)
    found = failed_pods.victims(args, pods_of(case["pods"]), any_pod, ORIGIN_S + case["now"])
    return {"evicted": sorted(names(found))}


def restarts(case: dict[str, Any]) -> Any:
    args = from_builtins(case["args"], too_many_restarts.TooManyRestartsArgs)
    too_many_restarts.check(args)
    return {"evicted_in_order": names(too_many_restarts.victims(args, pods_of(case["pods"]), any_pod))}


def taints(case: dict[str, Any]) -> Any:
    args = from_builtins(case["args"], node_taints.NodeTaintsArgs)
    node_taints.check(args)
    pods = pods_of(case["pods"])
    found = [
        pod
        for node in nodes_of(case["nodes"])
        for pod in node_taints.victims(args, node, on_node(node, pods), any_pod)
    ]
    return {"evicted": sorted(names(found))}


PLUGINS = {
    "RemovePodsViolatingTopologySpreadConstraint": spread,
    "RemoveDuplicates": crowded,
    "PodLifeTime": life_time,
    "RemoveFailedPods": failed,
    "RemovePodsHavingTooManyRestarts": restarts,
    "RemovePodsViolatingNodeTaints": taints,
}

ADAPTERS = {"descheduler-stock-plugins": stock}
