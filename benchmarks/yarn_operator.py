"""What koord-yarn-operator costs with 10,000 NodeManagers: a round in which all totals change, and the steady state.

The ResourceManager speaks Hadoop RPC from a process of its own; each of its answers has all reports with new times.
Kubernetes' objects are handed to the operator's table as its caches do. Goals: a full round within 1 s, less than 5 %
of a core afterwards.
"""

import asyncio
import random
import resource
import subprocess
import sys
import time

import aiohttp
from tests.yarn.rpc.fake_rm import FakeRM

from koordinator.api import labels, resources
from koordinator.api.annotations.codec import dump
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.clock import SystemClock
from koordinator.cluster import garbage
from koordinator.cluster.backoff import Backoff, BackoffPolicy
from koordinator.yarn import amounts
from koordinator.yarn.amounts import DEFAULT_CLUSTER
from koordinator.yarn.cluster_loop import ClusterLoop, LoopCallbacks, SyncRules
from koordinator.yarn.connection import Login
from koordinator.yarn.hadoop_config import ResourceManager, YarnCluster
from koordinator.yarn.metrics import OperatorMetrics
from koordinator.yarn.resource_managers import MODES, ResourceManagers
from koordinator.yarn.rest import RestClient
from koordinator.yarn.table import NodeTable, slim_node, slim_pod

NODES = 10_000
STEADY_S = 60.0
_PAUSE = BackoffPolicy(initial_s=1.0, max_s=10.0, factor=2.0, jitter_ratio=0.1)


async def serve() -> None:
    """A ResourceManager with all nodes; says at which port."""
    rm = FakeRM()
    for number in range(NODES):
        rm.add(f"node-{number}.example.com")
    async with rm.serving() as where:
        print(where, flush=True)
        await asyncio.Event().wait()


def node(number: int, cores: int) -> Node:
    """A node whose batch pool has so many cores, and a little more: no two nodes offer the same."""
    amounts_of = (cores * 1000 + number % 1000, (cores << 30) + (number << 20))
    pool = dict(zip(resources.BATCH_RESOURCES, map(str, amounts_of), strict=True))
    origin = dump({"resources": pool})
    meta = {"name": f"node-{number}", "annotations": {labels.NODE_ORIGIN_EXTENDED_ALLOCATABLE: origin}}
    return slim_node(from_builtins({"metadata": meta, "status": {"allocatable": pool}}, Node))


def manager(number: int) -> Pod:
    """The pod of a NodeManager."""
    announced = {amounts.NODE_ID_ANNOTATION: f"node-{number}.example.com:8041"}
    marks = {amounts.COMPONENT_LABEL: amounts.NODE_MANAGER}
    meta = {"name": f"nm-{number}", "namespace": "yarn", "uid": f"u{number}"}
    body = {
        "metadata": {**meta, "labels": marks, "annotations": announced},
        "spec": {"nodeName": f"node-{number}", "containers": []},
        "status": {"phase": "Running"},
    }
    return slim_pod(from_builtins(body, Pod))


def cpu_s() -> float:
    """CPU time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def told(loop: ClusterLoop, cores: int) -> int:
    """How many nodes have a total of so many vcores, as the ResourceManager reports."""
    return sum(each.total is not None and each.total.vcores == cores for each in loop.reports.values())


async def full_round(loop: ClusterLoop, table: NodeTable, nodes: list[Node]) -> None:
    """All pools change at once: from the first event to the call that tells all totals."""
    begun_s, used_s = time.perf_counter(), cpu_s()
    now_s = asyncio.get_running_loop().time()
    for each in nodes:
        table.node_changed(each, now_s)
    taken_s = time.perf_counter()
    await loop.settle(table.take_changed(DEFAULT_CLUSTER))
    took_ms, taking_ms = (time.perf_counter() - begun_s) * 1e3, (taken_s - begun_s) * 1e3
    print(
        f"full round of {NODES} nodes: {took_ms:.0f} ms, of which {taking_ms:.0f} ms taking in, the rest deciding and"
        f" telling in one call; CPU {(cpu_s() - used_s) * 1e3:.0f} ms"
    )


async def run(where: str) -> None:
    """Measure both."""
    table = NodeTable(lambda _: loop.wake.set())
    callbacks = LoopCallbacks(
        record=lambda row: None,
        withdraw=lambda manager: None,
        node_problem=lambda row, outcome, reason: None,
        cluster_problem=lambda cluster, reason, text: print(text),
        may_act=lambda: True,
    )
    async with aiohttp.ClientSession() as session:
        cluster = YarnCluster(DEFAULT_CLUSTER, False, (ResourceManager("", where, where, where),), "simple")
        managers = ResourceManagers(
            cluster, Login("yarn"), RestClient(session, "yarn"), MODES["rpc"], lambda *_: None
        )
        loop = ClusterLoop(
            cluster,
            managers,
            table,
            SyncRules(),
            callbacks,
            OperatorMetrics(),
            Backoff(_PAUSE, random.Random(1)),
            SystemClock(),
        )
        for number in range(NODES):
            table.pod_changed(manager(number))
        polled_s, used_s = time.perf_counter(), cpu_s()
        await loop.step()
        print(
            f"first poll: {(time.perf_counter() - polled_s) * 1e3:.0f} ms, CPU {(cpu_s() - used_s) * 1e3:.0f} ms"
        )
        for cores in (40, 30, 44, 34, 48, 38):
            await full_round(loop, table, [node(number, cores) for number in range(NODES)])
            while told(loop, cores) < NODES:
                pause_s = await loop.step()
                await asyncio.sleep(pause_s)
        begun_s, used_s = time.perf_counter(), cpu_s()
        while time.perf_counter() - begun_s < STEADY_S:
            pause_s = await loop.step()
            await asyncio.sleep(pause_s)
        took_s = time.perf_counter() - begun_s
        print(
            f"steady for {took_s:.0f} s: {(cpu_s() - used_s) / took_s:.1%} of a core,"
            f" a poll each {loop._poll_due_s - (loop.polled_s or 0.0):.1f} s"
        )
        loop.close()


def main() -> None:
    if sys.argv[1:] == ["serve"]:
        asyncio.run(serve())
        return
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.yarn_operator", "serve"], stdout=subprocess.PIPE
    )
    try:
        assert server.stdout is not None
        with garbage.collected_rarely():  # as the operator's process does
            asyncio.run(run(server.stdout.readline().decode().strip()))
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
