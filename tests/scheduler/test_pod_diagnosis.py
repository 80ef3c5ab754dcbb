"""What an attempt leaves behind as data, and the line of the dump."""

import json

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.clock import FixedClock
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.engine.cycle import Unplaced
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.observe.debugging import diagnose, dump_line
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
    told = "no new claims to deallocate, preemption: 0/4 nodes are available: "
    assert found.preemption_diagnosis.failed_message.startswith(told)
    line = dump_line(asked, found)
    head, _, text = line.partition("$")
    assert head == "dump diagnosis for default/job, targetPod: default/asked/u-1: "
    assert json.loads(text)["topologyKeyToExplain"] == "rack"
