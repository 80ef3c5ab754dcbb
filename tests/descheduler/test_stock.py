"""Stock strategies that look at nodes and other pods."""

from typing import Any

import msgspec
import pytest

from koordinator.api import node_affinity
from koordinator.api.affinity import Affinity
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.errors import ProtocolError
from koordinator.api.meta import OwnerReference
from koordinator.descheduler.node_fit import Rooms, fits_elsewhere
from koordinator.descheduler.plugins.stock import placement, pod_state, strategies
from koordinator.descheduler.plugins.stock.common import CommonArgs
from tests.descheduler.builders import NOW_S, node, pod
from tests.vectors.adapters.descheduler_plugins import drive


def in_zone(name: str, zone: str) -> Node:
    one = node(name)
    return msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, labels={"zone": zone}))


def labelled(one: Pod, app: str) -> Pod:
    return msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, labels={"app": app}))


def away_from(app: str) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "zone"}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def any_pod(_: Pod) -> bool:
    return True


def test_of_two_pods_that_exclude_each_other_the_less_important_goes() -> None:
    nodes = [in_zone("n1", "a"), in_zone("n2", "a"), in_zone("n3", "b")]
    low = labelled(pod("low", "n1", affinity=away_from("web"), priority=1), "web")
    high = labelled(pod("high", "n2", affinity=away_from("web"), priority=2), "web")
    far = labelled(pod("far", "n3", affinity=away_from("web")), "web")
    steps = placement.anti_affinity_evictions(
        CommonArgs(), nodes, {"n1": [low], "n2": [high], "n3": [far]}, any_pod
    )
    assert [one.pod.metadata.name for one in drive(steps, lambda _: True)] == ["low"]


def test_a_refused_eviction_leaves_the_pair_and_tries_the_other() -> None:
    nodes = [in_zone("n1", "a")]
    pods = [labelled(pod(name, "n1", affinity=away_from("web")), "web") for name in ("a", "b")]
    steps = placement.anti_affinity_evictions(CommonArgs(), nodes, {"n1": pods}, any_pod)
    evicted = drive(steps, lambda one: one.pod.metadata.name == "b")
    assert [one.pod.metadata.name for one in evicted] == ["b"]


def zone_affinity(kind: str, zone: str) -> Affinity:
    match = {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}
    terms = {
        placement.REQUIRED: {"nodeSelectorTerms": [match]},
        placement.PREFERRED: [{"weight": 5, "preference": match}],
    }
    return from_builtins({"nodeAffinity": {kind: terms[kind]}}, Affinity)


@pytest.mark.parametrize("kind", [placement.REQUIRED, placement.PREFERRED])
def test_a_pod_leaves_a_node_only_if_one_that_it_wants_fits(kind: str) -> None:
    nodes = [in_zone("n1", "a"), in_zone("n2", "b")]
    one = pod("p", "n1", affinity=msgspec.to_builtins(zone_affinity(kind, "b")))
    elsewhere = placement.Preferences(nodes)

    def fits_b(candidate: Pod, there: Node) -> bool:
        return there.metadata.name == "n2" and node_affinity.selects(candidate.spec, there)

    assert placement.misplaced_by_affinity(kind, nodes[0], [one], elsewhere, fits_b, any_pod) == [one]
    assert not placement.misplaced_by_affinity(kind, nodes[0], [one], elsewhere, lambda *_: False, any_pod)
    assert not placement.misplaced_by_affinity(kind, nodes[1], [one], elsewhere, fits_b, any_pod)


