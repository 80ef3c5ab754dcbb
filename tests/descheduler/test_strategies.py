"""Stock strategies as plugins: utilization by requests, and spreading over topology domains."""

from typing import Any

import msgspec
import pytest

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.errors import ProtocolError
from koordinator.descheduler.measurements import Observation
from koordinator.descheduler.plugin import Plugin
from koordinator.descheduler.plugins.stock import default_evictor, placement, strategies
from koordinator.descheduler.plugins.stock.default_evictor import DefaultEvictorArgs
from tests.descheduler.builders import NOW_S, handle, node, pod
from tests.vectors.adapters.descheduler_plugins import drive


def evicted(
    plugin: type[strategies.StockPlugin], args: dict[str, Any], nodes: list[Node], pods: list[Pod]
) -> list[str]:
    """Names of the pods that a pass asks for."""
    made: Any = plugin(plugin.read(args), handle())
    by_node = {n.metadata.name: [p for p in pods if p.spec.node_name == n.metadata.name] for n in nodes}
    found: list[str] = []
    start = made.balance if hasattr(made, "balance") else made.deschedule
    drive(start(Observation(NOW_S, nodes, by_node, {})), lambda one: not found.append(one.pod.metadata.name))
    return found


LOW = {"thresholds": {"cpu": 20, "pods": 20}, "targetThresholds": {"cpu": 50, "pods": 50}}


def test_full_nodes_give_up_pods_until_they_are_at_the_target() -> None:
    pods = [pod(f"p{i}", "full", cpu="2", priority=i) for i in range(4)]
    assert evicted(strategies.LowNodeUtilization, LOW, [node("full"), node("idle")], pods) == ["p0", "p1"]


@pytest.mark.parametrize(
    "nodes",
    [
        [node("full"), node("idle", unschedulable=True)],
        [node("full"), node("idle", taints=[{"key": "k", "effect": "NoSchedule"}])],
        [node("full")],
    ],
    ids=["cordoned", "tainted", "none"],
)
def test_without_a_node_that_could_take_them_all_stay(nodes: list[Node]) -> None:
    pods = [pod(f"p{i}", "full", cpu="2") for i in range(4)]
    assert evicted(strategies.LowNodeUtilization, LOW, nodes, pods) == []


def test_evictions_per_node_can_be_limited_and_the_room_of_idle_nodes_is_not_exceeded() -> None:
    pods = [pod(f"p{i}", "full", cpu="2") for i in range(4)]
    limited = {**LOW, "evictionLimits": {"node": 1}}
    assert len(evicted(strategies.LowNodeUtilization, limited, [node("full"), node("idle")], pods)) == 1
    small = [node("full"), node("idle", cpu="4")]
    assert len(evicted(strategies.LowNodeUtilization, LOW, small, pods)) == 1


def test_in_deviation_mode_the_average_counts() -> None:
    args = {
        "useDeviationThresholds": True,
        "thresholds": {"cpu": 10},
        "targetThresholds": {"cpu": 10},
    }
    pods = [pod(f"p{i}", "full", cpu="2") for i in range(4)]
    assert len(evicted(strategies.LowNodeUtilization, args, [node("full"), node("idle")], pods)) == 2


def test_nodes_with_few_requests_are_emptied_into_the_others() -> None:
    pods = [pod("stay", "busy", cpu="6"), pod("go1", "idle", cpu="1"), pod("go2", "idle", cpu="1")]
    args = {"thresholds": {"cpu": 30}}
    nodes = [node("busy"), node("idle")]
    assert sorted(evicted(strategies.HighNodeUtilization, args, nodes, pods)) == ["go1", "go2"]
    assert evicted(strategies.HighNodeUtilization, args, [node("idle")], pods) == []


def zoned(name: str, zone: str) -> Node:
    one = node(name)
    return msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, labels={"zone": zone}))


def labelled(one: Pod, labels: dict[str, str]) -> Pod:
    return msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, labels=labels))


