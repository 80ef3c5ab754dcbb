"""What a pod costs from the queue to being bound and confirmed, in one process and over HTTP.

    python -m benchmarks.scheduler_end_to_end [--nodes 5000] [--pods 10000] [--part NAME ...]

Figures are CPU seconds of the processes named, so that neighbours on the machine count little. The peer of the
whole path is the engine alone (queue and cycles, nothing bound) in the same run: the rest is what the API costs.
"""

import argparse
import asyncio
import gc
import multiprocessing
import random
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from benchmarks import _stages
from benchmarks.apiserver import Server
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.clock import SystemClock
from koordinator.cluster import garbage
from koordinator.cluster.config import ClientConfig
from koordinator.cluster.kube import KubeCluster
from koordinator.cluster.memory import MemoryCluster
from koordinator.cluster.protocol import Cluster
from koordinator.local import registry
from koordinator.local.cluster import install
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.results import Placed
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.scheduler import Scheduler
from koordinator.scheduler.table.pod_info import PodInfo

TEMPLATES = 500
GROWTH_NODES = (1_000, 5_000, 20_000)
ARRIVALS_PER_S = 50
START_PODS = 100_000
HTTP_CREATORS = 16
KINDS: dict[str, Callable[[int], int]] = {
    "identical": lambda number: 0,
    f"{TEMPLATES} templates": lambda number: number % TEMPLATES,
    "all different": lambda number: number,
}
"""Which variant of a pod comes as number so and so."""
HTTP_KINDS = tuple(KINDS)

Body = dict[str, Any]


def node_body(number: int) -> Body:
    amounts = {"cpu": "96", "memory": "384Gi", "pods": "256", "ephemeral-storage": "1Ti"}
    labels = {"kubernetes.io/hostname": f"node-{number}", "topology.kubernetes.io/zone": f"zone-{number % 3}"}
    return {
        "metadata": {"name": f"node-{number}", "labels": labels},
        "status": {"allocatable": amounts, "capacity": amounts},
    }


def pod_body(number: int, variant: int, node: str = "") -> Body:
    requests = {"cpu": f"{100 + variant % 1_000}m", "memory": f"{128 + variant // 1_000}Mi"}
    spec = {
        "schedulerName": "koord-scheduler",
        "containers": [{"name": "main", "image": "app:v1", "resources": {"requests": requests}}],
    }
    return {
        "metadata": {"name": f"pod-{number}", "namespace": "default", "labels": {"app": f"app-{variant}"}},
        "spec": {**spec, "nodeName": node} if node else spec,
    }


def cpu_s(who: int = resource.RUSAGE_SELF) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


# In one process


async def filled(nodes: int, pods: int, kind: str, *, checks: bool = False) -> MemoryCluster:
    """A cluster with nodes, and pods that wait."""
    cluster = MemoryCluster(registry.in_memory(SystemClock(), checks=checks))
    await install(cluster)
    for number in range(nodes):
        await cluster.create(Node, node_body(number))
    for number in range(pods):
        await cluster.create(Pod, pod_body(number, KINDS[kind](number)), "default")
    return cluster


async def place_all(cluster: Cluster, pods: int) -> tuple[float, float]:
    """CPU seconds per pod: until all are bound and confirmed, and until all events are written too."""
    scheduler = Scheduler(cluster, default_plugins.shipped_config())
    async with scheduler.following():
        garbage.set_aside()
        started_s = cpu_s()
        task = asyncio.create_task(scheduler.schedule())
        while scheduler.metrics.placed_count < pods or scheduler.table.assumed_count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        bound_s = cpu_s() - started_s
        await scheduler.flush_events()
        told_s = cpu_s() - started_s
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    gc.unfreeze()
    return bound_s / pods, told_s / pods


def run_in_process(nodes: int, pods: int, kind: str, *, checks: bool = False) -> tuple[float, float]:
    async def main() -> tuple[float, float]:
        return await place_all(await filled(nodes, pods, kind, checks=checks), pods)

    with garbage.collected_rarely():  # as the scheduler's command does
        return asyncio.run(main())


def engine_only_s(nodes: int, pods: int, kind: str) -> float:
    """CPU seconds per pod of the cycles alone: the peer."""
    clock = SystemClock()
    engine = Engine(default_plugins.shipped_config(), clock, plugins=installed_plugins())
    [profile] = engine.profiles.values()
    for number in range(nodes):
        engine.table.set_node(from_builtins(node_body(number), Node))
    bodies = (pod_body(number, KINDS[kind](number)) for number in range(pods))
    infos = [PodInfo.of(from_builtins(body, Pod), engine.table.registry) for body in bodies]
    keys = [profile.class_key(info) for info in infos]
    with garbage.collected_rarely():
        started_s = cpu_s()
        for info, key in zip(infos, keys, strict=True):
            placed = engine.cycle.run(profile, info, key, 1, clock.now())
            assert isinstance(placed, Placed), placed
        return (cpu_s() - started_s) / pods


