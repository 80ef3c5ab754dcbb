"""Hours of random trouble: silent and lying agents, wrong clocks, settings that flip, an API that refuses.

Safety first: no node lends longer than its last believable report allows. Then progress: once the trouble ends, all
nodes lend what the formula says, and nothing is written any more.
"""

import asyncio
import random
from typing import Any

import pytest

from koordinator.api.core import Node
from koordinator.api.node_metric import NodeMetric
from koordinator.cluster import errors
from tests.manager.noderesource.world import BATCH_CPU, MID_CPU, World, node_body, pod_usage, run

NODES = ("n1", "n2", "n3")
STEPS = 150
STEP_S = 30.0
DEGRADE_S = 15 * 60
NOTICED_S = 90.0  # the sweep, failed writes and their pauses
ERRORS = (errors.Conflict, errors.TooManyRequests, errors.ServiceUnavailable, errors.InternalError)
CONFIG = '{"enable": %s, "cpuReclaimThresholdPercent": %d}'


class Trouble:
    """What happens, drawn from a seed, and what may be lent because of it."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.believable_s = dict.fromkeys(NODES, -1e9)
        self.disabled_s: float | None = None

    async def step(self) -> None:
        rng, world = self.rng, self.world
        node = rng.choice(NODES)
        match rng.choice(
            ("report", "report", "report", "lie", "skew", "silence", "config", "api", "node", "taken")
        ):
            case "report":
                cpu = f"{rng.randrange(30)}"
                await world.report(node, podsMetric=[pod_usage("web", cpu, "1G")])
                self.believable_s[node] = world.cluster.clock.now()
            case "lie":
                cpu = rng.choice(("-3", "NaN", "9E", "-1n"))
                await world.report(node, podsMetric=[pod_usage("web", cpu, "1G")])
                self.believable_s[node] = -1e9
            case "skew":
                age_s = rng.choice((-86_400.0, -120.0, 600.0, 3_600.0))
                await world.report(node, age_s=age_s)
                self.believable_s[node] = world.cluster.clock.now() - max(age_s, 0.0)
            case "silence":
                await asyncio.sleep(rng.choice((60.0, 600.0, 1_200.0)))
            case "config":
                enabled = rng.random() < 0.6
                text = CONFIG % ("true" if enabled else "false", rng.choice((50, 60, 70)))
                await world.configure(colocation_config=text)
                self.disabled_s = None if enabled else self.world.cluster.clock.now()
            case "api":
                failure: Any = rng.choice(ERRORS)
                world.cluster.failures = [failure("trouble")] * rng.randrange(1, 12)
            case "node":
                await world.user.delete(Node, node)
                await asyncio.sleep(rng.choice((0.0, 5.0)))
                await world.user.create(Node, node_body(node))  # at once: the report may outlive the object
                await asyncio.sleep(5)
            case "taken":  # somebody writes what is ours
                patch = {"status": {"allocatable": {BATCH_CPU: str(rng.randrange(9)) or None}}}
                await world.user.patch(Node, node, patch, subresource="status")
        await asyncio.sleep(STEP_S)

    async def check(self) -> None:
        """Nothing is lent that nobody vouches for."""
        now_s = self.world.cluster.clock.now()
        is_off = self.disabled_s is not None and now_s - self.disabled_s > NOTICED_S
        for name in NODES:
            lent = (await self.world.node(name)).status.allocatable
            is_expired = now_s - self.believable_s[name] > DEGRADE_S + NOTICED_S
            if is_off or is_expired:
                assert not {BATCH_CPU, MID_CPU} & lent.keys(), (name, is_off, is_expired, lent)


@pytest.mark.parametrize("seed", range(4))
def test_no_node_lends_what_nobody_vouches_for(seed: int) -> None:
    async def scenario(world: World) -> None:
        trouble = Trouble(world, seed)
        for _ in range(STEPS):
            await trouble.step()
            await trouble.check()

        world.cluster.failures.clear()
        await world.configure(colocation_config=CONFIG % ("true", 60))
        for _ in range(10):
            for name in NODES:
                await world.report(name)
            await asyncio.sleep(60)
        for name in NODES:
            assert (await world.node(name)).status.allocatable[BATCH_CPU] == "53k"
            assert (await world.user.get(NodeMetric, name)).metadata.name == name
        writes = len(world.cluster.writes)
        for _ in range(10):
            for name in NODES:
                await world.report(name)
            await asyncio.sleep(60)
        assert len(world.cluster.writes) == writes
        assert world.controller.writer.pending_count == 0

    run(scenario, nodes=[node_body(name) for name in NODES])
