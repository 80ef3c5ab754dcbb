"""Random lives of nodes, quotas and pods end with Koordinator's own manager (Go) as with ours."""

import pytest

from tests.real import binaries, given
from tests.real.lives import cases, compare
from tests.reference import original


@pytest.mark.timeout(600)
def test_lives_are_the_same_under_both_managers() -> None:
    """One of each kind, which `make test-lives` leads more of."""
    why = "needs servers of its own" if given.FILE else binaries.why_missing()
    manager = original.found_command("koord-manager")
    if why or manager is None:
        pytest.skip(why or "no koord-manager: install Go and run `make test-lives`, which builds it")
    lives = [cases.life_of(name, 0) for name in cases.OF_MANAGER]
    with compare.managers(manager) as (theirs, ours):
        found = compare.differing([theirs], lives, 1, [ours])

    told = [f"{life['name']}: {line}" for life, lines in found for line in lines]
    assert not told, "\n".join(told)
