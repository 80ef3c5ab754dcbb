"""Hollow nodes, manager and scheduler together, while services and batch pods come, change and go.

Nothing is lent beyond what agents predicted, no service waits for a card because of what is lent of it, and batch pods
leave cards that are full."""

import asyncio
import contextlib
import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from koordinator.api import defaults, quantity
from koordinator.api.annotations.device import DEVICE_ALLOCATED, NODE_BATCH_GPUS
from koordinator.api.core import ConfigMap, Namespace, Node, Pod
from koordinator.api.node_metric import NodeMetric
from koordinator.clock import Clock
from koordinator.cluster import errors
from koordinator.cluster.memory import MemoryCluster
from koordinator.local.nodes import behaviour, devices
from koordinator.local.nodes.behaviour import Behaviour
from koordinator.local.nodes.hollow import HollowConfig
from koordinator.local.nodes.lent_gpus import agents_of
from koordinator.manager.manager import Manager
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.scheduler import Scheduler
from koordinator.simulate.virtual_time import run_virtual
from tests.local.nodes.world import World, world

CORE, MEMORY = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory"
RATIO = "koordinator.sh/gpu-memory-ratio"
BATCH_CORE, BATCH_MEMORY = "koordinator.sh/batch-gpu-core", "koordinator.sh/batch-gpu-memory"
GPUS = 2
STEPS, STEP_S = 120, 20.0
QUIET_S = 60.0
REPORTS_KEPT = 5
"""What is lent now was predicted by one of so many last reports."""


class Life:
    """Users of a cluster of one node with two cards."""

    def __init__(self, w: World, seed: int) -> None:
        self.w = w
        self.rng = random.Random(seed)
        self._numbers = itertools.count()
        self.reports: list[dict[str, tuple[int, int]]] = []
        self.lent_count = self.borrowed_count = 0

    async def act(self) -> None:
        acts = (*[self._service] * 2, *[self._batch] * 4, self._change, *[self._end] * 2)
        act = self.rng.choice(acts)
        with contextlib.suppress(errors.NotFound):
            await act()

    async def _service(self) -> None:
        share = str(self.rng.choice((30, 50, 100)))
        does = Behaviour(gpu_core_ratio=0.1, gpu_memory_ratio=self.rng.choice((0.1, 0.5)))
        await self._create("web", {"cpu": "1", CORE: share, RATIO: share}, does, {})

    async def _batch(self) -> None:
        wants = {
            "kubernetes.io/batch-cpu": "100",
            BATCH_CORE: str(self.rng.choice((10, 30, 60))),
            BATCH_MEMORY: f"{self.rng.choice((4, 20))}Gi",
        }
        await self._create("job", wants, Behaviour(), {"koordinator.sh/qosClass": "BE"})

    async def _create(
        self, kind: str, wants: dict[str, str], does: Behaviour, labels: dict[str, str]
    ) -> None:
        body = {
            "metadata": {
                "name": f"{kind}-{next(self._numbers)}",
                "namespace": "default",
                "labels": labels,
                "annotations": behaviour.annotations(does),
            },
            "spec": {
                "schedulerName": "koord-scheduler",
                "terminationGracePeriodSeconds": 0,
                "containers": [
                    {"name": "main", "image": "x", "resources": {"requests": wants, "limits": wants}}
                ],
            },
        }
        await self.w.cluster.create(Pod, body, "default")

    async def _change(self) -> None:
        webs = [pod for pod in await self._pods() if pod.metadata.name.startswith("web")]
        if webs:
            busy = [self.rng.choice((0.0, 0.1, 0.9, 1.0)) for _ in range(2)]
            does = Behaviour(gpu_core_ratio=busy[0], gpu_memory_ratio=busy[1])
            patch = {"metadata": {"annotations": behaviour.annotations(does)}}
            await self.w.cluster.patch(Pod, self.rng.choice(webs).metadata.name, patch, "default")

    async def _end(self) -> None:
        pods = await self._pods()
        if pods:
            await self.w.cluster.delete(Pod, self.rng.choice(pods).metadata.name, "default")

    async def _pods(self) -> list[Pod]:
        return list((await self.w.cluster.list(Pod)).items)

    # What must hold

    async def check(self) -> None:
        await self._check_lent()
        pods = await self._pods()
        owned = [0] * GPUS
        for minor, resources in _held(pods):
            owned[minor] += quantity.value(resources.get(CORE, 0))
            self.borrowed_count += BATCH_CORE in resources
        assert max(owned) <= 100, owned
        for pod in pods:
            if not pod.spec.node_name and pod.metadata.name.startswith("web"):
                wants = int(str(pod.spec.containers[0].resources.requests[CORE]))
                assert min(owned) + wants > 100, f"{pod.metadata.name} waits although {owned} are owned"

    async def _check_lent(self) -> None:
        metric = await self.w.cluster.get(NodeMetric, "node-0")
        predicted = metric.status.prod_reclaimable_metric
        devices_ = predicted.resource.devices if predicted is not None else []
        report = {
            each.id: tuple(quantity.value(each.resources[name]) for name in (CORE, MEMORY))
            for each in devices_
        }
        self.reports = [*self.reports, report][-REPORTS_KEPT:]
        node = await self.w.cluster.get(Node, "node-0")
        for each in (NODE_BATCH_GPUS.read(node.metadata.annotations) or {}).get("gpu", ()):
            self.lent_count += 1
            lent = tuple(quantity.value(each.resources[name]) for name in (BATCH_CORE, BATCH_MEMORY))
            found = [known[each.id] for known in self.reports if each.id in known]
            assert any(lent[0] <= core and lent[1] <= memory for core, memory in found), (lent, found)

    async def check_quiet(self) -> None:
        """Cards on which nothing changed for a while are full only where nobody has to go any more."""
        fleet = self.w.fleet
        uses = devices.running_uses(fleet, 0)
        for minor in range(GPUS):
            owners, batch = 0.0, 0.0
            for slot in fleet.pods_on[0]:
                use = uses.get(slot, {}).get(minor, devices.NO_USE).core_percent
                for share in fleet.shape_of[slot].gpu_shares:
                    if share.minor == minor and share.is_lent:
                        batch += max(use, share.core_percent)
                    elif share.minor == minor:
                        owners += use
            assert batch == 0 or owners + batch <= 95, (owners, batch)


