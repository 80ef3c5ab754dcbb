"""Pods whose successor is ready before they go: one replica more for a while, never one less, and none left over."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import labels
from koordinator.api.apps import Deployment, StatefulSet
from koordinator.api.core import Pod
from koordinator.api.groups import PodDisruptionBudget
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.descheduler.migration.surge import KINDS, Surge
from tests.cluster.faulty_cluster import Faults, FaultyCluster
from tests.descheduler.test_migration import LOOSE
from tests.descheduler.world import World, config, is_ready, run

REPLICAS = 4


async def surge(world: World, pod: Pod, ttl: str = "5m") -> None:
    ref = {"namespace": pod.metadata.namespace, "name": pod.metadata.name}
    metadata = {"name": "move", "annotations": {labels.JOB_SURGE: "true"}}
    await world.cluster.create(PodMigrationJob, {"metadata": metadata, "spec": {"podRef": ref, "ttl": ttl}})


async def replicas(world: World) -> int | None:
    return (await world.cluster.get(Deployment, "web", "default")).spec.replicas


@contextlib.asynccontextmanager
async def fewest(world: World) -> AsyncIterator[list[int]]:
    """How many pods were ready at every look, until the end of the block."""
    seen: list[int] = []

    async def look() -> None:
        while True:
            found = await world.pods()
            seen.append(sum(is_ready(pod) and not pod.metadata.deletion_timestamp for pod in found))
            await asyncio.sleep(0.05)

    looking = asyncio.create_task(look())
    yield seen
    looking.cancel()


async def allow_no_disruption(world: World) -> None:
    spec = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "web"}}}
    await world.cluster.create(PodDisruptionBudget, {"metadata": {"name": "web"}, "spec": spec}, "default")


def test_the_successor_is_ready_before_the_pod_goes_and_no_budget_is_needed() -> None:
    async def scenario(world: World) -> None:
        pods = await world.deployment("web", REPLICAS, "n0")
        await allow_no_disruption(world)
        world.elsewhere = "n1"
        async with world.descheduling(config(args=LOOSE)), fewest(world) as seen:
            await surge(world, pods[0])
            job = await world.ended()
        assert (job.status.phase, job.status.node_name) == ("Succeeded", "n1")
        assert min(seen) == REPLICAS
        assert await replicas(world) == REPLICAS
        left = await world.pods()
        assert sorted(pod.spec.node_name for pod in left) == ["n0", "n0", "n0", "n1"]
        assert pods[0].metadata.uid not in {pod.metadata.uid for pod in left}

    run(scenario)


def test_a_successor_that_never_gets_ready_is_taken_back_with_the_job() -> None:
    async def scenario(world: World) -> None:
        pods = await world.deployment("web", REPLICAS, "n0")
        world.elsewhere, world.readies = "n1", False
        async with world.descheduling(config(args=LOOSE)):
            await surge(world, pods[0], ttl="1m")
            await world.until(lambda now: len(now) == REPLICAS + 1)
            job = await world.ended()
            await world.until(lambda now: len(now) == REPLICAS)
        assert (job.status.phase, job.status.reason) == ("Failed", "Timeout")
        assert await replicas(world) == REPLICAS
        assert {pod.metadata.uid for pod in await world.pods()} == {pod.metadata.uid for pod in pods}

    run(scenario)


def test_a_deleted_job_takes_its_replica_along() -> None:
    async def scenario(world: World) -> None:
        pods = await world.deployment("web", REPLICAS, "n0")
        world.elsewhere, world.readies = "n1", False
        async with world.descheduling(config(args=LOOSE)):
            await surge(world, pods[0])
            await world.until(lambda now: len(now) == REPLICAS + 1)
            await world.cluster.delete(PodMigrationJob, "move")
            await world.until(lambda now: len(now) == REPLICAS)
        assert await replicas(world) == REPLICAS

    run(scenario)


def test_a_number_of_replicas_that_somebody_else_has_set_stays() -> None:
    async def scenario(world: World) -> None:
        pods = await world.deployment("web", REPLICAS, "n0")
        world.elsewhere, world.readies = "n1", False
        async with world.descheduling(config(args=LOOSE)):
            await surge(world, pods[0])
            await world.until(lambda now: len(now) == REPLICAS + 1)
            await world.cluster.patch(Deployment, "web", {"spec": {"replicas": 7}}, "default")
            world.readies = True
            job = await world.ended()
            await world.until(lambda now: len(now) == 7 and all(map(is_ready, now)))
        assert (job.status.phase, await replicas(world)) == ("Succeeded", 7)
        assert pods[0].metadata.uid not in {pod.metadata.uid for pod in await world.pods()}

    run(scenario)


def test_a_pod_of_another_kind_of_workload_is_evicted_as_ever() -> None:
    async def scenario(world: World) -> None:
        pods = await world.deployment("web", REPLICAS, "n0")
        body = {"metadata": {"name": "web"}, "spec": {"replicas": REPLICAS}}
        made = await world.cluster.create(StatefulSet, body, "default")
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": made.metadata.uid}
        patch = {"metadata": {"ownerReferences": [{**owner, "controller": True}]}}
        await world.cluster.patch(Pod, pods[0].metadata.name, patch, "default")
        world.elsewhere = "n1"
        async with world.descheduling(config(args=LOOSE)):
            await surge(world, pods[0])
            await world.until(lambda now: pods[0].metadata.uid not in {pod.metadata.uid for pod in now})
        assert await replicas(world) == REPLICAS

    run(scenario)


@pytest.mark.parametrize("seed", range(5))
def test_whatever_fails_and_whenever_it_starts_again_no_replica_is_lost_or_left_over(seed: int) -> None:
    async def scenario(world: World) -> None:
        rng = random.Random(seed)
        pods = await world.deployment("web", REPLICAS, "n0")
        world.elsewhere = "n1"
        faulty = FaultyCluster(world.cluster, Faults.drawn(rng), rng)
        async with fewest(world) as seen:
            await surge(world, pods[0])
            for _ in range(4):
                async with world.descheduling(config(args=LOOSE), faulty):
                    await asyncio.sleep(rng.uniform(0.1, 8.0))
            faulty.heal()
            async with world.descheduling(config(args=LOOSE), faulty):
                await world.ended()
                await world.until(lambda now: len(now) == REPLICAS)
        assert min(seen) >= REPLICAS
        assert await replicas(world) == REPLICAS

    run(scenario)


@given(st.sampled_from(KINDS), st.from_regex(r"[a-z]{1,9}", fullmatch=True), st.integers(0, 10**6))
def test_what_is_written_down_can_be_read(kind: str, name: str, count: int) -> None:
    assert Surge.parse(Surge(kind, name, name, count).text) == Surge(kind, name, name, count)
    assert Surge.parse(f"{name}: {count}") is None
