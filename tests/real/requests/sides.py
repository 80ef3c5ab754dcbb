"""Both servers: kube-apiserver on etcd, and the API server of `koordinator up` in this process."""

import asyncio
import contextlib
import http.client
import json
import ssl
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from koordinator.api.kinds import BUILT_IN
from koordinator.clock import SystemClock
from koordinator.local import registry
from koordinator.local.apiserver import ApiServer
from koordinator.local.openapi import OpenApi
from koordinator.local.schema import Catalog
from tests.real.servers import Servers

Json = dict[str, Any]

ANSWER_S = 30
SETTLE_S = 0.15
"""Admission plugins of kube-apiserver read these kinds from caches that follow by watches."""
CACHED = ("limitranges", "priorityclasses", "resourcequotas")


_FORMS = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")
"""Answers that are no objects to send back."""


class Answer(NamedTuple):
    """`body` is the JSON of the answer, a list of events for a watch, or its text."""

    code: int
    warnings: list[str]
    body: Any


class Side:
    """One server. `ask` sends the requests of a case, with what earlier answers told put in."""

    def __init__(self, url: str, context: ssl.SSLContext | None = None) -> None:
        self._address = urllib.parse.urlsplit(url).netloc
        self._context = context
        self._connection = self._connected()
        self.settles = context is not None

    def _connected(self) -> http.client.HTTPConnection:
        if self._context is None:
            return http.client.HTTPConnection(self._address, timeout=ANSWER_S)
        return http.client.HTTPSConnection(self._address, timeout=ANSWER_S, context=self._context)

    def answers(self, steps: list[Json], name: str) -> list[Answer]:
        """What the server says to the requests of one case, which build on each other."""
        memory = Memory()
        return [self._told(memory, json.loads(json.dumps(step).replace("{case}", name))) for step in steps]

    def _told(self, memory: "Memory", step: Json) -> Answer:
        body = memory.body(step)
        query = {name: memory.filled(step["path"], value) for name, value in step.get("query", {}).items()}
        target = f"{step['path']}?{urllib.parse.urlencode(query)}" if query else step["path"]
        answer = self.ask(step["method"], target, step.get("headers", {}), body)
        memory.keep(step, answer)
        if self.settles and step["method"] != "GET" and any(f"/{name}" in target for name in CACHED):
            time.sleep(SETTLE_S)
        return answer

    def ask(self, method: str, target: str, headers: Json, body: Any = None) -> Answer:
        content = None if body is None else json.dumps(body).encode()
        sent = {"User-Agent": "cases/1", "Content-Type": "application/json", **headers}
        try:
            self._connection.request(method, target, content, sent)
            response = self._connection.getresponse()
            text = response.read().decode()
        except (http.client.HTTPException, OSError):
            self._connection.close()
            self._connection = self._connected()
            raise
        warnings = [
            value.partition(" ")[2].partition(" ")[2] for value in response.headers.get_all("Warning") or ()
        ]
        return Answer(response.status, warnings, _read(text))


def _read(text: str) -> Any:
    """One value, or those of a watch."""
    with contextlib.suppress(ValueError):
        return json.loads(text)
    try:
        return [json.loads(line) for line in text.splitlines()]
    except ValueError:
        return text


class Memory:
    """What answers of a case said: objects as they were first and last seen, and where lists go on."""

    def __init__(self) -> None:
        self._first: dict[str, Json] = {}
        self._last: dict[str, Json] = {}
        self._continue = ""
        self._begin = ""

    def keep(self, step: Json, answer: Answer) -> None:
        body = answer.body
        if (
            step["method"] == "DELETE"
            or answer.code >= 300
            or not isinstance(body, dict)
            or not isinstance(body.get("metadata"), dict)
            or body["kind"] in _FORMS
        ):
            return
        self._continue = body["metadata"].get("continue") or self._continue
        self._begin = self._begin or body["metadata"].get("resourceVersion", "")
        name, path = body["metadata"].get("name"), step["path"]
        if name and body["kind"] not in ("Scale", "Status"):
            path = path if step["method"] != "POST" else f"{path}/{name}"
            self._first.setdefault(path.removesuffix("/status"), body)
            self._last[path.removesuffix("/status")] = body

    def body(self, step: Json) -> Any:
        """`seen` in a step asks for the object as this side last told it, with changes."""
        if "seen" not in step:
            return self.filled(step["path"], step.get("body"))
        of = step["path"]
        for part in ("/status", "/scale", "/resize", "/ephemeralcontainers"):
            of = of.removesuffix(part)
        found = self._last.get(of, step["seen"]["else"])
        body: Any = json.loads(json.dumps(found))
        meta = body.setdefault("metadata", {})
        match step["seen"].get("version", "last"):
            case "first":
                meta["resourceVersion"] = self._first.get(of, body)["metadata"].get("resourceVersion", "1")
            case "none":
                meta.pop("resourceVersion", None)
            case "last":
                pass
            case other:
                meta["resourceVersion"] = other
        for change in step["seen"]["changes"]:
            changed(body, self.filled(of, change))
        return body

    def filled(self, of: str, value: Any) -> Any:
        """A value with what answers told in the place of `{version}`, `{first}`, `{uid}`, `{begin}`, `{continue}`."""
        if isinstance(value, dict):
            return {key: self.filled(of, item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.filled(of, item) for item in value]
        if isinstance(value, str) and "{" in value:
            last, first = (seen.get(of, {}).get("metadata", {}) for seen in (self._last, self._first))
            for name, told in (
                ("version", last.get("resourceVersion", "1")),
                ("first", first.get("resourceVersion", "1")),
                ("uid", last.get("uid", "none")),
                ("begin", self._begin),
                ("continue", self._continue),
            ):
                value = value.replace(f"{{{name}}}", told)
        return value


def changed(obj: Any, change: Json) -> None:
    """Set what stands at the path of a change, or remove it when the change has no value; misses are ignored."""
    *path, last = change["path"]
    with contextlib.suppress(KeyError, IndexError, TypeError):
        for part in path:
            obj = obj.setdefault(part, {}) if isinstance(obj, dict) else obj[part]
        if "value" in change:
            obj[last] = change["value"]
        else:
            del obj[last]


class Sides(NamedTuple):
    theirs: Side
    ours: Side

    @classmethod
    @contextlib.contextmanager
    def started(cls, folder: Path) -> Iterator["Sides"]:
        """Raises: binaries.Missing."""
        with contextlib.ExitStack() as stack:
            servers = Servers(folder)
            stack.callback(servers.close)
            servers.start(controllers=False)
            context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
            context.load_cert_chain(folder / "kubeconfig.crt", folder / "kubeconfig.key")
            yield cls(Side(servers.url, context), Side(stack.enter_context(ours())))


@contextlib.contextmanager
def ours() -> Iterator[str]:
    """The address of our server, which runs on a thread of its own."""
    catalog = Catalog(BUILT_IN)
    backend = registry.in_memory(SystemClock(), catalog=catalog)
    registry.seed_roles(backend)
    server = ApiServer(backend, openapi=OpenApi(catalog, "v1.35.0"), authorizer=backend.authorizer)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(ANSWER_S)
        yield server.url
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(ANSWER_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
