"""The table of deviations: documented, shown by cases, and no excuse for anything else."""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vectors import deviations
from tests.vectors.compare import exact
from tests.vectors.deviations import TABLE, deviation_of
from tests.vectors.deviations.question import Derived, Deviation, Question
from tests.vectors.deviations.unseen import UNSEEN
from tests.vectors.runner import find_adapters, find_areas, run_case

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs" / "deliberate-differences.md"
FOUND = find_adapters()
MORE = json.loads((HERE / "deviations" / "cases.json").read_text())
"""Cases for deviations that the given ones do not show; `expected` is what the reference answers."""

Json = dict[str, Any]


def deviating() -> list[tuple[str, Json]]:
    given = [
        (area.name, case) for area in find_areas(HERE / "cases") for case in area.cases if "ours" in case
    ]
    return given + [(case["area"], case) for case in MORE]


CASES = [pytest.param(area, case, id=f"{area}/{case['name']}") for area, case in deviating()]


def without_our_answer(case: Json) -> Json:
    return {key: value for key, value in case.items() if key not in ("ours", "why")}


@pytest.mark.parametrize(("area", "case"), CASES)
def test_a_case_deviates_for_its_reason_with_or_without_our_answer_in_it(area: str, case: Json) -> None:
    for each in (case, without_our_answer(case)):
        outcome = run_case(area, each, FOUND)
        assert outcome.problem == ""
        assert outcome.deviation is not None
        assert outcome.deviation.name == case["why"]
        assert "reference" in outcome.answers
        assert "ours" in outcome.answers


@pytest.mark.parametrize(("area", "case"), CASES)
def test_a_deviation_excuses_no_other_answer_of_the_reference(area: str, case: Json) -> None:
    plain = without_our_answer(case)
    for path, wrong in wrong_answers(case["expected"]):
        outcome = run_case(area, {**plain, "expected": wrong}, FOUND)
        # It may pass: it is our answer, does not count, or is what another deviation alone would make of it.
        excuse = outcome.deviation and outcome.deviation.name
        assert excuse != case["why"], f"{path} may say anything"


def wrong_answers(value: Any) -> Iterator[tuple[str, Any]]:
    """The answer with one of its leaves changed, for each of them."""
    for path in leaves(value, ()):
        changed = copy.deepcopy(value)
        parent = changed
        for key in path[:-1]:
            parent = parent[key]
        if path:
            parent[path[-1]] = other_than(parent[path[-1]])
            yield "/".join(map(str, path)), changed


def leaves(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list) and value:
        keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield from leaves(value[key], (*path, key))
    else:
        yield path


def other_than(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1_000_000_007
        case str():
            return "9" * 17 if value[:1].isdigit() else f"{value}-x"
        case _:
            return ["x"] if isinstance(value, list) else {"x": "1"}


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.name}/{row.areas[0]}")
def test_a_deviation_is_documented_and_shown(row: Deviation) -> None:
    sections = DOCS.read_text().split("\n## ")
    section = next(text for text in sections if text.startswith(f"{row.section}\n"))
    assert row.words in " ".join(section.split())
    assert any(area in row.areas and case["why"] == row.name for area, case in deviating())


def documented(section: str) -> list[str]:
    """The rows or items of a section."""
    text = next(text for text in DOCS.read_text().split("\n## ") if text.startswith(f"{section}\n"))
    lines = text.replace("\n  ", " ").splitlines()
    return [
        line for line in lines if line.startswith(("| ", "* ")) and not line.startswith(("| what |", "| ---"))
    ]


@pytest.mark.parametrize("section", UNSEEN)
def test_each_documented_difference_of_gangs_is_in_the_table_or_says_why_not(section: str) -> None:
    rows, unseen = documented(section), UNSEEN[section]
    table = [each for each in TABLE if each.section == section]
    for row in rows:
        gaps = set(re.findall(r"\(G\d+\)", row))
        is_seen = any(
            each.words in row or gaps & {f"({gap})" for gap in re.findall(r"G\d+", each.why)}
            for each in table
        )
        reasons = [words for words in unseen if words in row]
        assert is_seen or len(reasons) == 1, row
    for words in unseen:
        assert sum(words in row for row in rows) == 1, words


def test_cases_say_our_answer_only_together_with_the_reason() -> None:
    names = {row.name for row in TABLE}
    for area in find_areas(HERE / "cases"):
        for case in area.cases:
            assert ("ours" in case) == ("why" in case), case["name"]
            assert case.get("why") is None or case["why"] in names, case["name"]


def made_up(name: str, reference: Any) -> Deviation:
    return Deviation(name, ("numbers",), f"because of {name}", "", "", reference)


@pytest.mark.parametrize(
    ("expected", "name"),
    [
        (6, "one more"),
        (50, "tenfold"),
        (60, "one more, tenfold"),
        (-5, "the other sign"),
        (-60, "one more, tenfold, the other sign"),
        (-61, None),
        (61, None),
    ],
)
def test_the_fewest_deviations_explain_a_case_together(
    monkeypatch: pytest.MonkeyPatch, expected: int, name: str | None
) -> None:
    rows = (
        made_up("one more", Derived(lambda case, ask: ask({"x": case["x"] + 1}))),
        made_up("no concern", Derived(lambda case, ask: None)),
        made_up("tenfold", Derived(lambda case, ask: 10 * ask(case))),
        made_up("the other sign", lambda question: bool(question.expected == -question.ours)),
    )
    monkeypatch.setattr(deviations, "TABLE", rows)
    found = deviation_of("numbers", Question({"x": 5}, expected, 5, lambda case: case["x"], exact))
    assert (found and found.name) == name
    assert found is None or found.why.count("because of") == found.name.count(",") + 1
