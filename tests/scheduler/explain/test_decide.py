"""What an explanation says about pods that fit, that do not, and that are placed already."""

from typing import Any

from koordinator.scheduler.engine.results import Placed
from koordinator.scheduler.explain.answer import PodVerdict
from tests.scheduler import world
from tests.scheduler.explain.builders import Bench, stock_config

TAINT = {"key": "dedicated", "value": "db", "effect": "NoSchedule"}


def test_a_pod_that_fits_is_told_its_node_with_the_shares_of_the_score() -> None:
    bench = Bench(stock_config()).node("small", cpu="2").node("large", cpu="64")
    pod = bench.info("web", cpu="1")

    answer = bench.ask(pod)

    assert answer.verdict is PodVerdict.SCHEDULABLE
    assert (answer.node, answer.feasible_count, answer.node_count) == ("large", 2, 2)
    best = answer.scores[0]
    assert best.node == "large"
    assert best.total == sum(share.weight * share.normalised for share in best.shares)
    assert {share.plugin for share in best.shares} >= {"NodeResourcesFit", "TaintToleration"}


def test_every_plugin_that_objects_is_told_not_only_the_first() -> None:
    bench = Bench(stock_config()).node("full", cpu="1", taints=[TAINT], unschedulable=True)

    answer = bench.ask(bench.info("web", cpu="2", nodeSelector={"disk": "ssd"}), nodes=None)

    assert {each.plugin for each in answer.reasons} == {
        "NodeUnschedulable", "TaintToleration", "NodeAffinity", "NodeResourcesFit",
    }  # fmt: skip
    [node] = answer.nodes
    refusing = {each.plugin: each.reasons for each in node.plugins if each.verdict == "refuses"}
    assert refusing["NodeResourcesFit"] == ["Insufficient cpu"]
    assert refusing["TaintToleration"] == ["node(s) had untolerated taint(s)"]
    # The message is the scheduler's own: it stops at the first refusal.
    assert answer.message.startswith("0/1 nodes are available: 1 node(s) were unschedulable.")


def test_numbers_say_what_is_free_and_how_much_is_missing() -> None:
    bench = Bench(stock_config()).node("n", cpu="4", memory="8Gi")
    bench.running("other", "n", cpu="3", memory="1Gi")

    answer = bench.ask(bench.info("web", cpu="2500m", memory="1Gi"), nodes=("n",))

    cpu = next(line for line in answer.nodes[0].resources if line.resource == "cpu")
    assert (cpu.wanted, cpu.allocatable, cpu.requested, cpu.free, cpu.short_by) == (
        "2500m", "4", "3", "1", "1500m",
    )  # fmt: skip
    assert (answer.nodes[0].pod_count, answer.nodes[0].pods_max) == (1, 110)


def test_reasons_count_nodes_and_tell_where_nothing_else_objects() -> None:
    bench = Bench(stock_config())
    bench.node("a", cpu="1").node("b", cpu="1", taints=[TAINT]).node("c", cpu="8", taints=[TAINT])

    answer = bench.ask(bench.info("web", cpu="2"))

    counted = {each.plugin: (each.node_count, each.alone_count) for each in answer.reasons}
    assert counted == {"NodeResourcesFit": (2, 1), "TaintToleration": (2, 1)}


def test_preemption_is_foretold_with_victims_and_nothing_is_evicted() -> None:
    bench = Bench(stock_config()).node("n", cpu="4").node("m", cpu="1")
    bench.running("batch", "n", cpu="4", priority=1)
    pod = bench.info("urgent", cpu="2", priority=100)

    answer = bench.ask(pod)

    assert answer.verdict is PodVerdict.PREEMPTION
    assert answer.preemption is not None
    assert answer.preemption.nominated_node == "n"
    assert answer.preemption.nodes[0].pods == ["default/batch"]
    assert bench.engine.table.places() and len(bench.engine.nominations) == 0


def test_a_nominated_pod_keeps_its_room_from_less_important_ones() -> None:
    bench = Bench(stock_config()).node("n", cpu="4")
    bench.engine.nominations.set(bench.info("chosen", cpu="3", priority=50), "n")

    answer = bench.ask(bench.info("late", cpu="2", priority=1), nodes=("n",))

    assert answer.verdict is PodVerdict.UNSCHEDULABLE
    assert any("nominated" in line for each in answer.nodes[0].plugins for line in each.details)


def test_a_hinted_node_comes_before_the_scores() -> None:
    bench = Bench().node("small", cpu="2").node("large", cpu="64")
    body = world.pod("web", cpu="1")
    body["metadata"]["annotations"] = {
        "scheduling.koordinator.sh/scheduling-hint": '{"preferredNodeNames": ["gone", "small"]}'
    }
    pod = bench.of(body)

    answer = bench.ask(pod)

    assert answer.node == "small"
    result = bench.cycle(pod)
    assert isinstance(result, Placed) and result.node_name == "small"


def test_a_gated_pod_is_told_its_gates() -> None:
    bench = Bench(stock_config()).node("n")

    answer = bench.ask(bench.info("held", schedulingGates=[{"name": "quota"}]))

    assert answer.verdict is PodVerdict.GATED
    assert "quota" in answer.message


def test_a_bound_pod_is_told_which_nodes_score_better_now() -> None:
    bench = Bench(stock_config()).node("busy", cpu="4").node("idle", cpu="4")
    bench.running("neighbour", "busy", cpu="2")
    pod = bench.running("web", "busy", cpu="1", nodeName="busy")

    answer = bench.ask(pod)

    assert answer.verdict is PodVerdict.BOUND
    assert answer.node == "busy"
    assert answer.scores[0].node == "idle"
    assert "1 of 2 nodes that fit score better now" in answer.sentence


def test_a_bound_pod_that_would_not_be_placed_there_any_more_is_told_why() -> None:
    bench = Bench(stock_config()).node("n", cpu="4", unschedulable=True)
    pod = bench.running("web", "n", cpu="1", nodeName="n")

    answer = bench.ask(pod)

    assert "would not be placed any more: node(s) were unschedulable" in answer.sentence


def test_a_pod_of_another_scheduler_is_not_judged() -> None:
    bench = Bench(stock_config()).node("n")

    answer = bench.ask(bench.info("web", scheduler="someone-else"))

    assert answer.verdict is PodVerdict.FOREIGN
    assert "someone-else" in answer.sentence and "koord-scheduler" in answer.sentence


def test_a_cluster_without_nodes_says_so() -> None:
    bench = Bench(stock_config())

    answer = bench.ask(bench.info("web"))

    assert answer.message == "no nodes available to schedule pods"


def test_asking_leaves_no_trace() -> None:
    bench = Bench().node("n", cpu="4").node("m", cpu="2", taints=[TAINT])
    bench.running("batch", "n", cpu="4", priority=1)
    table = bench.engine.table
    pod = bench.info("urgent", cpu="2", priority=100, nodeSelector={"disk": "ssd"})
    before = _facts(bench)

    bench.ask(pod, nodes=None)
    bench.ask(next(iter(table.places())).pod, nodes=None)

    assert _facts(bench) == before


def _facts(bench: Bench) -> Any:
    table = bench.engine.table
    width = len(table.registry)
    return (
        table.changes.sequence,
        table.membership,
        table.requested[:width].tolist(),
        table.pod_count.tolist(),
        [(place.row, place.pod.key, place.assumed) for place in table.places()],
        bench.engine.cache.hit_count + bench.engine.cache.miss_count,
        len(bench.engine.nominations),
    )
