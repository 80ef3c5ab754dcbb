"""`kubectl logs`: which container is meant, and where the text comes from."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from koordinator.cluster.backend import ObjectRecord
from koordinator.local.apiserver import ApiServer
from koordinator.local.apiserver.pod_streams import LogOptions
from tests.local.apiserver.fake import FakeBackend
from tests.local.apiserver.requests import POD, PODS_PATH, pod, send


class Echo:
    """Answers with what was asked for."""

    async def open(self, pod: ObjectRecord, options: LogOptions) -> AsyncIterator[bytes]:
        return self._pieces(f"{pod.obj['metadata']['name']}/{options.container} last {options.tail_lines}\n")

    async def _pieces(self, text: str) -> AsyncIterator[bytes]:
        yield text[:5].encode()
        yield b""
        yield text[5:].encode()


@pytest.fixture
async def echoing(backend: FakeBackend) -> AsyncIterator[aiohttp.ClientSession]:
    server = ApiServer(backend, streams=Echo())
    await server.start()
    async with aiohttp.ClientSession(server.url) as session:
        yield session
    await server.stop()


def with_containers(*names: str) -> dict[str, Any]:
    return pod(spec={"containers": [{"name": name} for name in names]})


async def test_the_only_container_need_not_be_named(echoing: aiohttp.ClientSession) -> None:
    await send(echoing, "POST", PODS_PATH, with_containers("main"))

    async with echoing.get(POD + "/log?tailLines=3") as response:
        assert (response.content_type, await response.text()) == ("text/plain", "web/main last 3\n")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        pytest.param("", "a container name must be specified for pod web, choose one of: [a b]", id="which"),
        pytest.param("?container=c", "container c is not valid for pod web", id="unknown"),
    ],
)
async def test_a_container_that_is_not_clear_is_asked_for(
    echoing: aiohttp.ClientSession, query: str, message: str
) -> None:
    await send(echoing, "POST", PODS_PATH, with_containers("a", "b"))

    code, status = await send(echoing, "GET", POD + "/log" + query)

    assert (code, status["message"]) == (400, message)
