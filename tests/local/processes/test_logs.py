"""What a container writes, from its pipes to whoever reads the log."""

import asyncio
import os
from pathlib import Path

import pytest

from koordinator.clock import FixedClock
from koordinator.local.apiserver.pod_streams import LogOptions
from koordinator.local.processes import logs
from koordinator.local.processes.logs import LINE_BYTES_MAX, LogFile, LogLine, Output


async def logged(tmp_path: Path, *writes: tuple[int, bytes]) -> Path:
    """A log of what was written to stdout (0) and stderr (1)."""
    path = tmp_path / "logs" / "0.log"
    pipes = Output(LogFile(path, FixedClock(1_700_000_000.25)))
    for stream, data in writes:
        os.write(pipes.ends[stream], data)
    pipes.handed_over()
    await asyncio.sleep(0)
    pipes.finish()
    return path


async def text(path: Path, **selection: object) -> str:
    chosen = LogOptions(container="main", **selection)  # type: ignore[arg-type]
    return b"".join([piece async for piece in logs.read(path, chosen, lambda: True)]).decode()


async def test_lines_are_kept_with_time_and_stream(tmp_path: Path) -> None:
    path = await logged(tmp_path, (0, b"one\ntwo"), (1, b"oops\n"))

    assert path.read_text().splitlines() == [
        "2023-11-14T22:13:20.250000000Z stdout F one",
        "2023-11-14T22:13:20.250000000Z stdout F two",
        "2023-11-14T22:13:20.250000000Z stderr F oops",
    ]


async def test_a_long_line_is_kept_in_parts_and_shown_whole(tmp_path: Path) -> None:
    line = "x" * (2 * LINE_BYTES_MAX + 5)

    path = await logged(tmp_path, (0, line.encode() + b"\nend\n"))

    assert path.read_text().count(" P ") == 2
    assert await text(path) == f"{line}\nend\n"
    assert (await text(path, timestamps=True)).count("2023-") == 2
    assert await text(path, tail_lines=2) == f"{line}\nend\n"


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({"tail_lines": 2}, "b\nc\n"),
        ({"tail_lines": 0}, ""),
        ({"tail_lines": 9}, "a\nb\nc\n"),
        ({"limit_bytes": 3}, "a\nb"),
        ({"timestamps": True, "tail_lines": 1}, "2023-11-14T22:13:20.250000000Z c\n"),
        ({"since_time_s": 1_700_000_000.25}, "a\nb\nc\n"),
        ({"since_time_s": 1_700_000_000.5}, ""),
    ],
)
async def test_parts_of_a_log(tmp_path: Path, selection: dict[str, object], expected: str) -> None:
    assert await text(await logged(tmp_path, (0, b"a\nb\nc\n")), **selection) == expected


async def test_following_goes_on_until_the_container_has_ended(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "0.log", FixedClock())
    log.write("stdout", b"one", is_whole=True)
    over = False
    pieces = logs.read(tmp_path / "0.log", LogOptions(container="main", follow=True), lambda: over)

    assert await anext(pieces) == b"one\n"
    log.write("stdout", b"two", is_whole=True)
    assert await anext(pieces) == b"two\n"
    assert await anext(pieces) == b""
    log.write("stdout", b"three", is_whole=True)
    over = True
    assert [piece async for piece in pieces if piece] == [b"three\n"]


async def test_following_crosses_to_the_next_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FILE_BYTES_MAX", 150)
    log = LogFile(tmp_path / "0.log", FixedClock())
    over = False
    pieces = logs.read(tmp_path / "0.log", LogOptions(container="main", follow=True), lambda: over)
    seen = b""
    for number in range(6):
        log.write("stdout", b"line %d" % number, is_whole=True)
        seen += await anext(pieces)
    over = True
    seen += b"".join([piece async for piece in pieces])

    assert seen.decode().splitlines() == [f"line {number}" for number in range(6)]
    assert (tmp_path / "0.log.1").exists()


async def test_a_flood_is_read_slowly_and_completely(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    pipes = Output(LogFile(path, FixedClock()))
    os.set_blocking(pipes.ends[0], False)
    sent = 0
    for _ in range(20):
        try:
            sent += os.write(pipes.ends[0], b"0123456789abcde\n" * 4096)
        except BlockingIOError:
            await asyncio.sleep(0.02)
    pipes.handed_over()
    await asyncio.sleep(0.1)
    pipes.finish()

    assert len(await text(path)) == sent > 65_536


def test_what_is_no_entry_is_left_out() -> None:
    assert logs.parse(b"2023-11-14T22:13:20Z stdout F ") == LogLine(b"2023-11-14T22:13:20Z", True, b"")
    assert logs.parse(b"2023-11-14T22:13:20Z stdout") is None
    assert logs.parse(b"half a li") is None
    assert logs.parse(b"") is None
