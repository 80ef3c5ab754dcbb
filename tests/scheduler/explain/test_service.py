"""Explanations over HTTP, from a running scheduler."""

import asyncio
from typing import Any

from aiohttp.test_utils import TestClient, TestServer

from koordinator.clock import SystemClock
from koordinator.scheduler.explain.answer import QueueLine
from koordinator.scheduler.explain.decide import PodQuestion
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.status import unschedulable
from koordinator.scheduler.scheduler import Scheduler
from koordinator.scheduler.serve import http
from koordinator.scheduler.serve.explain_service import explain_live, names_alike
from tests.scheduler.fake_cluster import FakeCluster
from tests.scheduler.world import node, pod

Json = dict[str, Any]


async def asked(*paths: str, leader: bool = True) -> list[tuple[int, Json]]:
    """Answers of a scheduler with one node, a pod that fits and one that does not."""
    api = FakeCluster(SystemClock())
    api.put("Node", node("n-0", cpu="4"))
    api.put("Pod", pod("web", cpu="1"))
    api.put("Pod", pod("big", cpu="64"))
    scheduler = Scheduler(api, seed=1)
    running = asyncio.create_task(scheduler.run())
    try:
        await scheduler.synced.wait()
        for _ in range(500):
            if scheduler.queue.counts()["unschedulable"]:
                break
            await asyncio.sleep(0.01)
        async with TestClient(
            TestServer(http.application(scheduler, http.HttpOptions(is_leader=lambda: leader)))
        ) as client:
            found = []
            for path in paths:
                response = await client.get(f"/apis/v1/explain/{path}")
                found.append((response.status, await response.json()))
            return found
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_waiting_pod_is_explained_with_its_place_in_the_queue() -> None:
    [(status, body)] = await asked("default/big?nodes=*")

    assert status == 200
    assert body["verdict"] == "Unschedulable"
    assert body["queue"] == {"area": "unschedulable", "attempts": 1, "wakesOn": ["NodeResourcesFit"]}
    [cpu] = [each for each in body["nodes"][0]["resources"] if each["resource"] == "cpu"]
    assert (cpu["wanted"], cpu["allocatable"]) == ("64", "4")
    [condition] = body["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "PodScheduled",
        "False",
        "Unschedulable",
    )
    assert "Insufficient cpu" in condition["message"]


async def test_a_pod_that_is_refused_as_a_whole_is_reported_with_every_node() -> None:
    api = FakeCluster(SystemClock())
    api.put("Node", node("n-0", cpu="4"))
    claim = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
    api.put("Pod", pod("db", volumes=[claim]))
    scheduler = Scheduler(api, seed=1)
    async with scheduler.following():
        [known] = scheduler.caches.pods.list()
        found = await explain_live(scheduler, known, PodQuestion(nodes=None))

    assert found.pre_filter
    assert [each.node for each in found.nodes] == ["n-0"]


async def test_a_pod_without_uid_is_found_by_its_name() -> None:
    api = FakeCluster(SystemClock())
    api.put("Node", node("n-0", cpu="4"))
    body = pod("web", cpu="8")
    body["metadata"]["uid"] = ""
    api.put("Pod", body)
    scheduler = Scheduler(api, seed=1)
    async with scheduler.following():
        [known] = scheduler.caches.pods.list()
        found = await explain_live(scheduler, known, PodQuestion(nodes=None))

    assert not known.metadata.uid
    assert found.queue is not None and found.queue.area == "active"


async def test_a_pod_whose_backoff_is_over_is_told_to_be_in_line() -> None:
    api = FakeCluster(SystemClock())
    api.put("Node", node("n-0", cpu="4"))
    api.put("Pod", pod("web", cpu="8"))
    scheduler = Scheduler(api, seed=1)
    async with scheduler.following():
        [known] = scheduler.caches.pods.list()
        entry = scheduler.queue.pop(0.0)
        assert entry is not None
        scheduler.queue.retry(entry, unschedulable("Insufficient cpu"), ("NodeResourcesFit",), 0.0)
        scheduler.queue.happened(QueueingEvent(ClusterEvent.WILDCARD), 0.0)
        scheduler.queue.flush(60.0)
        found = await explain_live(scheduler, known, PodQuestion(nodes=None))

    assert found.queue == QueueLine(area="active", attempts=1)


async def test_a_placed_pod_is_explained_on_its_node() -> None:
    [(status, body)] = await asked("default/web")

    assert (status, body["verdict"], body["node"]) == (200, "Bound", "n-0")


async def test_unknown_names_and_bad_numbers_are_reported() -> None:
    answers = await asked("shop/web", "default/big?nodes=n-9", "default/big?best=many")

    assert answers[0] == (404, {"message": "cannot find pod shop/web", "alike": ["default/web"]})
    assert answers[1] == (404, {"message": "cannot find node n-9"})
    assert answers[2] == (400, {"message": "best: 'many' is no number"})


async def test_a_gang_is_explained_by_its_name() -> None:
    api = FakeCluster(SystemClock())
    api.put("Node", node("n-0", cpu="4"))
    api.put("PodGroup", {"metadata": {"namespace": "default", "name": "job"}, "spec": {"minMember": 2}})
    for name in ("a", "b"):
        member = pod(name, cpu="3")
        member["metadata"]["labels"] = {"pod-group.scheduling.sigs.k8s.io": "job"}
        api.put("Pod", member)
    scheduler = Scheduler(api, seed=1)
    server = TestServer(http.application(scheduler, http.HttpOptions()))
    async with scheduler.following(), TestClient(server) as client:
        found = await (await client.get("/apis/v1/explain/gangs/default/job")).json()
        missing = await client.get("/apis/v1/explain/gangs/default/jobs")
        reported = await missing.json()

    assert (found["verdict"], found["fit"]["fitting"]) == ("Unschedulable", 1)
    assert "1 of 2 members fit; the 2nd" in found["sentence"]
    assert (missing.status, reported["alike"]) == (404, ["default/job"])
    assert scheduler.table.assumed_count == 0


async def test_who_does_not_lead_does_not_answer() -> None:
    assert await asked("default/big", leader=False) == [(503, {"message": "the instance is not leader"})]


def test_the_same_name_elsewhere_comes_before_similar_ones() -> None:
    known = ["a/web", "b/web-1", "b/wep", "c/other"]

    assert names_alike("b/web", known)[:2] == ["a/web", "b/web-1"]
    assert "c/other" not in names_alike("b/web", known)


async def test_the_nodes_that_are_asked_about_are_reported_and_no_other() -> None:
    api = FakeCluster(SystemClock())
    for name in ("n-0", "n-1", "n-2"):
        api.put("Node", node(name, cpu="4"))
    api.put("Pod", pod("big", cpu="8"))
    scheduler = Scheduler(api, seed=1)
    reported = []
    async with scheduler.following():
        [known] = scheduler.caches.pods.list()
        for nodes in (("n-1",), ("n-2", "n-0"), None):
            found = await explain_live(scheduler, known, PodQuestion(nodes=nodes))
            reported.append(sorted(each.node for each in found.nodes))
    assert reported == [["n-1"], ["n-0", "n-2"], ["n-0", "n-1", "n-2"]]
