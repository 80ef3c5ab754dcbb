"""A client that sends what it is given, byte for byte: libraries would refuse to."""

import asyncio
import json
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from tests.abuse.requests import Request

ANSWER_S = 60.0


class Answer(NamedTuple):
    """Code, headers (names in lower case) and body."""

    code: int
    headers: dict[bytes, bytes]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Connection:
    """One connection, opened anew when the server closed it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def send(self, request: Request) -> Answer:
        """The answer; raises ConnectionError when the server breaks it off."""
        head = [f"{request.method} {request.path} HTTP/1.1\r\nHost: {self._host}\r\n".encode()]
        head += [name + b": " + value + b"\r\n" for name, value in request.headers]
        if request.body or request.method in ("POST", "PUT", "PATCH"):
            head.append(b"Content-Length: %d\r\n" % len(request.body))
        data = b"".join(head) + b"\r\n" + request.body
        async with asyncio.timeout(ANSWER_S):
            if self._writer is not None:
                try:
                    return await self._exchange(data, request.method)
                except (ConnectionError, asyncio.IncompleteReadError):
                    self.close()  # it was idle, and the server closed it; once more
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
            try:
                return await self._exchange(data, request.method)
            except asyncio.IncompleteReadError as error:
                raise ConnectionResetError("the answer was broken off") from error

    async def _exchange(self, data: bytes, method: str) -> Answer:
        reader, writer = self._reader, self._writer
        assert reader is not None and writer is not None
        writer.write(data)
        await writer.drain()
        first = await reader.readuntil(b"\r\n")
        version, code, *_ = first.split()
        headers: dict[bytes, bytes] = {}
        while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
            name, _, value = line.partition(b":")
            headers[name.strip().lower()] = value.strip()
        if method == "HEAD" or code in (b"204", b"304"):
            body = b""
        elif headers.get(b"transfer-encoding") == b"chunked":
            body = await _chunks(reader)
        elif b"content-length" in headers:
            body = await reader.readexactly(int(headers[b"content-length"]))
        else:
            body = await reader.read()
        if version == b"HTTP/1.0" or headers.get(b"connection", b"").lower() == b"close":
            self.close()
        return Answer(int(code), headers, body)

    async def get(self, path: str, *headers: tuple[bytes, bytes]) -> Answer:
        return await self.send(Request("GET", path, list(headers), b""))

    async def write(
        self, method: str, path: str, obj: Any = None, media: bytes = b"application/json"
    ) -> Answer:
        body = b"" if obj is None else json.dumps(obj).encode()
        return await self.send(Request(method, path, [(b"Content-Type", media)], body))


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return b"".join(parts)


class Follower:
    """Follows a collection by one watch, as an informer does, and keeps what is there by name."""

    def __init__(self, url: str, path: str) -> None:
        self._connection = Connection(url)
        self._url, self._path = url, path
        self.objects: dict[tuple[str, str], str] = {}
        self.versions: list[int] = []
        self.lists = 0

    async def run(self) -> None:
        while True:
            listed = (await self._connection.get(self._path)).json()
            self.lists += 1
            self.objects = {
                _key(item): item["metadata"]["resourceVersion"] for item in listed.get("items") or []
            }
            version = listed["metadata"]["resourceVersion"]
            while version:
                version = await self._watch(version)

    async def _watch(self, version: str) -> str:
        """Events until the watch ends; the version to go on from, empty to list again."""
        parts = urlsplit(self._url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 24)
        query = f"watch=1&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds=600"
        writer.write(f"GET {self._path}?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        rest = b""
        try:
            while await reader.readuntil(b"\r\n") != b"\r\n":
                pass
            while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
                rest += await reader.readexactly(size)
                await reader.readexactly(2)
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        return ""
                    version = self._apply(event)
            return version
        except asyncio.IncompleteReadError:
            return version
        finally:
            writer.close()

    def _apply(self, event: Any) -> str:
        obj, kind = event["object"], event["type"]
        version = str(obj["metadata"]["resourceVersion"])
        if kind == "BOOKMARK":
            return version
        assert not self.versions or int(version) > self.versions[-1], (version, self.versions[-1], event)
        self.versions = [*self.versions[-1:], int(version)]
        if kind == "DELETED":
            assert _key(obj) in self.objects, event
            del self.objects[_key(obj)]
        else:
            assert (kind == "ADDED") == (_key(obj) not in self.objects), event
            self.objects[_key(obj)] = version
        return version


def _key(obj: Any) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
