"""The operator on a real YARN: what its ResourceManager says, what jobs get, what fail-over and refusals do."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp

from koordinator.clock import SystemClock
from koordinator.yarn.cluster_loop import SyncRules
from koordinator.yarn.connection import Login
from koordinator.yarn.hadoop_config import YarnCluster
from koordinator.yarn.resource_managers import MODES, Observe, ResourceManagers
from koordinator.yarn.rest import RestClient
from tests.yarn.hadoop.bed import Bed, NodeSize, hadoop, until
from tests.yarn.world import World, kubernetes


@contextlib.asynccontextmanager
async def both(
    folder: Path, rules: SyncRules | None = None, user: str = "yarn", mode: str = "rpc", managers: int = 2
) -> AsyncIterator[tuple[World, Bed]]:
    """A YARN of one node beside a Kubernetes with that node, 20 cores and 40 GiB."""
    async with hadoop(folder, managers=managers) as bed, aiohttp.ClientSession() as session:

        def connect(cluster: YarnCluster, observe: Observe) -> ResourceManagers:
            return ResourceManagers(cluster, Login(user), RestClient(session, user), MODES[mode], observe)

        async with kubernetes(SystemClock(), bed.configuration, connect, rules) as world:
            await world.add_node("n1")
            await asyncio.sleep(1)
            await world.report("n1")
            await world.node_manager(bed.nodes[0].node_id, "n1")
            yield world, bed


async def test_the_total_of_a_node_is_what_pods_leave_and_a_job_gets_no_more(tmp_path: Path) -> None:
    async with both(tmp_path) as (world, bed), world.operating():
        node = bed.nodes[0].node_id

        async def has_total() -> bool:
            origin = (await world.view()).origin
            total = (await bed.totals())[node]
            return total.vcores > 1 and total == NodeSize(origin.cpu_milli // 1000, origin.memory_bytes >> 20)

        await until(has_total, "the ResourceManager does not say the total", 30)
