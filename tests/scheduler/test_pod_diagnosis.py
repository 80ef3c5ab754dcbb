"""What an attempt leaves behind as data, and the line of the dump."""

import json

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.clock import FixedClock
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.engine.results import Unplaced
from koordinator.scheduler.observe.debugging import (
    diagnose,
    dump_line,
    failed_filters,
    score_table,
    top_scores,
)
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.world import node, pod

NOW_S = 1_700_000_000.0


def test_nodes_are_grouped_by_reason_plugin_and_whether_evictions_help() -> None:
    engine = Engine(default_plugins.shipped_config(), FixedClock(NOW_S), plugins=installed_plugins())
    for each in (node("a", cpu="1"), node("b", cpu="1"), node("c", cpu="1", unschedulable=True), node("d")):
        engine.table.set_node(from_builtins(each, Node))
    filler = PodInfo.of(from_builtins(pod("filler", cpu="3"), Pod), engine.table.registry)
    engine.table.assign(filler, "d")
    body = pod("asked", cpu="2")
    body["metadata"]["labels"] = {
        "scheduling.koordinator.sh/questioned-object-key": "default/job",
        "scheduling.koordinator.sh/topology-key-to-explain": "rack",
    }
    body["metadata"]["uid"] = "u-1"
    asked = PodInfo.of(from_builtins(body, Pod), engine.table.registry)
    profile = engine.profiles["koord-scheduler"]

    result = engine.cycle.run(profile, asked, profile.class_key(asked), 1, NOW_S)
    assert isinstance(result, Unplaced)
    found = diagnose(asked, result, engine.table, NOW_S)

    assert found.schedule_diagnosis is not None
    assert [
        (each.failed_plugin, each.reason, each.preempt_might_help, each.failed_nodes)
        for each in found.schedule_diagnosis.node_failed_details
    ] == [
        ("NodeResourcesFit", "Insufficient cpu", True, ["d"]),
        ("NodeResourcesFit", "Insufficient cpu", False, ["a", "b"]),
        ("NodeUnschedulable", "node(s) were unschedulable", False, ["c"]),
    ]
    assert found.preemption_diagnosis is not None
    reported = "no new claims to deallocate, preemption: 0/4 nodes are available: "
    assert found.preemption_diagnosis.failed_message.startswith(reported)
    line = dump_line(asked, found)
    head, _, text = line.partition("$")
    assert head == "dump diagnosis for default/job, targetPod: default/asked/u-1: "
    assert json.loads(text)["topologyKeyToExplain"] == "rack"


def test_the_best_nodes_come_first_equal_ones_by_name_with_the_part_of_each_plugin() -> None:
    engine = Engine(default_plugins.shipped_config(), FixedClock(NOW_S), plugins=installed_plugins())
    for name, cpu in (("b", "8"), ("a", "8"), ("large", "16"), ("full", "1")):
        engine.table.set_node(from_builtins(node(name, cpu=cpu), Node))
    profile = engine.profiles["koord-scheduler"]
    asked = PodInfo.of(from_builtins(pod("asked", cpu="2"), Pod), engine.table.registry)
    evaluation = Evaluation(profile, engine.table, asked)

    every = top_scores(evaluation, engine.table, 9)
    assert [each.node for each in every] == ["large", "a", "b"]
    assert all(each.total == sum(part for _, part in each.parts) for each in every)
    assert dict(every[0].parts)["TaintToleration"] == 300, "normalised, times its weight"
    assert top_scores(evaluation, engine.table, 2) == every[:2]
    assert top_scores(evaluation, engine.table, 0) == []
    reported = score_table(asked, every[:1]).splitlines()
    assert reported[0].startswith("| # | Pod | Node | Score | ")
    assert reported[2].startswith(f"| 0 | default/asked | large | {every[0].total} | ")
    assert [line.count("|") for line in reported] == [len(every[0].parts) + 5] * 3
    assert score_table(asked, []).splitlines()[0] == "| # | Pod | Node | Score |"
    lines = list(failed_filters(asked, evaluation, engine.table))
    assert lines == [
        "Failed to filter for Pod 'default/asked' on Node 'full', "
        "failedPlugin: NodeResourcesFit, reason: Insufficient cpu"
    ]


def test_a_pod_that_is_refused_as_a_whole_is_diagnosed_without_nodes() -> None:
    engine = Engine(default_plugins.shipped_config(), FixedClock(NOW_S), plugins=installed_plugins())
    engine.table.set_node(from_builtins(node("a"), Node))
    claim = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
    asked = PodInfo.of(from_builtins(pod("asked", volumes=[claim]), Pod), engine.table.registry)
    profile = engine.profiles["koord-scheduler"]

    result = engine.cycle.run(profile, asked, profile.class_key(asked), 1, NOW_S)
    assert isinstance(result, Unplaced) and result.evaluation is not None
    found = diagnose(asked, result, engine.table, NOW_S)
    assert found.is_root_cause_pod
    assert found.pre_filter_message == 'persistentvolumeclaim "data" not found'
    assert found.schedule_diagnosis is not None
    assert found.schedule_diagnosis.node_failed_details == []
    assert (found.questioned_key, found.topology_key_to_explain) == ("default/asked", "")
    assert list(failed_filters(asked, result.evaluation, engine.table)) == [
        "Failed to prefilter Pod 'default/asked', failedPlugin: VolumeRestrictions, "
        'reason: persistentvolumeclaim "data" not found'
    ]
