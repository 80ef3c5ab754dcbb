"""Promises of migrations: limits hold, jobs end, order is total."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.errors import ProtocolError
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.api.reservation import Reservation
from koordinator.descheduler.migration import arbitration, gates, jobs, object_limiter, state
from koordinator.descheduler.migration.arbitration import WaitingJob
from koordinator.descheduler.plugin import CycleLimiter, CycleLimits
from koordinator.descheduler.plugins.built_in import BUILT_IN
from koordinator.descheduler.plugins.stock import placement
from tests.descheduler.builders import NOW_S, job, pod


def world(
    all_jobs: Iterable[PodMigrationJob], counted: jobs.JobCounts, pods: dict[str, Pod], replicas: int
) -> gates.GateState:
    members = tuple(pods.values())
    return gates.GateState(
        open_jobs=jobs.JobCounts(all_jobs),
        counted_jobs=counted,
        pod_of=pods.get,
        pods_of_node=lambda name: [one for one in members if one.spec.node_name == name],
        workload_of=lambda *_: gates.Workload.of(replicas, members),
    )


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 30), st.integers(1, 4), st.integers(1, 5), st.integers(1, 20))
def test_a_round_of_arbitration_keeps_all_limits(count: int, nodes: int, per_node: int, total: int) -> None:
    pods = {one.key: one for one in (pod(f"p{i}", f"n{i % nodes}") for i in range(count))}
    waiting = [WaitingJob(job(f"j{i}", one), one) for i, one in enumerate(pods.values())]
    args = {
        "maxMigratingPerNode": per_node,
        "maxMigratingGlobally": total,
        "maxMigratingPerWorkload": 5,
        "maxUnavailablePerWorkload": 5,
    }
    gate = gates.Gates(BUILT_IN["MigrationController"].read(args))
    counted = jobs.JobCounts([])
    seen = world([one.job for one in waiting], counted, pods, 50)
    found = arbitration.judge(
        waiting,
        lambda one: gate.non_retryable(one, seen),
        lambda one: gate.retryable(one, seen),
        passes=lambda one: counted.add(one.job),
    )
    passed = [one.pod.spec.node_name for one in found.passed if one.pod is not None]
    assert len(passed) <= min(total, 5)
    assert all(passed.count(name) <= per_node for name in passed)
    assert len(found.passed) + len(found.refused) + len(found.failed) == count
    assert passed  # the limits leave room for the first


@given(st.integers(0, 1000), st.none() | st.integers(0, 1000) | st.integers(1, 100).map(lambda n: f"{n}%"))
def test_a_limit_is_between_one_and_the_replicas(replicas: int, given_limit: int | str | None) -> None:
    assert min(1, replicas) <= object_limiter.limit(replicas, given_limit) <= replicas


@pytest.mark.parametrize("text", ["10", "ten", "%", "1.5%", ""])
def test_a_limit_that_is_no_percentage_names_its_field(text: str) -> None:
    with pytest.raises(ProtocolError, match="maxMigratingPerWorkload"):
        object_limiter.limit(10, text, "maxMigratingPerWorkload")


@pytest.mark.parametrize("asked_every_s", [1, 3, 10, 30])
def test_tokens_come_when_they_are_due_however_often_one_asks(asked_every_s: int) -> None:
    bucket = object_limiter.EvictionTokenBucket(rate=10 / 300, size=1, now_s=0.0)
    assert bucket.take(0.0)
    found = [bucket.has_token(float(now_s)) for now_s in range(asked_every_s, 31, asked_every_s)]
    assert found == [False] * (30 // asked_every_s - 1) + [True]


def test_a_bucket_fills_at_its_rate_also_after_the_clock_went_back() -> None:
    bucket = object_limiter.EvictionTokenBucket(rate=0.1, size=1, now_s=NOW_S)
    assert bucket.take(NOW_S)
    back_s = NOW_S - 86_400
    assert not bucket.take(back_s)
    assert not bucket.take(back_s + 9)
    assert bucket.take(back_s + 10)


@given(st.integers(0, 3), st.lists(st.sampled_from(["a", "b", "c"]), max_size=20))
def test_a_cycle_never_evicts_more_per_node_than_allowed(most: int, attempts: list[str]) -> None:
    limiter = CycleLimiter(CycleLimits(per_node=most))
    for name in attempts:
        if not limiter.refusal(name, "default"):
            limiter.count(name, "default")
    assert all(count <= most for count in limiter.per_node.values())
    assert limiter.total == sum(min(most, attempts.count(name)) for name in set(attempts))


@settings(deadline=None)
@given(st.permutations(list(range(8))))
def test_the_order_of_jobs_does_not_depend_on_that_of_the_list(order: list[int]) -> None:
    pods = [pod(f"p{i}", priority=9000 + i % 3) for i in range(8)]
    waiting = [WaitingJob(job(f"j{i}", pods[i]), pods[i]) for i in order]
    names = [one.job.metadata.name for one in arbitration.order(waiting, [], {p.key: p for p in pods}.get)]
    by_priority = sorted(range(8), key=lambda i: (i % 3, i))
    assert names == [f"j{i}" for i in by_priority]


def look(one: PodMigrationJob, existing: Pod | None, now_s: float, replies: list[str]) -> list[state.Action]:
    """Actions of one step; `replies` are error texts, used up in order."""
    seen = state.JobState(lambda *_: existing, None, False)
    todo = state.reconcile(one, seen, "me", "EvictDirectly", now_s)
    actions = []
    try:
        action = next(todo)
        while True:
            actions.append(action)
            action = todo.send(state.Reply(replies.pop(0) if replies else ""))
    except StopIteration:
        return actions


@given(st.floats(0, 299), st.floats(300, 1e6))
def test_a_job_acts_before_its_ttl_and_never_after(early_s: float, late_s: float) -> None:
    target = pod("p", "n1")
    one = job("j", target, ttl="5m")
    assert look(one, target, NOW_S + early_s, []) == [state.EvictPod(target, "NotSet")]
    assert look(one, target, NOW_S + late_s, []) == []


def test_a_ttl_that_is_no_duration_names_the_job() -> None:
    target = pod("p", "n1")
    with pytest.raises(ProtocolError, match=r"PodMigrationJob j: spec\.ttl"):
        look(job("j", target, ttl="soon"), target, NOW_S, [])


@pytest.mark.parametrize(("reason", "told"), [("Unschedulable", "no room"), ("Scheduled", "")])
def test_a_job_tells_why_there_is_no_room_and_not_what_a_reservation_says_of_success(
    reason: str, told: str
) -> None:
    target = pod("p", "n1")
    options = {"reservationOptions": {"reservationRef": {"name": "rsv"}}}
    one = job("j", target, "Running", mode="ReservationFirst", **options)
    status = {
        "phase": "Failed",
        "conditions": [{"type": "Scheduled", "status": "False", "reason": reason, "message": "no room"}],
    }
    reservation = from_builtins({"metadata": {"name": "rsv"}, "spec": {}, "status": status}, Reservation)
    seen = state.JobState(lambda *_: target, reservation, False)
    todo = state.reconcile(one, seen, "me", "ReservationFirst", NOW_S)
    with pytest.raises(StopIteration) as ended:
        next(todo)
        while True:
            todo.send(state.Reply())

    found = ended.value.value.job.status
    assert (found.phase, found.reason, found.message) == ("Failed", "Unschedulable", told)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=8), st.integers(1, 8))
def test_balancing_domains_keeps_every_pod_and_never_widens_the_skew(sizes: list[int], max_skew: int) -> None:
    found = placement.balance(sizes, max_skew)
    assert sum(found.sizes) == sum(sizes)
    assert max(found.sizes) - min(found.sizes) <= max(max(sizes) - min(sizes), max_skew)
    assert all(moved <= size for moved, size in zip(found.moved, sizes, strict=True))
    if max(sizes) - min(sizes) <= max_skew:
        assert not any(found.moved)
