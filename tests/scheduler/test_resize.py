"""Pods that are resized in place: what they hold of their node and their quota while it happens. KEP-1287."""

import copy
from typing import Any

import pytest

from tests.scheduler.elastic_quota.test_plugin import member, quota
from tests.scheduler.world import World, play, pod, requested_cpu

Json = dict[str, Any]
SETTLED_S = 2.0


def reported(
    world: World, name: str, applied: str, promised: str = "", *, wanted: str = "", why: str = ""
) -> None:
    """The kubelet's word on the pod, and the owner's new wish."""
    body = copy.deepcopy(next(each for each in world.api.pods() if each["metadata"]["name"] == name))
    requests = body["spec"]["containers"][0]["resources"]["requests"]
    if wanted:
        requests["cpu"] = wanted
    status: Json = {"name": "main", "resources": {"requests": requests | {"cpu": applied}}}
    if promised:
        status["allocatedResources"] = requests | {"cpu": promised}
    body["status"] = {
        "phase": "Running",
        "containerStatuses": [status],
        "conditions": [{"type": "PodResizePending", "status": "True", "reason": why}] if why else [],
    }
    world.api.put("Pod", body)


@pytest.mark.parametrize(
    ("wanted", "applied", "promised", "why", "counts_for"),
    [
        ("1", "3", "", "", 3000),
        ("1", "2", "3", "", 3000),
        ("3", "1", "1", "", 3000),
        ("3", "1", "1", "Deferred", 3000),
        ("9", "1", "2", "Infeasible", 2000),
    ],
)
def test_a_node_holds_what_a_resized_pod_counts_for(
    wanted: str, applied: str, promised: str, why: str, counts_for: int
) -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        world.api.put("Pod", pod("resized", cpu="1", nodeName="node-0"))
        await world.settle()
        assert requested_cpu(world) == [1000]

        reported(world, "resized", applied, promised, wanted=wanted, why=why)
        await world.settle()
        assert requested_cpu(world) == [counts_for]

    play(story)


def test_the_room_of_a_pod_that_shrinks_is_free_when_the_kubelet_says_so_and_wakes_who_waits() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        world.api.put("Pod", pod("large", cpu="3", nodeName="node-0"))
        reported(world, "large", "3", "3")
        world.api.put("Pod", pod("waits", cpu="2"))
        await world.settle(SETTLED_S)

        reported(world, "large", "3", "1", wanted="1")
        await world.settle(SETTLED_S)
        assert not world.api.placements()["waits"], "the runtime still gives the pod three"

        reported(world, "large", "1", "1")
        await world.settle(SETTLED_S)
        assert world.api.placements()["waits"] == "node-0"

    play(story)


def test_a_resize_turned_down_for_good_gives_back_what_it_asked_for() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        world.api.put("Pod", pod("greedy", cpu="1", nodeName="node-0"))
        reported(world, "greedy", "1", "1", wanted="4")
        world.api.put("Pod", pod("waits", cpu="2"))
        await world.settle(SETTLED_S)
        assert not world.api.placements()["waits"]

        reported(world, "greedy", "1", "1", why="Infeasible")
        await world.settle(SETTLED_S)
        assert world.api.placements()["waits"] == "node-0"

    play(story)


def test_quotas_count_what_is_resized_as_nodes_do() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="8")
        world.api.put("ElasticQuota", quota("team", low=4, high=4))
        world.api.put("Pod", member("resized", "team", cpu="1", nodeName="node-0"))
        await world.settle()
        reported(world, "resized", "4", "4", wanted="1")
        world.api.put("Pod", member("waits", "team", cpu="2"))
        await world.settle(SETTLED_S)
        assert "used: cpu:4" in world.condition("waits")["message"]

        reported(world, "resized", "1", "1")
        await world.settle(SETTLED_S)
        assert world.api.placements()["waits"]

    play(story)
