"""Random lives of pods end with kube-scheduler as with our scheduler: where they run, and why they do not."""

from typing import Any

import pytest

from tests.real import binaries, given
from tests.real.lives import cases, compare

CASES, SERVERS = 1, 4
"""So many of each name, which `make test-lives` leads more of; one on each server at a time."""


@pytest.mark.timeout(600)
def test_lives_are_the_same_under_both_schedulers() -> None:
    needed = (*binaries.CONTROL_PLANE, "kube-scheduler")
    why = "needs servers of its own" if given.FILE else binaries.why_missing(needed)
    if why:
        pytest.skip(why)
    lives = [cases.life_of(name, seed) for seed in range(CASES) for name in cases.OF_SCHEDULER]
    with compare.servers(SERVERS, is_scheduled=True) as kubeconfigs:
        found = compare.differing(kubeconfigs, lives, 1)

    told = [f"{life['name']}: {line}" for life, lines in found for line in lines]
    assert not told, "\n".join(told)


def refused(*messages: str, now: str, node: str = "") -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "message": now}
    return {
        "Pod p": [{"node": node, "status": {"conditions": [condition]}}],
        "Event Pod p FailedScheduling": [{"about": "Pod p", "message": message} for message in messages],
    }


@pytest.mark.parametrize(
    ("theirs", "ours", "step", "count"),
    [
        pytest.param(refused("a", "b", now="b"), refused("a", now="a"), "node", 0, id="tried in vain"),
        pytest.param(
            refused("a", now="b"), refused("a", "b", now="b"), "node", 0, id="an event was not kept"
        ),
        pytest.param(refused("a", now="a"), refused("a", "b", now="b"), "node", 2, id="only ours tried"),
        pytest.param(
            refused("a", now="a"), refused("a", "b", now="b"), "delete node", 0, id="the node is gone"
        ),
        pytest.param(
            refused("a", now="a"), refused("c", now="c"), "delete node", 1, id="other words in any case"
        ),
        pytest.param(refused("a", now="a"), refused("a", now="a", node="n"), "node", 1, id="another node"),
    ],
)
def test_attempts_in_vain_are_no_difference(
    theirs: dict[str, Any], ours: dict[str, Any], step: str, count: int
) -> None:
    assert len(compare.differences([theirs], [ours], [[step, "a", {}]])) == count
