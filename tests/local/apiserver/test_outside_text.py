"""Text from outside that is no text: whatever a client sends in headers, it is answered, kept and shown to others."""

import asyncio
import functools
import gzip
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from koordinator.clock import FixedClock
from koordinator.cluster.backend import Backend, ListOptions
from koordinator.cluster.delegated_auth import User
from koordinator.cluster.protocol import EventType
from koordinator.local.apiserver import ApiServer, query
from tests.local.apiserver.world import real_server

packed = functools.partial(gzip.compress, mtime=0)
"""Without the time: workers of one test run must name cases alike."""

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
JSON = b"Content-Type: application/json\r\n"


@pytest.fixture
async def real() -> AsyncIterator[ApiServer]:
    server, _ = real_server(FixedClock())
    await server.start()
    yield server
    await server.stop()


async def exchange(server: ApiServer, data: bytes) -> bytes:
    """What the server sends back until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    writer.write(data)
    try:
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()


def request(method: str, path: str, headers: bytes = b"", body: bytes = b"") -> bytes:
    if b"Host:" not in headers:
        headers += b"Host: localhost\r\n"
    head = f"{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n".encode()
    return head + headers + b"\r\n" + body


def config(name: str) -> bytes:
    return json.dumps({"metadata": {"name": name}, "data": {"a": "b"}}).encode()


def code_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def body_of(answer: bytes) -> Any:
    return json.loads(answer.partition(b"\r\n\r\n")[2])


async def test_a_user_agent_that_is_no_utf_8_makes_a_manager_that_everybody_can_read(real: ApiServer) -> None:
    headers = JSON + b"User-Agent: b\xff\xfet/1.0\r\n"
    created = await exchange(real, request("POST", CONFIG_MAPS, headers, config("a")))
    listed = await exchange(real, request("GET", CONFIG_MAPS))

    assert (code_of(created), code_of(listed)) == (201, 200)
    entries = body_of(listed)["items"][0]["metadata"]["managedFields"]
    assert [entry["manager"] for entry in entries] == ["b\ufffd\ufffdt"]


@pytest.mark.parametrize(
    "header",
    [b"Origin: http://\xff\r\n", b"Host: \xff\xfe\r\n", b"Host: localhost\r\nImpersonate-User: \xff\r\n",
     b"Authorization: Bearer \xff\r\n", b"Accept: \xff\r\n", b"Content-Type: \xff\r\n",
     b"If-None-Match: \xff\r\n", b"Accept-Encoding: \xff\r\n", b"Cookie: \xff\r\n"],
    ids=lambda header: header.split(b":")[-2].split(b"\n")[-1].decode(),
)  # fmt: skip
async def test_no_header_that_is_no_utf_8_fails_the_server(real: ApiServer, header: bytes) -> None:
    for method, path, body in (
        ("POST", CONFIG_MAPS, config("a")),
        ("GET", CONFIG_MAPS, b""),
        ("GET", "/api", b""),
    ):
        answer = await exchange(real, request(method, path, header, body))

        assert 200 <= code_of(answer) < 500, answer


@pytest.mark.parametrize(
    ("agent", "manager"),
    [
        ("kubectl/v1.35", "kubectl"),
        ("a\x00b\x07c/1", "abc"),
        ("x" * 200, "x" * 128),
        ("é" * 100, "é" * 64),
        ("aé" * 100, "aé" * 42 + "a"),
        ("\ud800x", "x"),
        ("", ""),
    ],
)
def test_field_managers_of_user_agents_are_cut_as_the_api_server_cuts_them(agent: str, manager: str) -> None:
    options = query.write_options({}, User("u", ()), "CreateOptions", agent, lambda _: None)
    assert options.field_manager == manager


async def test_explicit_managers_are_counted_in_bytes(real: ApiServer) -> None:
    async with aiohttp.ClientSession(real.url) as http:
        for manager, code in (("é" * 64, 201), ("é" * 65, 422)):
            async with http.post(
                CONFIG_MAPS,
                params={"fieldManager": manager},
                data=config(f"c{code}"),
                headers={"Content-Type": "application/json"},
            ) as answer:
                assert answer.status == code


@pytest.mark.parametrize(
    ("encoding", "body", "code"),
    [
        pytest.param("gzip", packed(config("good")), 201, id="packed as it says"),
        pytest.param("gzip", config("plain"), 400, id="not packed at all"),
        pytest.param("gzip", packed(config("cut"))[:-12], 400, id="cut off"),
        pytest.param("deflate", b"\x00\xff" * 20, 400, id="nothing of the kind"),
        pytest.param("gzip", packed(bytes(20 << 20)), 413, id="too much when unpacked"),
    ],
)
async def test_bodies_that_are_not_encoded_as_they_say_are_refused(
    real: ApiServer, encoding: str, body: bytes, code: int
) -> None:
    headers = JSON + f"Content-Encoding: {encoding}\r\n".encode()
    assert code_of(await exchange(real, request("POST", CONFIG_MAPS, headers, body))) == code


async def test_the_rest_of_a_refused_body_is_never_unpacked(real: ApiServer) -> None:
    headers = JSON + b"Content-Encoding: gzip\r\n"
    bomb = packed(bytes(128 << 20))
    before_s = time.process_time()
    assert code_of(await exchange(real, request("POST", CONFIG_MAPS, headers, bomb))) == 413
    assert code_of(await exchange(real, request("POST", "/nowhere", headers, bomb))) == 405
    assert time.process_time() - before_s < 0.2  # either takes 0.5 s to unpack


@pytest.mark.parametrize(
    "missing", ["versions.0.name", "group", "names.plural", "names.kind", "names", "scope"]
)
async def test_a_definition_that_lacks_a_name_is_refused_by_its_field(real: ApiServer, missing: str) -> None:
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object"}},
    }
    names = {"plural": "widgets", "kind": "Widget"}
    spec: Any = {"group": "e.com", "scope": "Namespaced", "names": names, "versions": [version]}
    holder: Any = spec
    *parents, last = missing.split(".")
    for part in parents:
        holder = holder[int(part)] if part.isdigit() else holder[part]
    del holder[last]
    async with aiohttp.ClientSession(real.url) as http:
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        async with http.post(path, json={"metadata": {"name": "widgets.e.com"}, "spec": spec}) as answer:
            body = await answer.json()

    assert answer.status == 422, body
    assert f"spec.{missing.replace('.0.', '[0].')}" in body["message"]


async def test_a_failure_in_the_middle_of_an_answer_closes_the_connection(
    real: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second answer inside the body of the first would be read as an event of the watch."""

    class Broken:
        def __aiter__(self) -> "Broken":
            self.batches = 0
            return self

        async def __anext__(self) -> Any:
            self.batches += 1
            if self.batches == 1:
                page = backend.list(resource, "", ListOptions())
                return [_event(page.records[0])]
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")

        def close(self) -> None:
            pass

    backend: Backend = real.watches._backend
    resource = backend.resolve("", "v1", "namespaces")
    monkeypatch.setattr(backend, "watch", lambda *_: Broken())
    answer = await exchange(real, request("GET", "/api/v1/namespaces?watch=1"))

    assert answer.count(b"HTTP/1.") == 1
    assert b'"type":"ADDED"' in answer
    assert b"500" not in answer.partition(b"\r\n")[0]


def _event(record: Any) -> Any:
    from koordinator.cluster.backend import RecordEvent

    return RecordEvent(EventType.ADDED, record, record.version)
