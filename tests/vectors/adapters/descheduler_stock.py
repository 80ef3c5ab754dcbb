"""Area `descheduler-stock-plugins`."""

from typing import Any

from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.descheduler.plugins.stock import placement, pod_state
from tests.vectors.adapters.descheduler_small import ORIGIN_S, nodes_of, on_node, pods_of


def stock(case: dict[str, Any]) -> Any:
    return PLUGINS[case["plugin"]](case)


def any_pod(_: Pod) -> bool:
    return True


def names(pods: list[Pod]) -> list[str]:
    return [pod.metadata.name for pod in pods]


def spread(case: dict[str, Any]) -> Any:
    found = placement.balance(case["domain_sizes"], case["max_skew"])
    return {
        "evicted_total": sum(found.moved),
        "sizes_after": found.sizes,
        "evicted_per_domain": found.moved,
    }


def crowded(case: dict[str, Any]) -> Any:
    counts = case["identical_pods_per_node"]
    total, feasible = sum(counts), case["feasible_nodes"]
    return {"evicted_per_node": [placement.surplus(count, total, feasible) for count in counts]}


def life_time(case: dict[str, Any]) -> Any:
    args = from_builtins(case["args"], pod_state.PodLifeTimeArgs)
    pod_state.check_pod_life_time(args)
    found = pod_state.old_pods(args, pods_of(case["pods"]), any_pod, ORIGIN_S + case["now"])
    return {"evicted_in_order": names(found)}


def failed(case: dict[str, Any]) -> Any:
    args = from_builtins(case["args"], pod_state.RemoveFailedPodsArgs)
    found = pod_state.failed_pods(args, pods_of(case["pods"]), any_pod, ORIGIN_S + case["now"])
    return {"evicted": sorted(names(found))}


def restarts(case: dict[str, Any]) -> Any:
    args = from_builtins(case["args"], pod_state.TooManyRestartsArgs)
    pod_state.check_too_many_restarts(args)
    return {"evicted_in_order": names(pod_state.restarting_pods(args, pods_of(case["pods"]), any_pod))}


def taints(case: dict[str, Any]) -> Any:
    args = from_builtins(case["args"], placement.NodeTaintsArgs)
    placement.check_node_taints(args)
    pods = pods_of(case["pods"])
    found = [
        pod
        for node in nodes_of(case["nodes"])
        for pod in placement.misplaced_by_taints(args, node, on_node(node, pods), any_pod)
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
