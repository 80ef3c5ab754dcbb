"""Small texts that mean a lot, answers that nobody reads: refused, or borne, while everybody else is answered."""

import asyncio
import contextlib
import functools
import gzip
import json
import time
from collections.abc import AsyncIterator, Callable
from urllib.parse import urlsplit

import pytest

from tests.abuse import sizes
from tests.abuse.client import Answer, Connection
from tests.abuse.requests import Request
from tests.abuse.server import Server

packed = functools.partial(gzip.compress, mtime=0)
"""Without the time: workers of one test run must name cases alike."""

CONFIGS = "/api/v1/namespaces/default/configmaps"
STALL_S_MAX = 3.0
"""How long others may wait while a bomb goes off, on a machine that does other things, too."""
GROWTH_MIB_MAX = 200
LEVELS = "".join(
    f"{b}: &{b} [{','.join(['*' + a] * 10)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)
)
HEAD = "kind: ConfigMap\napiVersion: v1\nmetadata: {name: b}\n"
JSON, YAML = "application/json", "application/yaml"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def _json_copies() -> bytes:
    grow = [{"op": "add", "path": "/data", "value": {"a": "x" * 1000}}]
    return json.dumps(
        grow + [{"op": "copy", "from": "/data", "path": f"/data/a{i}"} for i in range(60)]
    ).encode()


