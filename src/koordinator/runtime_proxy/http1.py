"""Heads of HTTP/1.1 requests, as a proxy needs them: read in bounds, with what decides how a body ends.

Source: RFC 9112.
"""

import asyncio
import re

import msgspec

from koordinator.host.errors import ContentError

HEAD_BYTES_MAX = 64 * 1024
_LINE, _END = b"\r\n", b"\r\n\r\n"
_SIZE = re.compile(rb"[0-9a-fA-F]{1,8}")
_HOP_HEADERS = frozenset(("connection", "keep-alive", "proxy-connection"))


class Head(msgspec.Struct, frozen=True):
    """A request line and its headers, in their order."""

    method: str
    target: str
    version: str
    headers: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str:
        """Return a header's values, joined; empty when it is not there."""
        return ", ".join(value for key, value in self.headers if key.lower() == name)

    @property
    def is_upgrade(self) -> bool:
        """Return whether the connection is to speak something else afterwards, as `attach` and `exec` want it."""
        return bool(self.get("upgrade"))

    def closing(self) -> bytes:
        """Return the head with which a server ends the connection after its answer, or takes it over."""
        kept = [
            (name, value)
            for name, value in self.headers
            if self.is_upgrade or name.lower() not in _HOP_HEADERS
        ]
        if not self.is_upgrade:
            kept.append(("Connection", "close"))
        lines = [f"{self.method} {self.target} {self.version}", *(f"{name}: {value}" for name, value in kept)]
        return "\r\n".join((*lines, "", "")).encode("latin-1")


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """Return the next request's head; None when the connection ends before one. Raises: ContentError."""
    try:
        raw = await reader.readuntil(_END)
    except asyncio.IncompleteReadError as error:
        if error.partial.strip():
            raise ContentError("http", "the request is cut off") from error
        return None
    except asyncio.LimitOverrunError as error:
        raise ContentError("http", f"a head of more than {HEAD_BYTES_MAX} bytes") from error
    first, *rest = raw[: -len(_END)].lstrip(_LINE).decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
        raise ContentError("http", f"not a request: {first[:80]!r}")
    headers = []
    for line in rest:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip() or "\n" in line or "\r" in line:
            raise ContentError("http", f"not a header: {line[:80]!r}")
        headers.append((name, value.strip()))
    return Head(words[0], words[1], words[2], tuple(headers))


async def read_body(reader: asyncio.StreamReader, head: Head, bytes_max: int) -> bytes:
    """Return the body of a request, whatever marks its end. Raises: ContentError, EOFError."""
    coding, length = head.get("transfer-encoding").lower(), head.get("content-length")
    if coding and (coding != "chunked" or length):
        raise ContentError("http", "it is not clear where the body ends")
    if coding:
        return await _chunks(reader, bytes_max)
    if length and not (length.isascii() and length.isdigit()):
        raise ContentError("http", f"Content-Length is {length!r}")
    size = int(length or "0")
    if size > bytes_max:
        raise ContentError("http", f"a body of more than {bytes_max} bytes")
    return await reader.readexactly(size)


async def _chunks(reader: asyncio.StreamReader, bytes_max: int) -> bytes:
    body = bytearray()
    while True:
        line = await _line(reader)
        digits = line.partition(b";")[0].strip()
        if not _SIZE.fullmatch(digits):
            raise ContentError("http", f"not a chunk: {line[:20]!r}")
        size = int(digits, 16)
        if len(body) + size > bytes_max:
            raise ContentError("http", f"a body of more than {bytes_max} bytes")
        if size == 0:
            while (await _line(reader)).strip():
                pass  # trailers
            return bytes(body)
        body += await reader.readexactly(size)
        await reader.readexactly(len(_LINE))


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(_LINE)
    except asyncio.LimitOverrunError as error:
        raise ContentError("http", "a line is too long") from error