def test_duplicates_beyond_an_even_share_go_and_the_first_stays() -> None:
    nodes = [node("n1"), node("n2")]
    crowd = [pod(f"p{i}", "n1") for i in range(4)]
    args = placement.RemoveDuplicatesArgs()
    found = placement.duplicates(args, nodes, {"n1": crowd}, any_pod)
    assert [one.metadata.name for one in found] == ["p2", "p3"]
    spared = placement.RemoveDuplicatesArgs(exclude_owner_kinds=["ReplicaSet"])
    assert not placement.duplicates(spared, nodes, {"n1": crowd}, any_pod)
    cramped = [node("n1"), node("n2", taints=[{"key": "k", "effect": "NoSchedule"}])]
    assert not placement.duplicates(args, cramped, {"n1": crowd}, any_pod)


def test_pods_that_may_not_be_evicted_are_no_duplicates() -> None:
    nodes = [node("n1"), node("n2")]
    pods_of = {
        "n1": [pod(f"p{i}", "n1") for i in range(4)],
        "n2": [pod("alone", "n2", owner="other")],
    }
    args = placement.RemoveDuplicatesArgs()
    asked: list[str] = []

    def may_evict(one: Pod) -> bool:
        asked.append(one.metadata.name)
        return one.metadata.name != "p0"

    found = placement.duplicates(args, nodes, pods_of, may_evict)
    assert [one.metadata.name for one in found] == ["p3"], "of three that count, an even share is two"
    assert asked == ["p0", "p1", "p2", "p3"], "of an owner without two pods on a node none can be too many"
    assert not placement.duplicates(args, nodes, pods_of, lambda one: one.metadata.name == "p0")


def test_only_pods_that_would_go_say_where_duplicates_can_go() -> None:
    nodes = [in_zone("n1", "a"), in_zone("n2", "a"), in_zone("n3", "b")]
    anywhere, *bound = (
        pod("p0", "n1"),
        *(pod(f"p{i}", "n1", nodeSelector={"zone": "a"}) for i in range(1, 6)),
    )
    args = placement.RemoveDuplicatesArgs()
    found = placement.duplicates(args, nodes, {"n1": [anywhere, *bound]}, any_pod)
    assert [one.metadata.name for one in found] == ["p3", "p4", "p5"], (
        "an even share of six on two nodes is three"
    )


@pytest.mark.parametrize(("entry", "counts"), [("k", True), ("k=", False), ("k=v", False)])
def test_a_taint_without_a_value_is_named_by_its_key_alone(entry: str, counts: bool) -> None:
    tainted = node("n1", taints=[{"key": "k", "effect": "NoSchedule"}])
    args = placement.NodeTaintsArgs(included_taints=[entry])
    assert bool(placement.misplaced_by_taints(args, tainted, [pod("p", "n1")], any_pod)) is counts


def with_status(one: Pod, **status: Any) -> Pod:
    body = msgspec.to_builtins(one)
    return from_builtins({**body, "status": {**body["status"], **status}}, Pod)


def test_finished_pods_stay_on_a_node_whose_taint_they_do_not_bear() -> None:
    tainted = node("n1", taints=[{"key": "k", "effect": "NoSchedule"}])
    running = pod("p", "n1")
    pods = [running, *(with_status(running, phase=phase) for phase in ("Succeeded", "Failed"))]
    assert placement.misplaced_by_taints(placement.NodeTaintsArgs(), tainted, pods, any_pod) == [running]


def test_an_empty_list_of_included_taints_includes_none() -> None:
    tainted = node("n1", taints=[{"key": "k", "effect": "NoSchedule"}])
    args = placement.NodeTaintsArgs(included_taints=[])
    assert not placement.misplaced_by_taints(args, tainted, [pod("p", "n1")], any_pod)


def test_pods_of_one_node_exclude_each_other_even_if_it_has_no_topology_label() -> None:
    nodes = [node("n1"), node("n2")]
    pods = [
        labelled(pod(name, at, affinity=away_from("web")), "web")
        for name, at in (("a", "n1"), ("b", "n1"), ("c", "n2"))
    ]
    pods_of = {"n1": pods[:2], "n2": pods[2:]}
    steps = placement.anti_affinity_evictions(CommonArgs(), nodes, pods_of, any_pod)
    assert [one.pod.metadata.name for one in drive(steps, lambda _: True)] == ["a"]


