"""Checks of gangs and of the network that they are placed in."""

import json
from typing import Any

import pytest

from koordinator.api.core import Pod
from koordinator.api.meta import Object
from koordinator.api.network_topology import ClusterNetworkTopology
from koordinator.api.sigs import ElasticQuota, PodGroup
from koordinator.doctor.checks.all import examine
from koordinator.doctor.finding import Finding, FindingSeverity
from tests.doctor.builders import at, decoded, findings, healthy, node, only, snapshot

Objects = dict[type[Object], list[Any]]
LABEL = "pod-group.scheduling.sigs.k8s.io"
GANG = "gang.scheduling.koordinator.sh"
OLD_S = 3_600.0


def group(
    name: str = "train", minimum: int = 2, *, seconds_ago: float = OLD_S, phase: str = "", **annotations: str
) -> PodGroup:
    metadata = {
        "creationTimestamp": at(seconds_ago),
        "annotations": {f"{GANG}/{key.replace('_', '-')}": text for key, text in annotations.items()},
    }
    body = {"metadata": metadata, "spec": {"minMember": minimum}, "status": {"phase": phase}}
    return decoded(PodGroup, body, name=name, namespace="default")


def member(
    pod_name: str,
    gang: str = "train",
    *,
    by_label: bool = True,
    placed: bool = False,
    seconds_ago: float = OLD_S,
    scheduler: str = "koord-scheduler",
    **annotations: str,
) -> Pod:
    said = {f"{GANG}/{key.replace('_', '-')}": text for key, text in annotations.items()}
    if not by_label:
        said = {f"{GANG}/name": gang, **said}
    body = {
        "metadata": {
            "creationTimestamp": at(seconds_ago),
            "labels": {LABEL: gang} if by_label else {},
            "annotations": said,
        },
        "spec": {
            "schedulerName": scheduler,
            "nodeName": "node-0" if placed else "",
            "containers": [{"name": "main"}],
        },
        "status": {"phase": "Running" if placed else "Pending"},
    }
    return decoded(Pod, body, name=pod_name, namespace="default")


def reported(*objects: Object, check: str = "gangs") -> list[Finding]:
    found = healthy()
    for obj in objects:
        found.setdefault(type(obj), []).append(obj)
    return findings(check, snapshot(found))


def the_one(*objects: Object, check: str = "gangs") -> Finding:
    (found,) = reported(*objects, check=check)
    assert found.why and found.remedy
    return found


def test_gangs_that_are_complete_run_or_have_just_begun_are_fine() -> None:
    ps = json.dumps(["default/ps", "default/worker"])

    assert reported(group(), member("a"), member("b")) == []
    assert reported(group(), member("a", placed=True)) == [], "one member was deleted, and nobody waits"
    assert reported(group(seconds_ago=60)) == []
    assert reported(group(phase="Finished")) == [], "its pods are cleared away"
    assert reported(group(), member("a", seconds_ago=300)) == [], "members arrive over minutes"
    assert (
        reported(
            *(member(name, by_label=False, min_available="2", waiting_time="90s") for name in ("a", "b"))
        )
        == []
    )
    assert (
        reported(
            group("ps", 1, groups=ps), group("worker", 1, groups=ps), member("a", "ps"), member("b", "worker")
        )
        == []
    )


