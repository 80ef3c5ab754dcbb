"""Who goes for a more important pod, decided from victims and budgets alone, at each boundary."""

from typing import Any

import pytest

from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.groups import PodDisruptionBudget
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.scheduler.plugins.preemption import victims
from koordinator.scheduler.plugins.preemption.victims import Budgets, Candidate, Victim
from koordinator.scheduler.table.pod_info import PodInfo

NOW_S = 1_800_000_000.0


def pod(name: str, priority: int = 0, started: str = "", **metadata: Any) -> PodInfo:
    body = {
        "metadata": {"name": name, "namespace": "shop", "labels": {"app": "web"}, **metadata},
        "spec": {"priority": priority, "containers": [{"name": "c"}]},
        "status": {"startTime": started} if started else {},
    }
    return PodInfo.of(from_builtins(body, Pod), ResourceRegistry())


def victim(name: str, priority: int = 0, start_s: float = NOW_S, **metadata: Any) -> Victim:
    return Victim(pod(name, priority, **metadata), priority, start_s)


def budget(allowed: int, *disrupted: str, **spec: Any) -> Budgets:
    body = {
        "metadata": {"name": "b", "namespace": "shop"},
        "spec": spec,
        "status": {
            "disruptionsAllowed": allowed,
            "disruptedPods": dict.fromkeys(disrupted, "2026-01-01T00:00:00Z"),
        },
    }
    found = Budgets()
    found.set(from_builtins(body, PodDisruptionBudget))
    return found


WEB = {"selector": {"matchLabels": {"app": "web"}}}
NOT_DB = {"selector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["db"]}]}}


def names(found: list[Victim]) -> list[str]:
    return [each.pod.pod.metadata.name for each in found]


@pytest.mark.parametrize(
    ("own", "preemptor", "metadata", "expected"),
    [
        (4, 5, {}, True),
        (5, 5, {}, False),
        (6, 5, {}, False),
        (4, 5, {"labels": {labels.DISABLE_PREEMPTIBLE: "true"}}, False),
        (4, 5, {"annotations": {labels.RESERVE_POD: "true"}}, False),
    ],
)
def test_only_less_important_pods_that_may_be_preempted_go(
    own: int, preemptor: int, metadata: dict[str, Any], expected: bool
) -> None:
    assert victims.is_preemptible(pod("v", own, **metadata), pod("p", preemptor)) is expected


@pytest.mark.parametrize("spec", [{}, {"selector": {}}, {"selector": {"matchLabels": {"app": "no value!"}}}])
def test_a_budget_without_a_usable_selector_protects_nobody(spec: dict[str, Any]) -> None:
    assert budget(0, **spec).covering(pod("web")) == ()


def test_a_budget_covers_labelled_pods_of_its_namespace_that_are_not_leaving_already() -> None:
    found = budget(0, "leaving", **NOT_DB)
    covered = {
        name: bool(found.covering(pod(name, **metadata)))
        for name, metadata in {
            "web": {},
            "elsewhere": {"namespace": "other"},
            "unlabelled": {"labels": {}},
            "db": {"labels": {"app": "db"}},
            "leaving": {},
        }.items()
    }
    assert covered == {"web": True, "elsewhere": False, "unlabelled": False, "db": False, "leaving": False}


@pytest.mark.parametrize(("allowed", "violating"), [(0, ["a", "b"]), (1, ["b"]), (2, []), (3, [])])
def test_a_budget_is_used_up_in_the_order_of_victims(allowed: int, violating: list[str]) -> None:
    found = budget(allowed, **WEB)
    other = victim("other", labels={"app": "db"})

    first, second = found.split([victim("a"), other, victim("b")])

    assert names(first) == violating
    assert names(second) == [name for name in ("a", "other", "b") if name not in violating]


def test_every_budget_counts_also_after_one_is_violated() -> None:
    found = budget(0, **WEB)
    another = {"metadata": {"name": "another", "namespace": "shop"}, "spec": NOT_DB}
    found.set(from_builtins({**another, "status": {"disruptionsAllowed": 1}}, PodDisruptionBudget))
    plain = victim("plain", labels={"app": "api"})

    first, second = found.split([victim("web"), plain])

    assert (names(first), names(second)) == (["web", "plain"], []), "web used up both"


def test_important_pods_come_first_among_equals_those_that_run_longest() -> None:
    found = victims.by_importance([victim("young", 1, 20.0), victim("old", 1, 10.0), victim("top", 2, 30.0)])

    assert names(found) == ["top", "old", "young"]


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        pytest.param(
            Candidate("x", (victim("a", 9), victim("b", 9)), 0),
            Candidate("y", (victim("c", 1),), 1),
            id="budgets",
        ),
        pytest.param(
            Candidate("x", (victim("a", 1), victim("b", 1)), 1),
            Candidate("y", (victim("c", 2),), 1),
            id="top",
        ),
        pytest.param(
            Candidate("x", (victim("a", 5), victim("b", -9)), 0),
            Candidate("y", (victim("c", 5), victim("d", -8)), 0),
            id="sum",
        ),
        pytest.param(
            Candidate("x", (victim("a", 5),), 0),
            Candidate("y", (victim("c", 5), victim("d", 0)), 0),
            id="count",
        ),
        pytest.param(
            Candidate("x", (victim("a", 5, 20.0), victim("b", 4, 1.0)), 0),
            Candidate("y", (victim("c", 5, 10.0), victim("d", 4, 9.0)), 0),
            id="the shortest run of the most important ones",
        ),
    ],
)
def test_the_candidate_that_hurts_least_is_chosen(better: Candidate, worse: Candidate) -> None:
    assert victims.choose([worse, better]) is victims.choose([better, worse]) is better
    assert victims.choose([]) is None


@pytest.mark.parametrize("room", [0, 1, 2, 3])
def test_as_many_as_fit_stay_protected_ones_first(room: int) -> None:
    found = budget(1, **WEB)
    everybody = [victim("low", 1, 30.0), victim("high", 3, 30.0), victim("mid", 2, 30.0)]
    staying: list[str] = []

    def put_back(each: Victim) -> None:
        staying.append(each.pod.pod.metadata.name)

    def take(each: Victim) -> None:
        staying.remove(each.pod.pod.metadata.name)

    gone, violations = victims.select(
        everybody, found, put_back=put_back, take=take, fits=lambda: len(staying) <= room
    )

    # By importance the budget covers "high" alone, so "mid" and "low" are put back before it.
    assert staying == ["mid", "low", "high"][:room]
    assert names(list(gone)) == [name for name in ("high", "mid", "low") if name not in staying]
    assert violations == max(2 - room, 0)


@pytest.mark.parametrize(("fits", "violations"), [(True, 0), (False, 1)])
def test_a_pod_that_must_go_for_the_quota_alone_does_not_count_as_violating_a_budget(
    fits: bool, violations: int
) -> None:
    [one] = everybody = [victim("web")]

    found = victims.select(
        everybody,
        budget(0, **WEB),
        put_back=lambda _: None,
        take=lambda _: None,
        fits=lambda: fits,
        may_stay=lambda: False,
    )

    assert found == ((one,), violations)


@pytest.mark.parametrize(
    ("started", "expected_s"), [("", NOW_S), ("junk", NOW_S), ("2026-01-01T00:00:00Z", 1_767_225_600.0)]
)
def test_a_pod_that_has_not_started_starts_now(started: str, expected_s: float) -> None:
    found = Victim.of(pod("v", 7, started), NOW_S)

    assert (found.priority, found.start_s) == (7, expected_s)