def test_a_pod_keeps_away_from_none_of_its_own_name() -> None:
    affinity = away_from("web")
    affinity["podAntiAffinity"][placement.REQUIRED][0]["namespaces"] = ["other"]
    one, nodes = pod("p", "n1", affinity=affinity), [in_zone("n2", "a")]
    for name, fits in (("p", True), ("q", False)):
        there = labelled(pod(name, "n2"), "web")
        there = msgspec.structs.replace(
            there, metadata=msgspec.structs.replace(there.metadata, namespace="other")
        )
        assert fits_elsewhere(one, Rooms(nodes, {"n2": [there]})) is fits


def test_each_owner_of_a_pod_has_its_even_share() -> None:
    nodes = [node("n1"), node("n2")]

    def owned(name: str, at: str, *owners: str) -> Pod:
        references = [{"kind": "ReplicaSet", "name": one, "uid": one} for one in owners]
        one = pod(name, at)
        return msgspec.structs.replace(
            one,
            metadata=msgspec.structs.replace(
                one.metadata, owner_references=from_builtins(references, list[OwnerReference])
            ),
        )

    crowd = [owned(f"p{i}", "n1", "a", "b") for i in range(4)]
    args = placement.RemoveDuplicatesArgs()
    alone = placement.duplicates(args, nodes, {"n1": crowd}, any_pod)
    assert [one.metadata.name for one in alone] == ["p2", "p3"], (
        "each once, although both owners have too many"
    )
    more = [owned(f"q{i}", "n2", "a") for i in range(2)]
    found = placement.duplicates(args, nodes, {"n1": crowd, "n2": more}, any_pod)
    assert [one.metadata.name for one in found] == ["p3", "p2"], (
        "six of `a` make three a node, four of `b` two"
    )


def test_a_reason_that_is_not_told_is_none() -> None:
    one = with_status(pod("p"), phase="Failed")
    args = pod_state.RemoveFailedPodsArgs(min_pod_lifetime_seconds=0, reasons=[""])
    assert not pod_state.failed_pods(args, [one], any_pod, NOW_S)


@pytest.mark.parametrize(
    ("field", "goes"), [("initContainerStatuses", True), ("ephemeralContainerStatuses", False)]
)
def test_how_an_ephemeral_container_exited_says_nothing(field: str, goes: bool) -> None:
    one = with_status(pod("p"), **{field: [{"state": {"terminated": {"exitCode": 3, "reason": "Error"}}}]})
    by_code = pod_state.PodLifeTimeArgs(
        exit_codes=[3], including_init_containers=True, including_ephemeral_containers=True
    )
    assert bool(pod_state.old_pods(by_code, [one], any_pod, NOW_S)) is goes
    by_state = msgspec.structs.replace(by_code, exit_codes=[], states=["Error"])
    assert pod_state.old_pods(by_state, [one], any_pod, NOW_S)


def test_arguments_that_ask_for_nothing_are_refused() -> None:
    with pytest.raises(ProtocolError, match="maxPodLifeTimeSeconds"):
        pod_state.check_pod_life_time(pod_state.PodLifeTimeArgs())
    with pytest.raises(ProtocolError, match="'Nonsense' is none of Completed"):
        pod_state.check_pod_life_time(pod_state.PodLifeTimeArgs(states=["Running", "Nonsense"]))
    with pytest.raises(ProtocolError, match="maxPodLifeTimeSeconds"):
        strategies.PodLifeTime.read({"maxPodLifeTimeSeconds": -1})
    with pytest.raises(ProtocolError, match="podRestartThreshold"):
        pod_state.check_too_many_restarts(pod_state.TooManyRestartsArgs())
    with pytest.raises(ProtocolError, match="nodeAffinityType"):
        placement.check_node_affinity(placement.NodeAffinityArgs(node_affinity_type=["sometimes"]))
