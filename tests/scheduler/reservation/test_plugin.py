"""Reservations at work: placed as pods are, used by their owners and by nobody else."""

from typing import Any

import pytest

from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.cluster import errors
from koordinator.scheduler.plugin.capabilities import ApiRequest
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.world import World, play, pod

Json = dict[str, Any]
ALLOCATED = "scheduling.koordinator.sh/reservation-allocated"
AFFINITY = "scheduling.koordinator.sh/reservation-affinity"


def reservation(name: str, *, cpu: str = "2", memory: str = "1Gi", owner: str = "web", **spec: Any) -> Json:
    container = {"name": "main", "resources": {"requests": {"cpu": cpu, "memory": memory}}}
    template = {"spec": {"schedulerName": "koord-scheduler", "containers": [container]}}
    owners = [{"labelSelector": {"matchLabels": {"app": owner}}}]
    return {
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "spec": {"template": template, "owners": owners, "ttl": "1h", **spec},
    }


def owned(name: str, app: str = "web", affinity: str | None = None, **parts: Any) -> Json:
    body = pod(name, **parts)
    body["metadata"]["labels"] = {"app": app}
    if affinity is not None:
        body["metadata"]["annotations"] = {AFFINITY: affinity}
    return body


def put_reservation(world: World, body: Json) -> None:
    world.api.put("Reservation", body)


def status_of(world: World, name: str) -> Json:
    found = next(r for r in world.api.objects["Reservation"].values() if r["metadata"]["name"] == name)
    status: Json = found.get("status", {})
    return status


def node_of(world: World, name: str) -> str:
    found = next(p for p in world.api.pods() if p["metadata"]["name"] == name)
    return str(found["spec"].get("nodeName", ""))


def used_by(world: World, name: str) -> str:
    found = next(p for p in world.api.pods() if p["metadata"]["name"] == name)
    return str(found["metadata"].get("annotations", {}).get(ALLOCATED, ""))


def test_a_reservation_gets_a_node_and_its_owner_the_room_there() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        put_reservation(world, reservation("room", cpu="3"))
        await world.settle()
        status = status_of(world, "room")
        assert (status["phase"], status["nodeName"]) == ("Available", "node-0")
        assert status["allocatable"] == {"cpu": "3", "memory": "1Gi"}

        world.api.put("Pod", owned("stranger", app="other", cpu="2"))
        await world.settle()
        assert node_of(world, "stranger") == ""

        world.api.put("Pod", owned("web", cpu="3"))
        await world.settle()
        assert node_of(world, "web") == "node-0"
        assert '"room"' in used_by(world, "web")

    play(story)


def condition(world: World, name: str) -> str:
    return str(world.condition(name).get("message", ""))


def test_a_reservation_that_was_on_a_node_before_holds_what_it_asks_for_now() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        left = {"phase": "Pending", "allocatable": {"cpu": "1", "nvidia.com/gpu": "2"}}
        put_reservation(world, {**reservation("room", cpu="3"), "status": left})
        await world.settle()
        status = status_of(world, "room")
        assert status["phase"] == "Available"
        assert status["allocatable"] == {"cpu": "3", "memory": "1Gi"}

    play(story)


def test_an_owner_that_needs_more_than_is_reserved_takes_free_room_unless_the_reservation_is_restricted() -> (
    None
):
    async def story(world: World) -> None:
        world.nodes(1, cpu="16")
        world.api.put(
            "Pod", {**pod("running", cpu="8"), "metadata": {"name": "running", "namespace": "default"}}
        )
        put_reservation(world, reservation("open", cpu="4", owner="a"))
        await world.settle()
        world.api.put("Pod", owned("big", app="a", cpu="8001m"))
        await world.settle()
        assert node_of(world, "big") == ""
        world.api.remove("Pod", "big", "default")
        world.api.put("Pod", owned("fits", app="a", cpu="8"))
        await world.settle()
        assert (node_of(world, "fits"), '"open"' in used_by(world, "fits")) == ("node-0", True)

    play(story)


def test_reservations_on_nodes_that_an_owner_does_not_select_are_not_told() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="16")
        put_reservation(world, reservation("elsewhere", cpu="4"))
        await world.settle()
        body = owned("picky", cpu="1")
        body["spec"]["nodeSelector"] = {"disk": "ssd"}
        world.api.put("Pod", body)
        await world.settle()
        assert "didn't match Pod's node affinity/selector" in condition(world, "picky")
        assert "Reservation(s)" not in condition(world, "picky")

    play(story)