def spread_pod(name: str, at: str, **spec: Any) -> Pod:
    constraint = {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
    return labelled(pod(name, at, topologySpreadConstraints=[constraint], **spec), {"app": "web"})


SPREAD = strategies.RemovePodsViolatingTopologySpreadConstraint


def test_a_zone_that_holds_too_many_gives_up_what_evens_them_out() -> None:
    nodes = [zoned("n1", "a"), zoned("n2", "b")]
    pods = [spread_pod(f"p{i}", "n1") for i in range(5)] + [spread_pod("q", "n2")]
    assert len(evicted(SPREAD, {}, nodes, pods)) == 2
    for kinds in (["ScheduleAnyway"], []):
        assert evicted(SPREAD, {"constraints": kinds}, nodes, pods) == []


def test_only_selected_pods_leave_a_zone_that_holds_too_many() -> None:
    nodes = [zoned("n1", "a"), zoned("n2", "b")]
    pods = [spread_pod(f"p{i}", "n1") for i in range(6)]
    marked = {"app": "web", "may-go": "yes"}
    pods[2] = msgspec.structs.replace(
        pods[2], metadata=msgspec.structs.replace(pods[2].metadata, labels=marked)
    )
    only = {"labelSelector": {"matchLabels": {"may-go": "yes"}}}
    assert len(evicted(SPREAD, {}, nodes, pods)) == 3
    assert evicted(SPREAD, only, nodes, pods) == ["p2"]


def test_a_constraint_without_a_selector_is_about_no_pods() -> None:
    nodes = [zoned("n1", "a"), zoned("n2", "b")]
    constraint = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    pods = [pod(f"p{i}", "n1", topologySpreadConstraints=[constraint]) for i in range(4)]
    assert evicted(SPREAD, {}, nodes, pods) == []
    keyed = [{**constraint, "labelSelector": {}}]
    pods = [pod(f"p{i}", "n1", topologySpreadConstraints=keyed) for i in range(4)]
    assert len(evicted(SPREAD, {}, nodes, pods)) == 2


def test_a_pod_that_prefers_nodes_leaves_a_full_zone_after_those_that_do_not() -> None:
    nodes = [zoned("n1", "a"), zoned("n2", "b")]
    wish = {"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}}
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}
    pods = [spread_pod("a", "n1"), spread_pod("b", "n1", affinity=affinity)]
    assert evicted(SPREAD, {}, nodes, pods) == ["a"]


def test_an_empty_zone_counts_and_one_without_room_takes_nobody() -> None:
    pods = [spread_pod(f"p{i}", "n1") for i in range(4)]
    nodes = [zoned("n1", "a"), zoned("n2", "b")]
    assert len(evicted(SPREAD, {}, nodes, pods)) == 2
    cordoned = msgspec.structs.replace(
        nodes[1], spec=msgspec.structs.replace(nodes[1].spec, unschedulable=True)
    )
    assert evicted(SPREAD, {}, [nodes[0], cordoned], pods) == []
    assert len(evicted(SPREAD, {"topologyBalanceNodeFit": False}, [nodes[0], cordoned], pods)) == 2


def test_pods_that_fit_elsewhere_go_first_even_if_all_may_go() -> None:
    nodes = [zoned("n1", "a"), zoned("n2", "b")]
    pods = [spread_pod("fits", "n1", priority=1), spread_pod("large", "n1", cpu="99", priority=2)]
    for needs_fit in (True, False):
        assert evicted(SPREAD, {"topologyBalanceNodeFit": needs_fit}, nodes, pods) == ["fits"]


def test_the_constraint_of_a_pod_that_goes_anyway_counts_and_the_pod_does_not() -> None:
    nodes = [zoned("n1", "a"), zoned("n2", "b")]
    web = {"app": "web"}
    plain = [labelled(pod(f"p{i}", "n1", priority=i), web) for i in range(2)]
    assert evicted(SPREAD, {}, nodes, plain) == []
    going = spread_pod("going", "n1")
    meta = msgspec.structs.replace(going.metadata, deletion_timestamp="2023-11-14T22:13:20Z")
    going = msgspec.structs.replace(going, metadata=meta)
    assert evicted(SPREAD, {}, nodes, [*plain, going]) == ["p1"]


def test_pods_leave_for_one_kind_of_affinity_after_the_other_and_once() -> None:
    nodes = [zoned("n1", "a"), zoned("n2", "a"), zoned("n3", "b")]
    in_b = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}
    required = {placement.REQUIRED: {"nodeSelectorTerms": [in_b]}}
    preferred = {placement.PREFERRED: [{"weight": 1, "preference": in_b}]}
    pods = [
        pod("prefers", "n1", affinity={"nodeAffinity": preferred}),
        pod("needs", "n2", affinity={"nodeAffinity": required}),
        pod("both", "n2", affinity={"nodeAffinity": required | preferred}),
    ]
    args = {"nodeAffinityType": [placement.REQUIRED, placement.PREFERRED]}
    assert evicted(strategies.RemovePodsViolatingNodeAffinity, args, nodes, pods) == [
        "needs",
        "both",
        "prefers",
    ]


