"""Redis and nginx as services: what they are started with, filled with and asked for.

They come from the distribution's packages; the demonstration installs nothing.
"""

import asyncio
import random
import shutil
from pathlib import Path

import msgspec

from koordinator.node_demo.plan import ServiceKind

_PACKAGES = {
    ServiceKind.REDIS: ("redis-server", "apt-get install redis-server"),
    ServiceKind.NGINX: ("nginx", "apt-get install nginx-light"),
}
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_KEYS, _KEYS_PER_REQUEST, _VALUE_BYTES = (
    400_000,
    100,
    64,
)  # some 60 MiB in Redis: more than last-level caches hold
_SET_AT_ONCE = 10_000
_OK = len(b"+OK\r\n")
_PAGE_BYTES = 32 * 1024  # of text, compressed for each request: about half a millisecond
_WORDS, _WORD_MAX = 2_000, 9
_DISK_PAGE_BYTES = 64 * 1024
_PAGE, _DISK_PAGE = "page.txt", "disk.bin"
_CONNECTIONS = 64  # one thread or one event loop per CPU: more of them only cost memory and caches
_NGINX = """daemon off;
user root;
pid {folder}/pid;
error_log stderr error;
worker_processes {workers};
events {{ worker_connections 1024; }}
http {{
  access_log off;
  keepalive_requests 1000000000;
  keepalive_timeout 1h;
  default_type text/plain;
  gzip on;
  gzip_types text/plain;
  gzip_comp_level 6;
  server {{
    listen 127.0.0.1:{port} reuseport;  # connections spread evenly over workers
    root {folder};
    location = /{disk_page} {{
      alias {disk_folder}/{disk_page};
      directio 4k;
      gzip off;
    }}
  }}
}}
"""


class RealServer(msgspec.Struct, frozen=True):
    """A server with its files below `folder`, and what goes to the disk below `disk_folder`."""

    kind: ServiceKind
    folder: Path
    disk_folder: Path
    port: int
    cpus: int

    def command(self) -> list[str]:
        """Return what starts it; its files must be there (`write_files`)."""
        program = _program(self.kind) or _PACKAGES[self.kind][0]
        if self.kind is ServiceKind.NGINX:
            return [program, "-e", "stderr", "-p", str(self.folder), "-c", str(self.folder / "nginx.conf")]
        return [
            program,
            *("--port", str(self.port), "--bind", "127.0.0.1", "--daemonize", "no"),
            *("--save", "", "--loglevel", "warning"),
            *("--dir", str(self.disk_folder), "--appendonly", "yes", "--auto-aof-rewrite-percentage", "0"),
        ]

    def write_files(self) -> None:
        """Write what it serves and how; what an earlier run left is removed."""
        shutil.rmtree(self.disk_folder, ignore_errors=True)
        for folder in (self.folder, self.disk_folder):
            folder.mkdir(parents=True, exist_ok=True)
        if self.kind is ServiceKind.NGINX:
            text = _NGINX.format(
                folder=self.folder,
                disk_folder=self.disk_folder,
                disk_page=_DISK_PAGE,
                workers=self.cpus,
                port=self.port,
            )
            (self.folder / "nginx.conf").write_text(text, encoding="utf-8")
            (self.folder / _PAGE).write_text(_prose(), encoding="utf-8")
            (self.disk_folder / _DISK_PAGE).write_bytes(b"k" * _DISK_PAGE_BYTES)

    def load_options(self) -> list[str]:
        """Return what the load generator must know."""
        common = ["--connections", str(_CONNECTIONS)]
        if self.kind is ServiceKind.NGINX:
            return [*common, "--protocol", "http", "--path", f"/{_PAGE}", "--disk-path", f"/{_DISK_PAGE}"]
        keys = ["--keys", str(_KEYS_PER_REQUEST), "--of", str(_KEYS), "--value-bytes", str(_VALUE_BYTES)]
        return [*common, "--protocol", "resp", *keys]

    async def fill(self) -> None:
        """Give it the data that requests read, once it listens. Raises: OSError, EOFError."""
        if self.kind is not ServiceKind.REDIS:
            return
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            for first in range(0, _KEYS, _SET_AT_ONCE):
                writer.write(b"".join(_set(number) for number in range(first, first + _SET_AT_ONCE)))
                await writer.drain()
                await reader.readexactly(_OK * _SET_AT_ONCE)
        finally:
            writer.close()


def missing(kind: ServiceKind) -> str:
    """Return what to do to have a server; empty where it is there."""
    if kind not in _PACKAGES or _program(kind) is not None:
        return ""
    name, install = _PACKAGES[kind]
    return f"there is no {name} on this machine: {install}"


def _program(kind: ServiceKind) -> str | None:
    return shutil.which(_PACKAGES[kind][0]) or shutil.which(_PACKAGES[kind][0], path=_PATH)


def _set(number: int) -> bytes:
    """Return a command that sets one key, as protocols.h names them."""
    value = b"v" * _VALUE_BYTES
    return b"*3\r\n$3\r\nSET\r\n$12\r\nkey:%08d\r\n$%d\r\n%s\r\n" % (number, _VALUE_BYTES, value)


def _prose() -> str:
    """Text that compresses about as prose does; the same each time."""
    chance = random.Random(1)
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    words = [
        "".join(chance.choice(letters) for _ in range(chance.randint(2, _WORD_MAX))) for _ in range(_WORDS)
    ]
    return " ".join(chance.choices(words, k=_PAGE_BYTES))[:_PAGE_BYTES]
