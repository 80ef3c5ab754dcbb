"""Explanations of quotas: what a pod meets, and changes that are computed and do help."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api.decode import from_builtins
from koordinator.api.sigs import ElasticQuota
from koordinator.scheduler.explain.answer import PodAnswer, PodVerdict
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler import world
from tests.scheduler.explain.builders import Bench

Q = "quota.scheduling.koordinator.sh"


class Shares(Bench):
    """A cluster with quotas."""

    def quota(self, name: str, low: str, high: str, parent: str = "", *, is_parent: bool = False) -> "Shares":
        labels = {f"{Q}/is-parent": str(is_parent).lower()} | ({f"{Q}/parent": parent} if parent else {})
        body: dict[str, Any] = {
            "metadata": {"name": name, "namespace": "quotas", "labels": labels},
            "spec": {"min": {"cpu": low}, "max": {"cpu": high}},
        }
        self.seen(from_builtins(body, ElasticQuota))
        return self

    def pod(self, name: str, quota: str, cpu: str, **labels: str) -> PodInfo:
        """A pod that waits."""
        body = world.pod(name, cpu=cpu, memory=None)
        own = {f"{Q}/{key}": text for key, text in labels.items()}
        body["metadata"]["labels"] = {f"{Q}/name": quota, **own}
        info = self.of(body)
        self.seen(info.pod)
        return info

    def uses(self, quota: str, *cpus: str, node: str = "n") -> "Shares":
        for number, cpu in enumerate(cpus):
            self.engine.table.assign(self.pod(f"{quota}-{number}", quota, cpu), node)
        return self


def story() -> Shares:
    """140 cores; ads is sure of 100 and uses 118, of which search lends some."""
    cluster = Shares()
    cluster.node("n", cpu="140")
    cluster.quota("ads", "100", "140").quota("search", "40", "140")
    return cluster.uses("search", "20").uses("ads", "118")


def changes(answer: PodAnswer) -> dict[str, str]:
    return {each.kind: each.change for each in answer.remedies}


def test_a_pod_above_its_quota_says_what_is_used_and_who_lends() -> None:
    cluster = story()

    answer = cluster.ask(cluster.pod("web", "ads", "4"))

    assert answer.verdict is PodVerdict.UNSCHEDULABLE
    assert answer.sentence == (
        "Pod default/web is pending: queue at root/ads: runtime 120 cores, used 118, you ask 4; borrowed 18 from "
        "root/search."
    )
    assert answer.quota is not None
    [level] = answer.quota.levels
    assert (level.quota, level.used, level.runtime, level.held_by) == ("ads", "118", "120", "siblings")
    assert [(loan.lender, loan.amounts) for loan in answer.quota.loans] == [("root/search", {"cpu": "18"})]
    assert answer.rejected_by == ["ElasticQuota"]


def test_what_would_help_is_computed() -> None:
    cluster = story()

    reported = changes(cluster.ask(cluster.pod("web", "ads", "4")))

    # No minimum helps: what search uses is its own, and ads has all the rest already.
    assert reported == {
        "requests": "lower the cpu request from 4 to at most 2",
        "quota-own": "wait until pods of ads that use 2 of cpu have ended",
        "node": "add nodes with 2 of cpu",
    }


def test_a_pod_at_its_max_is_helped_by_a_larger_one() -> None:
    cluster = Shares()
    cluster.node("n", cpu="140")
    cluster.quota("team", "20", "40", is_parent=True).quota("web", "10", "30", "team").uses("web", "29")

    answer = cluster.ask(cluster.pod("more", "web", "2"))

    assert answer.quota is not None
    assert [(each.quota, each.held_by) for each in answer.quota.levels] == [("team", ""), ("web", "max")]
    assert changes(answer)["quota-max"] == "raise cpu in max of web from 30 to 31"


def test_a_minimum_that_the_parent_cannot_cover_is_raised_with_it() -> None:
    cluster = Shares()
    cluster.node("n", cpu="20")
    cluster.quota("team", "10", "20", is_parent=True).quota("other", "10", "20")
    cluster.quota("web", "10", "20", "team").uses("web", "10").uses("other", "10")
    answer = cluster.ask(cluster.pod("more", "web", "2"))

    assert changes(answer).get("quota-min", "").startswith("raise cpu in min of web from 10 to ")
    assert " and cpu in min of team from 10 to " in changes(answer)["quota-min"]


def test_siblings_that_use_more_than_their_minimum_are_asked_to_give_back() -> None:
    cluster = Shares()
    cluster.node("n", cpu="20")
    cluster.quota("ads", "5", "20").quota("search", "5", "20")
    cluster.uses("search", "12").uses("ads", "8")

    answer = cluster.ask(cluster.pod("more", "ads", "4"))

    assert changes(answer)["quota-lent"] == "have search ask for 4 of cpu less: it uses 7 more than its min"


def test_who_has_not_given_back_yet_is_named_where_the_nodes_are_full() -> None:
    cluster = Shares()
    cluster.node("n", cpu="20")
    cluster.quota("ads", "5", "20").quota("search", "15", "20").uses("ads", *["4"] * 5)

    answer = cluster.ask(cluster.pod("web", "search", "4"))

    assert answer.quota is not None and answer.quota.fits
    assert [(each.quota, each.amounts) for each in answer.quota.above] == [("root/ads", {"cpu": "4"})]


def test_a_pod_that_nobody_may_preempt_is_held_by_the_minimum() -> None:
    cluster = Shares()
    cluster.node("n", cpu="20")
    cluster.quota("ads", "5", "20")
    firm = cluster.pod("firm", "ads", "4", preemptible="false")
    cluster.engine.table.assign(firm, "n")

    answer = cluster.ask(cluster.pod("more", "ads", "2", preemptible="false"))

    assert "min 5 cores, used by pods that cannot be preempted 4, you ask 2" in answer.sentence
    assert changes(answer) == {
        "quota-own": "wait until pods of ads that cannot be preempted and use 1 of cpu have ended",
        "quota-min": "raise cpu in min of ads from 5 to 6",
    }


def test_what_raises_the_minimum_of_pods_that_cannot_be_preempted_is_what_the_webhooks_allow() -> None:
    cluster = Shares()
    cluster.node("n", cpu="140")
    cluster.quota("team", "10", "20", is_parent=True).quota("web", "4", "9", "team")
    cluster.quota("other", "5", "9", "team")

    answer = cluster.ask(cluster.pod("firm", "web", "6", preemptible="false"))

    assert changes(answer) == {
        "quota-min": "raise cpu in min of web from 4 to 6 and cpu in min of team from 10 to 11"
    }


def test_a_pod_with_room_in_its_quota_is_told_so() -> None:
    cluster = story()

    answer = cluster.ask(cluster.pod("small", "ads", "1"))

    assert answer.verdict is PodVerdict.SCHEDULABLE
    assert answer.quota is not None and answer.quota.fits


def test_a_gang_beyond_its_quota_says_where_it_ends() -> None:
    cluster = story()
    cluster.pod_group("job", 3)
    for number in range(3):
        body = world.pod(f"job-{number}", cpu="1", memory=None)
        body["metadata"]["labels"] = {"pod-group.scheduling.sigs.k8s.io": "job", f"{Q}/name": "ads"}
        cluster.seen(cluster.of(body).pod)

    answer = cluster.gang("job")

    assert (
        "2 of 3 members fit; the 3rd (default/job-2) finds its quota full: queue at root/ads: "
        in answer.sentence
    )
    assert "used 118, 3 members ask 3" in answer.sentence
    assert {each.kind for each in answer.remedies} >= {"quota-own", "minimum"}


AMOUNT = re.compile(r"from ([\d.]+m?) to (?:at most )?([\d.]+m?)")


def cores(text: str) -> int:
    return int(text[:-1]) if text.endswith("m") else int(text) * 1000


quota_sets = st.fixed_dictionaries(
    {
        "total": st.integers(10, 40),
        "mins": st.tuples(st.integers(0, 15), st.integers(0, 15)),
        "used": st.tuples(st.integers(0, 20), st.integers(0, 20)),
        "max": st.integers(15, 40),
        "ask": st.integers(1, 10),
    }
)


@settings(max_examples=50, deadline=None)
@given(quota_sets)
def test_a_change_that_is_told_lets_the_pod_through_its_quota(shape: dict[str, Any]) -> None:
    def build(low: str, high: str, total: int, ask: str) -> PodAnswer:
        cluster = Shares()
        cluster.node("n", cpu=str(total))
        cluster.quota("ads", low, high).quota("search", str(shape["mins"][1]), "40")
        for name, used in zip(("ads", "search"), shape["used"], strict=True):
            if used:
                cluster.uses(name, str(used))
        return cluster.ask(cluster.pod("more", "ads", ask))

    now = (str(shape["mins"][0]), str(shape["max"]), shape["total"], str(shape["ask"]))
    answer = build(*now)
    if answer.rejected_by != ["ElasticQuota"]:
        return
    for kind, change in changes(answer).items():
        low, high, total, ask = now
        found = AMOUNT.search(change)
        match kind:
            case "requests":
                assert found is not None
                after = build(low, high, total, found[2])
            case "quota-min":
                assert found is not None
                after = build(found[2], high, total, ask)
            case "quota-max":
                assert found is not None
                after = build(low, found[2], total, ask)
            case _:
                continue
        assert after.quota is not None and after.quota.fits, (change, answer.sentence, after.sentence)


@pytest.mark.parametrize("parents", [1, 700])
def test_around_very_many_quotas_no_changes_are_tried(parents: int) -> None:
    cluster = Shares()
    cluster.node("n", cpu="20")
    for number in range(parents):
        cluster.quota(f"other-{number}", "0", "20")
    cluster.quota("ads", "5", "10").uses("ads", "10")

    answer = cluster.ask(cluster.pod("more", "ads", "4"))

    assert bool(changes(answer)) == (parents == 1)
