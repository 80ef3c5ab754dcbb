"""The promise of explanations: what they foretell is what the cycle does."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.scheduler.engine.results import Placed, Unplaced
from koordinator.scheduler.explain.answer import PodAnswer, PodVerdict
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.explain.builders import Bench, stock_config

ZONE = "topology.kubernetes.io/zone"
TAINTS = [
    {"key": "dedicated", "value": "db", "effect": "NoSchedule"},
    {"key": "spot", "effect": "PreferNoSchedule"},
]

nodes = st.lists(
    st.fixed_dictionaries(
        {
            "cpu": st.sampled_from(["1", "2", "4"]),
            "labels": st.fixed_dictionaries(
                {ZONE: st.sampled_from("ab"), "disk": st.sampled_from(["ssd", "hdd"])}
            ),
            "taints": st.lists(st.sampled_from(TAINTS), max_size=1),
            "unschedulable": st.booleans(),
            "pods": st.sampled_from([1, 3, 110]),
        }
    ),
    max_size=6,
)
SPREAD = {
    "maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"app": "x"}},
}  # fmt: skip
APART = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": "x"}}}
        ]
    }
}
PINNED = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}
            ]
        }
    }
}
pods = st.lists(
    st.fixed_dictionaries(
        {
            "cpu": st.sampled_from(["0", "500m", "1", "3"]),
            "priority": st.sampled_from([0, 10]),
            "spec": st.sampled_from(
                [
                    {},
                    {"nodeSelector": {"disk": "ssd"}},
                    {"topologySpreadConstraints": [SPREAD]},
                    {"affinity": APART},
                    {"affinity": PINNED},
                    {"preemptionPolicy": "Never"},
                    {"schedulingGates": [{"name": "later"}]},
                ]
            ),
        }
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(nodes, pods, st.booleans(), st.integers(0, 3))
def test_the_next_cycle_does_what_the_explanation_says(
    shapes: list[dict[str, Any]], wanted: list[dict[str, Any]], shipped: bool, seed: int
) -> None:
    bench = Bench(None if shipped else stock_config(), seed=seed)
    for number, shape in enumerate(shapes):
        bench.node(f"node-{number}", **shape)
    for number, parts in enumerate(wanted):
        spec = parts["spec"]
        pod = bench.info(f"pod-{number}", cpu=parts["cpu"], priority=parts["priority"], **spec)
        answer = bench.ask(pod, nodes=None)
        if answer.verdict is PodVerdict.GATED:
            continue
        result = bench.cycle(pod)

        check(answer, result)

        if isinstance(result, Unplaced) and result.nominated_node:
            bench.engine.nominations.set(pod, result.nominated_node)
        if isinstance(result, Placed):
            look_again(bench, pod, result)


def check(answer: PodAnswer, result: Placed | Unplaced) -> None:
    if isinstance(result, Placed):
        assert (answer.verdict, answer.node) == (PodVerdict.SCHEDULABLE, result.node_name)
        assert answer.feasible_count == result.feasible_count
        assert [each for each in answer.nodes if each.fits]
        return
    assert answer.verdict in (PodVerdict.UNSCHEDULABLE, PodVerdict.PREEMPTION)
    assert answer.message == result.status.message
    assert set(answer.rejected_by) == result.rejected_by
    assert (answer.verdict is PodVerdict.PREEMPTION) == bool(result.nominated_node)
    if result.nominated_node:
        assert answer.preemption is not None
        assert answer.preemption.nominated_node == result.nominated_node
        assert answer.preemption.nodes[0].node == result.nominated_node


def look_again(bench: Bench, pod: PodInfo, placed: Placed) -> None:
    """A pod that was just placed is explained as bound, on the node that it has."""
    answer = bench.ask(pod)
    assert (answer.verdict, answer.node) == (PodVerdict.BOUND, placed.node_name)