def test_a_restricted_reservation_gives_no_more_than_it_holds() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="16")
        put_reservation(world, reservation("closed", cpu="4", allocatePolicy="Restricted"))
        await world.settle()
        world.api.put("Pod", owned("big", cpu="5", affinity='{"reservationSelector": {}}'))
        await world.settle()
        assert node_of(world, "big") == ""
        assert "Reservation(s) Insufficient cpu" in condition(world, "big")
        assert "1 Reservation(s) matched owner total" in condition(world, "big")
        [event] = world.api.events("FailedScheduling-Reservation")
        assert event["message"].startswith("0/1 reservations are available")
        world.api.put("Pod", owned("fits", cpu="4", affinity="{}"))
        await world.settle()
        assert node_of(world, "fits") == "node-0"

    play(story)


def test_a_pod_that_requires_a_reservation_waits_for_one_although_there_is_free_room() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="4")
        world.api.put("Pod", owned("web", affinity="{}"))
        await world.settle()
        assert node_of(world, "web") == ""
        assert "no reservations match reservation affinity" in condition(world, "web")
        put_reservation(world, reservation("room"))
        await world.settle(15)
        assert node_of(world, "web") == status_of(world, "room")["nodeName"]
        assert '"room"' in used_by(world, "web")

    play(story)


def test_the_first_owner_takes_a_reservation_for_one_and_many_share_one_for_many() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="8")
        put_reservation(world, reservation("once", cpu="2", owner="a"))
        put_reservation(world, reservation("shared", cpu="4", owner="b", allocateOnce=False))
        await world.settle()
        for name, app in (("a-0", "a"), ("a-1", "a"), ("b-0", "b"), ("b-1", "b")):
            world.api.put("Pod", owned(name, app=app, cpu="1", affinity="{}"))
            await world.settle()
        assert [bool(used_by(world, name)) for name in ("a-0", "a-1", "b-0", "b-1")] == [
            True,
            False,
            True,
            True,
        ]

        # Strangers see what is used and what is reserved once, not twice: 8 - 1 (a-0) - 4 (shared).
        world.api.put("Pod", owned("stranger", app="other", cpu="2"))
        world.api.put("Pod", owned("too-big", app="other", cpu="2"))
        await world.settle(20)
        assert sorted((node_of(world, "stranger"), node_of(world, "too-big"))) == ["", "node-0"]

    play(story)


def test_the_smallest_order_is_used_first_else_the_fullest() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="16")
        put_reservation(world, reservation("large", cpu="4"))
        put_reservation(world, reservation("small", cpu="2"))
        await world.settle()
        world.api.put("Pod", owned("web", cpu="2"))
        await world.settle()
        assert '"small"' in used_by(world, "web")

        ordered = reservation("ordered", cpu="8")
        ordered["metadata"]["labels"] = {"scheduling.koordinator.sh/reservation-order": "9"}
        put_reservation(world, ordered)
        await world.settle()
        world.api.put("Pod", owned("web-2", cpu="2"))
        await world.settle()
        assert '"ordered"' in used_by(world, "web-2")

    play(story)


def test_a_node_with_a_reservation_of_its_own_is_preferred() -> None:
    async def story(world: World) -> None:
        world.nodes(5, cpu="8")
        put_reservation(world, reservation("room"))
        await world.settle()
        world.api.put("Pod", owned("web"))
        await world.settle()
        assert node_of(world, "web") == status_of(world, "room")["nodeName"]

    play(story)


def test_a_reservation_that_fits_nowhere_says_so_and_gets_its_node_later() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="1")
        put_reservation(world, reservation("room", cpu="2"))
        await world.settle()
        [scheduled] = status_of(world, "room")["conditions"]
        assert (scheduled["type"], scheduled["status"], scheduled["reason"]) == (
            "Scheduled",
            "False",
            "Unschedulable",
        )
        assert "Insufficient cpu" in scheduled["message"]
        assert world.api.events("FailedScheduling")[0]["involvedObject"]["kind"] == "Reservation"
        assert "phase" not in status_of(world, "room")
        world.nodes(2, cpu="4")
        await world.settle(15)
        assert status_of(world, "room")["phase"] == "Available"

    play(story)


def test_a_deleted_reservation_gives_its_room_to_those_who_wait() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        put_reservation(world, reservation("room", cpu="3"))
        await world.settle()
        world.api.put("Pod", owned("stranger", app="other", cpu="3"))
        await world.settle()
        assert node_of(world, "stranger") == ""
        world.api.remove("Reservation", "room")
        await world.settle(15)
        assert node_of(world, "stranger") == "node-0"

    play(story)


