"""Whole managers, two at a time, under random faults: safe at every step, and right once the faults have stopped.

A seed draws what goes wrong with the API, the nodes, their agents, the configuration and the managers themselves. A
failing seed fails again.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from koordinator.api import defaults
from koordinator.api.groups import Lease
from koordinator.api.node_metric import NodeMetric
from koordinator.api.slo import NodeSLO
from koordinator.clock import LoopClock
from koordinator.cluster import supervise
from koordinator.manager.metrics import LEASE
from koordinator.simulate import virtual_time
from tests.cluster.faulty_cluster import Faults
from tests.manager.faults.world import DEGRADE_S, REPORT_S, SWEEP_S, THRESHOLD_S, Agent, World

SEEDS = range(6)
LEASE_GAP_S = 40.0
"""A lease must end, be taken, and its taker look at everything once."""
UNREST_S = 40 * 60.0
SETTLE_S = DEGRADE_S + SWEEP_S + THRESHOLD_S + 2 * REPORT_S
"""Until every silent node is found, and a small difference has waited for its turn."""
AWAY = Faults(lost_before_ratio=1.0)
WITHDRAWN = {"NodeMetricExpired", "NodeMetricMissing", "NodeMetricRejected", "NodeMetricEmpty"}


def play(seed: int, drama: Callable[[World], Awaitable[None]], **options: Any) -> None:
    async def main(clock: LoopClock) -> None:
        await World(seed, clock, **options).run(drama)

    with supervise.strictly():  # an exception that nobody foresaw fails the test
        virtual_time.run_virtual(main)


async def unrest(world: World) -> None:
    """Everything that may go wrong, for a while."""
    ends_s = world.clock.now() + UNREST_S
    while world.clock.now() < ends_s:
        await asyncio.sleep(world.rng.expovariate(1 / 15.0))
        await act(world, world.rng.choice(list(world.agents.values())))
        world.check_writers()
        await world.check_bounds()


async def act(world: World, agent: Agent) -> None:
    rng = world.rng
    match rng.randrange(12):
        case 0 | 1:
            agent.mood = rng.choice(Agent.MOODS)
        case 2 | 3 | 4:
            await world.add_pod(agent)
        case 5:
            await world.remove_pod(agent)
        case 6:
            await world.lose_node(agent)
        case 7:
            await world.spoil_config()
        case 8:
            await world.restore_config()
        case 9:
            instance = rng.choice(world.instances)
            rng.choice((instance.kill, instance.cut_off))()
        case 10:
            world.misbehave(Faults.drawn(rng))
        case 11:
            world.misbehave(AWAY)
            await asyncio.sleep(rng.uniform(1.0, 60.0))
            world.heal()


async def settle(world: World) -> None:
    """The faults stop. The agents of two nodes have stopped for good, too."""
    world.heal()
    await world.restore_config()
    for number, agent in enumerate(world.agents.values()):
        agent.mood = "silent" if number < 2 else "well"
    await asyncio.sleep(SETTLE_S)


def node_writes(world: World, since_s: float) -> Counter[str]:
    return Counter(write.name for write in world.writes if write.kind == "Node" and write.at_s >= since_s)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_went_wrong_batch_is_right_and_still_afterwards(seed: int) -> None:
    async def drama(world: World) -> None:
        await unrest(world)
        await settle(world)

        for agent in world.agents.values():
            offered = await world.batch(agent.name)
            if agent.mood == "well":
                assert offered == agent.model(), agent.name
            else:
                assert offered == {}, agent.name
                reported = await world.reasons(agent.name)
                assert reported.keys() & WITHDRAWN, (
                    f"nobody is told why {agent.name} lends nothing: {reported}"
                )
        world.check_writers()
        for view in (NodeMetric, NodeSLO):
            assert await world.names(view) == set(world.agents)

        calm_s = world.clock.now()
        told_before = {name: await world.reasons(name) for name in world.agents}
        await asyncio.sleep(20 * 60.0)
        written = [write for write in world.writes if write.at_s >= calm_s]
        assert written == [], "nothing changed, so nothing is written"
        assert {name: await world.reasons(name) for name in world.agents} == told_before

        for agent in world.agents.values():
            agent.jitter_ratio = agent.harmless_jitter()
        jitters_s = world.clock.now()
        await asyncio.sleep(30 * 60.0)
        counts = node_writes(world, jitters_s)
        assert max(counts.values(), default=0) <= 30 * 60.0 / THRESHOLD_S + 1, counts
        world.check_writers()

    play(seed, drama)


def test_a_leader_without_the_api_is_replaced_before_it_could_do_harm() -> None:
    async def drama(world: World) -> None:
        await asyncio.sleep(5 * 60.0)
        led = world.holder()
        leader = next(each for each in world.instances if led.startswith(f"{each.name}-"))
        life_count = leader.life_count

        leader.cut_off()
        await asyncio.sleep(40.0)

        assert world.holder() and not world.holder().startswith(f"{leader.name}-{life_count}")
        assert world.lost_leases == 1 and leader.life_count == life_count + 1
        agent = world.agents["node-0"]
        await world.add_pod(agent)
        await asyncio.sleep(SETTLE_S)
        assert await world.batch("node-0") == agent.model()
        world.check_writers()

    play(0, drama)


def test_a_silent_agent_costs_its_node_batch_within_the_degrade_time_whatever_the_lease_does() -> None:
    async def drama(world: World) -> None:
        await asyncio.sleep(5 * 60.0)
        agent = world.agents["node-0"]
        agent.mood = "silent"
        assert await world.batch("node-0") != {}

        for _ in range(30):  # a manager dies every half minute
            await asyncio.sleep(30.0)
            world.instances[world.rng.randrange(2)].kill()
        assert agent.good_s is not None
        await asyncio.sleep(agent.good_s + DEGRADE_S - world.clock.now() + SWEEP_S + LEASE_GAP_S)

        assert await world.batch("node-0") == {}
        assert "NodeMetricExpired" in await world.reasons("node-0")
        assert await world.batch("node-1") != {}
        world.check_writers()

    play(1, drama)


def test_one_that_stays_is_a_candidate_again_when_its_lease_was_taken() -> None:
    async def drama(world: World) -> None:
        await asyncio.sleep(2 * 60.0)
        led = world.holder()
        stolen = {"spec": {"holderIdentity": "thief", "leaseDurationSeconds": 15}}
        await world.api.patch(Lease, LEASE, stolen, defaults.NAMESPACE)
        await asyncio.sleep(10.0)
        assert world.holder() == "thief"
        calm_s = world.clock.now()
        agent = world.agents["node-0"]
        await world.add_pod(agent)
        await asyncio.sleep(60.0)

        assert world.holder() == led, "the same manager leads again"
        assert world.lost_leases == 0 and all(each.life_count == 1 for each in world.instances)
        await asyncio.sleep(SETTLE_S)
        assert await world.batch("node-0") == agent.model()
        assert any(write.at_s > calm_s for write in world.writes)
        world.check_writers()

    play(2, drama, instances=("only",), stays=True)
