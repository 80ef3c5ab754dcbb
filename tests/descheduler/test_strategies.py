"""Stock strategies as plugins: utilization by requests, and spreading over topology domains."""

from typing import Any

import msgspec
import pytest

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.errors import ProtocolError
from koordinator.descheduler.measurements import Observation
from koordinator.descheduler.plugins.stock import default_evictor, strategies
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


def spread_pod(name: str, at: str, **spec: Any) -> Pod:
    constraint = {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
    one = pod(name, at, topologySpreadConstraints=[constraint], **spec)
    return msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, labels={"app": "web"}))


SPREAD = strategies.RemovePodsViolatingTopologySpreadConstraint


def test_a_zone_that_holds_too_many_gives_up_what_evens_them_out() -> None:
    nodes = [zoned("n1", "a"), zoned("n2", "b")]
    pods = [spread_pod(f"p{i}", "n1") for i in range(5)] + [spread_pod("q", "n2")]
    assert len(evicted(SPREAD, {}, nodes, pods)) == 2
    assert evicted(SPREAD, {"constraints": ["ScheduleAnyway"]}, nodes, pods) == []


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


@pytest.mark.parametrize(
    ("plugin", "args", "told"),
    [
        (strategies.LowNodeUtilization, {**LOW, "metricsUtilization": {}}, "metricsUtilization"),
        (strategies.LowNodeUtilization, {"thresholds": {"cpu": 1}}, "targetThresholds"),
        (strategies.HighNodeUtilization, {"thresholds": {"cpu": 101}}, "thresholds.cpu"),
        (SPREAD, {"constraints": ["Never"]}, "constraints"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    plugin: type[strategies.StockPlugin], args: dict[str, Any], told: str
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
