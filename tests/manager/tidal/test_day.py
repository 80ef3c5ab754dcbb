"""A day of tide: a service scales with its load, nodes are lent at night, and a surge takes them back at once."""

import asyncio
import contextlib
import datetime

from koordinator import clock
from koordinator.api.apps import Deployment
from koordinator.api.core import Event
from koordinator.api.groups import HorizontalPodAutoscaler, PodDisruptionBudget
from koordinator.api.node_metric import NodeMetric
from koordinator.cluster import errors
from tests.manager.tidal.world import BATCH, TideWorld, run

NODES = 6
PHASES = "TidalPhaseChanged"
LOAD = [(0.0, 4.0), (3.0, 14.0), (4.0, 4.0), (7.5, 14.0), (23.0, 4.0)]
"""From that hour on the service needs so many cores; each of its pods has one busy and requests two."""


def load_at(now_s: float) -> float:
    hour = datetime.datetime.fromtimestamp(now_s, datetime.UTC)
    return [cores for start, cores in LOAD if start <= hour.hour + hour.minute / 60][-1]


class Service:
    """What the service has to do, and how long it could not."""

    def __init__(self, world: TideWorld) -> None:
        self.world = world
        self.unready_s = 0.0

    async def serve(self) -> None:
        """Share the load between the pods, and report what they use, every half minute."""
        for number in range(NODES):
            with contextlib.suppress(errors.AlreadyExists):
                await self.world.cluster.create(NodeMetric, {"metadata": {"name": f"n{number}"}})
        while True:
            pods = [pod for pod in await self.world.pods(app="web") if pod.status.phase == "Running"]
            wanted = load_at(self.world.now_s)
            milli = min(wanted * 1000 / max(len(pods), 1), 2000)
            used = {"resources": {"cpu": f"{int(milli)}m", "memory": "0"}}
            for number in range(NODES):
                here = [pod for pod in pods if pod.spec.node_name == f"n{number}"]
                status = {
                    "updateTime": clock.rfc3339(self.world.now_s),
                    "podsMetric": [
                        {"namespace": "default", "name": pod.metadata.name, "podUsage": used} for pod in here
                    ],
                }
                await self.world.cluster.patch(
                    NodeMetric, f"n{number}", {"status": status}, subresource="status"
                )
            if len(pods) * 2 < wanted:  # not even all cores of all pods are enough
                self.unready_s += 30.0
            await asyncio.sleep(30.0)


async def set_up(world: TideWorld) -> None:
    await world.deploy("web", 14, "2")
    await world.deploy("train", NODES, "7", priority=BATCH)
    half = {"type": "Utilization", "averageUtilization": 50}
    metric = {"type": "Resource", "resource": {"name": "cpu", "target": half}}
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    spec = {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 20, "metrics": [metric]}
    await world.cluster.create(
        HorizontalPodAutoscaler, {"metadata": {"name": "web"}, "spec": spec}, "default"
    )
    budget = {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}}
    await world.cluster.create(PodDisruptionBudget, {"metadata": {"name": "web"}, "spec": budget}, "default")
    await world.pool(onlineReserve=1, batchReserve=0, drain={"gracePeriod": "2m"}, maxNodesPerStep=2)


async def replicas(world: TideWorld) -> int:
    return (await world.cluster.get(Deployment, "web", "default")).spec.replicas or 0


async def lent(world: TideWorld) -> int:
    return list((await world.phases()).values()).count("batch")


def test_a_day_of_tide() -> None:
    async def story(world: TideWorld) -> None:
        service = Service(world)
        await set_up(world)
        async with world.manager(), asyncio.TaskGroup() as group:
            serving = group.create_task(service.serve())

            await world.until("22:30")
            assert (await replicas(world), await lent(world)) == (14, 0)

            await world.until("02:55")  # HPA took pods away at 23:00, the window opened at 00:30
            assert (await replicas(world), await lent(world)) == (4, 3)
            trains = [pod for pod in await world.pods(app="train") if pod.spec.node_name]
            assert len(trains) == 3

            await world.until("03:12")  # the surge began at 03:00
            assert await replicas(world) == 14
            assert all(pod.status.phase == "Running" for pod in await world.pods(app="web"))
            assert await lent(world) < 3
            pool = await world.found_pool()
            assert {c.type: c.status for c in pool.status.conditions}["EmergencyReturn"] == "True"

            told = [
                e.message for e in (await world.cluster.list(Event, "default")).items if e.reason == PHASES
            ]
            assert any("emergency: the online load is above 90 %" in message for message in told), told

            await world.until("05:30")  # it ended at 04:00; the hold after an emergency, too
            assert (await replicas(world), await lent(world)) == (4, 3)

            await world.until("06:31")
            assert await lent(world) == 0
            await world.until("07:00")
            assert set((await world.phases()).values()) == {"online"}

            await world.until("08:00")
            assert (await replicas(world), await lent(world)) == (14, 0)
            assert all(pod.status.phase == "Running" for pod in await world.pods(app="web"))
            assert service.unready_s <= 90.0  # what HPA itself takes to see a surge
            serving.cancel()

    run(story, nodes=NODES, starts="20:00")
