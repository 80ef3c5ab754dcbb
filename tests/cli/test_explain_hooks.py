"""Modes in which hooks reach containers, as `koordinator explain hooks` counts and shows them."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from koordinator.api.decode import from_builtins
from koordinator.api.node_metric import NodeMetric
from koordinator.cli import explain_sources
from koordinator.cli.main import main

BY_NRI = {"nri": True, "proxy": False, "reconciler": True}
BY_PROXY = {"nri": False, "proxy": True, "reconciler": True}
LATE = {"nri": False, "proxy": False, "reconciler": True}


def metric(name: str, **hooks: Any) -> NodeMetric:
    extensions = {"hookDelivery": hooks} if hooks else {}
    return from_builtins({"metadata": {"name": name}, "status": {"extensions": extensions}}, NodeMetric)


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = {
        "a": metric("a", BatchResource=BY_NRI, CoreSched={"reconciler": True}),
        "b": metric("b", BatchResource=BY_PROXY, GPUEnvInject={"nri": False, "proxy": False}),
        "c": metric("c", BatchResource=LATE),
        "silent": metric("silent"),
        "odd": metric("odd", BatchResource="broken"),
    }

    def read(node: str, _: str) -> list[NodeMetric]:
        return [metrics[node]] if node else list(metrics.values())

    monkeypatch.setattr(explain_sources, "node_metrics", read)


def ask(*words: str) -> str:
    done = CliRunner().invoke(main, ["explain", "hooks", *words])
    assert done.exit_code == 0, done.output
    return done.output


def rows(table: str) -> dict[str, list[str]]:
    """Return the words behind each hook's name."""
    lines = [line.split() for line in table.splitlines()]
    return {words[0]: words[1:] for words in lines if words and words[0][0].isupper() and len(words) > 1}


def test_nodes_are_counted_by_the_earliest_mode_that_delivers_a_hook() -> None:
    found = json.loads(ask("-o", "json"))

    assert [each["node"] for each in found["nodes"]] == ["a", "b", "c"]
    assert found["hooks"] == {
        "BatchResource": {"nri": 1, "proxy": 1, "reconciler": 1, "nobody": 0},
        "CoreSched": {"nri": 0, "proxy": 0, "reconciler": 1, "nobody": 0},
        "GPUEnvInject": {"nri": 0, "proxy": 0, "reconciler": 0, "nobody": 1},
    }
    assert rows(ask())["BatchResource"] == ["1", "1", "1"]


def test_of_a_node_all_modes_are_told() -> None:
    told = ask("a")
    assert " ".join(rows(told)["BatchResource"]) == "by NRI, by the reconciler by the runtime proxy"
    assert " ".join(rows(ask("b"))["GPUEnvInject"]) == "by nobody by NRI, by the runtime proxy"


def test_an_agent_that_says_nothing_is_no_empty_table() -> None:
    assert "No word of hooks from node silent" in ask("silent")
    assert "No word of hooks from node odd" in ask("odd"), "nor is one that nobody understands"
