"""The scheduler as a process on real etcd and kube-apiserver, beside kube-scheduler of the same release, in turns.

    python -m benchmarks.real_api [--nodes 5000] [--pods 2000] [--turns 2] [--workload NAME ...]

Per workload and scheduler: all pods are created while it is stopped; CPU of its process for hearing of them and binding
them (per pod), pods per second from when it goes on, its memory then; and how long a started scheduler takes until it
binds a pod that waited. All processes share the machine, so rates are of the whole, API server and etcd included; CPU
is of the scheduler alone.
Servers are found or built as for `make test-real`; without a kube-scheduler ours is measured alone.
"""

import argparse
import asyncio
import os
import random
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml
from tests.free_ports import free_port
from tests.go_programs import Missing
from tests.real import binaries, components
from tests.real.cluster import RealCluster, Shape
from tests.real.components import HOST, Scheduler
from tests.real.processes import Program

from benchmarks.scheduler_end_to_end import TEMPLATES, node_body, pod_body
from koordinator.api.core import Node, Pod
from koordinator.cluster import connect
from koordinator.cluster.informer import Informer
from koordinator.cluster.kube import KubeCluster
from koordinator.cluster.protocol import Cluster
from koordinator.install.values import Values

Body = dict[str, Any]

NAME = "koord-scheduler"
"""Under which name pods ask for the one that is measured."""
CREATORS = 16
BOUND_S_MAX = 600.0
APPS = 20
"""Groups of pods that keep their distance from each other, or from themselves."""
POLL_S = 0.05
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
OURS, THEIRS = "ours", "kube-scheduler"


def templates(number: int) -> Body:
    return pod_body(number, number % TEMPLATES)


def all_different(number: int) -> Body:
    return pod_body(number, number)


def zone_spread(number: int) -> Body:
    body, app = _of_app(number)
    body["spec"]["topologySpreadConstraints"] = [
        {
            "maxSkew": 5,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": app},
        }
    ]
    return body


