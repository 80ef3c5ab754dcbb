"""Explanations of large gangs: equal members are counted, long answers come in slices, or are cut short and say so."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.scheduler.config.config import decode
from koordinator.scheduler.explain import gang_group, gang_rehearsal
from koordinator.scheduler.explain.answer import GangAnswer, PodVerdict
from koordinator.scheduler.explain.gang_group import group_of
from koordinator.scheduler.explain.gangs import explain_group
from koordinator.scheduler.explain.survey import Steps, finish, in_turns
from koordinator.scheduler.explain.tries import spread
from koordinator.scheduler.plugins.network_topology import slots
from koordinator.scheduler.table.trial import rehearsal_of
from tests.scheduler.explain.builders import Bench

APART = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {
                "topologyKey": "kubernetes.io/hostname",
                "labelSelector": {"matchLabels": {"pod-group.scheduling.sigs.k8s.io": "job"}},
            }
        ]
    }
}


def live(cluster: Bench, gang: str = "job") -> GangAnswer:
    """The answer of a running scheduler; no trial is open between its slices."""
    group = group_of(cluster.engine, f"default/{gang}")
    assert group is not None
    steps, table = explain_group(cluster.engine, group, is_live=True), cluster.engine.table
    before = table.requested.copy()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answer: GangAnswer = end.value.answer
            return answer
        assert not table.is_trial
        assert (table.requested == before).all()


def counting_from(members: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_group, "SINGLY_MAX", members)


shapes = st.fixed_dictionaries(
    {
        "cpus": st.lists(st.sampled_from(["1", "2", "4", "7"]), min_size=1, max_size=5),
        "pods": st.integers(1, 6),
        "members": st.integers(3, 12),
        "cpu": st.sampled_from(["500m", "1", "2", "8"]),
        "minimum": st.integers(1, 12),
        "running": st.integers(0, 2),
    }
)


@settings(max_examples=30, deadline=None)
@given(shapes)
def test_members_that_are_counted_are_reported_as_if_they_were_tried_one_by_one(
    shape: dict[str, Any],
) -> None:
    def reported(*, is_counted: bool) -> GangAnswer:
        cluster = Bench()
        for number, cpu in enumerate(shape["cpus"]):
            cluster.node(f"n-{number}", cpu=cpu, pods=shape["pods"])
        for number in range(shape["running"]):
            cluster.running(f"r-{number}", "n-0", cpu="500m")
        cluster.pod_group("job", min(shape["minimum"], shape["members"]))
        cluster.members("job", shape["members"], cpu=shape["cpu"])
        with pytest.MonkeyPatch.context() as patch:
            counting_from(2 if is_counted else 100, patch)
            return live(cluster)

    counted, tried = reported(is_counted=True), reported(is_counted=False)

    assert counted.fit is not None and tried.fit is not None
    assert counted.verdict is tried.verdict
    if tried.verdict is not PodVerdict.SCHEDULABLE:  # else it tells the nodes, among which chance decides
        assert counted.sentence == tried.sentence
    assert [each.change for each in counted.remedies] == [each.change for each in tried.remedies]
    same = ("members", "fitting", "is_enough", "stuck_number", "lacks", "message", "reasons")
    assert [getattr(counted.fit, name) for name in same] == [getattr(tried.fit, name) for name in same]
    assert sum(counted.fit.nodes.values()) == sum(tried.fit.nodes.values())


def test_a_thousand_equal_members_are_counted_beside_the_few_that_differ() -> None:
    cluster = Bench()
    for number in range(100):
        cluster.node(f"n-{number}", cpu="10")
    together = {"gang.scheduling.koordinator.sh/groups": '["default/ps","default/worker"]'}
    cluster.pod_group("ps", 2, **together).members("ps", 2, cpu="10")
    cluster.pod_group("worker", 980, **together).members("worker", 1_000, cpu="1")

    answer = live(cluster, "worker")

    assert answer.verdict is PodVerdict.SCHEDULABLE
    assert "982 of 1002 members find a place, and 982 are enough to start" in answer.sentence
    assert answer.fit is not None and answer.fit.node_count == 100


def test_what_takes_too_long_is_cut_short_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_rehearsal, "SLICE_US", 500)
    monkeypatch.setattr(gang_rehearsal, "RESUMED_US_MAX", 400)
    cluster = Bench()
    for number in range(20):
        cluster.node(f"n-{number}")
    cluster.pod_group("job", 20)
    for number in range(20):
        cluster.member(f"job-{number:02}", "job", cpu="1", affinity=APART)

    answer = live(cluster)
    group = group_of(cluster.engine, "default/job")
    assert group is not None
    whole = finish(explain_group(cluster.engine, group)).answer

    assert answer.verdict is PodVerdict.UNDECIDED
    assert answer.fit is not None and 0 < answer.fit.untried < 20
    assert answer.fit.fitting == 20 - answer.fit.untried
    assert "it is not known whether the gang can start" in answer.sentence
    [note] = answer.notes
    assert "koordinator explain gang job -n default --dump -" in note
    assert (whole.verdict, whole.notes) == (PodVerdict.SCHEDULABLE, [])


async def test_others_have_a_turn_after_each_slice_and_one_answer_is_worked_out_at_a_time() -> None:
    cluster = Bench().node("n", cpu="400", memory="1Ti", pods=1_000)
    for name in ("job", "other"):
        cluster.pod_group(name, 300)
        for number in range(300):
            cluster.member(f"{name}-{number}", name, cpu="1")
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def steps(name: str, seen: list[str]) -> Steps[GangAnswer]:
        group = group_of(cluster.engine, f"default/{name}")
        assert group is not None
        steps = explain_group(cluster.engine, group, is_live=True)
        while True:
            seen.append(name)
            try:
                next(steps)
            except StopIteration as end:
                answer: GangAnswer = end.value.answer
                return answer
            yield

    seen: list[str] = []
    task = asyncio.create_task(others())
    both = [in_turns(steps(name, seen), cluster.engine) for name in ("job", "other")]
    answers = await asyncio.gather(*both)
    task.cancel()

    assert [each.verdict for each in answers] == [PodVerdict.SCHEDULABLE] * 2
    assert turns >= len(seen) - 2 > 4
    assert seen == sorted(seen)


def test_a_gang_that_can_start_with_those_that_were_tried_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_rehearsal, "SLICE_US", 500)
    monkeypatch.setattr(gang_rehearsal, "RESUMED_US_MAX", 400)
    cluster = Bench()
    for number in range(20):
        cluster.node(f"n-{number}")
    cluster.pod_group("job", 2)
    for number in range(20):
        cluster.member(f"job-{number:02}", "job", cpu="1", affinity=APART)

    answer = live(cluster)

    assert answer.verdict is PodVerdict.SCHEDULABLE
    assert "2 are enough to start" in answer.sentence and "were not tried" in answer.sentence


@pytest.mark.parametrize("strategy", ["LeastAllocated", "MostAllocated"])
def test_counted_members_go_where_the_scheduler_would_put_them(strategy: str) -> None:
    fit = {"name": "NodeResourcesFit", "args": {"scoringStrategy": {"type": strategy}}}
    profile = {"schedulerName": "koord-scheduler", "pluginConfig": [fit]}
    cluster = Bench(decode({"profiles": [profile]}))
    for number, cpu in enumerate(("4", "8", "16")):
        cluster.node(f"n-{number}", cpu=cpu, memory="64Gi")
    pod = cluster.info("pod", cpu="1", memory="1Gi")
    prospects = cluster.engine.prospects(pod)
    assert prospects is not None
    counts = slots.count(cluster.engine.handles[0], prospects, [pod], 20).counts

    order = spread(prospects.evaluate(pod), counts, 12)

    with rehearsal_of(cluster.engine.table) as trial:
        one_by_one = []
        for number in range(12):
            each = cluster.info(f"pod-{number}", cpu="1", memory="1Gi")
            evaluation = prospects.evaluate(each)
            row = evaluation.best(0)
            assert row is not None
            trial.add(each, cluster.engine.table.name_of(row))
            one_by_one.append(row)
    assert sorted(order.tolist()) == sorted(one_by_one)
