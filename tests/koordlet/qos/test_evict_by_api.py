"""Evicting through a real API server: the version is looked up, a pod of another life stays, budgets are kept."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from koordinator.api.core import Event, Namespace, Pod
from koordinator.api.groups import PodDisruptionBudget
from koordinator.clock import LoopClock
from koordinator.cluster.config import from_url
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.kube import KubeCluster
from koordinator.cluster.memory import MemoryCluster
from koordinator.cluster.protocol import Cluster
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.qos.evictor import EVENT_FAIL, EVENT_SUCCESS, Evictor
from koordinator.koordlet.qos.memory_evict import MemoryEvict
from koordinator.local import registry
from koordinator.local.apiserver import ApiServer
from tests.koordlet.qos.acting_node import EPOCH_S, ActingNode, make_pod, threshold

GIB = 2**30
COMPONENT = "koordlet-qosManager"


@pytest.fixture(params=["in-process", "over HTTP"])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    clock = LoopClock(asyncio.get_running_loop(), EPOCH_S)
    backend = registry.in_memory(clock, checks=False)
    in_process = MemoryCluster(backend)
    await in_process.create(Namespace, {"metadata": {"name": "n"}})
    if request.param == "in-process":
        yield in_process
        return
    server = ApiServer(backend)
    await server.start()
    try:
        async with KubeCluster(from_url(server.url), rng=random.Random(1), clock=clock) as over_http:
            yield over_http
    finally:
        await server.stop()


async def create(cluster: Cluster, name: str) -> Pod:
    """A pod that runs, as the node sees it."""
    body: dict[str, Any] = {
        "metadata": {"name": name, "labels": {"app": name, "koordinator.sh/qosClass": "BE"}},
        "spec": {
            "containers": [{"name": "main", "image": "app"}],
            "nodeName": "node",
            "terminationGracePeriodSeconds": 30,
        },
    }
    await cluster.create(Pod, body, "n")
    status = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    return await cluster.patch(Pod, name, status, "n", subresource="status")


async def evict(cluster: Cluster, root: Path, pods: list[Pod], rounds: int = 1) -> list[str]:
    """What events say after rounds in which one pod has to go, the first of `pods` before the others."""
    node = ActingNode(root, gates="BEMemoryEvict=true")
    events = EventRecorder(cluster, COMPONENT, host="node", rng=random.Random(1))
    shared = msgspec.structs.replace(node.shared, cluster=cluster, events=events)
    node.set_pods(pods)
    node.view.slo = threshold()
    strategy = MemoryEvict(shared, Evictor(shared))
    writing = asyncio.create_task(events.run())
    for _ in range(rounds):
        node.measure(kinds.NODE_MEMORY, 75 * GIB)
        node.measure_pods(
            kinds.POD_MEMORY, {pod.metadata.uid: (20 - index) * GIB for index, pod in enumerate(pods)}
        )
        await strategy.run()
    await events.flush()
    writing.cancel()
    found = (await cluster.list(Event, "n")).items
    return sorted(f"{each.involved_object.name} {each.reason}" for each in found)


async def is_leaving(cluster: Cluster, name: str) -> bool:
    return (await cluster.get(Pod, name, "n")).metadata.deletion_timestamp is not None


async def test_a_pod_is_evicted_with_its_own_grace_period(cluster: Cluster, tmp_path: Path) -> None:
    pods = [await create(cluster, "a"), await create(cluster, "b")]

    reasons = await evict(cluster, tmp_path, pods)

    assert reasons == [f"a {EVENT_SUCCESS}"]
    assert await is_leaving(cluster, "a")
    assert (await cluster.get(Pod, "a", "n")).metadata.deletion_grace_period_seconds == 30
    assert not await is_leaving(cluster, "b")


async def test_a_pod_of_the_same_name_and_another_life_stays(cluster: Cluster, tmp_path: Path) -> None:
    await create(cluster, "a")
    old = make_pod("a")  # what the node still believes in

    reasons = await evict(cluster, tmp_path, [old, make_pod("gone")])

    assert reasons == []
    assert not await is_leaving(cluster, "a")


async def test_a_budget_is_kept_and_the_next_pod_goes(cluster: Cluster, tmp_path: Path) -> None:
    pods = [await create(cluster, "a"), await create(cluster, "b")]
    budget = {
        "metadata": {"name": "a"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}},
        "status": {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1},
    }
    await cluster.create(PodDisruptionBudget, budget, "n")
    await cluster.patch(
        PodDisruptionBudget,
        "a",
        {"status": {**budget["status"], "observedGeneration": 1}},
        "n",
        subresource="status",
    )

    reasons = await evict(cluster, tmp_path, pods, rounds=3)

    assert reasons == [f"a {EVENT_FAIL}", f"b {EVENT_SUCCESS}"]
    assert not await is_leaving(cluster, "a")
    assert await is_leaving(cluster, "b")
