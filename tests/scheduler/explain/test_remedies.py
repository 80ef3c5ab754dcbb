"""What would help is computed, and doing it does help."""

import msgspec
import pytest

from koordinator.scheduler.explain.answer import PodAnswer, PodVerdict, Remedy
from tests.scheduler.explain.builders import Bench, stock_config

TAINT = {"key": "dedicated", "value": "db", "effect": "NoSchedule"}


def remedy(answer: PodAnswer, kind: str) -> Remedy:
    return next(each for each in answer.remedies if each.kind == kind)


def test_a_request_is_lowered_to_what_the_freest_node_has() -> None:
    bench = Bench(stock_config()).node("a", cpu="4").node("b", cpu="6")
    bench.running("x", "a", cpu="1")

    found = remedy(bench.ask(bench.info("web", cpu="8")), "requests")

    assert found.change == "lower the cpu request from 8 to at most 6"
    assert (found.node_count, found.examples) == (1, ["b"])


def test_following_the_advice_on_requests_makes_the_pod_fit() -> None:
    bench = Bench(stock_config()).node("a", cpu="3500m")
    bench.running("x", "a", cpu="1200m")

    assert "at most 2.3" in remedy(bench.ask(bench.info("web", cpu="3")), "requests").change

    assert bench.ask(bench.info("web", cpu="2300m")).verdict is PodVerdict.SCHEDULABLE
    assert bench.ask(bench.info("web", cpu="2301m")).verdict is PodVerdict.UNSCHEDULABLE


def test_two_resources_that_are_short_on_the_same_node_are_lowered_together() -> None:
    bench = Bench(stock_config()).node("a", cpu="4", memory="4Gi")

    found = remedy(bench.ask(bench.info("web", cpu="8", memory="6Gi")), "requests")

    assert found.change == (
        "lower the cpu request from 8 to at most 4 and the memory request from 6Gi to at most 4Gi"
    )


def test_one_term_of_the_node_selector_is_named_with_the_nodes_it_opens() -> None:
    bench = Bench(stock_config())
    bench.node("a", labels={"disk": "ssd"}).node("b", labels={"disk": "ssd"}).node("c", labels={"gpu": "yes"})

    answer = bench.ask(bench.info("web", nodeSelector={"disk": "ssd", "gpu": "yes"}))

    changes = [(each.change, each.node_count) for each in answer.remedies if each.kind == "nodeSelector"]
    assert ("remove gpu=yes from the node selector", 2) in changes
    assert ("remove disk=ssd from the node selector", 1) in changes


def test_an_untolerated_taint_is_written_as_kubectl_writes_it() -> None:
    bench = Bench(stock_config()).node("a", taints=[TAINT]).node("b", taints=[TAINT])

    found = remedy(bench.ask(bench.info("web")), "toleration")

    assert (found.change, found.node_count) == ("tolerate dedicated=db:NoSchedule", 2)


def test_two_changes_are_combined_when_none_alone_is_enough() -> None:
    bench = Bench(stock_config()).node("a", taints=[TAINT])

    answer = bench.ask(bench.info("web", nodeSelector={"disk": "ssd"}))

    [found] = [each for each in answer.remedies if "+" in each.kind]
    assert found.change == ("remove disk=ssd from the node selector and tolerate dedicated=db:NoSchedule")


def test_room_to_free_is_reported_for_the_nearest_node() -> None:
    bench = Bench(stock_config()).node("near", cpu="4").node("far", cpu="4")
    bench.running("x", "near", cpu="2")
    bench.running("y", "far", cpu="4")

    rooms = [each.change for each in bench.ask(bench.info("web", cpu="3")).remedies if each.kind == "room"]

    assert rooms == ["free 1 core on near", "free 3 cores on far"]


def test_pods_that_are_being_deleted_are_worth_waiting_for() -> None:
    bench = Bench(stock_config()).node("n", cpu="4")
    leaving = bench.info("old", cpu="4", nodeName="n")
    meta = msgspec.structs.replace(leaving.pod.metadata, deletion_timestamp="2023-11-14T22:13:20Z")
    gone = msgspec.structs.replace(leaving, pod=msgspec.structs.replace(leaving.pod, metadata=meta))
    bench.engine.table.assign(gone, "n")

    found = remedy(bench.ask(bench.info("web", cpu="2")), "wait")

    assert found.change == "wait until 1 pods that are being deleted have left n"


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        pytest.param(
            {
                "topologySpreadConstraints": [
                    {
                        "maxSkew": 1,
                        "topologyKey": "zone",
                        "whenUnsatisfiable": "DoNotSchedule",
                        "labelSelector": {},
                    }
                ]
            },
            "topologySpread",
            id="a spread constraint",
        ),
        pytest.param(
            {
                "affinity": {
                    "podAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [
                            {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "nobody"}}}
                        ]
                    }
                }
            },
            "podAffinity",
            id="a pod affinity term",
        ),
    ],
)
def test_terms_about_other_pods_can_be_what_is_in_the_way(spec: dict[str, object], kind: str) -> None:
    bench = Bench(stock_config()).node("n", cpu="4")

    assert remedy(bench.ask(bench.info("web", **spec)), kind).node_count == 1


def test_a_full_cluster_is_told_that_another_node_helps() -> None:
    bench = Bench(stock_config()).node("n", cpu="4")
    bench.running("x", "n", cpu="4")

    assert "like n" in remedy(bench.ask(bench.info("web", cpu="2")), "node").change


def test_nothing_is_offered_when_nothing_helps() -> None:
    bench = Bench(stock_config()).node("n", cpu="0")

    answer = bench.ask(bench.info("web", cpu="2", memory="0"))

    assert [each for each in answer.remedies if each.kind != "requests"] == []
    assert answer.remedies == []
