"""Bills of shadow mode, as `koordinator explain shadow` adds them up and shows them."""

from typing import Any

import pytest

from koordinator.api.decode import from_builtins
from koordinator.api.node_metric import NodeMetric
from koordinator.cli import explain_shadow, explain_sources

HOUR = {"hour": "2026-11-24T03:00:00Z", "rounds": 3600}
VICTIM = {"pod": "batch/b1", "feature": "BEMemoryEvict", "reason": "memory", "at": "2026-11-24T03:10:00Z"}


def metric(name: str, bill: dict[str, Any] | None) -> NodeMetric:
    body: dict[str, Any] = {"metadata": {"name": name}, "status": {}}
    if bill is not None:
        body["status"]["extensions"] = {"shadow": bill}
    return from_builtins(body, NodeMetric)


def bill(cores: float, evicted: int = 0) -> dict[str, Any]:
    hours = [{**HOUR, "heldBackCoreSeconds": cores}, {**HOUR, "heldBackCoreSeconds": cores}]
    found: dict[str, Any] = {"strategies": ["CPUSuppress"], "wouldHave": {"CPUSuppress": hours}, "did": {}}
    if evicted:
        found["wouldHave"]["MemoryEvict"] = [{**HOUR, "evictedCount": evicted, "evicted": [VICTIM]}]
    return found


def test_bills_of_nodes_add_up_by_strategy() -> None:
    found = explain_shadow.document(
        [metric("a", bill(1800.0, 2)), metric("b", bill(900.0)), metric("c", None)]
    )

    assert [each["node"] for each in found["nodes"]] == ["a", "b"]
    assert found["wouldHave"]["CPUSuppress"]["heldBackCoreSeconds"] == 5400.0
    assert found["wouldHave"]["MemoryEvict"]["evictedCount"] == 2 and not found["did"]


def test_a_node_is_shown_hour_by_hour_with_the_pods_that_would_have_gone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(node: str, _: str) -> list[NodeMetric]:
        return [metric(node or "a", bill(1800.0, 2))]

    monkeypatch.setattr(explain_sources, "node_metrics", read)
    explain_shadow.explain("a", "", "text")
    told = capsys.readouterr().out
    for words in ("in shadow now: CPUSuppress", "1 core-h", "0.5 core-h", "would have evicted batch/b1"):
        assert words in told
    explain_shadow.explain("", "", "text")
    assert "By node, in shadow" in capsys.readouterr().out


def test_without_bills_it_says_how_to_get_some(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(node: str, _: str) -> list[NodeMetric]:
        return [metric("a", None)]

    monkeypatch.setattr(explain_sources, "node_metrics", read)
    explain_shadow.explain("a", "", "text")
    assert "shadow-config" in capsys.readouterr().out
