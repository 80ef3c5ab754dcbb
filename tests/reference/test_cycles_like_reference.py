"""Whole scheduling cycles of the shipped profile end as with koord-scheduler's own plugins: what filters say of each
node, every plugin's score, what the pod gets where it goes."""

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.go_programs import Ask, Missing
from tests.reference import original
from tests.reference.cycles import cases, compare, ours
from tests.searches import examples

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1800)]

CASES = 60
"""Of each kind; `make test-reference` leads more."""


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    try:
        with original.answering(compare.PROGRAM) as running:
            yield running
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("kind", cases.NAMES)
def test_cycles_end_alike(ask: Ask, kind: str) -> None:
    for seed in range(examples(CASES)):
        assert not (lines := compare.differences(ask, kind, seed)), f"{kind} {seed}: {lines}"


@pytest.mark.parametrize("kind", cases.NAMES)
def test_clusters_of_a_kind_are_worth_comparing(kind: str) -> None:
    """Else nothing would be."""
    seen: Counter[str] = Counter()
    for seed in range(60):
        for answer in ours.answer(cases.question_of(kind, seed, 1_800_000_000.0), 1_800_000_000.0):
            seen.update(verdict["code"] for verdict in answer["nodes"].values())
            seen.update((answer["annotations"] or {}).keys())
    gets = {"cpus": "resource-status", "gpus": "device-allocated", "reservations": "reservation-allocated"}
    wanted = [gets[kind]] if kind in gets else list(gets.values()) if kind == "all" else []
    assert all(seen[f"scheduling.koordinator.sh/{each}"] > 5 for each in wanted), seen
    assert seen["Success"] > 20 and len(seen) > 1
