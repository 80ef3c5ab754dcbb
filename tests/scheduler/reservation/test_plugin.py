"""Reservations at work: placed as pods are, used by their owners and by nobody else."""

from typing import Any

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
