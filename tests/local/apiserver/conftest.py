"""Each test gets a server on its own event loop; starting one takes milliseconds."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from koordinator.local.apiserver import ApiServer
from tests.local.apiserver.fake import FakeBackend


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
async def server(backend: FakeBackend) -> AsyncIterator[ApiServer]:
    server = ApiServer(backend)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def http(server: ApiServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.url) as session:
        yield session
