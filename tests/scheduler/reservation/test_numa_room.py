"""CPUs and NUMA amounts of reservations: their owners' first, nobody else's, and counted once."""

from typing import Any

import pytest

from tests.scheduler.node_numa_resource.cluster import cpus_of, node, pod, report
from tests.scheduler.reservation.test_plugin import ALLOCATED, status_of, used_by
from tests.scheduler.world import World, play

Json = dict[str, Any]

RATIO = "node.koordinator.sh/resource-amplification-ratio"


def room(name: str, cpu: str, **spec: Any) -> Json:
    body = pod(name, cpu=cpu, memory="2Gi", qos="LSR")
    template = {"metadata": {"labels": dict(body["metadata"]["labels"])}, "spec": body["spec"]}
    template["metadata"]["annotations"] = body["metadata"].get("annotations", {})
    owners = [{"labelSelector": {"matchLabels": {"app": "web"}}}]
    return {
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "spec": {"template": template, "owners": owners, "ttl": "1h", "allocateOnce": False, **spec},
    }


def owner(name: str, cpu: str = "4") -> Json:
    body = pod(name, cpu=cpu, qos="LSR")
    body["metadata"]["labels"]["app"] = "web"
    body["metadata"].setdefault("annotations", {})["scheduling.koordinator.sh/reservation-affinity"] = "{}"
    return body


def named(world: World, kind: str, name: str) -> Json:
    return next(each for each in world.api.objects[kind].values() if each["metadata"]["name"] == name)


@pytest.mark.parametrize("policy", ["", "Aligned", "Restricted"])
def test_owners_get_the_cpus_that_were_reserved_and_strangers_the_others(policy: str) -> None:
    async def story(world: World) -> None:
        world.api.put("Node", node("a"))
        world.api.put("NodeResourceTopology", report("a"))
        await world.settle()
        world.api.put("Reservation", room("room", "8", allocatePolicy=policy))
        await world.settle(1)
        assert status_of(world, "room")["nodeName"] == "a"
        reserved = cpus_of(named(world, "Reservation", "room"))
        assert len(reserved) == 8

        world.api.put("Pod", pod("stranger", cpu="4", qos="LSR"))
        await world.settle(1)
        world.api.put("Pod", owner("web-0"))
        await world.settle(1)
        world.api.put("Pod", owner("web-1"))
        await world.settle(1)

        stranger, first, second = (
            cpus_of(named(world, "Pod", name)) for name in ("stranger", "web-0", "web-1")
        )
        assert len(stranger) == 4
        assert not stranger & reserved
        assert first | second == reserved
        assert not first & second
        assert '"room"' in used_by(world, "web-0") and '"room"' in used_by(world, "web-1")

    play(story)


def test_after_a_restart_reserved_cpus_are_known_from_the_reservation_alone() -> None:
    async def story(world: World) -> None:
        world.api.put("Node", node("a"))
        world.api.put("NodeResourceTopology", report("a"))
        body = room("room", "8")
        body["metadata"]["annotations"] = {
            "scheduling.koordinator.sh/resource-status": '{"cpuset": "0-7"}',
        }
        body["status"] = {"phase": "Available", "nodeName": "a", "allocatable": {"cpu": "8"}}
        user = owner("web-0")
        user["metadata"]["annotations"] |= {
            "scheduling.koordinator.sh/resource-status": '{"cpuset": "0-3"}',
            ALLOCATED: '{"name": "room", "uid": "uid-room"}',
        }
        user["spec"]["nodeName"] = "a"
        world.api.put("Pod", user)
        world.api.put("Reservation", body)
        await world.settle(1)
        world.api.put("Pod", pod("stranger", cpu="4", qos="LSR"))
        world.api.put("Pod", owner("web-1"))
        await world.settle(1)
        assert not cpus_of(named(world, "Pod", "stranger")) & set(range(8))
        assert cpus_of(named(world, "Pod", "web-1")) == {4, 5, 6, 7}
        world.api.remove("Reservation", "room")
        await world.settle(1)
        world.api.put("Pod", pod("other", cpu="4", qos="LSR"))
        await world.settle(1)
        assert len(cpus_of(named(world, "Pod", "other"))) == 4

    play(story)


