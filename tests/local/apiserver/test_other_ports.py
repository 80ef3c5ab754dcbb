"""Other ports of the process that serves the API: whoever may not ask the API may not ask them; profiles."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from koordinator.clock import SystemClock
from koordinator.cluster import connect
from koordinator.cluster.delegated_auth import guarded
from koordinator.local import cluster
from koordinator.local.apiserver import ApiServer
from koordinator.local.apiserver.auth import StaticToken
from koordinator.local.apiserver.tls import self_signed
from tests.local.apiserver.fake import FakeBackend
from tests.local.apiserver.world import real_server

ADMIN, READER = StaticToken("a"), StaticToken("r", user="reader", groups=("readers",))


async def said(_: web.Request) -> web.Response:
    return web.Response(text="ok")


@contextlib.asynccontextmanager
async def opened(*tokens: StaticToken) -> AsyncIterator[aiohttp.ClientSession]:
    """A port beside a server with these tokens."""
    _, backend = real_server(SystemClock())
    app = web.Application(middlewares=(guarded(ApiServer(backend, tokens=tokens).refusal),))
    app.router.add_get("/{path:.*}", said)
    app.router.add_put("/debug/flags/s", said)
    async with cluster.served(app) as url, aiohttp.ClientSession(url) as session:
        yield session


async def code(session: aiohttp.ClientSession, method: str, path: str, **headers: str) -> int:
    async with session.request(method, path, headers=headers) as answer:
        return answer.status


async def test_with_tokens_only_those_are_let_in_who_may() -> None:
    async with opened(ADMIN, READER) as session:
        for method, path in (("GET", "/configz"), ("PUT", "/debug/flags/s")):
            assert await code(session, method, path) == 401
            assert await code(session, method, path, Authorization="Bearer x") == 401
            assert await code(session, method, path, Authorization="Bearer r") == 403
            assert await code(session, method, path, Authorization="Bearer a") == 200


async def test_health_is_open() -> None:
    async with opened(ADMIN) as session:
        assert [await code(session, "GET", path) for path in ("/healthz", "/readyz/ping", "/livez")] == [
            200
        ] * 3


async def test_without_tokens_web_pages_of_others_are_refused() -> None:
    async with opened() as session:
        assert await code(session, "PUT", "/debug/flags/s") == 200
        assert await code(session, "PUT", "/debug/flags/s", Host="evil.example.com") == 403
        assert await code(session, "PUT", "/debug/flags/s", Origin="http://evil.example.com") == 403
        assert await code(session, "GET", "/configz", Host="caf\u00e9") == 403  # no UTF-8 to the server


async def test_a_port_with_tls_is_trusted_by_the_kubeconfig(tmp_path: Path) -> None:
    tls = self_signed(tmp_path / "tls", SystemClock(), ["127.0.0.1"])
    server = ApiServer(FakeBackend(), tls=tls)
    server.write_kubeconfig(tmp_path / "kubeconfig")
    app = web.Application()
    app.router.add_get("/", said)
    async with cluster.served(app, tls=tls) as url, aiohttp.ClientSession(url) as session:
        assert url.startswith("https://127.0.0.1:")
        trust = connect.from_files([tmp_path / "kubeconfig"], clock=SystemClock()).tls
        assert trust is not None
        async with session.get("/", ssl=trust) as answer:
            assert answer.status == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await session.get("/")


async def test_profiles_are_for_administrators() -> None:
    server = ApiServer(real_server(SystemClock())[1], tokens=(ADMIN, READER))
    await server.start()
    try:
        async with aiohttp.ClientSession(server.url) as session:
            assert await code(session, "GET", "/debug/pprof/") == 401
            assert await code(session, "GET", "/debug/pprof/goroutine", Authorization="Bearer r") == 403
            assert await code(session, "GET", "/debug/pprof/goroutine", Authorization="Bearer a") == 200
            async with session.get("/debug/pprof/", headers={"Authorization": "Bearer a"}) as answer:
                assert "profile?seconds=N" in await answer.text()
    finally:
        await server.stop()
