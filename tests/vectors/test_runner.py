"""The runner itself: what it finds, compares and reports."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from koordinator.api.quantity import QuantityError
from tests.vectors import compare, runner
from tests.vectors.__main__ import main
from tests.vectors.runner import Adapters, difference, find_areas, run_case


def case(expected: Any, **given: Any) -> dict[str, Any]:
    return {"name": "one", "input": given, "expected": expected}


def refuse(given: dict[str, Any]) -> Any:
    raise QuantityError("x")


def test_an_adapters_own_error_is_an_answer_and_any_other_a_failure() -> None:
    found = Adapters({"a": refuse, "b": lambda given: 1 // 0}, {})
    assert not run_case("a", case({"error": True}), found).problem
    assert "refused" in run_case("a", case({"value": 1}), found).problem
    assert "ZeroDivisionError" in run_case("b", case({"error": True}), found).problem


def test_an_area_can_bring_its_own_comparison() -> None:
    echo = {"a": lambda given: given}
    assert run_case("a", case({"cpu": "1"}, cpu="1000m"), Adapters(echo, {})).problem
    assert not run_case(
        "a", case({"cpu": "1"}, cpu="1000m"), Adapters(echo, {"a": compare.quantities})
    ).problem


def test_the_ready_made_comparisons() -> None:
    assert compare.exact({"a": [1, {"b": 2.0}]}, {"a": [1.0, {"b": 2}]})
    assert not compare.exact({"a": 1}, {"a": True})
    assert not compare.exact({"a": None}, {})
    assert not compare.quantities(["1Gi"], ["1G"])
    assert compare.tolerant(0.01)({"a": 100}, {"a": 100.5})
    assert not compare.tolerant(0.01)({"a": 100}, {"a": 110})
    assert compare.subset({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}, "d": 3})
    assert not compare.subset({"a": [1]}, {"a": [1, 2]})


def test_a_difference_names_only_the_members_that_differ() -> None:
    assert difference({"a": 1, "b": 2}, {"a": 1, "b": 3}) == "b: expected 2, got 3"


def test_the_command_counts_by_area_and_fails_when_a_case_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for area, value in (("good", 1), ("bad", 2), ("unknown", 1)):
        folder = tmp_path / area
        folder.mkdir()
        content = {"area": area, "cases": [case({"value": value}, value=1)]}
        (folder / f"{area}.json").write_text(json.dumps(content))
    (tmp_path / "other.json").write_text("[]")
    adapters = Adapters({"good": lambda given: given, "bad": lambda given: given}, {})
    monkeypatch.setattr("tests.vectors.__main__.find_adapters", lambda: adapters)
    assert [area.name for area in find_areas(tmp_path)] == ["bad", "good", "unknown"]

    result = CliRunner().invoke(main, [str(tmp_path)])
    assert result.exit_code == 1
    assert "bad: 0 passed, 1 failed\n  one\n    value: expected 2, got 1\n" in result.output
    assert "unknown: no adapter yet" in result.output
    assert result.output.endswith("1 passed, 1 failed\n")

    quiet = CliRunner().invoke(main, [str(tmp_path), "-q", "-a", "good"])
    assert quiet.exit_code == 0
    assert quiet.output == "good: 1 passed, 0 failed\n1 passed, 0 failed\n"


def test_adapters_are_found_by_themselves() -> None:
    assert "api-quantity" in runner.find_adapters().adapters