def test_a_request_of_nothing_is_one_and_overhead_is_none() -> None:
    pods = [
        pod("stay", "busy", cpu="6"),
        pod("asks-for-none", "idle", cpu="0"),
        pod("overhead", "idle", overhead={"cpu": "1"}, containers=[{"name": "c"}]),
    ]
    args = {"thresholds": {"cpu": 30}, "evictionModes": ["OnlyThresholdingResources"]}
    nodes = [node("busy"), node("idle")]
    assert evicted(strategies.HighNodeUtilization, args, nodes, pods) == ["asks-for-none"]


def test_requests_of_a_resource_that_the_node_no_longer_has_are_more_than_it_has() -> None:
    wants = {"resources": {"requests": {"gpu": "1", "cpu": "6"}}, "name": "c"}
    pods = [pod(name, "full", containers=[wants], priority=at) for at, name in enumerate(("first", "second"))]
    idle = node("idle")
    has = msgspec.structs.replace(idle.status, allocatable={**idle.status.allocatable, "gpu": "9"})
    args = {"thresholds": {"cpu": 20, "gpu": 20}, "targetThresholds": {"cpu": 70, "gpu": 90}}
    nodes = [node("full"), msgspec.structs.replace(idle, status=has)]
    assert evicted(strategies.LowNodeUtilization, args, nodes, pods) == ["first", "second"]


def test_duplicates_have_no_label_selector() -> None:
    args = {"labelSelector": {"matchLabels": {"app": "nobody"}}}
    crowd = [pod(f"p{i}", "n1") for i in range(4)]
    assert len(evicted(strategies.RemoveDuplicates, args, [node("n1"), node("n2")], crowd)) == 2


@pytest.mark.parametrize(
    ("plugin", "args", "told"),
    [
        (strategies.LowNodeUtilization, {**LOW, "metricsUtilization": {}}, "metricsUtilization"),
        (strategies.LowNodeUtilization, {"thresholds": {"cpu": 1}}, "targetThresholds"),
        (strategies.LowNodeUtilization, {**LOW, "evictionLimits": {"node": -1}}, "evictionLimits.node"),
        (strategies.HighNodeUtilization, {"thresholds": {"cpu": 101}}, "thresholds.cpu"),
        (default_evictor.DefaultEvictor, {"minReplicas": -1}, "minReplicas"),
        (SPREAD, {"constraints": ["Never"]}, "constraints"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    plugin: type[Plugin], args: dict[str, Any], told: str
) -> None:
    with pytest.raises(ProtocolError, match=told):
        plugin.read(args)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({"podProtections": {"extraEnabled": ["Nobody"]}}, "extraEnabled"),
        ({"podProtections": {"defaultDisabled": ["DaemonSetPods"]}, "ignorePvcPods": True}, "older booleans"),
        ({"noEvictionPolicy": "Sometimes"}, "noEvictionPolicy"),
        ({"priorityThreshold": {"value": 2_000_000_001}}, "priorityThreshold.value"),
        ({"priorityThreshold": {"value": 1, "name": "high"}}, "only one of value and name"),
        (
            {
                "podProtections": {
                    "extraEnabled": ["PodsWithPVC"],
                    "config": {"PodsWithPVC": {"protectedStorageClasses": [{"name": "fast"}, {}]}},
                }
            },
            "one has no name",
        ),
    ],
)
def test_protections_that_make_no_sense_are_refused(args: dict[str, Any], told: str) -> None:
    with pytest.raises(ProtocolError, match=told):
        default_evictor.check(from_builtins(args, DefaultEvictorArgs))


def test_protections_are_the_defaults_with_what_is_switched() -> None:
    args = {"podProtections": {"extraEnabled": ["PodsWithPVC"], "defaultDisabled": ["FailedBarePods"]}}
    assert default_evictor.protections(from_builtins(args, DefaultEvictorArgs)) == {
        "PodsWithLocalStorage",
        "SystemCriticalPods",
        "DaemonSetPods",
        "PodsWithPVC",
    }
