"""The work queue and the controller, on virtual time."""

import asyncio
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koordinator.cluster import errors
from koordinator.cluster.backoff import Rate, TokenBucket
from koordinator.cluster.controller import Controller, RetryPolicy, WorkQueue
from koordinator.cluster.informer import Informer
from koordinator.cluster.memory import MemoryCluster
from tests.cluster import virtual_loop
from tests.cluster.fake_backend import FakeBackend, PodView, pod


def now_s() -> float:
    return asyncio.get_running_loop().time()


def test_a_key_waits_once_however_often_it_is_added() -> None:
    async def scenario() -> None:
        queue = WorkQueue[str]()
        for key in "abab":
            queue.add(key)

        assert [await queue.get(), await queue.get()] == ["a", "b"]
        assert len(queue) == 0

    virtual_loop.run(scenario())


def test_a_key_added_while_held_comes_again_once_after_done() -> None:
    async def scenario() -> None:
        queue = WorkQueue[str]()
        queue.add("a")
        key = await queue.get()
        queue.add("a")
        queue.add("a")
        assert len(queue) == 0

        queue.done(key)

        assert len(queue) == 1
        assert await queue.get() == "a"
        queue.done("a")
        assert queue.is_idle

    virtual_loop.run(scenario())


def test_of_several_delays_the_earliest_counts() -> None:
    async def scenario() -> None:
        queue = WorkQueue[str]()
        queue.add_after("a", 9)
        queue.add_after("a", 3)
        queue.add_after("a", 7)

        assert await queue.get() == "a"

        assert now_s() == 3
        queue.done("a")
        await asyncio.sleep(20)
        assert queue.is_idle

    virtual_loop.run(scenario())


def test_a_failing_key_comes_back_ever_later_until_it_is_forgotten() -> None:
    async def scenario() -> None:
        queue = WorkQueue[str](RetryPolicy(initial_s=1, max_s=5))
        pauses = []
        for _ in range(5):
            before_s = now_s()
            queue.add_rate_limited("a")
            queue.done(await queue.get())
            pauses.append(now_s() - before_s)
        queue.forget("a")
        queue.add_rate_limited("a")

        assert pauses == [1, 2, 4, 5, 5]
        assert queue.failures("a") == 1

    virtual_loop.run(scenario())


def test_many_failing_keys_share_the_overall_rate() -> None:
    async def scenario() -> None:
        queue = WorkQueue[int](RetryPolicy(overall=Rate(per_s=10, burst=100)))
        for key in range(150):
            queue.add_rate_limited(key)
        for _ in range(150):
            queue.done(await queue.get())

        assert now_s() == pytest.approx(5.0)

    virtual_loop.run(scenario())


def test_controller_never_works_on_one_key_twice_at_once() -> None:
    async def scenario() -> None:
        held: set[str] = set()
        done: list[str] = []

        async def reconcile(key: str) -> None:
            assert key not in held
            held.add(key)
            await asyncio.sleep(1)
            held.discard(key)
            done.append(key)

        controller = Controller[str]("test", reconcile, workers=4)
        task = asyncio.create_task(controller.run())
        for _ in range(3):
            for key in "ab":
                controller.queue.add(key)
            await asyncio.sleep(0.5)
        await asyncio.sleep(10)

        assert sorted(done) == ["a", "a", "b", "b"]
        assert controller.guard.failure_count == 0
        task.cancel()

    virtual_loop.run(scenario())


def test_controller_retries_what_fails_and_obeys_retry_after() -> None:
    async def scenario() -> None:
        tries: dict[str, list[float]] = {"conflict": [], "busy": [], "bug": []}

        async def reconcile(key: str) -> None:
            tries[key].append(now_s())
            if len(tries[key]) == 1:
                details = errors.StatusDetails(retry_after_seconds=30)
                raise {
                    "conflict": errors.Conflict("changed"),
                    "busy": errors.TooManyRequests("later", details=details),
                    "bug": KeyError("oops"),
                }[key]

        controller = Controller[str]("test", reconcile)
        task = asyncio.create_task(controller.run())
        for key in tries:
            controller.queue.add(key)
        await asyncio.sleep(100)

        assert tries == {"conflict": [0, 0.005], "busy": [0, 30], "bug": [0, 0.005]}
        assert controller.guard.failure_count == 3
        assert controller.queue.is_idle
        task.cancel()

    virtual_loop.run(scenario())


def test_controller_looks_again_when_asked_and_on_changes() -> None:
    async def scenario() -> None:
        backend = FakeBackend()
        informer = Informer(MemoryCluster(backend), PodView, rng=random.Random(1))
        seen: list[tuple[float, str]] = []

        async def reconcile(key: str) -> float | None:
            seen.append((now_s(), key))
            return 60 if len(seen) == 1 else None

        controller = Controller[str]("test", reconcile)
        controller.watch(informer, lambda obj: [obj.key])
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(informer.run()), group.create_task(controller.run([informer]))]
            await informer.synced.wait()
            backend.put(pod("a"))
            await asyncio.sleep(10)
            backend.put(pod("a", node="n1"))
            await asyncio.sleep(100)
            for task in tasks:
                task.cancel()

        assert seen == [(0, "shop/a"), (10, "shop/a"), (60, "shop/a")]

    virtual_loop.run(scenario())


def test_a_bucket_fills_at_its_rate_also_after_the_clock_went_back() -> None:
    bucket = TokenBucket(Rate(per_s=1.0, burst=1), now_s=1e6)
    assert bucket.try_take(1e6)
    assert not bucket.try_take(0.0)
    assert bucket.try_take(1.0)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    per_s=st.sampled_from([0.5, 1, 10, 100]),
    burst=st.integers(1, 20),
    gaps_s=st.lists(st.floats(0, 3), min_size=1, max_size=60),
)
def test_no_window_ever_gets_more_than_its_rate_and_burst(
    per_s: float, burst: int, gaps_s: list[float]
) -> None:
    bucket = TokenBucket(Rate(per_s=per_s, burst=burst), now_s=0)
    granted = []
    at_s = 0.0
    for gap_s in gaps_s:
        at_s += gap_s
        granted.append(at_s + bucket.reserve(at_s))

    for first in range(len(granted)):
        for last in range(first, len(granted)):
            allowed = burst + per_s * (granted[last] - granted[first])
            assert last - first + 1 <= allowed + 1e-6
