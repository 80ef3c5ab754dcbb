"""Controllers that are stopped at any moment and started anew go on where they were."""

import asyncio
import random

import pytest

from koordinator.api.apps import Deployment, Job, StatefulSet
from koordinator.api.core import Pod
from koordinator.cluster.informer import InformerFactory
from koordinator.local.cluster import workloads
from koordinator.local.controllers import job_pods, pod_health
from tests.local.controllers.fake_kubelet import FakeKubelet, Fate
from tests.local.controllers.workload_world import edit, fetch, make, pods, template
from tests.local.controllers.world import Runs, World, run


async def run_controllers_for(world: World, seconds: float, rng: random.Random) -> None:
    """Start all workload controllers with empty caches, and stop them at once after some time."""
    factory = InformerFactory(world.cluster, rng)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one.run()) for one in workloads(world.cluster, factory, rng)]
        factory.start(group)
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
        await factory.stop()


@pytest.mark.parametrize("seed", range(8))
def test_restarts_neither_lose_nor_double_anything(seed: int) -> None:
    rng = random.Random(seed)
    ended: dict[str, bool] = {}
    claimed: dict[str, str] = {}  # pods of the StatefulSet that exist: uid by name

    def fate_of(pod: Pod) -> Fate:
        run_s = rng.uniform(0.5, 5) if "job-name" in pod.metadata.labels else None
        return Fate(ready_s=rng.uniform(0.1, 2), run_s=run_s, exit_code=int(rng.random() < 0.2), stop_s=1.0)

    def note(pod: Pod) -> None:
        if pod.status.phase in ("Succeeded", "Failed"):
            ended[pod.metadata.uid] = pod.status.phase == "Succeeded"
        if pod.metadata.name.startswith("db-"):
            assert claimed.setdefault(pod.metadata.name, pod.metadata.uid) == pod.metadata.uid

    def build(world: World) -> list[Runs]:
        return [FakeKubelet(world, fate_of)]

    async def scenario(world: World) -> None:
        world.factory.informer(Pod).add_handler(
            note, lambda _, pod: note(pod), lambda pod: claimed.pop(pod.metadata.name, None)
        )
        await make(world, Deployment, replicas=6)
        database = {"app": "db"}
        await make(
            world,
            StatefulSet,
            "db",
            replicas=3,
            selector={"matchLabels": database},
            template=template(labels=database),
        )
        job = {
            "completions": 10,
            "parallelism": 4,
            "backoffLimit": 100,
            "template": template(restartPolicy="Never", labels={}),
        }
        await world.cluster.create(Job, {"metadata": {"name": "work"}, "spec": job}, "default")
        for number in range(40):
            if number % 10 == 5:
                await edit(world, Deployment, template=template(f"image{number}"))
                await edit(world, StatefulSet, "db", template=template(f"image{number}", labels=database))
            await run_controllers_for(world, rng.choice([0.0, 0.2, 1.1, 3.0]), rng)
            active = [pod for pod in await pods(world) if pod_health.is_active(pod)]
            web = [pod for pod in active if pod.metadata.labels.get("app") == "web"]
            assert len(web) <= 6 + 2
        await run_controllers_for(world, 400.0, rng)

        status = (await fetch(world, Deployment)).status
        assert (status.updated_replicas, status.available_replicas, status.replicas) == (6, 6, 6)
        assert (await fetch(world, StatefulSet, "db")).status.updated_replicas == 3
        done = (await fetch(world, Job, "work")).status
        assert done.succeeded == 10 == sum(ended.values())
        assert done.failed == len(ended) - 10
        assert not any(job_pods.is_tracked(pod) for pod in await pods(world))

    run(build, scenario)
