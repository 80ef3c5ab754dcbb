"""API server over HTTP: creates and patches per second, and watch fan-out.

    python -m benchmarks.apiserver [--seconds 3] [--watchers 100]

The server runs in a process of its own, so the figures per core are those of its CPU time, not of the client's.
A peer in the same run answers the same requests with a constant: what the HTTP layer costs at the least.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any

from aiohttp import web

from koordinator.api.core import Pod
from koordinator.clock import SystemClock
from koordinator.cluster import garbage
from koordinator.local import registry
from koordinator.local.apiserver import ApiServer

CONNECTIONS = 8


def pod(name: str) -> dict[str, Any]:
    """A pod of a usual size (about 1 kB)."""
    container = {
        "name": "main",
        "image": "registry.example.com/team/service:1.2.3",
        "ports": [{"containerPort": 8080, "name": "http"}],
        "env": [{"name": f"KEY_{i}", "value": f"value-{i}"} for i in range(8)],
        "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "2Gi"}},
    }
    labels = {"app": "service", "team": "team-a", "pod-template-hash": "5d4f8c7b9"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [container], "nodeSelector": {"kubernetes.io/os": "linux"}},
    }


async def _serve(pipe: Connection, peer: bool, beside: int) -> None:
    if peer:
        body = json.dumps(pod("peer")).encode()

        async def constant(request: web.BaseRequest) -> web.Response:
            await request.read()
            return web.Response(body=body, headers={"Content-Type": "application/json"})

        loop = asyncio.get_running_loop()
        listener = await loop.create_server(web.Server(constant, access_log=None), "127.0.0.1", 0)
        pipe.send(listener.sockets[0].getsockname()[1])
    else:
        backend = registry.in_memory(SystemClock())
        for number in range(beside):
            await backend.create(Pod.resource, "kube-public", pod(f"beside-{number}"))
        server = ApiServer(backend)
        await server.start()
        pipe.send(int(server.url.rpartition(":")[2]))
    while True:
        while not pipe.poll():  # noqa: ASYNC110 (a pipe has no event)
            await asyncio.sleep(0.05)
        if pipe.recv() == "stop":
            return
        used = resource.getrusage(resource.RUSAGE_SELF)
        pipe.send((used.ru_utime + used.ru_stime, used.ru_maxrss // 1024))


def _run(pipe: Connection, peer: bool, beside: int) -> None:
    with garbage.collected_rarely():  # as in `koordinator up`
        _loop_run(_serve(pipe, peer, beside))


def _loop_run(main: Any) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


class Server:
    """A server process and the CPU time it used; `beside` pods are in its store from the start."""

    def __init__(self, *, peer: bool = False, beside: int = 0) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.Process(target=_run, args=(theirs, peer, beside), daemon=True)
        self._process.start()
        self.port = self._pipe.recv()

    def usage(self) -> tuple[float, int]:
        """CPU seconds so far and peak memory in MiB."""
        self._pipe.send("usage")
        return self._pipe.recv()  # type: ignore[no-any-return]

    def stop(self) -> None:
        self._pipe.send("stop")
        self._process.join()


class Client:
    """One keep-alive connection that costs little: requests are bytes, answers are skipped by their length."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        self._reader, self._writer, self._host = reader, writer, f"127.0.0.1:{port}"

    @classmethod
    async def connect(cls, port: int) -> "Client":
        return cls(*await asyncio.open_connection("127.0.0.1", port), port)

    async def send(self, method: str, path: str, body: bytes, media: str = "application/json") -> None:
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\nAccept: application/json\r\nUser-Agent: bench/1\r\n"
            f"Content-Type: {media}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        assert answer[9:10] == b"2", answer
        start = answer.index(b"Content-Length: ") + 16
        await self._reader.readexactly(int(answer[start : answer.index(b"\r", start)]))


Load = Callable[[Client, int], Awaitable[None]]


