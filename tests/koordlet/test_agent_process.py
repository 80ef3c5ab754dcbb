"""koordlet as a process of its own: flags, HTTP, signals. The node is a tree of files, so no root is needed."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from koordinator.api import crd
from koordinator.api.core import Node
from koordinator.api.groups import CustomResourceDefinition
from koordinator.api.node_metric import NodeMetric
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.clock import SystemClock
from koordinator.cluster import errors
from koordinator.cluster.memory import MemoryCluster
from koordinator.local.cluster import served
from tests.free_ports import free_port
from tests.host import host_tree
from tests.local.apiserver.world import real_server

NODE = "n1"
pytestmark = pytest.mark.timeout(300)


def node_tree(root: Path) -> None:
    for group in ("", "kubepods", "kubepods/besteffort", "kubepods/burstable"):
        host_tree.group(root, 1, group)
    host_tree.cpus(root, [(0, 0, core) for core in range(2)])
    stat = "cpu  5 0 0 0 0 0 0 0 0 0\ncpu0 3 0 0 0 0 0 0 0 0 0\ncpu1 2 0 0 0 0 0 0 0 0 0"
    meminfo = "MemTotal: 8000000 kB\nMemFree: 5000000 kB\nMemAvailable: 6000000 kB"
    host_tree.write(root, {"proc/stat": stat, "proc/meminfo": meminfo, "proc/cpuinfo": "model name : x"})


async def objects(cluster: MemoryCluster) -> None:
    for manifest in crd.manifests():
        await cluster.create(CustomResourceDefinition, manifest)
    amounts = {"cpu": "2", "memory": "8Gi"}
    addresses = [{"type": "InternalIP", "address": "127.0.0.1"}]
    status = {"capacity": amounts, "allocatable": amounts, "addresses": addresses}
    await cluster.create(Node, {"metadata": {"name": NODE}, "status": status})
    await cluster.create(NodeMetric, {"metadata": {"name": NODE}, "spec": {}})


async def until(holds: Callable[[], Awaitable[bool]], process: asyncio.subprocess.Process) -> None:
    """The test's time-out bounds it; a process that ends meanwhile fails it with its own words."""
    while not await holds():
        assert process.returncode is None, (await process.communicate())[1].decode()
        await asyncio.sleep(0.1)


async def test_a_process_gets_ready_reports_and_ends_when_reported(tmp_path: Path) -> None:
    async def pods(_: web.Request) -> web.Response:
        return web.json_response({"items": []})

    kubelet = web.Application()
    kubelet.add_routes([web.get("/pods/", pods)])
    node_tree(tmp_path)
    server, backend = real_server(SystemClock())
    cluster, port = MemoryCluster(backend), free_port()
    await objects(cluster)
    await server.start()
    async with served(kubelet) as kubelet_url, aiohttp.ClientSession() as http:

        async def get(path: str) -> tuple[int, str]:
            try:
                async with http.get(f"http://127.0.0.1:{port}{path}") as answer:
                    return answer.status, await answer.text()
            except aiohttp.ClientError:
                return 0, ""

        async def is_ready() -> bool:
            return (await get("/readyz"))[0] == 200

        async def has_reported() -> bool:
            try:
                return bool((await cluster.get(NodeResourceTopology, NODE)).zones)
            except errors.NotFound:
                return False

        process = await _start(tmp_path, server.url, kubelet_url.rpartition(":")[2], port)
        try:
            await until(is_ready, process)
            await until(has_reported, process)
            assert (await get("/healthz"))[1] == "ok"
            text = (await get("/metrics"))[1]
            assert f'koordlet_start_time{{node="{NODE}"}}' in text
            assert "koordlet_kubelet_request_duration_seconds_count" in text
            assert "process_resident_memory_bytes" in text
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            _, stderr = await process.communicate()
    await server.stop()
    assert process.returncode == 0, stderr.decode()
    assert b"Traceback" not in stderr and b"never retrieved" not in stderr, stderr.decode()


async def _start(root: Path, api: str, kubelet_port: str, port: int) -> asyncio.subprocess.Process:
    arguments = [
        *("-m", "koordinator.cli.koordlet", f"-master={api}", f"-addr=127.0.0.1:{port}"),
        *("-kubelet-insecure-tls", "-disable-query-kubelet-config", "-restore-on-exit"),
        *(f"-kubelet-read-only-port={kubelet_port}", f"-cgroup-root-dir={root}/sys/fs/cgroup"),
        *(f"-proc-root-dir={root}/proc", f"-sys-root-dir={root}/sys", f"-sys-fs-root-dir={root}/sys/fs"),
        *(f"-run-root-dir={root}/run", f"-var-run-root-dir={root}/var/run"),
        *(f"-prediction-checkpoint-filepath={root}/checkpoints", f"-audit-log-dir={root}/audit"),
        *("-feature-gates=AuditEvents=true", "-v=1"),
    ]
    environment: dict[str, Any] = {**os.environ, "NODE_NAME": NODE}
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, *arguments, env=environment, stdout=pipe, stderr=pipe
    )
