"""What the node agent costs on a node with many pods: CPU of one core, memory, open files.

Real groups with real processes, all below a group of our own; needs root. The peer, in the same run, is a process that
merely reads the files with kept descriptors. `--churn` replaces pods all the time: memory and open files must stay
flat. `--samples FILE` writes memory and open files over time, from the start on (`--minutes 40` shows the plateau).
"""

import argparse
import asyncio
import contextlib
import csv
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from benchmarks._node_roles import RoleSpec
from benchmarks._node_world import NODE, NodeWorld
from koordinator.api import kinds
from koordinator.api.core import Node
from koordinator.api.node_metric import NodeMetric
from koordinator.api.slo import NodeSLO
from koordinator.clock import SystemClock
from koordinator.cluster.memory import MemoryCluster
from koordinator.host.cgroup_knobs import V1, Knob
from koordinator.local import cluster as local
from koordinator.local import registry
from koordinator.local.apiserver import ApiServer
from koordinator.local.schema.catalog import Catalog

SETTLED_SAMPLES = 5
"""So many samples with the same number of open files end the start: all groups are read, what is written once is."""
START_S_MAX = 180.0
SAMPLE_S = 5.0
LISTED = "/pods/"


class Process:
    """A role in a process of its own, and what it has cost."""

    def __init__(self, spec: RoleSpec) -> None:
        self.role = spec.role
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks._node_roles"], stdin=subprocess.PIPE
        )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(spec) + b"\n")
        self._process.stdin.flush()
        self.rss_mib: list[float] = []
        self.open_files: list[int] = []
        self.history: list[tuple[float, float, int]] = []
        """All samples from the start on: seconds since then, MiB, open files."""
        self._started_s = time.monotonic()
        self._begun_ns = 0
        self._begun_s = 0.0

    def begin(self, now_s: float) -> None:
        """What it used so far does not count."""
        self._begun_ns, self._begun_s = self._used_ns(), now_s

    def sample(self) -> None:
        """Note memory and open files."""
        pid = self._process.pid
        with open(f"/proc/{pid}/status", encoding="utf-8") as status:
            kib = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
        self.rss_mib.append(kib / 1024)
        self.open_files.append(len(os.listdir(f"/proc/{pid}/fd")))
        self.history.append((time.monotonic() - self._started_s, self.rss_mib[-1], self.open_files[-1]))

    def percent(self, now_s: float) -> float:
        """CPU since `begin`, in percent of one core."""
        return (self._used_ns() - self._begun_ns) / ((now_s - self._begun_s) * 1e7)

    def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _used_ns(self) -> int:
        """Time on a CPU of all its threads."""
        used = 0
        for thread in os.listdir(f"/proc/{self._process.pid}/task"):
            with open(f"/proc/{self._process.pid}/task/{thread}/schedstat", encoding="utf-8") as file:
                used += int(file.read().split()[0])
        return used


def main() -> None:
    options = _options()
    if os.geteuid() != 0:
        print("skipped: needs root, since real groups are made")
        return
    with _targets(options.objectives) as port, _awake(options.awake):
        world = NodeWorld(options.pods, options.containers, options.busy)
        world.objectives, world.metrics_port = options.objectives, port
        with world.built():
            asyncio.run(_measure(world, options))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.koordlet", description=__doc__)
    parser.add_argument("--minutes", type=float, default=0.5, help="how long to measure")
    parser.add_argument("--pods", type=int, default=100)
    parser.add_argument("--containers", type=int, default=2, help="of each pod")
    parser.add_argument(
        "--busy", type=float, default=1.0, help="share of containers that use CPU and memory each second"
    )
    parser.add_argument("--churn", type=float, default=0.0, help="pods that are replaced per minute")
    parser.add_argument(
        "--roles", default="baseline,collectors,agent", help="what to measure, at the same time"
    )
    parser.add_argument("--gates", default="", help="gates of the agent besides all: Interference=false")
    parser.add_argument(
        "--objectives", type=int, default=0, help="services with a latency objective, each asked each second"
    )
    parser.add_argument(
        "--awake",
        action="store_true",
        help="keep the CPUs from idling, as batch does: what wakes up on a CPU that was parked costs more",
    )
    parser.add_argument("--samples", default="", help="write memory and open files over time here, as CSV")
    parser.add_argument("--profile", default="", help="leave a profile of the last role here (it costs CPU)")
    return parser.parse_args()


@contextlib.contextmanager
def _targets(objectives: int) -> Iterator[int]:
    """A process that tells a body of a usual size to whoever asks; its port, 0 without objectives."""
    if not objectives:
        yield 0
        return
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks._metrics_target"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


_SPIN = """
import os
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while True:
    pass
"""


