"""Our stock plugins answer random cases as kube-scheduler's own do: codes, reasons, scores, victims."""

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.real import binaries
from tests.real.plugins import cases, compare, ours
from tests.real.plugins.compare import Comparison
from tests.real.plugins.program import Theirs

CASES = 300
"""Of each plugin; `make test-plugins` compares more."""


@pytest.fixture(scope="module")
def theirs() -> Iterator[Theirs]:
    if why := binaries.why_missing((binaries.PLUGINS,)):
        pytest.skip(why)
    with Theirs.started() as running:
        yield running


@pytest.mark.parametrize("name", cases.NAMES)
def test_a_plugin_answers_as_that_of_kube_scheduler_does(theirs: Theirs, name: str) -> None:
    for seed in range(CASES):
        assert compare.differences(theirs, cases.case_of(name, seed)) == [], f"{name} {seed}"


@pytest.mark.parametrize("name", cases.NAMES)
def test_cases_of_a_plugin_have_nodes_of_both_kinds(name: str) -> None:
    """Else nothing would be compared."""
    codes: Counter[str] = Counter()
    scored = evicted = 0
    for seed in range(100):
        answer = ours.answer(cases.case_of(name, seed))
        if not answer["error"]:
            codes.update(verdict["code"] for verdict in answer["nodes"].values())
            scored += any(
                share["normalised"] for each in answer["scores"].values() for share in each.values()
            )
            evicted += any(each["pods"] for each in answer["victims"].values())

    if name in ("NodeResourcesBalancedAllocation", "ImageLocality"):
        assert codes.keys() == {"Success"} and scored > 5
    elif name == cases.PREEMPTION:
        assert evicted > 5
    else:
        assert codes["Success"] > 20 and len(codes) > 1


def test_answers_that_differ_are_told_and_where() -> None:
    case = cases.case_of("NodeUnschedulable", 1)
    ours_alone = ours.answer(case)
    node = next(iter(ours_alone["nodes"]))
    refused = {"code": "Unschedulable", "reasons": ["no"], "plugin": "NodeName"}
    theirs = {**ours_alone, "leftOut": [], "chosen": "", "nodes": {**ours_alone["nodes"], node: refused}}

    lines = list(Comparison(case, theirs, ours_alone).differences())

    assert lines and all(line.startswith(f"{node}: ") for line in lines)
