"""Damaged HTTP/2 frames at the sockets of the runtime proxy and of the hook server, and from servers that both call:
they live on and keep nothing.

FRAMES= says how many each of them gets.
"""

import asyncio
import collections
import contextlib
import os
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from benchmarks.runtime_proxy import processes

from koordinator.host import protobuf_messages
from koordinator.host.cri_messages import RunPodSandboxRequest
from koordinator.host.errors import CallError
from koordinator.host.grpc_client import Channel
from koordinator.host.hook_messages import HOOK_SERVICE, PodSandboxHookRequest
from tests.runtime_proxy.endpoints import HOOKS, PROXY
from tests.runtime_proxy.fake_runtime import Caller, sandbox_config

FRAMES = int(os.environ.get("FRAMES", "100000"))
PER_CONNECTION = 50
GROWTH_MIB_MAX = 40
"""Allocators keep some of what was used once."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
_METHOD = b"/runtime.v1.RuntimeService/CreateContainer"
_HOOK = f"/{HOOK_SERVICE}/PreCreateContainerHook".encode()


def literal(name: bytes, value: bytes) -> bytes:
    """A header without compression (RFC 7541, 6.2.2)."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def frames(rng: random.Random, method: bytes) -> Iterator[bytes]:
    """Calls that are nearly right, each damaged somewhere, and frames of pure chance."""
    headers = b"".join(
        literal(*each)
        for each in (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", method),
            (b":authority", b"localhost"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        )
    )
    for index in range(PER_CONNECTION // 2):
        stream = 2 * index + 1
        body = rng.randbytes(rng.choice((0, 1, 20, 500)))
        message = bytes([rng.choice((0, 0, 0, 1, 7))]) + len(body).to_bytes(4, "big") + body
        for whole in (frame(1, 4, stream, headers), frame(0, 1, stream, message)):
            yield damaged(rng, whole)


def answer_frames(rng: random.Random) -> Iterator[bytes]:
    """Answers to a connection's first calls, damaged in the same way, and frames of all kinds without a sense."""
    for index in range(PER_CONNECTION):
        stream = 2 * (index // 3) + 1
        body = rng.randbytes(rng.choice((0, 1, 20, 500)))
        whole = rng.choice(
            (
                frame(1, 4, stream, b"\x88" + literal(b"content-type", b"application/grpc")),
                frame(0, 0, stream, b"\0" + len(body).to_bytes(4, "big") + body),
                frame(1, 5, stream, literal(b"grpc-status", str(rng.randrange(20)).encode())),
                frame(rng.randrange(12), rng.randrange(256), rng.randrange(9), body[:60]),
            )
        )
        yield damaged(rng, whole)


RIGHT_ANSWERS = tuple(
    frame(1, 4, stream, b"\x88" + literal(b"content-type", b"application/grpc"))
    + frame(0, 0, stream, b"\0\0\0\0\x01x")
    + frame(1, 5, stream, literal(b"grpc-status", b"0"))
    for stream in (1, 3, 5, 7)
)
"""Of the calls that share a connection."""


def damaged(rng: random.Random, whole: bytes) -> bytes:
    """A frame, often as it was."""
    found = bytearray(whole)
    if rng.random() < 0.3:
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    if rng.random() < 0.05:
        found = found[: rng.randrange(len(found))]
    if rng.random() < 0.05:
        found += rng.randbytes(30)
    return bytes(found)


def throw(path: Path, rng: random.Random, method: bytes) -> int:
    """One connection full of damage; the number of frames."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(5)
        connect(peer, path)
        sent = 0
        with contextlib.suppress(OSError):  # it has hung up, and rightly so
            peer.sendall(_PREFACE + _SETTINGS)
            for each in frames(rng, method):
                sent += 1
                peer.sendall(each)
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(65_536):
                pass
        return PER_CONNECTION if sent else 0


def connect(peer: socket.socket, path: Path) -> None:
    """Connect; gRPC's server in koordlet ends with a method that is no text, and is there again in half a second."""
    for _ in range(200):
        try:
            peer.connect(str(path))
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"{path} is gone")


def held(pid: int) -> tuple[int, float]:
    """Open files, and memory in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    rss_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    return len(list(Path(f"/proc/{pid}/fd").iterdir())), rss_kib / 1024


async def answers(folder: Path, which: str) -> None:
    """Both do what they are there for, once the runtime is there again."""
    for _ in range(40):
        with contextlib.suppress(grpc.aio.AioRpcError):
            await ask(folder, which)
            return
        await asyncio.sleep(0.1)
    await ask(folder, which)


async def ask(folder: Path, which: str) -> None:
    if which == PROXY:
        caller = Caller(folder / PROXY)
        await caller.call("RunPodSandbox", RunPodSandboxRequest(sandbox_config()))
    else:
        caller = Caller(folder / HOOKS)
        request = protobuf_messages.encode(PodSandboxHookRequest(labels={"a": "b"}))
        await caller.channel.unary_unary(f"/{HOOK_SERVICE}/PreRunPodSandboxHook")(request, timeout=10)
    await caller.channel.close()


@pytest.mark.parametrize(("which", "method"), [(PROXY, _METHOD), (HOOKS, _HOOK)], ids=["proxy", "koordlet"])
def test_damaged_frames_neither_stop_a_server_nor_stay_with_it(
    tmp_path: Path, which: str, method: bytes
) -> None:
    rng = random.Random(18)
    with processes(tmp_path) as found:
        pid = found["proxy" if which == PROXY else "hooks"].pid
        for _ in range(40):
            throw(tmp_path / which, rng, method)
        files, memory_mib = held(pid)

        thrown = 0
        while thrown < FRAMES:
            thrown += throw(tmp_path / which, rng, method) or PER_CONNECTION
        asyncio.run(answers(tmp_path, which))

        files_after, memory_after_mib = held(pid)
    print(f"{which}: {thrown} frames; memory {memory_mib:.0f} MiB, then {memory_after_mib:.0f} MiB")
    assert files_after <= files + 3
    assert memory_after_mib <= memory_mib + GROWTH_MIB_MAX


async def test_damaged_answers_end_calls_and_leave_nothing_behind(tmp_path: Path) -> None:
    rng, given = random.Random(19), 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal given
        await reader.read(1)
        with contextlib.suppress(OSError):
            writer.writelines((_SETTINGS, *(answer_frames(rng) if rng.random() < 0.9 else RIGHT_ANSWERS)))
            given += PER_CONNECTION
            writer.close()
            await writer.wait_closed()

    async def outcome(calls: Channel) -> str:
        try:
            await calls.call(_HOOK.decode(), b"message", 5)
            return "answer"
        except CallError as error:
            return "time limit" if error.reason.startswith("no answer within") else error.code.name

    server = await asyncio.start_unix_server(serve, tmp_path / "s")
    outcomes: collections.Counter[str] = collections.Counter()
    async with server:
        while given < FRAMES:
            calls = Channel(str(tmp_path / "s"))
            outcomes.update(await asyncio.gather(*(outcome(calls) for _ in range(4))))
            await calls.close()
        await asyncio.sleep(0.1)
    print(f"client: {given} frames, calls ended by {dict(outcomes)}")
    assert outcomes["time limit"] == 0
    assert outcomes["answer"] > 0
    assert len(asyncio.all_tasks()) == 1


def test_a_message_above_the_limit_is_refused_and_the_next_is_not(tmp_path: Path) -> None:
    async def call() -> None:
        caller = Caller(tmp_path / PROXY)
        with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_EXHAUSTED"):
            await caller.channel.unary_unary("/runtime.v1.RuntimeService/ListContainers")(
                bytes(17 * 1024 * 1024), timeout=20
            )
        await caller.channel.close()
        await answers(tmp_path, PROXY)

    with processes(tmp_path):
        asyncio.run(call())
