"""Expressions, definitions, custom resources and policies are judged as Kubernetes judges them.

Rare oddities are left: of a hundred cases one may differ. `python -m tests.real.custom` prints them.
"""

import ssl
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import go_programs
from tests.go_programs import Ask, Missing
from tests.real.custom import compare, definitions, expressions, policies, sides
from tests.real.custom.__main__ import program
from tests.real.custom.definitions import Draw
from tests.real.servers import Servers

CASES = {"expression": 3000, "definition": 500, "custom": 500}
POLICIES = 100
SEEN_S = 10.0
"""Until the real server has seen all policies and their parameters."""


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    try:
        path = program()
    except Missing as missing:
        pytest.skip(str(missing))
    with go_programs.answering(path) as found:
        yield found


@pytest.mark.parametrize("name", CASES)
def test_cases_are_judged_alike(ask: Ask, name: str) -> None:
    differing = {seed: lines for seed in range(CASES[name]) if (lines := compare.KINDS[name](ask, seed))}

    assert len(differing) <= CASES[name] / 100, differing


def test_cases_are_good_and_bad(ask: Ask) -> None:
    """Else little would be compared."""
    seen: Counter[str] = Counter()
    for seed in range(300):
        text = expressions.expression_of(seed)
        answer = ask({"kind": "expression", "expression": text, "values": expressions.VALUES})
        seen.update(answer.keys() & {"refused", "failed", "value"})
        made = definitions.definition_of(Draw("definition", seed), 0.1)
        causes = ask({"kind": "definition", "definition": made}).get("causes")
        seen["bad definition" if causes else "good definition"] += 1

    assert (
        min(seen[part] for part in ("refused", "failed", "value", "bad definition", "good definition")) > 20
    )


def test_a_difference_is_told() -> None:
    """By answers that are made up."""

    def ask(question: dict[str, object]) -> dict[str, object]:
        return (
            {"value": ["int", "4711"], "type": "int"} if question["kind"] == "expression" else {"causes": []}
        )

    assert len(compare.expression(ask, 1)) == 3
    assert any(compare.definition(ask, seed) for seed in range(20))


@pytest.fixture
def real(_servers: None, tmp_path: Path) -> Iterator[sides.Side]:
    servers = Servers(tmp_path)
    try:
        servers.start(controllers=False)
        trust = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
        trust.load_cert_chain(*sides.credentials(servers.kubeconfig))
        yield sides.Side(servers.url, trust)
    finally:
        servers.close()


def test_policies_judge_writes_alike(real: sides.Side) -> None:
    cases = [policies.case_of(seed) for seed in range(POLICIES)]
    with sides.ours() as mine:
        ours, theirs = policies.prepared(mine, cases), policies.prepared(real, cases)
        time.sleep(SEEN_S)
        ours = [*ours, *policies.written(mine, cases)]
        theirs = [*theirs, *policies.written(real, cases)]

    differing = [
        (number % POLICIES, *pair)
        for number, answers in enumerate(zip(theirs, ours, strict=True))
        for pair in zip(*answers, strict=True)
        if pair[0] != pair[1]
    ]
    assert differing == []