@pytest.mark.parametrize(
    ("objects", "about", "words"),
    [
        pytest.param(
            [group()], "PodGroup default/train", "it has no pods", id="a PodGroup that nobody joins"
        ),
        pytest.param(
            [group(minimum=4), member("a"), member("b")],
            "PodGroup default/train",
            "it needs 4 pods to start, but had only 2 for 60 minutes",
            id="fewer members than it needs",
        ),
        pytest.param(
            [member("a", by_label=False, min_available="4")],
            "gang default/train",
            "it needs 4 pods to start, but had only 1",
            id="fewer members than an annotation says",
        ),
        pytest.param(
            [group(minimum=0), member("a")],
            "PodGroup default/train",
            "spec.minMember is 0",
            id="a PodGroup without a minimum",
        ),
        pytest.param(
            [group(minimum=2, total_number="1"), member("a"), member("b")],
            "PodGroup default/train",
            "needs 2 pods to start, but its gang.scheduling.koordinator.sh/total-number is 1",
            id="a minimum above the total",
        ),
        pytest.param(
            [member("a"), member("b")],
            "2 Pods",
            "names PodGroup default/train, which does not exist",
            id="members of a PodGroup that is not there",
        ),
        pytest.param(
            [group(), member("a"), member("b", scheduler="default-scheduler")],
            "PodGroup default/train",
            "different schedulers: default-scheduler (1), koord-scheduler (1)",
            id="two schedulers",
        ),
        pytest.param(
            [group(), member("a"), member("b", by_label=False)],
            "PodGroup default/train",
            f"in different ways: annotation {GANG}/name (1), label {LABEL} (1)",
            id="label and annotation",
        ),
        pytest.param(
            [group(), member("a"), member("b", name="other")],
            "Pod default/b",
            "it names several gangs; only default/train is used",
            id="two gangs",
        ),
        pytest.param(
            [member("a", by_label=False, min_available="1"), member("b", by_label=False, min_available="2")],
            "gang default/train",
            f"different values of {GANG}/min-available: 1 (1), 2 (1)",
            id="two minimums",
        ),
        pytest.param(
            [member("a", by_label=False, min_available="two")],
            "Pod default/a",
            f"{GANG}/min-available: ",
            id="a minimum that is no number",
        ),
        pytest.param(
            [member("a", by_label=False)], "Pod default/a", f"{GANG}/min-available: missing", id="no minimum"
        ),
        pytest.param(
            [member("a", by_label=False, min_available="1", waiting_time="90")],
            "Pod default/a",
            f"{GANG}/waiting-time: ",
            id="a waiting time without a unit",
        ),
        pytest.param(
            [group(mode="strict"), member("a"), member("b")],
            "PodGroup default/train",
            f"{GANG}/mode: strict is none of Strict, NonStrict",
            id="a mode in lower case",
        ),
        pytest.param(
            [group(match_policy="always"), member("a"), member("b")],
            "PodGroup default/train",
            f"{GANG}/match-policy: always is none of",
            id="a match policy",
        ),
        pytest.param(
            [group(groups="default/ps"), member("a"), member("b")],
            "PodGroup default/train",
            f"{GANG}/groups: not JSON",
            id="groups that are no JSON",
        ),
        pytest.param(
            [group(network_topology_spec="{"), member("a"), member("b")],
            "PodGroup default/train",
            f"{GANG}/network-topology-spec: not JSON",
            id="a topology request that is no JSON",
        ),
        pytest.param(
            [group(groups='["default/ps", "default/train"]'), member("a"), member("b")],
            "PodGroup default/train",
            "its group names default/ps, which does not exist",
            id="a group with a gang that is not there",
        ),
    ],
)
def test_what_keeps_a_gang_from_starting_is_reported(objects: list[Object], about: str, words: str) -> None:
    found = the_one(*objects)

    assert found.object == about
    assert words in found.problem


def test_gangs_of_a_group_that_do_not_name_the_same_gangs_are_reported() -> None:
    both = json.dumps(["default/ps", "default/worker"])

    found = the_one(group("ps", 1, groups=both), group("worker", 1), member("a", "ps"), member("b", "worker"))

    assert found.object == "PodGroup default/ps"
    assert "default/ps, default/worker, but default/worker names another group" in found.problem


def spec(*layers: tuple[str, str, str]) -> list[dict[str, Any]]:
    return [
        {"topologyLayer": layer, "parentTopologyLayer": parent, "labelKey": [key] if key else []}
        for layer, parent, key in layers
    ]


BLOCKS = spec(("BlockLayer", "SpineLayer", "block"), ("NodeTopologyLayer", "BlockLayer", ""))
SPINES = spec(("SpineLayer", "", "spine"))