def test_after_a_restart_owners_and_reservations_are_as_before_from_objects_alone() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="8")
        used = reservation("used", cpu="4", allocateOnce=False)
        used["status"] = {
            "phase": "Available",
            "nodeName": "node-0",
            "allocatable": {"cpu": "4", "memory": "1Gi"},
        }
        owner = owned("web-0", cpu="3", nodeName="node-0")
        owner["metadata"]["annotations"] = {ALLOCATED: '{"name": "used", "uid": "uid-used"}'}
        world.api.put("Pod", owner)
        await world.settle()
        put_reservation(world, used)
        await world.settle()
        table = world.scheduler.table
        assert int(table.requested[0][table.rows[0]]) == 4000
        world.api.put("Pod", owned("web-1", cpu="1", affinity="{}"))
        world.api.put("Pod", owned("stranger", app="other", cpu="5"))
        await world.settle()
        assert '"used"' in used_by(world, "web-1")
        assert node_of(world, "stranger") == ""

    play(story)


def test_taints_keep_owners_out_that_do_not_tolerate_them_and_unschedulable_ones_take_nobody() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="8")
        taint = {"key": "pool", "value": "x", "effect": "NoSchedule"}
        put_reservation(world, reservation("tainted", owner="a", taints=[taint]))
        put_reservation(world, reservation("closed", owner="b", unschedulable=True))
        await world.settle()
        world.api.put("Pod", owned("a-0", app="a", affinity="{}"))
        world.api.put("Pod", owned("b-0", app="b", affinity="{}"))
        await world.settle()
        assert "1 Reservation(s) had untolerated taint {pool: x}" in condition(world, "a-0")
        assert "1 Reservation(s) is unschedulable" in condition(world, "b-0")
        tolerating = '{"tolerations": [{"key": "pool", "operator": "Exists"}]}'
        world.api.put("Pod", owned("a-1", app="a", affinity=tolerating))
        put_reservation(world, {**reservation("closed", owner="b"), "status": status_of(world, "closed")})
        await world.settle(15)
        assert '"tainted"' in used_by(world, "a-1")
        assert '"closed"' in used_by(world, "b-0")

    play(story)


def test_a_reservation_on_the_node_that_its_template_names() -> None:
    async def story(world: World) -> None:
        world.nodes(3, cpu="4")
        body = reservation("room")
        body["spec"]["template"]["spec"]["nodeName"] = "node-1"
        put_reservation(world, body)
        await world.settle()
        assert status_of(world, "room")["nodeName"] == "node-1"

    play(story)


def test_an_owner_whose_binding_fails_gives_the_reservation_back() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        put_reservation(world, reservation("room", cpu="3"))
        await world.settle()
        world.api.fail_next["bind"] = [errors.Forbidden("not now")]
        world.api.put("Pod", owned("web", cpu="3", affinity="{}"))
        await world.settle(0.5)
        table = world.scheduler.table
        assert int(table.requested[0][table.rows[0]]) == 3000
        await world.settle(20)
        assert (node_of(world, "web"), '"room"' in used_by(world, "web")) == ("node-0", True)

    play(story)


def test_a_reserved_room_is_no_prey_and_an_owner_is_not_evicted_for_room_that_stays_reserved() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        low = reservation("room", cpu="4", allocateOnce=False)
        low["metadata"]["labels"] = {"koordinator.sh/priority": "1"}
        put_reservation(world, low)
        await world.settle()
        world.api.put("Pod", owned("web", cpu="3", priority=1))
        await world.settle()
        world.api.put("Pod", owned("vip", app="other", cpu="2", priority=1000))
        await world.settle(30)
        assert (node_of(world, "vip"), node_of(world, "web")) == ("", "node-0")
        assert not world.api.events("Preempted")
        assert status_of(world, "room")["phase"] == "Available"

    play(story)


def test_an_important_owner_preempts_within_its_reservation() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        put_reservation(world, reservation("room", cpu="4", allocateOnce=False))
        await world.settle()
        world.api.put("Pod", owned("web", cpu="3", priority=1))
        await world.settle()
        world.api.put("Pod", owned("vip", cpu="2", priority=1000))
        await world.settle(30)
        assert [event["involvedObject"]["name"] for event in world.api.events("Preempted")] == ["web"]
        assert (node_of(world, "vip"), '"room"' in used_by(world, "vip")) == ("node-0", True)

    play(story)


