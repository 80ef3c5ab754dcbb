"""Areas of the descheduler about its smaller balance plugins."""

import math
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from koordinator.api.core import Node, Pod
from koordinator.descheduler.measurements import Observation
from koordinator.descheduler.plugin import Action, EvictAction
from koordinator.descheduler.plugins import scale_down_bin_pack
from koordinator.descheduler.plugins.built_in import BUILT_IN
from koordinator.descheduler.plugins.custom_priority import CustomPriority
from koordinator.descheduler.plugins.fragmentation_aware import FragmentationAware
from koordinator.descheduler.plugins.scale_down_bin_pack import NodePods
from tests.descheduler.builders import handle
from tests.vectors.adapters.descheduler_small import ORIGIN_S, nodes_of, on_node, pods_of
from tests.vectors.compare import tolerant

R = TypeVar("R")
A = TypeVar("A", bound=Action)


def drive(steps: Generator[A, bool, R], accept: Callable[[A], bool]) -> R:
    """Run a pass, answering each action."""
    answer: bool | None = None
    while True:
        try:
            wanted = next(steps) if answer is None else steps.send(answer)
        except StopIteration as end:
            result: R = end.value
            return result
        answer = accept(wanted)


def seen(nodes: list[Node], pods: list[Pod]) -> Observation:
    return Observation(ORIGIN_S, nodes, {node.metadata.name: on_node(node, pods) for node in nodes}, {})


def custom_priority(case: dict[str, Any]) -> Any:
    rejects, failing = set(case["filter_rejects"]), set(case["evictions_that_fail"])
    nodes, pods = nodes_of(case["nodes"]), pods_of(case["pods"])
    plugin = CustomPriority(
        BUILT_IN["CustomPriority"].read(case["args"]), handle(lambda pod: pod.key not in rejects)
    )
    evicted, updates = [], []

    def accept(wanted: Action) -> bool:
        if isinstance(wanted, EvictAction):
            if wanted.pod.key in failing:
                return False
            evicted.append(wanted.pod.key)
        else:
            updates.append(f"{'cordon' if wanted.cordoned else 'uncordon'}:{wanted.node}")
        return True

    drive(plugin.balance(seen(nodes, pods)), accept)
    return {"evicted": evicted, "node_updates": updates}


def fragmentation(case: dict[str, Any]) -> Any:
    rejects, late = set(case["filter_rejects"]), set(case["pre_eviction_rejects"])
    nodes, pods = nodes_of(case["nodes"]), pods_of(case["pods"])
    plugin = FragmentationAware(
        BUILT_IN["FragmentationAware"].read(case["args"]),
        handle(lambda pod: pod.key not in rejects, lambda pod: pod.key not in late),
    )
    evicted: list[EvictAction] = []

    def accept(wanted: EvictAction) -> bool:
        evicted.append(wanted)
        return True

    drive(plugin.balance(seen(nodes, pods)), accept)
    return {"evicted": [one.pod.key for one in evicted], "reasons": [one.reason for one in evicted]}


def scale_down(case: dict[str, Any]) -> Any:
    groups = [pods_of(case[f"{name}_pods"]) for name in ("eligible", "skipped_target", "non_target")]
    found = [NodePods(node, *(on_node(node, group) for group in groups)) for node in nodes_of(case["nodes"])]
    weights = case["resource_weights"] or {"cpu": 1.0, "memory": 1.0}
    ranked = scale_down_bin_pack.rank(found, weights)
    return {
        "ranked": [
            {
                "pod": one.pod.key,
                "rank": one.rank,
                "node_score": "+inf" if math.isinf(one.node_score) else one.node_score,
            }
            for one in ranked
        ],
        "skipped_cost": scale_down_bin_pack.SKIPPED_COST,
    }


ADAPTERS = {
    "descheduler-custom-priority": custom_priority,
    "descheduler-fragmentation": fragmentation,
    "descheduler-scaledown-rank": scale_down,
}

COMPARE = {"descheduler-scaledown-rank": tolerant(1e-9)}
