"""Moves of running pods are tried on a running scheduler, over HTTP; nothing stays of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import numpy as np
import pytest
from aiohttp.test_utils import TestServer

from koordinator.clock import SystemClock
from koordinator.descheduler import proof
from koordinator.descheduler.proof import MoveAnswer, MoveQuestion, ProofError
from koordinator.scheduler.scheduler import Scheduler
from koordinator.scheduler.serve import http
from tests.scheduler.fake_cluster import FakeCluster
from tests.scheduler.world import node, pod


@contextlib.asynccontextmanager
async def served(*, leader: bool = True) -> AsyncIterator[tuple[Scheduler, str]]:
    """A scheduler with pods `a` and `b` of two cores on n-0, and n-1 with three cores; its URL."""
    api = FakeCluster(SystemClock())
    api.put("Node", node("n-0", cpu="8"))
    api.put("Node", node("n-1", cpu="3"))
    for name in ("a", "b"):
        api.put("Pod", pod(name, cpu="2", nodeName="n-0"))
    scheduler = Scheduler(api, seed=1)
    running = asyncio.create_task(scheduler.run())
    try:
        await scheduler.synced.wait()
        app = http.application(scheduler, http.HttpOptions(is_leader=lambda: leader))
        async with TestServer(app) as server:
            yield scheduler, str(server.make_url(""))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_room_is_counted_for_all_moves_together_and_given_back() -> None:
    async with served() as (scheduler, url):
        before = scheduler.table.requested.copy()
        uids = [one.metadata.uid for one in scheduler.caches.pods.list()]
        wanted = [MoveQuestion(uid, ("n-1",)) for uid in (*uids, "gone")]

        found = await proof.over_http(url)(wanted)

        assert found[0] == MoveAnswer("n-1")
        assert "Insufficient cpu" in found[1].why and not found[1].node
        assert found[2] == MoveAnswer("", "the scheduler does not know it")
        assert np.array_equal(scheduler.table.requested, before)


async def test_only_the_leader_answers() -> None:
    async with served(leader=False) as (_, url):
        with pytest.raises(ProofError, match="503"):
            await proof.over_http(url)([MoveQuestion("uid-a", ("n-1",))])


async def test_too_many_moves_are_refused() -> None:
    async with served() as (_, url):
        with pytest.raises(ProofError, match="101 moves, at most 100 at once"):
            await proof.over_http(url)([MoveQuestion("uid-a", ("n-1",))] * 101)


async def test_a_silent_scheduler_is_an_error() -> None:
    with pytest.raises(ProofError, match=r"http://127\.0\.0\.1:1"):
        await proof.over_http("http://127.0.0.1:1")([MoveQuestion("uid-a", ("n-1",))])
