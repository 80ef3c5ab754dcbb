"""Bytes of an NRI socket: what is written is read again however it is cut; what is damaged or too long ends it."""

import asyncio
import random
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.cluster.supervise import strictly
from koordinator.koordlet.nri import frames
from koordinator.koordlet.nri.frames import (
    MESSAGE_BYTES_MAX,
    PLUGIN_CONNECTION,
    RUNTIME_CONNECTION,
    Frame,
    FrameError,
    FrameReader,
    MessageType,
)
from tests.koordlet.hooks.hook_node import HookNode
from tests.koordlet.nri import damage
from tests.koordlet.nri.joining import new_plugin
from tests.searches import examples

some_frames = st.builds(
    Frame,
    st.sampled_from([PLUGIN_CONNECTION, RUNTIME_CONNECTION]),
    st.integers(0, 2**32 - 1),
    st.sampled_from(MessageType),
    st.binary(max_size=30) | st.integers(4_000, 9_000).map(lambda size: b"x" * size),
)


@given(st.lists(some_frames, max_size=4), st.integers(1, 5_000))
def test_messages_are_read_again_however_they_are_cut(sent: list[Frame], piece: int) -> None:
    raw = b"".join(frames.written(frame) for frame in sent)
    reader = FrameReader()
    came: list[Frame] = []

    for at in range(0, len(raw), piece):
        came += reader.feed(raw[at : at + piece])

    assert came == sent


@given(some_frames)
def test_no_chunk_is_longer_than_the_buffer_of_the_runtime(frame: Frame) -> None:
    raw, at = frames.written(frame), 0
    while at < len(raw):
        connection, length = struct.unpack_from(">II", raw, at)
        assert connection == frame.connection and 0 < length <= 4096
        at += 8 + length
    assert at == len(raw)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(struct.pack(">II", 1, 0xFFFFFFFF), id="a frame of 4 GiB"),
        pytest.param(struct.pack(">II", 9, 0), id="a connection that nobody opened"),
        pytest.param(
            struct.pack(">IIIIBB", 1, 10, MESSAGE_BYTES_MAX + 1, 1, 1, 0), id="a message of more than 4 MiB"
        ),
    ],
)
def test_limits_are_kept_before_anything_is_stored(raw: bytes) -> None:
    with pytest.raises(FrameError):
        list(FrameReader().feed(raw))


def test_an_answer_that_is_too_long_is_not_sent() -> None:
    with pytest.raises(FrameError, match="are allowed"):
        frames.written(Frame(PLUGIN_CONNECTION, 1, MessageType.RESPONSE, bytes(MESSAGE_BYTES_MAX + 1)))


async def test_damaged_conversations_end_or_are_answered(tmp_path: Path) -> None:
    rng, plugin = random.Random(1), new_plugin(HookNode(tmp_path))

    with strictly():
        outcomes = [await damage.converse(rng, plugin.answered) for _ in range(examples(1_500))]

    assert {"ended", "answered", "closed"} == set(outcomes)
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
