"""The operator on a real YARN: what its ResourceManager says, what jobs get, what fail-over and refusals do."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest

from koordinator.clock import SystemClock
from koordinator.yarn import amounts
from koordinator.yarn.cluster_loop import SyncRules
from koordinator.yarn.connection import Login
from koordinator.yarn.hadoop_config import YarnCluster
from koordinator.yarn.node_sync import Policy
from koordinator.yarn.resource_managers import MODES, Observe, ResourceManagers
from koordinator.yarn.rest import RestClient
from tests.yarn.hadoop.bed import Bed, NodeSize, hadoop, until
from tests.yarn.world import World, kubernetes

SPLIT = SyncRules(policy=Policy(yarn_percent=50, lends_once=True))
WITHIN_S = 60.0
AWAY_S = float(os.environ.get("RM_AWAY_S", "12"))
"""How long no ResourceManager is there: RM_AWAY_S=600 for ten minutes."""


class Both:
    """A YARN with one NodeManager beside a Kubernetes whose node n1 (20 cores, 40 GiB) it runs on."""

    def __init__(self, world: World, bed: Bed) -> None:
        self.world, self.bed = world, bed
        self.node = bed.nodes[0].node_id

    async def total(self) -> NodeSize:
        return (await self.bed.totals())[self.node]

    async def used(self) -> NodeSize:
        return (await self.bed.used())[self.node]

    async def until_total(self, vcores: int) -> None:
        async def is_so() -> bool:
            return (await self.bed.totals()).get(self.node, NodeSize()).vcores == vcores

        await until(is_so, f"YARN's total is not {vcores} vcores", WITHIN_S)

    async def until_used(self, vcores: int) -> None:
        async def is_so() -> bool:
            return (await self.bed.used()).get(self.node, NodeSize()).vcores == vcores

        await until(is_so, f"YARN does not use {vcores} vcores", WITHIN_S)

    async def until_recorded(self, vcores: int) -> None:
        async def is_so() -> bool:
            recorded = (await self.world.view()).recorded
            return recorded is not None and recorded.cpu_milli == vcores * 1_000

        await until(is_so, f"the node does not say that YARN uses {vcores} vcores", WITHIN_S)


@contextlib.asynccontextmanager
async def both(
    folder: Path,
    rules: SyncRules | None = None,
    *,
    user: str = "yarn",
    mode: str = "rpc",
    more: Mapping[str, str] | None = None,
) -> AsyncIterator[Both]:
    """With an operator, which calls as `user`."""
    async with hadoop(folder, more=more) as bed, aiohttp.ClientSession() as session:

        def connect(cluster: YarnCluster, observe: Observe) -> ResourceManagers:
            return ResourceManagers(cluster, Login(user), RestClient(session, user), MODES[mode], observe)

        async with kubernetes(SystemClock(), bed.configuration, connect, rules) as world:
            await world.add_node("n1")
            await world.node_manager(bed.nodes[0].node_id, "n1")
            async with world.operating():
                yield Both(world, bed)


class Lent(NamedTuple):
    """What both sides say at one moment, in vcores."""

    origin: float
    kube_total: float
    kube_used: float
    yarn_total: float
    yarn_used: float


class Watch:
    """Looks at both sides each second."""

    def __init__(self, found: Both) -> None:
        self.seen: list[Lent] = []
        self._found = found
        self._task = asyncio.create_task(self._look(), name="watch")

    async def _look(self) -> None:
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):  # nobody leads
                async with asyncio.timeout(1.0):
                    before = await self._found.world.view()
                    node = (await self._found.bed.reported()).get(self._found.node)
                    view = await self._found.world.view()
                    if node is not None and before == view:
                        used = node["usedVirtualCores"]
                        pods = await self._found.world.batch_milli()
                        total = used + node["availableVirtualCores"]
                        origin, kube_total = view.origin.cpu_milli / 1_000, view.kube_total.cpu_milli / 1_000
                        self.seen.append(Lent(origin, kube_total, pods / 1_000, total, used))
            await asyncio.sleep(1.0)

    async def stop(self) -> list[Lent]:
        """What was seen."""
        self._task.cancel()
        await asyncio.wait([self._task])
        assert len(self.seen) > 3
        return self.seen


async def test_a_job_gets_only_what_services_and_batch_pods_leave(tmp_path: Path) -> None:
    async with both(tmp_path) as found:
        world, bed = found.world, found.bed
        await found.until_total(11)  # 20 cores, without the margin of 40 % and what the system uses
        watch = Watch(found)
        assert (await found.total()).memory_mb == amounts.to_yarn(
            (await world.view()).origin, EXACT
        ).memory_mb

        await world.batch_pod("batch", 6_000)
        await found.until_total(5)
        await bed.sleep_job(tasks=12, seconds=240)
        await found.until_used(5)
        await found.until_recorded(5)

        await world.report(cpu="4")  # services want three more cores
        await found.until_total(2)
        assert (await found.used()).vcores == 5  # nobody is killed: the node agent decides by real pressure

        async def pods_have_less() -> bool:
            return (await world.view()).kube_total.cpu_milli == 3_000

        await until(pods_have_less, "pods may have more than the pool without what YARN uses", WITHIN_S)
        for lent in await watch.stop():
            assert lent.kube_used + lent.yarn_used <= max(lent.origin, 11), lent
            assert lent.yarn_used <= 5, lent


@pytest.mark.timeout(AWAY_S + 400)
async def test_nothing_is_offered_to_both_whatever_happens_to_resource_managers(tmp_path: Path) -> None:
    async with both(tmp_path, SPLIT) as found:
        world, bed = found.world, found.bed
        watch = Watch(found)
        await found.until_total(5)
        await bed.sleep_job(tasks=3, seconds=240)
        await found.until_used(4)

        first = await bed.active()
        await first.daemon.kill()
        await found.until_total(5)
        assert (await bed.active()).id != first.id
        await world.batch_pod("batch", 4_000)

        for manager in bed.managers:
            await manager.daemon.kill()
        await world.report(cpu="3")  # the pool shrinks while no ResourceManager is there
        await asyncio.sleep(AWAY_S)
        recorded = (await world.view()).recorded
        assert recorded is not None and recorded.cpu_milli >= 4_000  # what YARN used is held
        for manager in bed.managers:
            await manager.daemon.start()
        await found.until_total(4)

        await world.delete_pod("batch")
        await world.report(cpu="1")
        await found.until_total(5)
        for lent in await watch.stop():
            assert lent.kube_total == 0 or lent.kube_total + lent.yarn_total <= lent.origin, lent


async def test_a_user_without_the_right_changes_nothing_and_people_are_told(tmp_path: Path) -> None:
    more = {"yarn.acl.enable": "true", "yarn.admin.acl": "admin"}
    async with both(tmp_path, user="nobody", more=more) as found:
        await found.bed.sleep_job(tasks=1, seconds=120)
        await found.until_used(1)

        await found.until_recorded(1)  # what YARN has by itself is not lent again

        assert await found.total() == NodeSize(1, 1024)
        message = (await found.world.events())["YarnAccessDenied"]
        assert "nobody" in message and "AccessControlException" in message


async def test_totals_are_told_by_rest(tmp_path: Path) -> None:
    async with both(tmp_path, mode="rest") as found:
        await found.until_total(11)

        await found.world.batch_pod("batch", 2_500)

        await found.until_total(8)


EXACT = amounts.Rounding.EXACT
