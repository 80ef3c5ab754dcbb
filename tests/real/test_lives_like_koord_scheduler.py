"""Random lives of Reservations and quotas end with Koordinator's own scheduler (Go) as with ours."""

import pytest

from tests.real import binaries, given
from tests.real.lives import cases, compare
from tests.reference import original

CASES, SERVERS = 2, 2
"""So many of each name, which `make test-lives` leads more of; one on each server at a time."""


@pytest.mark.timeout(600)
def test_lives_are_the_same_under_both_schedulers() -> None:
    why = "needs servers of its own" if given.FILE else binaries.why_missing()
    scheduler = original.found_command("koord-scheduler")
    if why or scheduler is None:
        pytest.skip(why or "no koord-scheduler: install Go and run `make test-lives`, which builds it")
    lives = [cases.life_of(name, seed) for seed in range(CASES) for name in cases.OF_KOORDINATOR]
    with compare.servers(SERVERS, is_scheduled=True, koord_scheduler=scheduler) as kubeconfigs:
        found = compare.differing(kubeconfigs, lives, 1)

    told = [f"{life['name']}: {line}" for life, lines in found for line in lines]
    assert not told, "\n".join(told)