def host_anti_affinity(number: int) -> Body:
    body, app = _of_app(number)
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": app}}
    body["spec"]["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return body


def _of_app(number: int) -> tuple[Body, Body]:
    body = pod_body(number, 0)
    app = {"app": f"app-{number % APPS}"}
    body["metadata"]["labels"] = app
    return body, app


WORKLOADS: dict[str, Callable[[int], Body]] = {
    f"{TEMPLATES} templates": templates,
    "zone spread": zone_spread,
    "host anti-affinity": host_anti_affinity,
    "all different": all_different,
}


class Figures(msgspec.Struct, frozen=True):
    """Of one run."""

    first_s: float
    cpu_ms_per_pod: float
    pods_per_s: float
    memory_mib: float


class Bound:
    """Counts pods that have a node, by a watch of its own."""

    def __init__(self) -> None:
        self.count = 0
        self.names: set[str] = set()

    def saw(self, pod: Pod) -> None:
        if pod.spec.node_name:
            self.names.add(pod.metadata.name)
            self.count = len(self.names)

    def lost(self, pod: Pod) -> None:
        self.names.discard(pod.metadata.name)
        self.count = len(self.names)


async def until(bound: Bound, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BOUND_S_MAX
    while not holds():
        assert time.monotonic() < deadline, f"{bound.count} pods are bound after {BOUND_S_MAX:g} s"
        await asyncio.sleep(POLL_S)


def cpu_s(program: Program) -> float:
    """CPU time of a process and all its threads."""
    fields = Path(f"/proc/{program.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def memory_mib(program: Program) -> float:
    """Resident now."""
    lines = Path(f"/proc/{program.process.pid}/status").read_text().splitlines()
    (line,) = (each for each in lines if each.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def start_ours(cluster: RealCluster) -> Program:
    config = yaml.safe_load(components.scheduler_configuration(Values()))
    config["leaderElection"] = {"leaderElect": False}
    values = msgspec.convert({"scheduler": {"config": yaml.safe_dump(config)}}, Values)
    return Scheduler(cluster.folder, cluster.identity(NAME), values, name=OURS)


def start_theirs(cluster: RealCluster, program: Path) -> Program:
    config = cluster.folder / "kube-scheduler.yaml"
    body = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(cluster.kubeconfig), "qps": 5000, "burst": 5000},
        "profiles": [{"schedulerName": NAME}],
    }
    config.write_text(yaml.safe_dump(body))
    command = [str(program), f"--config={config}", f"--bind-address={HOST}", f"--secure-port={free_port()}"]
    return Program(THEIRS, command, cluster.folder / f"{THEIRS}.log")


async def create(cluster: Cluster, bodies: Iterator[Body]) -> None:
    async def creator() -> None:
        for body in bodies:
            await cluster.create(Pod, body, "default")

    await asyncio.gather(*(creator() for _ in range(CREATORS)))


async def clear(cluster: Cluster, bound: Bound) -> None:
    """No pods, at once."""
    pods = await cluster.list(Pod, "default")
    names = iter([each.metadata.name for each in pods.items])

    async def deleter() -> None:
        for name in names:
            await cluster.delete(Pod, name, "default", grace_period_s=0)

    await asyncio.gather(*(deleter() for _ in range(CREATORS)))
    await until(bound, lambda: bound.count == 0)


async def run(
    cluster: Cluster, bound: Bound, start: Callable[[], Program], body: Callable[[int], Body], pods: int
) -> Figures:
    """One scheduler, one workload, from an empty cluster to an empty cluster."""
    first = pod_body(0, 0)
    first["metadata"]["name"] = "first"
    await cluster.create(Pod, first, "default")
    started_s = time.monotonic()
    program = start()
    try:
        await until(bound, lambda: bound.count == 1)
        first_s = time.monotonic() - started_s
        await asyncio.sleep(2)  # what a start leaves to do
        before_s = cpu_s(program)
        program.process.send_signal(signal.SIGSTOP)  # or it would wait for those who create pods
        await create(cluster, (body(number) for number in range(pods)))
        program.process.send_signal(signal.SIGCONT)
        begun_s = time.monotonic()
        await until(bound, lambda: bound.count == pods + 1)
        took_s = time.monotonic() - begun_s
        await asyncio.sleep(2)  # events are part of the price
        used_s = cpu_s(program) - before_s
        figures = Figures(first_s, 1e3 * used_s / pods, pods / took_s, memory_mib(program))
    finally:
        program.kill()
    await clear(cluster, bound)
    return figures


async def measure(cluster: RealCluster, options: argparse.Namespace) -> None:
    found = binaries.find("kube-scheduler")
    starts: dict[str, Callable[[], Program]] = {OURS: lambda: start_ours(cluster)}
    if found is not None:
        starts[THEIRS] = lambda: start_theirs(cluster, found)
    client = connect.load(kubeconfig_file=str(cluster.kubeconfig))
    async with KubeCluster(client, rng=random.Random(0), component="benchmark") as api:
        await fill(api, options.nodes)
        bound = Bound()
        watch = Informer(api, Pod, rng=random.Random(0))
        watch.add_handler(bound.saw, lambda _, new: bound.saw(new), bound.lost)
        watching = asyncio.create_task(watch.run())
        for name in options.workload or WORKLOADS:
            runs: dict[str, list[Figures]] = {each: [] for each in starts}
            for _ in range(options.turns):
                for who, start in starts.items():
                    runs[who].append(await run(api, bound, start, WORKLOADS[name], options.pods))
            tell(name, runs)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def fill(cluster: Cluster, nodes: int) -> None:
    numbers = iter(range(nodes))

    async def creator() -> None:
        for number in numbers:
            await cluster.create(Node, node_body(number))

    await asyncio.gather(*(creator() for _ in range(CREATORS)))


def tell(workload: str, runs: dict[str, list[Figures]]) -> None:
    print(f"{workload}:")
    for who, figures in runs.items():
        cpu, rate, memory, first = (
            statistics.median(getattr(each, name) for each in figures)
            for name in ("cpu_ms_per_pod", "pods_per_s", "memory_mib", "first_s")
        )
        print(
            f"  {who:>14}: {cpu:6.2f} ms of CPU per pod, {rate:6,.0f} pods/s, {memory:5,.0f} MiB, "
            f"first binding after {first:.1f} s",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--pods", type=int, default=2_000)
    parser.add_argument("--turns", type=int, default=2, help="runs of each; medians are told")
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS))
    options = parser.parse_args()
    try:
        binaries.provide()
    except Missing as error:
        print(f"left out: {error}")
        return
    if binaries.find("kube-scheduler") is None and shutil.which("go"):
        binaries.provide(("kube-scheduler",))
    shape = Shape(
        nodes=0,
        manager=False,
        scheduler=False,
        controllers=False,
        # Pods need no token, and nodes are ready as they come: nobody would make accounts or take taints away.
        apiserver_flags=("--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",),
    )
    with (
        tempfile.TemporaryDirectory(prefix="koordinator-bench-") as folder,
        RealCluster.open(Path(folder), shape) as cluster,
    ):
        print(f"{options.nodes:,} nodes, {options.pods:,} pods, on {os.cpu_count()} CPUs for all processes:")
        asyncio.run(measure(cluster, options))


if __name__ == "__main__":
    main()