def test_what_a_failed_binding_wrote_is_taken_back() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        put_reservation(world, reservation("room", cpu="3"))
        await world.settle()
        world.api.fail_next["bind"] = [errors.Forbidden("not now")]
        world.api.put("Pod", owned("web", cpu="3"))
        await world.settle(0.2)
        assert used_by(world, "web") == ""

    play(story)


def test_the_endpoint_lists_the_reservations_of_a_node() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        put_reservation(world, reservation("room", cpu="3", allocateOnce=False))
        await world.settle()
        world.api.put("Pod", owned("web", cpu="1"))
        await world.settle()
        [endpoint] = world.scheduler.engine.endpoints()["Reservation"]
        assert endpoint.path == "nodeReservations/{name}"
        [item] = endpoint.answer(ApiRequest({"name": "node-0"})).body["items"]
        assert (item["name"], item["allocated"]["cpu"], item["available"]) == ("room", "1", True)
        assert [owner["name"] for owner in item["owners"]] == ["default/web"]
        assert endpoint.answer(ApiRequest({"name": "nowhere"})).status == 500

    play(story)


def test_ports_of_a_reservation_are_kept_for_its_owners() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="8")
        room = reservation("room", allocateOnce=False)
        port = [{"containerPort": 80, "hostPort": 8080}]
        room["spec"]["template"]["spec"]["containers"][0]["ports"] = port
        put_reservation(world, room)
        await world.settle()
        stranger, web, second = owned("stranger", app="other"), owned("web"), owned("web-2")
        for body in (stranger, web, second):
            body["spec"]["containers"][0]["ports"] = port
            world.api.put("Pod", body)
            await world.settle()
        assert [node_of(world, name) for name in ("stranger", "web", "web-2")] == ["", "node-0", ""]

    play(story)


def test_pods_that_ignore_reservations_take_what_owners_do_not_use() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        put_reservation(world, reservation("room", cpu="4", allocateOnce=False))
        await world.settle()
        world.api.put("Pod", owned("web", cpu="1"))
        await world.settle()
        for name in ("free", "too-much"):
            body = owned(name, app="other", cpu="3" if name == "free" else "1")
            body["metadata"]["labels"]["scheduling.koordinator.sh/reservation-ignored"] = "true"
            world.api.put("Pod", body)
            await world.settle()
        assert [node_of(world, name) for name in ("free", "too-much")] == ["node-0", ""]
        assert used_by(world, "free") == ""

    play(story)


@pytest.mark.parametrize("gates", ["", "SkipReservationFitsNode=true"])
def test_the_general_fit_check_can_be_left_to_judge_the_node(gates: str) -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        put_reservation(world, reservation("room", cpu="2"))
        await world.settle()
        world.api.put("Pod", owned("big", cpu="5", affinity="{}"))
        await world.settle()
        assert node_of(world, "big") == ""
        world.api.put("Pod", owned("fits", cpu="4", affinity="{}"))
        await world.settle()
        assert node_of(world, "fits") == "node-0"

    play(story, gates=FeatureGates.of(Component.SCHEDULER, gates))


def test_a_pod_takes_no_reservation_that_holds_nothing_of_what_it_asks_for() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4", extra={"kubernetes.io/batch-cpu": "8k", "kubernetes.io/batch-memory": "8Gi"})
        put_reservation(world, reservation("room", cpu="3"))
        await world.settle()
        batch = {"kubernetes.io/batch-cpu": "1k", "kubernetes.io/batch-memory": "1Gi"}
        world.api.put("Pod", owned("batch", requests=batch))
        await world.settle(1)
        assert (node_of(world, "batch"), used_by(world, "batch")) == ("node-0", "")
        assert status_of(world, "room")["phase"] == "Available", "it is still there for who can use it"

    play(story)


def test_shares_of_an_owners_score_are_those_of_the_node_without_the_reservation() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="4")
        put_reservation(world, reservation("room", cpu="3"))
        await world.settle()
        engine = world.scheduler.engine
        [profile] = engine.profiles.values()
        info = PodInfo.of(from_builtins(owned("web", cpu="3"), Pod), engine.table.registry)
        evaluation = engine.cache.evaluate(profile, info, profile.class_key(info))
        rows = evaluation.feasible
        shares = evaluation.score_shares(rows)
        totals = sum(each.weight * each.normalised for each in shares)
        assert rows.size == 2
        assert totals.tolist() == evaluation.totals_of(rows).tolist()

    play(story)
