"""Two schedulers on one cluster: one works, the other takes over, and nothing is lost or booked twice."""

import asyncio
import contextlib
import random
from collections import Counter
from typing import Any

import pytest

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.clock import LoopClock
from koordinator.cluster import errors
from koordinator.cluster.leader import ElectionConfig, LeaderElector, LeaseLost
from koordinator.cluster.memory import MemoryCluster
from koordinator.local.registry import in_memory
from koordinator.scheduler.loop import caches
from koordinator.scheduler.scheduler import Scheduler
from tests.cluster import virtual_loop
from tests.scheduler.world import EPOCH_S, node, pod

PODS = 300
BIND_S = 0.02
NODE_CPU = 64


class SlowCluster(MemoryCluster):
    """A binding takes a while, so that some are always under way; `down` cuts this client off."""

    def __init__(self, backend: Any, bound: list[tuple[float, str, str]], who: str) -> None:
        super().__init__(backend)
        self.down = False
        self._bound = bound
        self._who = who

    async def bind(self, namespace: str, pod: str, node: str, *, uid: str = "") -> None:
        await asyncio.sleep(BIND_S)
        if self.down:
            raise errors.ConnectionFailed("connection refused")
        await super().bind(namespace, pod, node, uid=uid)
        self._bound.append((asyncio.get_running_loop().time(), pod, self._who))

    async def get(self, *args: Any, **options: Any) -> Any:
        if self.down:
            raise errors.ConnectionFailed("connection refused")
        return await super().get(*args, **options)

    async def patch(self, *args: Any, **options: Any) -> Any:
        if self.down:
            raise errors.ConnectionFailed("connection refused")
        return await super().patch(*args, **options)


class Instance:
    """A scheduler as the command runs it."""

    def __init__(self, cluster: SlowCluster, who: str, seed: int) -> None:
        self.cluster = cluster
        self.scheduler = Scheduler(cluster, seed=seed)
        config = ElectionConfig(name="koord-scheduler", namespace="koordinator-system", identity=who)
        self.election = LeaderElector(cluster, config, rng=random.Random(seed))
        self.task = asyncio.create_task(self._run(), name=who)

    async def _run(self) -> None:
        async with self.scheduler.following():
            await self.election.run(self.scheduler.schedule)


async def two_on_one_cluster(stop: str) -> None:
    loop = asyncio.get_running_loop()
    registry = in_memory(LoopClock(loop, EPOCH_S), checks=False)
    admin = MemoryCluster(registry)
    for number in range(10):
        await admin.create(Node, node(f"n-{number}", cpu=str(NODE_CPU), memory="256Gi"))
    bound: list[tuple[float, str, str]] = []
    first = Instance(SlowCluster(registry, bound, "first"), "first", 1)
    await asyncio.sleep(1)
    second = Instance(SlowCluster(registry, bound, "second"), "second", 2)
    await asyncio.sleep(1)
    assert (first.election.is_leader, second.election.is_leader) == (True, False)
    second_knows = second.scheduler.table.node_count

    creating = asyncio.create_task(create_pods(admin))
    await asyncio.sleep(0.5)
    stopped_s = loop.time()
    assert first.scheduler.bindings_in_progress > 0
    if stop == "terminated":
        first.task.cancel()
    else:
        first.cluster.down = True
    await creating
    await asyncio.sleep(30)

    assert second_knows == 10
    assert second.election.is_leader and not first.election.is_leader
    pods = (await admin.list(Pod, "default")).items
    assert all(each.spec.node_name for each in pods)
    assert len(bound) == len({name for _, name, _ in bound}) == PODS
    used = Counter(each.spec.node_name for each in pods)
    assert max(used.values()) <= NODE_CPU
    gap_s = min(at_s for at_s, _, who in bound if who == "second") - stopped_s
    if stop == "terminated":
        assert gap_s < 1.0
        with contextlib.suppress(asyncio.CancelledError):
            await first.task
        assert max(at_s for at_s, _, who in bound if who == "first") <= stopped_s + 2 * BIND_S
    else:
        # The lease outlasts its holder by up to 15 s, found out within a retry period (2 s and jitter).
        assert gap_s < 15 + 2 * 2.2 + 1
        failure = (await asyncio.gather(first.task, return_exceptions=True))[0]
        assert isinstance(failure, ExceptionGroup) and failure.split(LeaseLost)[1] is None
    second.task.cancel()
    await asyncio.gather(second.task, return_exceptions=True)


async def create_pods(admin: MemoryCluster) -> None:
    for number in range(PODS):
        await admin.create(Pod, pod(f"p-{number}"), "default")
        await asyncio.sleep(0.003)


@pytest.mark.parametrize("stop", ["terminated", "cut off"])
def test_the_other_takes_over_and_every_pod_is_bound_once(stop: str) -> None:
    virtual_loop.run(two_on_one_cluster(stop))


@pytest.mark.parametrize(
    ("version", "wanted", "reached"),
    [("9", "10", False), ("10", "9", True), ("10", "10", True), ("", "1", False), ("19", "21", False)],
)
def test_versions_compare_by_length_then_text(version: str, wanted: str, reached: bool) -> None:
    states = [
        from_builtins({"metadata": {"name": "p", "resourceVersion": each}}, Pod) for each in (version, wanted)
    ]
    assert (caches.order_of(states[0]) >= caches.order_of(states[1])) is reached


def test_the_barrier_waits_until_our_own_write_has_come_back() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        registry = in_memory(LoopClock(loop, EPOCH_S), checks=False)
        admin = MemoryCluster(registry)
        scheduler = Scheduler(MemoryCluster(registry))
        options = caches.BarrierOptions(timeout_s=5)
        async with scheduler.following():
            await admin.create(Node, node("n-1"))
            await admin.create(Pod, pod("running", nodeName="n-1"), "default")
            skipped = await caches.pass_barrier(admin, scheduler.caches, scheduler.table, options)
            barrier = pod(options.name)
            barrier["metadata"]["namespace"] = options.namespace
            await admin.create(Pod, barrier, options.namespace)
            passed = await caches.pass_barrier(admin, scheduler.caches, scheduler.table, options)
            written = scheduler.caches.pods.get(options.name, options.namespace)
        assert (skipped, passed) == (False, True)
        assert written is not None
        assert written.metadata.annotations["scheduling.koordinator.sh/sync-barrier-koord-scheduler"]
        started_s = loop.time()
        # The caches are not followed any more: our write cannot come back.
        stale = await caches.pass_barrier(admin, scheduler.caches, scheduler.table, options)
        assert (stale, loop.time() - started_s) == (False, pytest.approx(5))

    virtual_loop.run(story())
