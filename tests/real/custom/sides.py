"""Two API servers, asked alike: the real one, and ours in this process."""

import asyncio
import base64
import contextlib
import json
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from koordinator.api.kinds import BUILT_IN
from koordinator.clock import SystemClock
from koordinator.local import registry
from koordinator.local.apiserver import ApiServer
from koordinator.local.schema import Catalog

Json = dict[str, Any]
PATCH = "application/merge-patch+json"


class Answer(NamedTuple):
    code: int
    body: Json
    warnings: list[str]


class Side:
    """One server."""

    def __init__(self, url: str, trust: ssl.SSLContext | None = None) -> None:
        self._url, self._trust = url, trust

    def ask(self, verb: str, path: str, body: Json | None = None) -> Answer:
        kind = PATCH if verb == "PATCH" else "application/json"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": kind}, method=verb)
        try:
            with urllib.request.urlopen(request, timeout=60, context=self._trust) as answer:
                return Answer(answer.status, json.loads(answer.read()), _warnings(answer.headers))
        except urllib.error.HTTPError as error:
            return Answer(error.code, json.loads(error.read() or b"{}"), _warnings(error.headers))


def credentials(kubeconfig: Path) -> tuple[Path, Path]:
    """Files beside a kubeconfig with the certificate and the key of its user."""
    user = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]
    files = []
    for name in ("client-certificate-data", "client-key-data"):
        files.append(kubeconfig.with_name(name))
        files[-1].write_bytes(base64.b64decode(user[name]))
    return files[0], files[1]


def _warnings(headers: Any) -> list[str]:
    return sorted(each.removeprefix("299 - ") for each in headers.get_all("Warning") or ())


@contextlib.contextmanager
def ours() -> Iterator[Side]:
    """Our server, on a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    backend = registry.in_memory(SystemClock(), catalog=Catalog(BUILT_IN))
    server = ApiServer(backend)
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result()
        yield Side(server.url)
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
