"""A real nginx beside real hogs: its own access log tells what it feels, and the closed loop gives it time back."""

import contextlib
import json
import random
import shutil
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from koordinator.api import labels
from koordinator.host.cgroups import Cgroups
from koordinator.host.files import HostRoots
from koordinator.host.host import open_host
from koordinator.koordlet.interference.all import InterferenceParts
from koordinator.koordlet.qos.evictor import Evictor
from koordinator.koordlet.qos.shadow import ShadowMode
from koordinator.simulate import virtual_time
from tests.kernel.conftest import Spawn
from tests.kernel.strategy_node import BE, LS, pod_object
from tests.kernel.test_closed_loop import BATCH, HOG, HOGS, Served

CONFIG = """
daemon off; user root; worker_processes 1; pid {base}/pid; error_log {base}/error.log;
events {{ worker_connections 64; }}
http {{
  log_format took '$status $request_time';
  access_log off;
  gzip on; gzip_http_version 1.0; gzip_proxied any; gzip_comp_level 1; gzip_types *; gzip_min_length 1;
  client_body_temp_path {base}/t1; proxy_temp_path {base}/t2; fastcgi_temp_path {base}/t3;
  uwsgi_temp_path {base}/t4; scgi_temp_path {base}/t5;
  server {{
    listen unix:{base}/http; access_log {log} took;
    location / {{ gzip off; proxy_set_header Accept-Encoding gzip; proxy_pass http://unix:{base}/files:/; }}
  }}
  server {{ listen unix:{base}/files; root {base}/www; }}
}}
"""
"""The proxy's clock goes on between what it sends and what it gets; a server that answers at once says that it took no
time."""
START = """
import os
os.execvp("nginx", ["nginx", "-p", {base!r}, "-c", {base!r} + "/nginx.conf"])
"""
PAGE_BYTES = 600_000
"""Compressing so much takes some ten milliseconds of CPU."""
PAUSE_S = 0.015
KNOWN = 20
"""Requests after which it is known how long they take."""
REQUEST = b"GET /page.txt HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n"


class Nginx(Served):
    """nginx as the service, its log in a volume of its pod; the agent's indicators and loop, put together as ever."""

    def __init__(self, group: str, root: Path) -> None:
        roots = msgspec.structs.replace(
            HostRoots.below(""), kubepods_below=group, kubelet=str(root / "kubelet")
        )
        super().__init__(group, root / "restore.jsonl", open_host(roots, hot_files_max=64))
        self.base = root / "nginx"
        logs = root / "kubelet/pods/w/volumes/kubernetes.io~empty-dir/logs"
        for each in (self.base / "www", logs):
            each.mkdir(parents=True)
        self.log = logs / "access.log"
        page = bytes(random.Random(1).choices(b"0123456789abcdef", k=PAGE_BYTES))
        (self.base / "www/page.txt").write_bytes(page)
        (self.base / "nginx.conf").write_text(CONFIG.format(base=self.base, log=self.log))
        shared = self.shared
        self.parts = InterferenceParts(shared, Evictor(shared), ShadowMode(shared))

    def start(self, spawn: Spawn) -> None:
        spawn(f"{self.group}/{self.web}", START.format(base=str(self.base)))
        _until(lambda: (self.base / "http").exists() and "200" in _asked(self.base / "http"))

    def promise(self, target_s: float) -> None:
        """The pod's own annotation."""
        objective = {
            "percentile": 90,
            "targetMilliseconds": 1000 * target_s,
            "accessLog": {"volume": "logs", "path": "access.log"},
        }
        annotations = {labels.LATENCY_OBJECTIVE: json.dumps(objective)}
        self.know(pod_object("w", "LS", annotations=annotations), BATCH)

    def took(self, since: int = 0) -> list[float]:
        """How long requests took from the n-th on, as nginx says."""
        return [float(line.split()[1]) for line in self.log.read_text().splitlines()[since:]]

    async def agent_second(self) -> tuple[float | None, int]:
        """A second of the agent: the slack that it sensed, and the quota of batch."""
        await self.measure()
        for each in self.parts.strategies:
            result: Any = each.run()
            if result is not None:
                await result
        self.suppression.run()
        found = self.view.interference
        assert found is not None
        return found.services["w"].slack, self.host.cgroups.quota_us(BE) or -1


def _asked(path: Path) -> str:
    """Ask once, read to the end; the first line of the answer, empty without one."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as asked:
        asked.connect(str(path))
        asked.sendall(REQUEST)
        answer = b""
        while part := asked.recv(1 << 16):
            answer += part
        return answer.partition(b"\r\n")[0].decode()
    return ""


def _until(is_true: Any, seconds: float = 30.0) -> None:
    end_s = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end_s, "it did not come about"
        time.sleep(0.02)


@contextlib.contextmanager
def _visited(path: Path) -> Iterator[None]:
    """Somebody asks again and again."""
    is_over = threading.Event()

    def visit() -> None:
        while not is_over.wait(PAUSE_S):
            _asked(path)

    visitor = threading.Thread(target=visit)
    visitor.start()
    try:
        yield
    finally:
        is_over.set()
        visitor.join()


@pytest.fixture
def node(real: Cgroups, group: str, tmp_path: Path) -> Iterator[Nginx]:
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed (apt-get install nginx)")
    made = Nginx(group, tmp_path)
    yield made
    made.parts.close()
    made.host.close()


def test_nginx_is_slow_beside_batch_and_fast_once_the_loop_is_on(node: Nginx, spawn: Spawn) -> None:
    async def rounds(until: Any, most: int) -> list[tuple[float | None, int]]:
        found: list[tuple[float | None, int]] = []
        for _ in range(most):
            found.append(await node.agent_second())
            if until(*found[-1]):
                return found
        pytest.fail(f"it did not come about: {found}")

    async def story() -> None:
        node.follow_services(is_on=False, percent=100)
        _until(lambda: len(node.took()) >= KNOWN)
        node.promise(2.5 * statistics.quantiles(node.took(), n=10)[-1])
        await rounds(lambda slack, _: slack is not None and slack > 0, 20)

        for _ in range(HOGS):
            spawn(f"{node.group}/{node.batch}", HOG)
        await rounds(lambda slack, _: slack is not None and slack < 0, 40)
        since = len(node.took())
        without = await rounds(lambda *_: len(node.took()) >= since + KNOWN, 60)
        assert statistics.median(slack for slack, _ in without if slack is not None) < 0, "and stays slow"

        node.follow_services(is_on=True, percent=100)
        calm = await rounds(lambda slack, _: slack is not None and slack > 0.2, 60)
        whole_us = node.cpu_count * 100_000
        assert 0 < calm[-1][1] <= 0.5 * whole_us, "batch gave way"
        assert node.host.cgroups.quota_us(LS) in (None, -1), "services are never touched"
        node.follow_services(is_on=False, percent=100)
        await rounds(lambda _, quota_us: quota_us < 0 or quota_us > 0.5 * whole_us, 30)
        node.suppression.disable()
        assert node.host.cgroups.quota_us(BE) == -1

    node.start(spawn)
    with _visited(node.base / "http"):
        virtual_time.run_virtual(lambda _: story())
