"""Runs the cases kept in `tests/vectors/cases/`, one test per case, through the same adapters."""

from pathlib import Path
from typing import Any

import pytest

from tests.vectors.runner import find_adapters, find_areas, run_case

FOUND = find_adapters()
AREAS = find_areas(Path(__file__).parent / "cases")


def cases() -> list[Any]:
    return [
        pytest.param(area.name, case, id=f"{area.name}/{case['name']}")
        for area in AREAS
        if area.name in FOUND.adapters
        for case in area.cases
    ]


@pytest.mark.parametrize(("area", "case"), cases())
def test_the_answer_is_the_expected_one(area: str, case: dict[str, Any]) -> None:
    outcome = run_case(area, case, FOUND)
    assert not outcome.problem, outcome.problem
    assert (outcome.deviation is not None) == ("ours" in case), "our copy says what we answer instead"


def test_all_adapters_can_be_imported() -> None:
    assert FOUND.broken == {}


def test_every_area_in_the_project_has_an_adapter() -> None:
    assert AREAS, "no cases found"
    assert [area.name for area in AREAS if area.name not in FOUND.adapters] == []