@contextlib.contextmanager
def _awake(is_wanted: bool) -> Iterator[None]:
    """Run a process of the idle class for each CPU."""
    count = len(os.sched_getaffinity(0)) if is_wanted else 0
    spinners = [subprocess.Popen([sys.executable, "-c", _SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for each in spinners:
            each.kill()
            each.wait()


async def _measure(world: NodeWorld, options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with _kubelet(world) as url, _api(url, directory) as kubeconfig:
            gates = f",{options.gates}" if options.gates else ""
            spec = RoleSpec("", world.roots, url, kubeconfig=kubeconfig, directory=directory, gates=gates)
            with _processes(world, spec, options) as processes:
                await _watch(world, processes, options)


async def _watch(world: NodeWorld, processes: list[Process], options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    await _settled(processes, loop.time() + START_S_MAX)
    for each in processes:
        each.begin(loop.time())
    churn = asyncio.create_task(_churn(world, options.churn))
    until_s = loop.time() + options.minutes * 60
    while loop.time() < until_s:
        await asyncio.sleep(SAMPLE_S)
        for each in processes:
            each.sample()
    churn.cancel()
    if options.samples:
        _write(options.samples, processes)
    _print(world, processes, loop.time(), options)


@contextlib.contextmanager
def _processes(world: NodeWorld, spec: RoleSpec, options: argparse.Namespace) -> Iterator[list[Process]]:
    found = []
    try:
        roles = options.roles.split(",")
        for role in roles:
            files = _files(world) if role == "baseline" else []
            profile = options.profile if role == roles[-1] else ""
            found.append(Process(msgspec.structs.replace(spec, role=role, files=files, profile=profile)))
        yield found
    finally:
        for each in found:
            each.end()


def _files(world: NodeWorld) -> list[str]:
    """What the reference reads of each group each second."""
    cgroups = world.cgroups
    knobs = [Knob.CPU_USAGE, Knob.MEMORY_STAT] + ([Knob.CPU_STAT] if cgroups.version == V1 else [])
    groups = [each for pod in world.pods.values() for each in (pod.group, *(c.group for c in pod.containers))]
    return ["/proc/stat", "/proc/meminfo", *(cgroups.path(knob, group) for group in groups for knob in knobs)]


async def _settled(processes: list[Process], until_s: float) -> None:
    """Until everybody has started; what the start costs is not counted."""
    loop = asyncio.get_running_loop()
    while loop.time() < until_s:
        await asyncio.sleep(SAMPLE_S)
        for each in processes:
            each.sample()
        recent = [each.open_files[-SETTLED_SAMPLES:] for each in processes]
        if all(len(files) == SETTLED_SAMPLES and max(files) - min(files) <= 2 for files in recent):
            break
    for each in processes:
        each.open_files.clear()
        each.rss_mib.clear()


async def _churn(world: NodeWorld, per_minute: float) -> None:
    while per_minute > 0:
        await asyncio.sleep(60 / per_minute)
        oldest = next(iter(world.pods.values()))
        world.end_pod(oldest)
        world.add_pod()


@contextlib.asynccontextmanager
async def _kubelet(world: NodeWorld) -> AsyncIterator[str]:
    """Lists the pods as the kubelet's read-only port does."""

    async def pods(_: web.Request) -> web.Response:
        items = [pod.manifest for pod in world.pods.values()]
        body = msgspec.json.encode({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.router.add_get(LISTED, pods)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}{LISTED}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def _api(pods_url: str, directory: str) -> AsyncIterator[str]:
    """An API server with the objects of this node, all strategies being on; the path of its kubeconfig."""
    catalog = Catalog(kinds.BUILT_IN)
    backend = registry.in_memory(SystemClock(), catalog=catalog)
    cluster = MemoryCluster(backend)
    await local.install(cluster)
    port = int(pods_url.rsplit(":", 1)[1].split("/", 1)[0])
    cpus = len(os.sched_getaffinity(0))
    amounts = {"cpu": str(cpus), "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')}"}
    await cluster.create(Node, {"metadata": {"name": NODE}})
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "capacity": amounts,
        "allocatable": amounts,
    }
    await cluster.patch(Node, NODE, {"status": status}, subresource="status")
    await cluster.create(NodeSLO, {"metadata": {"name": NODE}, "spec": _POLICIES})
    await cluster.create(NodeMetric, {"metadata": {"name": NODE}, "spec": {}})
    server = ApiServer(backend)
    await server.start()
    path = Path(directory) / "kubeconfig"
    server.write_kubeconfig(path)
    try:
        yield str(path)
    finally:
        await server.stop()
        await backend.close()


_ON = {"enable": True}
_CLASS = {"cpuQOS": _ON, "memoryQOS": _ON, "resctrlQOS": _ON, "blkioQOS": _ON}
_POLICIES: dict[str, Any] = {
    "resourceUsedThresholdWithBE": {
        "enable": True,
        "memoryEvictThresholdPercent": 99,
        "cpuEvictThresholdPercent": 99,
    },
    "resourceQOSStrategy": {"lsrClass": _CLASS, "lsClass": _CLASS, "beClass": _CLASS},
    "cpuBurstStrategy": {"policy": "auto"},
}


def _print(world: NodeWorld, processes: list[Process], now_s: float, options: argparse.Namespace) -> None:
    print(
        f"{len(world.pods)} pods, {len(world.pods) * options.containers} containers, cgroup v{world.cgroups.version}, "
        f"{options.busy:.0%} of them busy, {options.objectives} latency objectives, "
        f"{options.churn:g} pods replaced per minute, {options.minutes:g} min"
    )
    for each in processes:
        files, rss = _ends(each.open_files), _ends(each.rss_mib)
        print(
            f"  {each.role:12} {each.percent(now_s):5.2f} % of a core   RSS {rss[0]:.1f} to {rss[1]:.1f} MiB, "
            f"at most {max(each.rss_mib):.1f}   open files {files[0]:.0f} to {files[1]:.0f}"
        )


def _write(path: str, processes: list[Process]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("role", "seconds", "rss_mib", "open_files"))
        for each in processes:
            rows.writerows(
                (each.role, f"{second:.0f}", f"{mib:.1f}", files) for second, mib, files in each.history
            )


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """Medians of the first and of the last fifth."""
    fifth = max(len(values) // 5, 1)
    return statistics.median(values[:fifth]), statistics.median(values[-fifth:])


if __name__ == "__main__":
    main()