BOMBS: dict[str, tuple[str, str, str, bytes | Callable[[], bytes], tuple[tuple[bytes, bytes], ...]]] = {
    "YAML aliases": ("POST", CONFIGS, YAML, (HEAD + "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + LEVELS).encode(), ()),
    "YAML long scalars": (
        "POST", CONFIGS, YAML, (HEAD + "a: &a " + "x" * 100_000 + "\nb: [" + "*a," * 5_000 + "]").encode(), ()),
    "YAML merges": (
        "POST", CONFIGS, YAML, (HEAD + "a: &a {x: " + "y" * 4_000 + "}\nb:\n" + "- {<<: *a}\n" * 9_000).encode(), ()),
    "YAML depth": ("POST", CONFIGS, YAML, (HEAD + "a: " + "[" * 100_000).encode(), ()),
    "YAML depth through aliases": ("POST", CONFIGS, YAML, (HEAD + "".join(
        f"a{i}: &a{i} " + "[" * 90 + (f"*a{i - 1}" if i else "1") + "]" * 90 + "\n" for i in range(50))).encode(), ()),
    "YAML of many values": ("POST", CONFIGS, YAML, b"- a\n" * 750_000, ()),
    "YAML apply": ("PATCH", f"{CONFIGS}/b?fieldManager=m", "application/apply-patch+yaml",
                   (HEAD + "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + LEVELS).encode(), ()),
    "JSON depth": ("POST", CONFIGS, JSON, b"[" * 2_000_000, ()),
    "JSON of many values": ("POST", CONFIGS, JSON, b"[" + b"{}," * 900_000 + b"{}]", ()),
    "JSON of many duplicate keys": (
        "POST", f"{CONFIGS}?fieldValidation=Strict", JSON, b'{"x":[' + b'{"a":1,"a":1},' * 70_000 + b"{}]}", ()),
    "a pod of many containers": ("POST", "/api/v1/namespaces/default/pods", JSON,
                                 b'{"metadata":{"name":"b"},"spec":{"containers":[' + b"{}," * 100_000 + b"{}]}}", ()),
    "many wrong labels": ("POST", CONFIGS, JSON, json.dumps(
        {"metadata": {"name": "b", "labels": {f"-{i}-": "-" for i in range(100_000)}}}).encode(), ()),
    "a number of a million digits": ("POST", CONFIGS, JSON, b'{"a":' + b"9" * 1_000_000 + b"}", ()),
    "JSON patch copies": ("PATCH", f"{CONFIGS}/seed", "application/json-patch+json", _json_copies(), ()),
    "gzip": ("POST", CONFIGS, JSON, lambda: packed(b" " * (512 << 20), 9), ((b"Content-Encoding", b"gzip"),)),
    "protobuf depth": ("POST", CONFIGS, "application/vnd.kubernetes.protobuf", b"k8s\x00" + b"\x12\x7f" * 100_000, ()),
    "a selector of many terms": (
        "GET", "/api/v1/pods?labelSelector=" + ",".join(f"a{i}!=b" for i in range(5_000)), JSON, b"", ()),
    "a long body": ("POST", CONFIGS, JSON, b'{"a":"' + b"x" * (8 << 20) + b'"}', ()),
}  # fmt: skip


class Probe:
    """Asks for something small all the time, as a health check does, and knows the longest wait."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def run(self, url: str) -> None:
        async with Connection(url) as connection:
            while True:
                started_s = time.monotonic()
                try:
                    answer = await connection.get("/readyz")
                finally:
                    self.longest_s = max(self.longest_s, time.monotonic() - started_s)
                assert answer.code == 200
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def probed(url: str) -> AsyncIterator[Probe]:
    probe = Probe()
    task = asyncio.create_task(probe.run(url))
    try:
        yield probe
    finally:
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    with Server(tmp_path_factory.mktemp("bombs"), "--nodes", "1") as running:

        async def prepare() -> None:
            async with Connection(running.url) as connection:
                body = {"metadata": {"name": "seed"}, "data": {"a": "b"}}
                assert (await connection.write("POST", CONFIGS, body)).code == 201

        asyncio.run(prepare())
        yield running


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_while_others_are_answered(name: str, quiet: Server) -> None:
    method, path, media, body, headers = BOMBS[name]

    sent_body = body() if callable(body) else body  # What takes seconds to pack is packed where it is thrown.

    async def throw() -> tuple[Answer, Probe]:
        async with probed(quiet.url) as probe, Connection(quiet.url) as connection:
            await asyncio.sleep(0.2)
            sent = Request(method, path, [(b"Content-Type", media.encode()), *headers], sent_body)
            return await connection.send(sent), probe

    before_mib = quiet.resident_mib()
    started_s = time.monotonic()
    answer, probe = asyncio.run(throw())
    took_s, grown_mib = time.monotonic() - started_s, quiet.resident_mib() - before_mib
    figures = (
        f"{answer.code} after {took_s:.1f} s, others waited {probe.longest_s:.2f} s, {grown_mib:+.0f} MiB"
    )
    sizes.note("bombs", **{name: figures})

    assert 400 <= answer.code < 500 or method == "GET", answer
    assert probe.longest_s < STALL_S_MAX
    assert grown_mib < GROWTH_MIB_MAX


def test_patterns_that_backtrack_hold_nobody(quiet: Server) -> None:
    names = {"plural": "bombs", "kind": "Bomb"}
    text = {"type": "string", "pattern": "^(a+)+$"}
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"x": text}}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    spec = {"group": "abuse.example.com", "scope": "Cluster", "names": names, "versions": [version]}

    async def throw() -> tuple[Answer, Probe]:
        async with Connection(quiet.url) as connection:
            made = await connection.write(
                "POST", DEFINITIONS, {"metadata": {"name": "bombs.abuse.example.com"}, "spec": spec}
            )
            if made.code >= 400:  # a pattern that cannot be followed in linear time may be refused itself
                return made, Probe()
            async with probed(quiet.url) as probe:
                bomb = {"metadata": {"name": "b"}, "spec": {"x": "a" * 40 + "!"}, "kind": "Bomb",
                        "apiVersion": "abuse.example.com/v1"}  # fmt: skip
                return await connection.write("POST", "/apis/abuse.example.com/v1/bombs", bomb), probe

    answer, probe = asyncio.run(throw())
    sizes.note("bombs", backtracking_pattern=f"{answer.code}, others waited {probe.longest_s:.2f} s")

    assert answer.code in (400, 422), answer
    assert probe.longest_s < STALL_S_MAX


def test_requests_that_never_end_hold_nobody(quiet: Server) -> None:
    async def crawl() -> Probe:
        parts = urlsplit(quiet.url)
        open_ = [await asyncio.open_connection(parts.hostname, parts.port) for _ in range(300)]
        async with probed(quiet.url) as probe:
            for _, writer in open_:
                writer.write(
                    f"POST {CONFIGS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n".encode()
                )
            await asyncio.sleep(3)
        for _, writer in open_:
            writer.close()
        return probe

    probe = asyncio.run(crawl())
    sizes.note("bombs", requests_that_never_end=f"300, others waited {probe.longest_s:.2f} s")
    assert probe.longest_s < STALL_S_MAX


def test_malformed_requests_fill_no_log(quiet: Server) -> None:
    async def flood() -> None:
        parts = urlsplit(quiet.url)
        for number in range(300):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.write(
                [b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n"][
                    number % 3
                ]
            )
            await reader.read()
            writer.close()

    before = quiet.log.stat().st_size
    asyncio.run(flood())
    grown = quiet.log.stat().st_size - before
    sizes.note("bombs", malformed_requests=f"300, log grew by {grown} bytes")
    assert grown < 8_000
    assert not quiet.failures()
