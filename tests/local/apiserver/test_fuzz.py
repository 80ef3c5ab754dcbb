"""No request, however wrong, is answered with 500: valid requests are damaged at random, and replies are checked.

A failure prints the seed and the request; `FUZZ_SEED=N pytest tests/local/apiserver/test_fuzz.py` repeats it.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator

import aiohttp
import pytest
import yarl

from koordinator.clock import FixedClock
from tests.local.apiserver.fuzz import COLLECTIONS, Fuzzer
from tests.local.apiserver.world import real_server

SEED = int(os.environ.get("FUZZ_SEED", "1"))
REQUESTS = 8_000
ROUNDS = 4
CODES = {200, 201, 202, 304, 400, 401, 403, 404, 405, 406, 409, 410, 413, 415, 422, 429, 503, 504}


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    server, _ = real_server(FixedClock())
    await server.start()
    async with aiohttp.ClientSession(server.url) as session:
        for path, body in (COLLECTIONS[7], *COLLECTIONS[:7]):
            async with session.post(path, json=body) as response:
                assert response.status == 201, await response.text()
        yield session
    await server.stop()


@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
async def test_damaged_requests_are_refused_never_failed(
    seed: int, http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    fuzzer = Fuzzer(seed)
    codes: dict[int, int] = {}
    for _ in range(REQUESTS // ROUNDS):
        method, path, headers, body = fuzzer.request()
        async with asyncio.timeout(10):
            code = await answered(http, method, path, headers, body)
        codes[code] = codes.get(code, 0) + 1
        assert code in CODES, f"FUZZ_SEED={seed}: {method} {path} {headers} {body!r}: {code}\n{caplog.text}"
    # The fuzzer is worth its time only while much of what it sends gets through.
    assert codes[200] + codes[201] > REQUESTS // ROUNDS // 8, codes
    assert {400, 404, 405, 415, 422} <= codes.keys(), codes


async def answered(
    http: aiohttp.ClientSession, method: str, path: str, headers: dict[str, str], body: bytes | None
) -> int:
    """The code of the answer, which is an object of Kubernetes unless it is a text by nature."""
    url = yarl.URL(str(http._base_url).rstrip("/") + path, encoded=True)
    async with http.request(method, url, data=body, headers=headers) as response:
        text = await response.text()
        if method != "HEAD" and response.content_type == "application/json" and response.status != 304:
            value = json.loads(text)
            if response.status >= 400:
                assert (value["kind"], value["code"]) == ("Status", response.status), (method, path, text)
        return response.status
