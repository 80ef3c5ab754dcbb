"""Random lives end with kube-controller-manager as with our controllers: pods, statuses, events, slices, owners."""

import pytest

from tests.real import binaries, given
from tests.real.lives import cases, compare, lead, look

CASES = 4
"""Of each name; `make test-lives` leads more, and those that take minutes."""
NAMES = [name for name in cases.OF_CONTROLLERS if name != "cronjob"]
AT_ONCE = 40


@pytest.mark.timeout(600)
def test_lives_are_the_same_under_both_controllers() -> None:
    why = "needs servers of its own" if given.FILE else binaries.why_missing()
    if why:
        pytest.skip(why)
    lives = [cases.life_of(name, seed) for seed in range(CASES) for name in NAMES]
    with compare.servers(1, is_scheduled=False) as kubeconfigs:
        found = compare.differing(kubeconfigs, lives, AT_ONCE)

    told = [f"{life['name']}: {line}" for life, lines in found for line in lines]
    assert not told, "\n".join(told)


@pytest.mark.parametrize("name", cases.NAMES)
def test_every_kind_of_life_makes_what_it_is_about(name: str) -> None:
    """Else nothing would be compared."""
    seen = [lead.on_ours(cases.life_of(name, seed)) for seed in range(3)]

    kinds = look.kinds_of([each for life in seen for each in life])
    assert all(kinds[kind] for kind in cases.life_of(name, 0)["looks"])


def test_what_differs_is_told_with_its_step_and_path() -> None:
    theirs = {"Pod a": [{"status": {"phase": "Running"}}], "Pod b": [{}]}
    ours = {"Pod a": [{"status": {"phase": "Pending"}}]}

    assert compare.differences([{}, theirs], [{}, ours], [["wait", 1]] * 2) == [
        'step 1: Pod a.status.phase: theirs "Running", ours "Pending"',
        "step 1: Pod b: only theirs: {}",
    ]
