"""Moves of running pods are tried on a running scheduler, over HTTP; nothing stays of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from koordinator.clock import SystemClock
from koordinator.cluster import proof
from koordinator.cluster.config import ANONYMOUS, Credentials, StaticHeader
from koordinator.cluster.proof import MoveAnswer, MoveQuestion, ProofError
from koordinator.scheduler.scheduler import Scheduler
from koordinator.scheduler.serve import http
from tests.scheduler.fake_cluster import FakeCluster
from tests.scheduler.world import node, pod


@contextlib.asynccontextmanager
async def served(
    *, leader: bool = True, guards: tuple[Any, ...] = ()
) -> AsyncIterator[tuple[Scheduler, str]]:
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
        app = http.application(scheduler, http.HttpOptions(is_leader=lambda: leader), guards)
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

        found = await proof.over_http(url, ANONYMOUS)(wanted)

        assert found[0] == MoveAnswer("n-1")
        assert "Insufficient cpu" in found[1].why and not found[1].node
        assert found[2] == MoveAnswer("", "the scheduler does not know it")
        assert np.array_equal(scheduler.table.requested, before)


async def test_only_the_leader_answers() -> None:
    async with served(leader=False) as (_, url):
        with pytest.raises(ProofError, match="503"):
            await proof.over_http(url, ANONYMOUS)([MoveQuestion("uid-a", ("n-1",))])


@pytest.mark.parametrize(
    ("credentials", "refusal"),
    [
        pytest.param(StaticHeader("Bearer good"), None, id="a token that is known"),
        pytest.param(StaticHeader("Bearer bad"), "401", id="another token"),
        pytest.param(ANONYMOUS, "401", id="no token"),
    ],
)
async def test_a_guarded_scheduler_answers_whom_it_knows(
    credentials: Credentials, refusal: str | None
) -> None:
    @web.middleware
    async def guard(request: web.Request, handler: Any) -> Any:
        if request.headers.get("Authorization") != "Bearer good":
            return web.Response(status=401)
        return await handler(request)

    async with served(guards=(guard,)) as (scheduler, url):
        uid = scheduler.caches.pods.list()[0].metadata.uid
        asked = proof.over_http(url, credentials)([MoveQuestion(uid, ("n-1",))])
        if refusal is None:
            assert await asked == [MoveAnswer("n-1")]
            return
        with pytest.raises(ProofError, match=refusal):
            await asked


async def test_a_token_goes_over_tls_or_stays_on_this_machine() -> None:
    used = []

    class Noted(StaticHeader):
        async def authorization(self) -> str:
            used.append("token")
            return await super().authorization()

    for url in ("http://scheduler.invalid:1", "https://scheduler.invalid:1", "http://localhost:1"):
        with pytest.raises(ProofError):
            await proof.over_http(url, Noted("Bearer good"))([MoveQuestion("uid-a", ("n-1",))])

    assert used == ["token", "token"]


async def test_authorities_that_cannot_be_read_are_told() -> None:
    ask = proof.over_http("https://localhost:1", ANONYMOUS, "/nowhere/ca.crt")
    with pytest.raises(ProofError, match=r"plan\.schedulerCAFile.*/nowhere/ca\.crt"):
        await ask([MoveQuestion("uid-a", ("n-1",))])


async def test_too_many_moves_are_refused() -> None:
    async with served() as (_, url):
        with pytest.raises(ProofError, match="501 moves, at most 500 at once"):
            await proof.over_http(url, ANONYMOUS)([MoveQuestion("uid-a", ("n-1",))] * 501)


async def test_a_silent_scheduler_is_an_error() -> None:
    with pytest.raises(ProofError, match=r"http://127\.0\.0\.1:1"):
        await proof.over_http("http://127.0.0.1:1", ANONYMOUS)([MoveQuestion("uid-a", ("n-1",))])
