"""What the state machine does unless it imitates the gaps of upstream (deliberate differences)."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.vectors.adapters.scheduler_gang import Play, same_states

CASES = Path(__file__).parents[2] / "vectors" / "cases" / "gang-state.json"
Json = dict[str, Any]


def cases(*, with_note: bool) -> list[Json]:
    found: list[Json] = msgspec.json.decode(CASES.read_bytes())["cases"]
    return [case for case in found if ("note" in case) is with_note]


@pytest.mark.parametrize("case", cases(with_note=False), ids=lambda case: case["name"])
def test_the_default_answers_every_case_that_pins_no_gap(case: Json) -> None:
    played = Play(case["input"].get("args") or {}, as_reference=False).run(case["input"]["steps"])
    assert same_states(case["expected"], played)


@pytest.mark.parametrize("case", cases(with_note=True), ids=lambda case: case["name"])
def test_the_default_does_better_where_a_case_pins_a_gap(case: Json) -> None:
    played = Play(case["input"].get("args") or {}, as_reference=False).run(case["input"]["steps"])
    assert not same_states(case["expected"], played)
