"""Random lives of migration jobs and of load go on under Koordinator's own descheduler (Go) as under ours."""

import pytest

from tests.real import binaries, given
from tests.real.lives import cases, compare
from tests.reference import original

CASES = 4
"""So many of each kind, side by side; `make test-lives` leads more."""


@pytest.mark.parametrize("kind", cases.OF_DESCHEDULER)
@pytest.mark.timeout(300)
def test_lives_are_the_same_under_both_deschedulers(kind: str) -> None:
    why = "needs servers of its own" if given.FILE else binaries.why_missing()
    descheduler = original.found_command("koord-descheduler")
    if why or descheduler is None:
        pytest.skip(why or "no koord-descheduler: install Go and run `make test-lives`, which builds it")
    lives = [cases.life_of(kind, seed) for seed in range(CASES)]
    with compare.servers(1, is_scheduled=False, koord_descheduler=(descheduler, kind)) as kubeconfigs:
        found = compare.differing(kubeconfigs, lives, CASES)

    told = [f"{life['name']}: {line}" for life, lines in found for line in lines]
    assert not told, "\n".join(told)