async def measure(name: str, server: Server, seconds: float, load: Load) -> float:
    """Runs a load on all connections; prints and returns requests per second of the server's CPU time."""
    clients = [await Client.connect(server.port) for _ in range(CONNECTIONS)]
    before, _ = server.usage()
    start = time.perf_counter()
    done = 0

    async def worker(index: int, client: Client) -> None:
        nonlocal done
        number = 0
        while time.perf_counter() - start < seconds:
            await load(client, index * 1_000_000 + number)
            number += 1
            done += 1

    await asyncio.gather(*(worker(index, client) for index, client in enumerate(clients)))
    wall_s = time.perf_counter() - start
    after, memory_mib = server.usage()
    per_core = done / (after - before)
    print(
        f"{name:34} {done / wall_s:8,.0f} /s   {per_core:8,.0f} /s per core   {memory_mib:5} MiB", flush=True
    )
    return per_core


async def create(client: Client, number: int) -> None:
    await client.send("POST", "/api/v1/namespaces/default/pods", json.dumps(pod(f"p{number}")).encode())


async def create_and_patch(client: Client, number: int) -> None:
    """Half creates, half merge patches of what was created before."""
    if number % 2 == 0:
        await create(client, number)
        return
    body = b'{"metadata":{"annotations":{"bench":"%d"}}}' % number
    path = f"/api/v1/namespaces/default/pods/p{number - 1}"
    await client.send("PATCH", path, body, "application/merge-patch+json")


async def patch_status(client: Client, number: int) -> None:
    body = b'{"status":{"phase":"Running","podIP":"10.0.%d.%d"}}' % (number // 200 % 200, number % 200)
    media = "application/strategic-merge-patch+json"
    await client.send("PATCH", "/api/v1/namespaces/default/pods/status-only/status", body, media)


async def fan_out(server: Server, watchers: int, changes: int) -> None:
    """Events per second when many watch what one writes."""
    client = await Client.connect(server.port)
    # The collection starts empty: what the last round left would count as events.
    await client.send("DELETE", "/api/v1/namespaces/kube-system/configmaps", b"{}")
    received = 0
    streams = []
    for _ in range(watchers):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        path = "/api/v1/namespaces/kube-system/configmaps?watch=true"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        streams.append((reader, writer))

    async def count(reader: asyncio.StreamReader) -> None:
        nonlocal received
        mine = 0
        while mine < changes:
            found = (await reader.read(1 << 16)).count(b'"type":"ADDED"')
            assert found or not reader.at_eof()
            mine += found
            received += found

    before, _ = server.usage()
    start = time.perf_counter()
    readers = [asyncio.create_task(count(reader)) for reader, _ in streams]
    for number in range(changes):
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"c{number}"},
            "data": {"a": "x" * 800},
        }
        await client.send("POST", "/api/v1/namespaces/kube-system/configmaps", json.dumps(body).encode())
    await asyncio.gather(*readers)
    wall_s = time.perf_counter() - start
    after, memory_mib = server.usage()
    per_core = received / (after - before)
    print(
        f"{f'events to {watchers} watchers':34} {received / wall_s:8,.0f} /s   {per_core:8,.0f} /s per core   "
        f"{memory_mib:5} MiB"
    )
    for _, writer in streams:
        writer.close()


async def run(seconds: float, watchers: int) -> None:
    peer, server = Server(peer=True), Server()
    try:
        floor = await measure("peer: a constant answer", peer, seconds, create)
        mixed = await measure("creates and merge patches of pods", server, seconds, create_and_patch)
        client = await Client.connect(server.port)
        await client.send("POST", "/api/v1/namespaces/default/pods", json.dumps(pod("status-only")).encode())
        await measure("strategic patches of a pod's status", server, seconds, patch_status)
        for count in (1, watchers // 10 or 1, watchers):
            await fan_out(server, count, changes=200)
        print(f"creates and patches cost {floor / mixed:.1f} times the constant answer")
    finally:
        peer.stop()
        server.stop()
    for beside in (1_000, 10_000, 50_000):
        server = Server(beside=beside)
        try:
            await measure(f"the same beside {beside:,} pods", server, seconds, create_and_patch)
        finally:
            server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="per load")
    parser.add_argument("--watchers", type=int, default=100)
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} CPUs, {CONNECTIONS} keep-alive connections")
    _loop_run(run(arguments.seconds, arguments.watchers))


if __name__ == "__main__":
    main()
