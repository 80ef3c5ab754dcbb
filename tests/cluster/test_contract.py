"""What every `Cluster` promises, held against the real registry: in-process, and over HTTP."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from koordinator.api.core import Event, Node, Pod
from koordinator.clock import LoopClock
from koordinator.cluster import errors
from koordinator.cluster.config import from_url
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import Informer
from koordinator.cluster.kube import KubeCluster
from koordinator.cluster.leader import ElectionConfig, LeaderElector
from koordinator.cluster.memory import MemoryCluster
from koordinator.cluster.protocol import Cluster, EventType
from koordinator.cluster.supervise import strictly
from koordinator.local import registry
from koordinator.local.apiserver import ApiServer

EPOCH_S = 1_700_000_000.0


@pytest.fixture(params=["in-process", "over HTTP"])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    clock = LoopClock(asyncio.get_running_loop(), EPOCH_S)
    backend = registry.in_memory(clock, checks=False)
    if request.param == "in-process":
        yield MemoryCluster(backend)
        return
    server = ApiServer(backend)
    await server.start()
    try:
        async with KubeCluster(from_url(server.url), rng=random.Random(1), clock=clock) as over_http:
            yield over_http
    finally:
        await server.stop()


def pod(name: str, **labels: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [{"name": "main", "image": "app"}], "terminationGracePeriodSeconds": 0},
    }


@contextlib.asynccontextmanager
async def task(work: Any) -> AsyncIterator[None]:
    running = asyncio.create_task(work)
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait([running])


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("did not happen within 5 s")


async def test_objects_are_created_read_patched_listed_and_deleted(cluster: Cluster) -> None:
    created = await cluster.create(Pod, pod("a", app="web"), "default")
    await cluster.create(Pod, pod("b"), "default")

    patched = await cluster.patch(Pod, "a", {"metadata": {"annotations": {"x": "y"}}}, "default")
    page = await cluster.list(Pod, label_selector="app=web")

    assert patched.metadata.annotations == {"x": "y"}
    assert patched.metadata.uid == created.metadata.uid
    assert [obj.key for obj in page.items] == ["default/a"]
    assert page.items[0] == await cluster.get(Pod, "a", "default")
    await cluster.delete(Pod, "a", "default", uid=created.metadata.uid)
    with pytest.raises(errors.NotFound, match='pods "a" not found'):
        await cluster.get(Pod, "a", "default")


async def test_guards_refuse_writes_to_a_successor_or_another_version(cluster: Cluster) -> None:
    created = await cluster.create(Pod, pod("a"), "default")
    with pytest.raises(errors.AlreadyExists):
        await cluster.create(Pod, pod("a"), "default")
    with pytest.raises(errors.Conflict):
        await cluster.patch(Pod, "a", {"metadata": {"uid": "other", "labels": {"x": "y"}}}, "default")
    await cluster.patch(Pod, "a", {"metadata": {"labels": {"x": "y"}}}, "default")
    with pytest.raises(errors.Conflict):
        stale = {"metadata": {"resourceVersion": created.metadata.resource_version, "labels": {"x": "z"}}}
        await cluster.patch(Pod, "a", stale, "default")
    with pytest.raises(errors.Conflict):
        await cluster.delete(Pod, "a", "default", uid="other")


async def test_binding_places_a_pod_once_and_eviction_removes_it(cluster: Cluster) -> None:
    created = await cluster.create(Pod, pod("a"), "default")
    await cluster.create(Node, {"metadata": {"name": "n1"}})

    await cluster.bind("default", "a", "n1", uid=created.metadata.uid)

    assert (await cluster.get(Pod, "a", "default")).spec.node_name == "n1"
    with pytest.raises(errors.Conflict):
        await cluster.bind("default", "a", "n2")
    await cluster.evict("default", "a", uid=created.metadata.uid, grace_period_s=0)
    with pytest.raises(errors.NotFound):
        await cluster.get(Pod, "a", "default")


async def test_a_watch_tells_what_happened_after_a_version(cluster: Cluster) -> None:
    version = (await cluster.list(Pod)).resource_version
    await cluster.create(Pod, pod("a"), "default")
    await cluster.patch(Pod, "a", {"metadata": {"labels": {"x": "y"}}}, "default")
    await cluster.delete(Pod, "a", "default", grace_period_s=0)

    seen = []
    async with asyncio.timeout(5):
        async for batch in cluster.watch(Pod, resource_version=version):
            seen += [event for event in batch if event.type is not EventType.BOOKMARK]
            if seen and seen[-1].type is EventType.DELETED:
                break

    stopping = EventType.MODIFIED  # a pod is marked before it goes, without a grace period as well
    assert [event.type for event in seen] == [
        EventType.ADDED,
        EventType.MODIFIED,
        stopping,
        EventType.DELETED,
    ]
    last = [event.obj.metadata for event in seen[2:]]
    assert [meta.deletion_timestamp is not None for meta in last] == [True, True]
    assert [meta.deletion_grace_period_seconds for meta in last] == [0, 0]
    versions = [int(event.resource_version) for event in seen]
    assert versions == sorted(set(versions))


async def test_informer_recorder_and_election_work_together(cluster: Cluster) -> None:
    informer = Informer(cluster, Pod, rng=random.Random(1))
    recorder = EventRecorder(cluster, "test", rng=random.Random(1))
    config = ElectionConfig(name="test", namespace="default", identity="me")
    election = LeaderElector(cluster, config, rng=random.Random(1))

    async def lead() -> None:
        await asyncio.Event().wait()

    with strictly():
        async with task(informer.run()), task(recorder.run()), task(election.run(lead)):
            await informer.synced.wait()
            created = await cluster.create(Pod, pod("a"), "default")
            recorder.normal(created, "Tested", "once")
            recorder.normal(created, "Tested", "once")
            await recorder.flush()
            await until(lambda: len(informer) == 1 and election.is_leader)

            (event,) = (await cluster.list(Event, "default")).items
            assert (event.count, event.involved_object.uid) == (2, created.metadata.uid)
            assert informer.get("a", "default") == created

            await cluster.delete(Pod, "a", "default", grace_period_s=0)
            await until(lambda: len(informer) == 0)


async def test_raw_requests_mean_the_same(cluster: Cluster) -> None:
    path = "/api/v1/namespaces/default/pods"
    await cluster.request("POST", path, {"apiVersion": "v1", "kind": "Pod"} | pod("a"))
    await cluster.request("PATCH", f"{path}/a", {"metadata": {"labels": {"x": "y"}}})

    listed = await cluster.request("GET", path, params={"labelSelector": "x=y"})
    served = await cluster.request("GET", "/apis/apps/v1")

    assert (listed["kind"], [item["metadata"]["name"] for item in listed["items"]]) == ("PodList", ["a"])
    assert "deployments" in {resource["name"] for resource in served["resources"]}
    with pytest.raises(errors.NotFound):
        await cluster.request("GET", "/apis/no.such.group/v1")