def network(
    layers: list[dict[str, Any]], name: str = "default", *, is_built: bool = True
) -> ClusterNetworkTopology:
    detail = {
        "topologyInfo": {"topologyLayer": "ClusterTopologyLayer", "topologyName": ""},
        "nodeNum": 1,
    }
    status = {"detailStatus": [detail]} if is_built else {}
    return decoded(
        ClusterNetworkTopology, {"spec": {"networkTopologySpec": layers}, "status": status}, name=name
    )


def wired(name: str, **labels: str) -> Object:
    return node(name, labels=labels)


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        (BLOCKS, "layer SpineLayer, the parent of BlockLayer, is not listed"),
        (SPINES, "NodeTopologyLayer is not listed"),
        ([*BLOCKS, *SPINES, *SPINES], "listed more than once: SpineLayer"),
        ([*BLOCKS, *SPINES, *spec(("RackLayer", "SpineLayer", "rack"))], "not above the nodes: RackLayer"),
        (
            spec(("NodeTopologyLayer", "A", ""), ("A", "B", "a"), ("B", "A", "b")),
            "layers form a cycle: A → B → A",
        ),
        ([*BLOCKS, *spec(("SpineLayer", "", ""))], "no labelKey for SpineLayer"),
    ],
)
def test_layers_that_are_no_chain_are_reported(layers: list[dict[str, Any]], words: str) -> None:
    found = the_one(network(layers), check="topology")

    assert (found.severity, found.object) == (FindingSeverity.ERROR, "ClusterNetworkTopology default")
    assert words in found.problem


def test_nodes_without_a_label_of_a_layer_have_no_place() -> None:
    found = healthy()
    key = type(wired("x"))
    found[key] = [wired("node-0", block="b1", spine="s1"), wired("node-1", block="b1")]
    found[ClusterNetworkTopology] = [network([*BLOCKS, *SPINES])]
    reported = only("topology", snapshot(found))
    assert (reported.object, "no label of SpineLayer (spine)" in reported.problem) == ("Node node-1", True)

    found[key] = [wired("node-0", spine="s1")]
    (notice,) = examine(snapshot(found), ["topology"]).findings
    assert notice.severity is FindingSeverity.NOTICE
    assert "a domain of its own" in notice.why

    found[key] = [wired("node-0", block="b1", spine="s1")]
    assert examine(snapshot(found), ["topology"]).passed == ["topology"]


def test_a_topology_that_nobody_follows_is_reported() -> None:
    layers = spec(("NodeTopologyLayer", "", ""))

    assert "only the one named default" in the_one(network(layers, "mine"), check="topology").problem
    assert "its status is empty" in the_one(network(layers, is_built=False), check="topology").problem


def test_a_gang_that_asks_for_a_network_that_is_not_there_is_reported() -> None:
    wish = json.dumps({"gatherStrategy": [{"layer": "RackLayer", "strategy": "MustGather"}]})
    gang = (group(network_topology_spec=wish), member("a"), member("b"))

    assert "there is no ClusterNetworkTopology default" in the_one(*gang).problem
    found = the_one(*gang, network([*BLOCKS, *SPINES]))
    assert "network layers that do not exist: RackLayer" in found.problem
    odd = group(network_topology_spec=wish.replace("Rack", "Spine").replace("MustGather", "Must"))
    assert "has unknown strategies: Must" in the_one(odd, *gang[1:], network([*BLOCKS, *SPINES])).problem


def test_pods_of_a_quota_that_does_not_exist_are_reported() -> None:
    key = "quota.scheduling.koordinator.sh/name"
    lost = decoded(
        Pod, {"metadata": {"labels": {key: "adds"}}, "status": {"phase": "Running"}}, name="a", namespace="x"
    )
    known = decoded(ElasticQuota, {"spec": {"max": {"cpu": "1"}}}, name="ads", namespace="x")

    found = the_one(lost, known, check="quotas")

    assert found.object == "Pod x/a"
    assert "names quota adds, which does not exist" in found.problem
