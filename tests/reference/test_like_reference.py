"""Decisions answer random questions as Koordinator's own functions do, or deviate as the table of deviations says."""

from collections.abc import Iterator

import pytest

from tests.go_programs import Ask, Missing
from tests.reference import original
from tests.reference.compare import AreaComparison, Questions, kept_areas
from tests.searches import examples
from tests.vectors.runner import find_adapters

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1800)]

CASES = 200
"""Of each area; `make test-reference` asks more."""
AREAS = kept_areas()
ADAPTERS = find_adapters()


@pytest.fixture(scope="module", params=original.GROUPS)
def group(request: pytest.FixtureRequest) -> Iterator[tuple[str, Ask]]:
    try:
        with original.answering(request.param) as ask:
            yield request.param, ask
    except Missing as missing:
        pytest.skip(str(missing))


def test_areas_answer_alike(group: tuple[str, Ask], subtests: pytest.Subtests) -> None:
    name, ask = group
    for area in original.areas_of(name):
        with subtests.test(area):
            compared = AreaComparison(ask, AREAS[area], ADAPTERS, Questions.of(name))
            assert compared.unlike_kept() == []
            for seed in range(examples(CASES)):
                assert not (problem := compared.difference(seed)), f"{area} {seed}: {problem}"
            assert compared.counts["same"] > CASES / 4
