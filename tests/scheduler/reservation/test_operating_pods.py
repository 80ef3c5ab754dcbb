"""Running pods that are reservations of what they ask for: one pod takes over from another in place."""

import copy
import json

import pytest

from koordinator.api import labels
from tests.scheduler.device_share.test_plugin import gpu_pod, is_bound, machine, minors
from tests.scheduler.device_share.test_reserved_devices import owner
from tests.scheduler.reservation.test_plugin import (
    Json,
    node_of,
    owned,
    put_reservation,
    reservation,
    used_by,
)
from tests.scheduler.world import World, play, pod


def placeholder(name: str, *, cpu: str = "3", ready: str = "True", **annotations: str) -> Json:
    body = pod(name, cpu=cpu, nodeName="node-0")
    owners = [{"labelSelector": {"matchLabels": {"app": "web"}}}]
    body["metadata"] |= {
        "uid": f"uid-{name}",
        "labels": {labels.POD_OPERATING_MODE: "Reservation"},
        "annotations": {labels.RESERVATION_OWNERS: json.dumps(owners), **annotations},
    }
    body["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}
    return body


def test_an_owner_takes_over_the_room_of_a_running_pod_and_strangers_count_it_once() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        world.api.put("Pod", placeholder("old"))
        await world.settle()
        world.api.put("Pod", owned("stranger", app="other", cpu="2"))
        await world.settle()
        assert node_of(world, "stranger") == ""

        world.api.put("Pod", owned("web", cpu="2"))
        await world.settle()
        assert node_of(world, "web") == "node-0"
        assert json.loads(used_by(world, "web")) == {"name": "old", "uid": "uid-old"}

        world.api.put("Pod", owned("second", cpu="2"))
        world.api.put("Pod", owned("small", app="other", cpu="1"))
        await world.settle()
        assert (node_of(world, "second"), node_of(world, "small")) == ("", "node-0"), "it is used once"

        world.api.remove("Pod", "old", "default")
        await world.settle(15)
        assert [node_of(world, name) for name in ("stranger", "second")].count("node-0") == 0, "2 + 1 of 4"
        world.api.put("Pod", owned("last", app="other", cpu="1"))
        await world.settle()
        assert node_of(world, "last") == "node-0", "what the owner does not need is free now"

    play(story)


@pytest.mark.parametrize(
    ("policy", "goes_there"), [pytest.param("", False, id="none"), pytest.param("Restricted", True, id="one")]
)
def test_a_pod_that_will_be_a_reservation_shares_no_node_with_such_without_a_policy(
    policy: str, goes_there: bool
) -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        put_reservation(world, reservation("room", cpu="1", allocatePolicy=policy))
        await world.settle()
        body = placeholder("later", cpu="1")
        del body["spec"]["nodeName"], body["status"]
        world.api.put("Pod", body)
        world.api.put("Pod", owned("plain", app="other", cpu="1"))
        await world.settle()
        assert bool(node_of(world, "later")) == goes_there
        assert goes_there or "policy conflict" in world.condition("later")["message"]
        assert node_of(world, "plain")

    play(story)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(placeholder("old", ready="False"), id="not ready"),
        pytest.param(
            placeholder("old", **{labels.RESERVATION_CURRENT_OWNER: '{"name": "w", "uid": "u"}'}),
            id="somebody has it",
        ),
        pytest.param(
            placeholder("old", **{labels.RESERVATION_OWNERS: "{"}), id="owners that nobody can read"
        ),
    ],
)
def test_nobody_takes_over_from_a_pod_that_is(body: Json) -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        world.api.put("Pod", body)
        await world.settle()
        world.api.put("Pod", owned("web", cpu="2"))
        await world.settle(15)
        assert node_of(world, "web") == ""

    play(story)


def test_an_owner_that_needs_a_reservation_waits_until_the_pod_is_ready() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        world.api.put("Pod", placeholder("old", ready="False"))
        await world.settle()
        world.api.put("Pod", owned("web", affinity="{}", cpu="2"))
        await world.settle()
        assert node_of(world, "web") == ""
        world.api.put("Pod", placeholder("old"))
        await world.settle(15)
        assert node_of(world, "web") == "node-0"

    play(story)


def test_the_card_of_a_running_pod_goes_to_its_owner() -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=1)
        body = gpu_pod("old", 100, annotations=placeholder("old")["metadata"]["annotations"])
        body["metadata"] |= {"labels": {labels.POD_OPERATING_MODE: "Reservation"}}
        world.api.put("Pod", body)
        await world.settle()
        running = copy.deepcopy(next(each for each in world.api.pods() if each["metadata"]["name"] == "old"))
        running["status"] = placeholder("old")["status"]
        world.api.put("Pod", running)
        await world.settle()

        world.api.put("Pod", gpu_pod("stranger", 100))
        world.api.put("Pod", owner("web", 100))
        await world.settle()

        assert (minors(world, "old"), minors(world, "web")) == ([0], [0])
        assert not is_bound(world, "stranger")

    play(story)
