"""Damaged conversations: those of a real runtime with bytes changed, cut out, doubled, or lengths that lie."""

import asyncio
import random

from koordinator.host import protobuf
from koordinator.host.protobuf_messages import Message, encode
from koordinator.koordlet.nri import frames, messages
from koordinator.koordlet.nri.frames import PLUGIN_CONNECTION, Frame, FrameError, MessageType
from koordinator.koordlet.nri.session import Handler, Session

OUTPUT_BYTES_MAX = 64 * 1024


class Sink:
    """A writer that keeps how much was written, and its transport, which has sent it all."""

    def __init__(self) -> None:
        self.written = 0
        self.transport = self

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.written += len(data)

    async def drain(self) -> None:
        pass

    def close(self) -> None:
        pass


def conversation() -> list[bytes]:
    """Calls of a runtime as it sends them."""
    pod = messages.PodSandbox(
        "sandbox",
        "web",
        "uid",
        "default",
        {"a": "b"},
        {"c": "{}"},
        "",
        messages.LinuxPodSandbox(None, "/kubepods/p"),
    )
    container = messages.Container(
        "id",
        "sandbox",
        "main",
        unknown=protobuf.field(8, "A=b") + protobuf.field(8, "C"),  # its environment
        linux=messages.LinuxContainer(
            messages.LinuxResources(messages.LinuxMemory(1 << 20), messages.LinuxCPU(2, -1, 100_000, "0-1"))
        ),
    )
    calls: list[tuple[str, Message]] = [
        ("Configure", messages.ConfigureRequest("events: [CreateContainer]", "containerd", "2")),
        ("Synchronize", messages.SynchronizeRequest((pod,), (container,))),
        ("StateChange", messages.StateChangeEvent(1, pod)),
        ("CreateContainer", messages.CreateContainerRequest(pod, container)),
        ("UpdateContainer", messages.UpdateContainerRequest(pod, container, messages.LinuxResources())),
    ]
    return [
        frames.written(
            Frame(
                PLUGIN_CONNECTION,
                2 * index + 1,
                MessageType.REQUEST,
                encode(messages.Request(messages.PLUGIN_SERVICE, method, encode(request))),
            )
        )
        for index, (method, request) in enumerate(calls)
    ]


_WHOLE = conversation()


def damaged(rng: random.Random) -> bytes:
    """A conversation in which something is wrong, now and then nothing."""
    raw = bytearray(b"".join(rng.sample(_WHOLE, rng.randint(1, len(_WHOLE)))))
    for _ in range(rng.randint(0, 4)):
        at, size = rng.randrange(len(raw)), rng.randint(1, 12)
        match rng.randrange(5):
            case 0:
                raw[at] ^= 1 << rng.randrange(8)
            case 1:
                del raw[at : at + size]
            case 2:
                raw[at:at] = rng.randbytes(size)
            case 3:
                raw[at : at + 4] = rng.choice((b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x00\x40\x00\x00"))
            case _:
                raw += raw[at : at + 40]
        if not raw:
            break
    return bytes(raw)


async def converse(rng: random.Random, handler: Handler) -> str:
    """Feed a damaged conversation to a session: `ended` by it, `answered` in part, or `closed` without an answer."""
    reader, sink = asyncio.StreamReader(), Sink()
    session = Session(reader, sink, messages.PLUGIN_SERVICE, handler)  # type: ignore[arg-type]
    reader.feed_data(damaged(rng))
    reader.feed_eof()
    try:
        await session.run()
    except FrameError:
        return "ended"
    assert sink.written <= OUTPUT_BYTES_MAX
    return "answered" if sink.written else "closed"
