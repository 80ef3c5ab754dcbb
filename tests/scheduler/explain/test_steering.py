"""Nodes that plugins plan or prefer, explained."""

import json
from typing import Any

import pytest

from koordinator.scheduler.engine.results import Placed, Unplaced
from koordinator.scheduler.explain.answer import PodVerdict
from koordinator.scheduler.explain.decide import explain
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler import world
from tests.scheduler.explain.builders import Bench
from tests.scheduler.extending import Desk
from tests.scheduler.test_transformers import Planner, planned


def hinted(bench: Bench, names: list[str], *, cpu: str = "1") -> PodInfo:
    body = world.pod("web", cpu=cpu)
    hint = json.dumps({"preferredNodeNames": names})
    body["metadata"]["annotations"] = {"scheduling.koordinator.sh/scheduling-hint": hint}
    return bench.of(body)


def test_preferred_nodes_that_do_not_take_the_pod_are_reported() -> None:
    bench = Bench().node("full", cpu="1").node("large", cpu="64")

    answer = bench.ask(hinted(bench, ["full", "gone"], cpu="2"))

    assert answer.node == "large"
    assert "preferred nodes that do not take it: full, gone" in answer.notes


def test_the_nominated_node_goes_before_a_preferred_one_as_in_the_cycle() -> None:
    bench = Bench().node("small", cpu="2").node("large", cpu="64")
    pod = hinted(bench, ["small"])
    bench.engine.nominations.set(pod, "large")

    answer = bench.ask(pod)

    assert answer.node == "large"
    result = bench.cycle(pod)
    assert isinstance(result, Placed) and result.node_name == "large"


def test_remedies_are_offered_although_nodes_were_preferred() -> None:
    bench = Bench().node("full", cpu="1")

    answer = bench.ask(hinted(bench, ["full"], cpu="2"))

    assert answer.verdict is PodVerdict.UNSCHEDULABLE
    assert any(each.kind == "requests" for each in answer.remedies)
    result = bench.cycle(hinted(bench, ["full"], cpu="2"))
    assert isinstance(result, Unplaced) and result.status.message == answer.message


@pytest.mark.parametrize(
    ("plan", "node"),
    [
        pytest.param({"node": "b"}, "b", id="a planned node that takes it"),
        pytest.param({"node": "small"}, "", id="one that does not, although others would"),
        pytest.param({"refuse": "the job has no room"}, "", id="a planner that refuses it"),
    ],
)
def test_a_planned_pod_is_told_what_the_cycle_does(plan: dict[str, Any], node: str) -> None:
    desk = Desk(Planner).nodes("a", "b", cpu="32").nodes("small", cpu="1")
    body = planned("p", plan, cpu="2")

    answer = explain(desk.engine, desk.info(body))
    result = desk.run(body)

    assert answer.node == node
    if isinstance(result, Placed):
        assert result.node_name == node
    else:
        assert answer.message == result.status.message
        assert answer.rejected_by == sorted(result.rejected_by)
        assert "Planner" in answer.sentence
        assert answer.remedies == []
