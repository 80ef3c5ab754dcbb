"""Checks of nodes: reports, Batch resources, objects of nodes that are gone."""

import msgspec
import pytest

from koordinator.api.apps import DaemonSet
from koordinator.api.core import ConfigMap, Node, Pod
from koordinator.api.device import Device
from koordinator.api.meta import Object
from koordinator.api.node_metric import NodeMetric
from koordinator.api.slo import NodeSLO
from koordinator.doctor.finding import FindingSeverity
from tests.doctor import builders
from tests.doctor.builders import config, decoded, findings, healthy, node, node_metric, only, snapshot


def with_metric(metric: NodeMetric) -> dict[type[Object], list]:
    return builders.changed(NodeMetric, lambda _: metric)


def test_a_node_without_node_metric_is_reported() -> None:
    found = only("reports", snapshot(builders.changed(NodeMetric, lambda _: None)))

    assert (found.object, found.problem) == ("Node node-0", "no NodeMetric")


def test_a_new_node_has_time_for_its_first_report() -> None:
    objects = healthy()
    objects[Node] = [node(batch_milli=None, creationTimestamp=builders.at(60))]
    objects[NodeMetric] = [node_metric(seconds_ago=None)]

    assert findings("reports", snapshot(objects)) == []
    assert findings("batch", snapshot(objects)) == []


@pytest.mark.parametrize(
    ("seconds_ago", "words"),
    [
        (None, "never reported"),
        (100.0, ""),
        (300.0, "no longer reports"),
        (-3_600.0, "its report has a time in the future"),
    ],
)
def test_reports_must_be_recent_and_not_from_the_future(seconds_ago: float | None, words: str) -> None:
    found = findings("reports", snapshot(with_metric(node_metric(seconds_ago=seconds_ago))))

    assert [words in each.problem for each in found] == ([True] if words else [])


def test_the_cause_of_silence_is_looked_for() -> None:
    objects = with_metric(node_metric(seconds_ago=3_600))
    assert "although koordlet runs on the node" in only("reports", snapshot(objects)).problem

    objects[Pod] = []
    objects[Node] = [node()]
    tainted = msgspec.structs.replace(
        objects[Node][0],
        spec=msgspec.convert({"taints": [{"key": "gpu", "effect": "NoSchedule"}]}, type(node().spec)),
    )
    objects[Node] = [tainted]
    assert (
        "no koordlet pod is on the node (taints: gpu:NoSchedule)"
        in only("reports", snapshot(objects)).problem
    )

    objects[DaemonSet] = []
    assert only("reports", snapshot(objects)).problem == "no longer reports"


@pytest.mark.parametrize(
    ("cpu", "words"),
    [("2", ""), ("-2", "negative"), ("900", "above 2 times"), ("many", "cannot be true")],
)
def test_absurd_figures_are_reported(cpu: str, words: str) -> None:
    found = findings("reports", snapshot(with_metric(node_metric(cpu=cpu))))

    assert [words in each.problem for each in found] == ([True] if words else [])


def test_a_node_without_policy_is_reported() -> None:
    assert only("reports", snapshot(builders.changed(NodeSLO, lambda _: None))).problem == "no NodeSLO"


def test_withdrawn_batch_resources_tell_the_limit() -> None:
    objects = with_metric(node_metric(seconds_ago=1_200))
    objects[Node] = [node(batch_milli=None)]

    found = only("batch", snapshot(objects))

    assert found.severity is FindingSeverity.ERROR
    assert found.problem == (
        "batch resources withdrawn: no report for more than 15 minutes (degradeTimeMinutes)"
    )


def test_batch_resources_that_are_due_but_absent_point_to_the_manager() -> None:
    found = only("batch", snapshot(builders.changed(Node, lambda _: node(batch_milli=None))))

    assert "although co-location is on and the report is recent" in found.problem


def test_batch_resources_that_should_be_gone_are_reported() -> None:
    stale = with_metric(node_metric(seconds_ago=1_200))
    off = builders.changed(ConfigMap, lambda _: config(colocation_config='{"enable": false}'))

    for objects in (stale, off):
        assert "still offers batch resources" in only("batch", snapshot(objects)).problem


def test_many_nodes_with_one_trouble_are_one_finding() -> None:
    objects = healthy()
    objects[Node] = [node(f"node-{index:04}") for index in range(1_000)]
    objects[NodeMetric] = []
    objects[NodeSLO] = [decoded(NodeSLO, {}, name=each.metadata.name) for each in objects[Node]]

    found = only("reports", snapshot(objects))

    assert found.object == "1000 Nodes"
    assert len(found.objects) == 100


def test_virtual_nodes_have_no_agent_and_are_left_out() -> None:
    objects = healthy()
    objects[Node].append(node("virtual", batch_milli=None, labels={"type": "virtual-kubelet"}))

    assert findings("reports", snapshot(objects)) == []
    assert findings("batch", snapshot(objects)) == []


@pytest.mark.parametrize("view", [NodeMetric, NodeSLO, Device])
def test_objects_of_nodes_that_are_gone_are_reported(view: type[Object]) -> None:
    objects = healthy()
    objects[view] = [*objects[view], decoded(view, {}, name="gone")]

    found = only("leftovers", snapshot(objects))

    assert found.object == f"{view.resource.kind} gone"
    assert found.remedy[-1] == f"kubectl delete {view.resource.plural} gone"


def test_batch_resources_are_not_judged_by_a_configuration_that_nobody_understands() -> None:
    objects = builders.changed(ConfigMap, lambda _: config(colocation_config='{"enable": "no"}'))

    assert findings("batch", snapshot(objects)) == []