@pytest.mark.parametrize("ends_with_pod", [True, False])
def test_cpus_of_a_running_pod_are_kept_for_its_successor(ends_with_pod: bool) -> None:
    async def story(world: World) -> None:
        world.api.put("Node", node("a"))
        world.api.put("NodeResourceTopology", report("a"))
        old, other = owner("old", cpu="8"), pod("other", cpu="8", qos="LSR")
        del old["metadata"]["annotations"]["scheduling.koordinator.sh/reservation-affinity"]
        for body in (old, other):
            world.api.put("Pod", body)
            await world.settle()
        own = cpus_of(named(world, "Pod", "old"))
        assert len(own) == 8

        world.api.put("Reservation", room("room", "8", preAllocation=True, allocatePolicy="Restricted"))
        await world.settle(1)
        assert used_by(world, "old"), "it is taken over"
        assert cpus_of(named(world, "Reservation", "room")) == own

        if ends_with_pod:
            world.api.remove("Pod", "old", "default")
            await world.settle(15)
        world.api.put("Pod", pod("stranger", cpu="8", qos="LSR"))
        world.api.put("Pod", owner("new", cpu="8"))
        await world.settle(15)
        assert "nodeName" not in named(world, "Pod", "stranger")["spec"]
        assert named(world, "Pod", "new")["spec"].get("nodeName") == ("a" if ends_with_pod else None)
        if ends_with_pod:
            assert cpus_of(named(world, "Pod", "new")) == own

    play(story)


@pytest.mark.parametrize("numa", [None, {"numaTopologyPolicy": "SingleNUMANode"}])
def test_pods_that_ignore_reservations_get_cpus_that_owners_do_not_use(numa: Json | None) -> None:
    async def story(world: World) -> None:
        world.api.put("Node", node("a"))
        world.api.put("NodeResourceTopology", report("a"))
        world.api.put("Pod", pod("stranger", cpu="8", qos="LSR"))
        await world.settle(1)
        world.api.put("Reservation", room("room", "8"))
        await world.settle(1)
        world.api.put("Pod", owner("web-0", cpu="2"))
        await world.settle(1)
        for name in ("free", "too-much"):
            body = pod(name, cpu="4", qos="LSR", numa=numa)
            body["metadata"]["labels"]["scheduling.koordinator.sh/reservation-ignored"] = "true"
            world.api.put("Pod", body)
            await world.settle(1)
        world.api.put("Pod", owner("web-1", cpu="2"))
        await world.settle(1)

        first, free, second = (cpus_of(named(world, "Pod", name)) for name in ("web-0", "free", "web-1"))
        assert first | free | second == cpus_of(named(world, "Reservation", "room"))
        assert [len(each) for each in (first, free, second)] == [2, 4, 2]
        assert used_by(world, "free") == ""
        assert "nodeName" not in named(world, "Pod", "too-much")["spec"]

    play(story)


def test_an_owner_binds_cpus_where_only_its_reservation_has_amplified_cpu_left() -> None:
    async def story(world: World) -> None:
        body = node("a", cpus=16)
        body["metadata"].setdefault("annotations", {})[RATIO] = '{"cpu": 2}'
        body["status"]["allocatable"]["cpu"] = "32"
        world.api.put("Node", body)
        world.api.put("NodeResourceTopology", report("a"))
        await world.settle()
        world.api.put("Reservation", room("room", "8"))
        world.api.put("Pod", pod("other", cpu="16", qos="LS"))
        await world.settle(1)
        assert status_of(world, "room")["phase"] == "Available"

        world.api.put("Pod", owner("web-0", "8"))
        await world.settle(1)
        assert '"room"' in used_by(world, "web-0")

    play(story)


def test_a_restricted_reservation_of_cpus_alone_leaves_amounts_of_numa_nodes_open() -> None:
    async def story(world: World) -> None:
        world.api.put("Node", node("a"))
        world.api.put("NodeResourceTopology", report("a"))
        await world.settle()
        world.api.put("Reservation", room("room", "4", allocatePolicy="Restricted"))
        await world.settle(1)
        assert status_of(world, "room")["phase"] == "Available"

        body = owner("web-0", "2")
        body["metadata"]["annotations"]["scheduling.koordinator.sh/numa-topology-spec"] = (
            '{"numaTopologyPolicy": "SingleNUMANode"}'
        )
        world.api.put("Pod", body)
        await world.settle(1)
        assert '"room"' in used_by(world, "web-0")
        assert cpus_of(named(world, "Pod", "web-0")) <= cpus_of(named(world, "Reservation", "room"))

    play(story)


def test_room_of_a_reservation_that_an_owner_cannot_use_is_not_free_for_it() -> None:
    async def story(world: World) -> None:
        world.api.put("Node", node("a"))
        world.api.put("NodeResourceTopology", report("a"))
        await world.settle()
        world.api.put("Reservation", room("room", "4", allocatePolicy="Restricted"))
        world.api.put("Pod", pod("other", cpu="6", qos="LS"))
        await world.settle(1)
        assert status_of(world, "room")["phase"] == "Available"

        body = pod("web-0", cpu="8", qos="LSR")
        body["metadata"]["labels"]["app"] = "web"
        world.api.put("Pod", body)
        await world.settle(1)
        assert "nodeName" not in named(world, "Pod", "web-0")["spec"], "6 of 16 CPUs are free"

    play(story)
