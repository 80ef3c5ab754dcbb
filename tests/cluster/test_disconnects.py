"""An informer over real HTTP through a proxy that cuts connections: it ends up equal to the server."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from koordinator.api.core import Pod
from koordinator.clock import SystemClock
from koordinator.cluster import errors, informer, transport
from koordinator.cluster.backend import DeleteRequest
from koordinator.cluster.backoff import BackoffPolicy
from koordinator.cluster.config import from_url
from koordinator.cluster.kube import KubeCluster
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import registry
from koordinator.local.apiserver import ApiServer

FAST = BackoffPolicy(initial_s=0.005, max_s=0.02, factor=2.0, jitter_ratio=0.5)


class Proxy:
    """Passes bytes on; `cut` aborts every connection, and while `refusing` new ones are aborted at once."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: set[asyncio.StreamWriter] = set()
        self.refusing = False
        self.cut_count = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {writer, upstream_writer}
        try:
            await asyncio.gather(self._pass(reader, upstream_writer), self._pass(upstream_reader, writer))
        finally:
            self._writers -= {writer, upstream_writer}

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    def cut(self) -> None:
        self.cut_count += len(self._writers)
        for writer in self._writers:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def proxied(port: int) -> AsyncIterator[tuple[Proxy, str]]:
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    try:
        yield proxy, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        proxy.cut()
        await server.wait_closed()


@pytest.mark.parametrize("seed", range(4))
async def test_a_cache_behind_a_breaking_line_ends_equal_to_the_server(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informer, "RECONNECT", FAST)
    monkeypatch.setattr(transport, "BACKOFF", FAST)
    rng = random.Random(seed)
    backend = registry.in_memory(SystemClock(), checks=False)
    direct = MemoryCluster(backend)
    server = ApiServer(backend)
    await server.start()
    try:
        port = int(server.url.rpartition(":")[2])
        async with (
            proxied(port) as (proxy, url),
            KubeCluster(from_url(url), rng=rng) as cluster,
        ):
            cache = informer.Informer(cluster, Pod, rng=rng)
            task = asyncio.create_task(cache.run())
            for _ in range(120):
                await disturb(rng, proxy, direct, backend)
            proxy.refusing = False
            await equal(cache, direct)

            assert proxy.cut_count > 0
            task.cancel()
            await asyncio.wait([task])
    finally:
        await server.stop()


async def disturb(rng: random.Random, proxy: Proxy, direct: MemoryCluster, backend: Any) -> None:
    name = rng.choice("abcdefgh")
    match rng.choice(["create", "create", "label", "label", "delete", "cut", "refuse", "accept", "pause"]):
        case "create":
            with contextlib.suppress(errors.AlreadyExists):
                body = {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
                await direct.create(Pod, body, "default")
        case "label":
            with contextlib.suppress(errors.NotFound):
                patch = {"metadata": {"labels": {"n": str(rng.random())}}}
                await direct.patch(Pod, name, patch, "default")
        case "delete":
            with contextlib.suppress(errors.NotFound):
                await backend.delete(Pod.resource, "default", name, DeleteRequest(grace_period_s=0))
        case "cut":
            proxy.cut()
        case "refuse":
            proxy.refusing = True
        case "accept":
            proxy.refusing = False
        case "pause":
            await asyncio.sleep(0.01)


async def equal(cache: informer.Informer[Pod], direct: MemoryCluster) -> None:
    truth = {obj.key: obj for obj in (await direct.list(Pod)).items}
    seen: dict[str, Pod] = {}
    for _ in range(400):
        seen = {obj.key: obj for obj in cache.list()}
        if cache.synced.is_set() and seen == truth:
            return
        await asyncio.sleep(0.01)
    assert seen == truth
    raise AssertionError("never synced")