def in_process(options: argparse.Namespace) -> None:
    """Pods per second, with and without the checks of the registry, beside the engine alone."""
    nodes, pods = options.nodes, options.pods
    print(f"{pods:,} pods queued, {nodes:,} nodes, from the queue to bound and confirmed:")
    for kind in KINDS:
        alone_s = min(engine_only_s(nodes, pods, kind) for _ in range(options.times))
        bound_s, told_s = min(run_in_process(nodes, pods, kind) for _ in range(options.times))
        checked_s, _ = run_in_process(nodes, pods, kind, checks=True)
        print(
            f"  {kind:>14}: {1 / bound_s:>7,.0f} pods/s ({1 / told_s:,.0f} with their events written; "
            f"{1 / checked_s:,.0f} with the registry's checks); engine alone {1 / alone_s:,.0f}/s: "
            f"{(bound_s - alone_s) * 1e6:.0f} µs per pod around it"
        )


def growth(options: argparse.Namespace) -> None:
    """How that grows with the nodes."""
    for kind in KINDS:
        found = [run_in_process(nodes, options.pods // 2, kind)[0] for nodes in GROWTH_NODES]
        rates = ", ".join(
            f"{1 / each:,.0f}/s at {nodes:,}" for nodes, each in zip(GROWTH_NODES, found, strict=True)
        )
        print(f"  {kind:>14}: {rates} nodes; × {found[-1] / found[0]:.2f} per pod")


def stages(options: argparse.Namespace) -> None:
    """Where the time of an identical pod goes (the clocks themselves cost some of it)."""
    with _stages.timed() as shares:
        run_in_process(options.nodes, options.pods, "identical")
    for name, share in shares():
        print(f"  {name:<46} {share:6.1%}")


# Latency


async def latencies_s(scheduler_cluster: Cluster, creator: Cluster, seconds: float) -> list[float]:
    """From asking for a pod to reading that it is bound, for pods that arrive at random moments."""
    rng, loop = random.Random(7), asyncio.get_running_loop()
    scheduler = Scheduler(scheduler_cluster, default_plugins.shipped_config())
    asked: dict[str, float] = {}
    found: list[float] = []

    def bound(_: Pod, pod: Pod) -> None:
        if pod.spec.node_name and pod.metadata.name in asked:
            found.append(loop.time() - asked.pop(pod.metadata.name))

    async with scheduler.following():
        scheduler.caches.pods.add_handler(on_update=bound)
        task = asyncio.create_task(scheduler.schedule())
        garbage.set_aside()
        async with asyncio.TaskGroup() as group:
            for number in range(int(seconds * ARRIVALS_PER_S)):
                body = pod_body(number, number % TEMPLATES)
                asked[body["metadata"]["name"]] = loop.time()
                group.create_task(creator.create(Pod, body, "default"))
                await asyncio.sleep(rng.expovariate(ARRIVALS_PER_S))
        while asked:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    gc.unfreeze()
    return sorted(found)


def latency(options: argparse.Namespace) -> None:
    """Wall-clock percentiles of create to bound; other load on the machine is in them."""

    async def memory() -> list[float]:
        cluster = await filled(options.nodes, 0, "identical")
        return await latencies_s(cluster, cluster, options.seconds)

    with garbage.collected_rarely():
        _print_latency("in one process", asyncio.run(memory()))
    server = Server()
    try:
        with garbage.collected_rarely():
            _print_latency("over HTTP", asyncio.run(_http_latency(server.port, options)))
    finally:
        server.stop()


async def _http_latency(port: int, options: argparse.Namespace) -> list[float]:
    async with _client(port) as cluster, _client(port) as creator:
        await create_nodes(creator, options.nodes)
        return await latencies_s(cluster, creator, options.seconds)


def _print_latency(where: str, found: Sequence[float]) -> None:
    at = {name: found[min(len(found) - 1, int(len(found) * part))] for name, part in _PERCENTILES.items()}
    text = ", ".join(f"{name} {each * 1e3:.1f} ms" for name, each in at.items())
    print(f"  {len(found)} pods at {ARRIVALS_PER_S}/s {where}: {text}")


_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


# Over HTTP


def _client(port: int) -> KubeCluster:
    return KubeCluster(ClientConfig(server=f"http://127.0.0.1:{port}"), rng=random.Random(port))


async def create_nodes(cluster: Cluster, count: int) -> None:
    await install(cluster)
    await side_by_side(count, lambda number: cluster.create(Node, node_body(number)))


async def side_by_side(count: int, make: Callable[[int], Any]) -> None:
    """Call `make` for all numbers, some at a time."""
    numbers: Iterator[int] = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await make(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(HTTP_CREATORS):
            group.create_task(work())


def _schedule(pipe: Connection, port: int) -> None:
    """The scheduler's process."""

    async def main() -> None:
        async with _client(port) as cluster:
            scheduler = Scheduler(cluster, default_plugins.shipped_config())
            async with scheduler.following():
                task = asyncio.create_task(scheduler.schedule())
                pipe.send("ready")
                while True:
                    while not pipe.poll():  # noqa: ASYNC110 (a pipe has no event)
                        await asyncio.sleep(0.02)
                    if pipe.recv() == "stop":
                        break
                    recorders = scheduler.recorders.values()
                    dropped = sum(recorder.dropped_count for recorder in recorders)
                    pending = sum(recorder.pending_count for recorder in recorders)
                    placed = scheduler.metrics.placed_count
                    pipe.send((placed, cpu_s(), dropped, pending, _resident_mib()))
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    with garbage.collected_rarely():
        _uvloop_run(main())


def _uvloop_run(main: Any) -> Any:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def over_http(options: argparse.Namespace) -> None:
    """API server, scheduler and load generator, each in a process of its own."""
    for kind in HTTP_KINDS:
        for _ in range(options.times):
            run_over_http(options, kind)


def run_over_http(options: argparse.Namespace, kind: str) -> None:
    server = Server()
    context = multiprocessing.get_context("spawn")  # so that memory is the scheduler's own
    pipe, theirs = context.Pipe()
    scheduler = context.Process(target=_schedule, args=(theirs, server.port), daemon=True)
    try:
        asyncio.run(_http_nodes(server.port, options.nodes))
        scheduler.start()
        pipe.recv()

        def state() -> tuple[int, float, int, int, float]:
            pipe.send("state")
            told: tuple[int, float, int, int, float] = pipe.recv()
            return told

        _, scheduler_s, _, _, before_mib = state()
        server_s, started_s, pods = server.usage()[0], time.perf_counter(), options.http_pods
        own_s = cpu_s()
        _uvloop_run(_http_pods(server.port, pods, KINDS[kind]))
        created_s, own_s = time.perf_counter() - started_s, cpu_s() - own_s
        while state()[0] < pods:
            time.sleep(0.02)
        took_s = time.perf_counter() - started_s
        while state()[3]:
            time.sleep(0.02)
        told_s = time.perf_counter() - started_s
        _, now_s, dropped, _, after_mib = state()
        scheduler_us = (now_s - scheduler_s) / pods * 1e6
        server_us = (server.usage()[0] - server_s) / pods * 1e6
        print(
            f"  {kind}, {pods:,} pods, {options.nodes:,} nodes: {pods / took_s:,.0f} pods/s from the first create to "
            f"the last bound (created at {pods / created_s:,.0f}/s; {pods / told_s:,.0f}/s with all events written)\n"
            f"  CPU per pod, events included: server {server_us:,.0f} µs, scheduler {scheduler_us:,.0f} µs, load "
            f"generator {own_s / pods * 1e6:,.0f} µs: {2e6 / (server_us + scheduler_us):,.0f} pods/s if two cores did "
            f"nothing but server and scheduler; {dropped} events dropped\n"
            f"  memory of the scheduler: {before_mib:,.0f} MiB before the first pod, {after_mib:,.0f} MiB in the end"
        )
        pipe.send("stop")
        scheduler.join()
    finally:
        if scheduler.is_alive():
            scheduler.terminate()
        server.stop()


async def _http_nodes(port: int, count: int) -> None:
    async with _client(port) as cluster:
        await create_nodes(cluster, count)


async def _http_pods(port: int, count: int, variant: Callable[[int], int]) -> None:
    async with _client(port) as cluster:
        await side_by_side(count, lambda n: cluster.create(Pod, pod_body(n, variant(n)), "default"))


# Start


def start(options: argparse.Namespace) -> None:
    """A scheduler that comes to a cluster at work; in a process of its own, so that memory is its own."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=_start, args=(theirs, options.nodes), daemon=True)
    process.start()
    cpu, before_mib, after_mib = pipe.recv()
    process.join()
    print(
        f"  {options.nodes:,} nodes and {START_PODS:,} bound pods: caches filled after {cpu:.1f} s of CPU, "
        f"{after_mib - before_mib:,.0f} MiB for views, table and plugins (objects in the store: {before_mib:,.0f} MiB)"
    )


def _start(pipe: Connection, nodes: int) -> None:
    async def main() -> tuple[float, float, float]:
        cluster = await filled(nodes, 0, "identical")
        for number in range(START_PODS):
            await cluster.create(
                Pod, pod_body(number, number % TEMPLATES, f"node-{number % nodes}"), "default"
            )
        gc.collect()
        before_mib, started_s = _resident_mib(), cpu_s()
        scheduler = Scheduler(cluster, default_plugins.shipped_config())
        async with scheduler.following():
            return cpu_s() - started_s, before_mib, _resident_mib()

    with garbage.collected_rarely():
        pipe.send(asyncio.run(main()))


def _resident_mib() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


PARTS = {
    "in_process": in_process,
    "growth": growth,
    "stages": stages,
    "latency": latency,
    "over_http": over_http,
    "start": start,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--http-pods", type=int, default=5_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long pods arrive for the latency")
    parser.add_argument("--times", type=int, default=2, help="runs of which the best counts")
    parser.add_argument("--part", action="append", choices=[*PARTS], help="only these; may be given again")
    options = parser.parse_args()
    for name in options.part or PARTS:
        print(f"{name}:", flush=True)
        PARTS[name](options)


if __name__ == "__main__":
    main()