def _held(pods: list[Pod]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the parts of cards that pods hold, by minor."""
    for pod in pods:
        if pod.spec.node_name:
            for each in (DEVICE_ALLOCATED.read(pod.metadata.annotations) or {}).get("gpu", ()):
                yield each.minor, dict(each.resources)


@contextlib.asynccontextmanager
async def living(clock: Clock, seed: int) -> Any:
    """A node with two cards whose agents know services after half a minute, a manager that lends all, a scheduler."""
    config = HollowConfig(tick_s=2.0, topology=True)
    async with world(clock, policy=agents_of(30.0), config=config, gpus=GPUS) as w:
        names = {each.metadata.name for each in (await w.cluster.list(Namespace)).items}
        if defaults.NAMESPACE not in names:
            await w.cluster.create(Namespace, defaults.namespace())
        colocation = {"enable": True, "metricReportIntervalSeconds": 30, "gpuReclaimPercent": 100}
        body = defaults.slo_config()
        body["data"] = {**body["data"], "colocation-config": json.dumps(colocation)}
        await w.cluster.create(ConfigMap, body, defaults.NAMESPACE)
        manager = Manager(MemoryCluster(w.registry))
        scheduler = Scheduler(MemoryCluster(w.registry), default_plugins.shipped_config(), seed=seed)
        tasks = [asyncio.create_task(each.run()) for each in (manager, scheduler)]
        try:
            await asyncio.sleep(30)
            yield Life(w, seed)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("seed", [3, 7])
def test_owners_come_first_whatever_services_and_batch_pods_do(seed: int) -> None:
    async def main(clock: Clock) -> None:
        async with living(clock, seed) as life:
            for step in range(STEPS):
                await life.act()
                await asyncio.sleep(STEP_S)
                await life.check()
                if step % 10 == 9:
                    await asyncio.sleep(QUIET_S)
                    await life.check()
                    await life.check_quiet()
            assert life.lent_count and life.borrowed_count, "nothing was ever lent, or nobody took it"
            assert life.w.nodes.evicted_count, "nobody ever had to go"

    run_virtual(main)
