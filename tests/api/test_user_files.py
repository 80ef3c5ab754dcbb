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
def test_a_damaged_file_is_reported_with_its_place(
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


def stream_of(content: bytes) -> JsonStream:
    return JsonStream("f", io.BytesIO(content))


def test_a_file_may_have_as_many_bytes_as_are_allowed_and_not_one_more(tmp_path: Path) -> None:
    path = written(tmp_path, b"12345")
    assert user_files.read(path, bytes_max=5) == b"12345"
    with pytest.raises(FileError):
        user_files.read(path, bytes_max=4)


def test_a_line_may_have_one_byte_less_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_files, "LINE_BYTES_MAX", 4)
    assert list(user_files.lines(written(tmp_path, b"abc\nab\n"[1:]))) == ["bc\n", "ab\n"]
    with pytest.raises(FileError, match="line 1: is longer"):
        list(user_files.lines(written(tmp_path, b"abcd\n")))


def test_what_is_called_gz_must_be_gzipped(tmp_path: Path) -> None:
    path = tmp_path / "pods.gz"
    path.write_bytes(b"{}")
    with pytest.raises(FileError, match=r"pods.gz: is called .gz, but is not gzipped$"):
        user_files.read(path)
    path.write_bytes(packed(b"{}"))
    assert user_files.read(path) == b"{}"


def test_standard_input_is_read_and_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unbuffered(io.RawIOBase):
        def __init__(self, content: bytes) -> None:
            self._content = content

        def readable(self) -> bool:
            return True

        def readinto(self, into: Any) -> int:
            size = min(len(into), len(self._content))
            into[:size], self._content = self._content[:size], self._content[size:]
            return size

    def given(stdin: Any) -> None:
        monkeypatch.setattr("sys.stdin", type("Standard", (), {"buffer": stdin}))

    given(io.BufferedReader(Unbuffered(b"a\n")))
    assert user_files.read("-") == b"a\n"
    given(Unbuffered(packed(b"b\n")))
    assert user_files.read("-") == b"b\n"
    given(io.BytesIO(PACKED[:-20]))
    with pytest.raises(FileError, match=r"^standard input: is gzipped, but damaged"):
        user_files.read("-")


@pytest.mark.parametrize("chunk", [1, 3, 1_000])
def test_what_stands_between_values_is_taken_or_reported(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_files, "_CHUNK_CHARS", chunk)
    stream = stream_of(b"  [ 1,\n 2}")
    stream.take("[")
    assert stream.value() == 1
    stream.take(",")
    assert (stream.value(), stream.peek()) == (2, "}")
    with pytest.raises(FileError, match=r"^f: line 2, column 3: expected ']', found '}'$"):
        stream.take("]")
    stream.take("}")
    assert stream.peek() == ""
    for at_end in (stream.value, lambda: stream.take("x")):
        with pytest.raises(FileError, match=r"^f: line 2, column 4: ends too early$"):
            at_end()


@pytest.mark.parametrize("chunk", [1, 2, 5, 1_000])
def test_lines_are_skipped_to_their_end_and_the_rest_is_what_follows(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_files, "_CHUNK_CHARS", chunk)
    stream = stream_of(b"first\n\nthird\nlast words")
    assert [stream.skip_line() for _ in range(3)] == ["first", "", "third"]
    assert stream.rest(10, "too much") == "last words"
    last = stream_of(b"only")
    assert (last.skip_line(), last.skip_line(), last.peek()) == ("only", "", "")


def test_the_rest_may_be_as_long_as_is_allowed_and_not_one_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_files, "_CHUNK_CHARS", 2)
    assert stream_of(b"12345").rest(5, "too much") == "12345"
    with pytest.raises(FileError, match=r"^f: too much$"):
        stream_of(b"123456").rest(5, "too much")


def test_a_value_or_a_line_without_end_is_given_up_before_all_of_it_is_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(user_files, "_CHUNK_CHARS", 10)
    monkeypatch.setattr(user_files, "VALUE_CHARS_MAX", 40)
    for content, act, words in (
        (b'"' + b"x" * 1_000, JsonStream.value, "line 1, column 1: no JSON: Unterminated string"),
        (b"=" * 1_000, JsonStream.skip_line, "line 1, column 1: the line does not end"),
    ):
        file = io.BytesIO(content)
        with pytest.raises(FileError, match=words):
            act(JsonStream("f", file))
        assert file.tell() == 80, "what was read when more than 40 characters were there"
    assert stream_of(b'"' + b"x" * 38 + b'"').value() == "x" * 38


def test_bytes_that_are_no_text_have_a_line_wherever_the_file_was_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for chunk in (1, 4, 1_000):
        monkeypatch.setattr(user_files, "_CHUNK_CHARS", chunk)
        stream = stream_of(b"1\n2\n\n3 \xff\n")
        with pytest.raises(FileError, match=r"^f: line 4: is no UTF-8 text: byte 0xff$"):
            while stream.peek():
                stream.value()
