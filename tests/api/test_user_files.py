"""Files that people give: told in one line with file and place when they are damaged, read in bounded memory."""

import functools
import gzip
import io
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from koordinator.api import user_files
from koordinator.api.user_files import FileError, JsonStream

packed = functools.partial(gzip.compress, mtime=0)
"""Without the time: workers of one test run must name cases alike."""


def written(folder: Path, content: bytes) -> Path:
    path = folder / "file"
    path.write_bytes(content)
    return path


PACKED = packed(b"some text\n" * 100)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"good\nb\xffd\n", "line 2: is no UTF-8 text: byte 0xff"),
        (PACKED[:-20], "is gzipped, but damaged or cut off"),
        (PACKED[:30] + b"XXXX" + PACKED[34:], "is gzipped, but damaged or cut off"),
        (packed(b"a\n\xfe"), "line 2: is no UTF-8 text"),
    ],
)
@pytest.mark.parametrize("read", [user_files.read_text, lambda path: list(user_files.lines(path))])
def test_a_damaged_file_is_told_with_its_place(
    tmp_path: Path, content: bytes, words: str, read: Callable[[Path], Any]
) -> None:
    path = written(tmp_path, content)
    with pytest.raises(FileError) as caught:
        read(path)

    assert str(caught.value).startswith(f"{path}: {words}")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_too_large_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = written(tmp_path, packed(b" " * (200 << 20), 1))
    tracemalloc.start()
    with pytest.raises(FileError, match="is larger than 16 MiB: is it the right file"):
        user_files.read_text(path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak_bytes < 60 << 20


def test_a_line_that_never_ends_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_files, "LINE_BYTES_MAX", 100)
    with pytest.raises(FileError, match="line 2: is longer than"):
        list(user_files.lines(written(tmp_path, b"short\n" + b"x" * 200)))


def test_gzipped_or_not_the_text_is_the_same(tmp_path: Path) -> None:
    text = "a,b\n1,\u00fc\n"
    for content in (text.encode(), packed(text.encode())):
        path = written(tmp_path, content)
        assert user_files.read_text(path) == text
        assert list(user_files.lines(path)) == ["a,b\n", "1,\u00fc\n"]


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 1_000])
def test_values_are_read_whole_however_the_file_comes(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_files, "_CHUNK_CHARS", chunk)
    values = [{"a": [1, 2.5, "\u00fc\U0001f600"]}, 123456, "x" * 50, None, [[]]]
    text = " \n ".join(json.dumps(each, ensure_ascii=False) for each in values)
    stream = JsonStream("f", io.BytesIO(text.encode()))
    found = []
    while stream.peek():
        found.append(stream.value())

    assert found == values


def test_the_place_of_a_mistake_is_right_far_into_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_files, "_CHUNK_CHARS", 10)
    stream = JsonStream("f", io.BytesIO(b'{"a": 1}\n' * 50 + b'{"a": x}\n'))
    for _ in range(50):
        stream.value()
    with pytest.raises(FileError, match="f: line 51, column 7: no JSON: Expecting value"):
        stream.value()


def test_many_values_take_the_memory_of_one() -> None:
    class Endless(io.RawIOBase):
        left = 40 << 20

        def read(self, size: int = -1) -> bytes:
            self.left -= size
            return (b'{"a": "' + b"x" * 1013 + b'"}\n\n')[:1024] * (size // 1024) if self.left > 0 else b""

    stream = JsonStream("f", Endless())  # type: ignore[arg-type]
    tracemalloc.start()
    count = 0
    while stream.peek():
        stream.value()
        count += 1
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert count > 30_000
    assert peak_bytes < 12 << 20
