"""Pods that were bound to the node and do not fit it."""

from typing import Any

import pytest

from koordinator.local.processes import process_node
from koordinator.local.processes.pod_spec import Probe
from koordinator.local.processes.probing import Streak
from tests.local.processes.pods import container, pod

OFFERED: dict[str, Any] = {"cpu": "2", "memory": "1Gi", "pods": "3", "kubernetes.io/batch-cpu": "1000"}


def wants(name: str, **requests: str) -> Any:
    named = {key.replace("batch_cpu", "kubernetes.io/batch-cpu"): text for key, text in requests.items()}
    return pod(container(requests=named), name=name).view


@pytest.mark.parametrize(
    ("asked", "reason", "figures"),
    [
        ({"cpu": "1500m"}, "OutOfcpu", "cpu, requested: 1500, used: 1000, capacity: 2000"),
        ({"memory": "2Gi"}, "OutOfmemory", "memory, requested: 2147483648, used: 0, capacity: 1073741824"),
        ({"batch_cpu": "1001"}, "OutOfkubernetes.io/batch-cpu", "requested: 1001, used: 0, capacity: 1000"),
    ],
)
def test_a_pod_that_does_not_fit_is_refused_with_the_figures(
    asked: dict[str, str], reason: str, figures: str
) -> None:
    refused = process_node.refusal(wants("new", **asked), [wants("old", cpu="1")], OFFERED)

    assert refused is not None
    assert refused.reason == reason
    assert figures in refused.message and refused.message.startswith(
        "Pod was rejected: Node didn't have enough"
    )


def test_a_pod_that_just_fits_is_taken() -> None:
    assert process_node.refusal(wants("new", cpu="1", memory="1Gi"), [wants("old", cpu="1")], OFFERED) is None


def test_a_resource_that_the_node_does_not_know_is_not_asked_about() -> None:
    odd = pod(container(requests={"example.com/thing": "7"})).view

    assert process_node.refusal(odd, [], OFFERED) is None


def test_a_node_has_so_many_pods_and_no_more() -> None:
    others = [wants(f"old{number}") for number in range(3)]

    refused = process_node.refusal(wants("new"), others, OFFERED)

    assert refused is not None and refused.reason == "OutOfpods"


@pytest.mark.parametrize(
    ("answers", "verdicts"),
    [
        pytest.param("1", [True], id="one success is enough"),
        pytest.param("00", [None, None], id="two failures are not"),
        pytest.param("000", [None, None, False], id="three are"),
        pytest.param("001000", [None, None, True, None, None, False], id="a success begins anew"),
    ],
)
def test_answers_in_a_row_decide(answers: str, verdicts: list[bool | None]) -> None:
    streak = Streak(Probe(failure_threshold=3, success_threshold=1))

    assert [streak.add(answer == "1") for answer in answers] == verdicts
