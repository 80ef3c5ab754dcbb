"""Files that people name on a command line: read in bounded memory, and told about in one line when they are damaged.

Everything here raises `FileError` with file, place and what is wrong there; OSError when a file cannot be opened.
"""

import codecs
import contextlib
import gzip
import io
import json
import sys
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, Any

from koordinator.api.errors import KoordinatorError

CONFIG_BYTES_MAX = 16 << 20
"""Largest configuration that is read; people write a thousandth of it."""
LINE_BYTES_MAX = 16 << 20
VALUE_CHARS_MAX = 64 << 20
"""One JSON value in a stream of them: objects have at most 3 MiB."""
_CHUNK_CHARS = 1 << 20
_GZIP = b"\x1f\x8b"


class FileError(KoordinatorError, ValueError):
    """A file cannot be read: which, where in it (may be empty), and why."""

    def __init__(self, file: str, place: str, reason: str) -> None:
        super().__init__(file, place, reason)
        self.file, self.place, self.reason = file, place, reason


@contextlib.contextmanager
def opened(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file as bytes, unpacked where it is gzipped; `-` is standard input. Raises: FileError, also for a damaged
    one."""
    name = str(path)
    with contextlib.ExitStack() as stack:
        raw: Any
        if name == "-":
            raw, name = sys.stdin.buffer, "standard input"
        else:
            raw = stack.enter_context(open(path, "rb"))
        raw = raw if hasattr(raw, "peek") else io.BufferedReader(raw)
        try:
            is_packed = raw.peek(2)[:2] == _GZIP
            if name.endswith(".gz") and not is_packed:
                raise FileError(name, "", "is called .gz, but is not gzipped")
            file: Any = gzip.GzipFile(fileobj=raw) if is_packed else raw
            yield file
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise FileError(name, "", f"is gzipped, but damaged or cut off: {error}") from error


def read(path: str | Path, *, bytes_max: int = CONFIG_BYTES_MAX) -> bytes:
    """Return all of a file. Raises: FileError when it is larger than `bytes_max`."""
    with opened(path) as file:
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise FileError(str(path), "", f"is larger than {bytes_max >> 20} MiB: is it the right file?")
    return content


def read_text(path: str | Path) -> str:
    """Return all of a file as text. Raises: FileError as `read` does, and when it is no UTF-8."""
    content = read(path)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise FileError(str(path), f"line {line}", _no_text(error)) from error


def lines(path: str | Path) -> Generator[str, None, None]:
    """Yield the lines of a file one after the other, with their ends. Raises: FileError when one is too long or no
    UTF-8."""
    with opened(path) as file:
        number = 0
        while line := file.readline(LINE_BYTES_MAX):
            number += 1
            if len(line) == LINE_BYTES_MAX:
                raise FileError(str(path), f"line {number}", f"is longer than {LINE_BYTES_MAX >> 20} MiB")
            try:
                yield line.decode()
            except UnicodeDecodeError as error:
                raise FileError(str(path), f"line {number}", _no_text(error)) from error


def _no_text(error: UnicodeDecodeError) -> str:
    return f"is no UTF-8 text: byte 0x{error.object[error.start]:02x}"


class JsonStream:
    """JSON values out of a file of any size, one at a time: at most one value and a piece of the file are in memory."""

    def __init__(self, name: str, file: IO[bytes]) -> None:
        self._name = name
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._json = json.JSONDecoder()
        self._text = ""
        self._position = 0
        self._line = 1
        self._columns_gone = 0
        """Characters of this line that are forgotten."""
        self._is_at_end = False

    def peek(self) -> str:
        """Return the next character that is no blank; empty at the end."""
        while True:
            while self._position < len(self._text) and self._text[self._position].isspace():
                self._position += 1
            if self._position < len(self._text):
                return self._text[self._position]
            if not self._read():
                return ""

    def take(self, expected: str) -> None:
        """Go on behind a character that must come next."""
        found = self.peek()
        if found != expected:
            raise self.error(f"expected {expected!r}, found {found!r}" if found else "ends too early")
        self._position += 1

    def skip_line(self) -> str:
        """Return the rest of this line."""
        while (end := self._text.find("\n", self._position)) < 0 and self._read():
            if len(self._text) - self._position > VALUE_CHARS_MAX:
                raise self.error("the line does not end")
        end = len(self._text) if end < 0 else end
        line, self._position = self._text[self._position : end], min(end + 1, len(self._text))
        return line

    def value(self) -> Any:
        """Return the next value, whole."""
        if not self.peek():
            raise self.error("ends too early")
        while True:
            try:
                value, end = self._json.raw_decode(self._text, self._position)
            except json.JSONDecodeError as error:
                if len(self._text) - self._position > VALUE_CHARS_MAX or not self._read():
                    raise self.error(f"no JSON: {error.msg}", error.pos) from error
                continue
            except RecursionError as error:
                raise self.error("no JSON: nested too deeply") from error
            length = end - self._position  # reading on moves the position
            if end < len(self._text) or not self._read():
                self._position += length
                return value

    def rest(self, chars_max: int, too_much: str) -> str:
        """Return all that is left. Raises: FileError saying `too_much` when that is more."""
        while self._read():
            if len(self._text) > chars_max:
                raise FileError(self._name, "", too_much)
        return self._text[self._position :]

    def error(self, reason: str, position: int | None = None) -> FileError:
        """Return the reason with the line and column of the present position."""
        at = self._position if position is None else position
        line = self._line + self._text.count("\n", 0, at)
        return FileError(self._name, f"line {line}, column {self._columns_before(at) + 1}", reason)

    def _columns_before(self, at: int) -> int:
        line_start = self._text.rfind("\n", 0, at) + 1
        return at - line_start if line_start else at + self._columns_gone

    def _read(self) -> bool:
        """Read on, and forget what lies behind; False at the end. Reads as much again as is there: a value of any
        length is tried a few times only."""
        if self._is_at_end:
            return False
        self._columns_gone = self._columns_before(self._position)
        self._line += self._text.count("\n", 0, self._position)
        self._text, self._position = self._text[self._position :], 0
        content = self._file.read(max(_CHUNK_CHARS, len(self._text)))
        self._is_at_end = not content
        try:
            self._text += self._decoder.decode(content, final=self._is_at_end)
        except UnicodeDecodeError as error:
            line = self._line + self._text.count("\n") + content.count(b"\n", 0, error.start)
            raise FileError(self._name, f"line {line}", _no_text(error)) from error
        return not self._is_at_end
