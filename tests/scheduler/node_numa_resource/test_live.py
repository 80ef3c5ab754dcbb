"""NodeNUMAResource in a running scheduler: what is stored, what wakes pods, and a hand-over."""

from koordinator.cluster import errors
from koordinator.scheduler.plugins.node_numa_resource.plugin import NodeNUMAResource
from koordinator.scheduler.scheduler import Scheduler
from tests.scheduler.node_numa_resource.cluster import cpus_of, node, pod, report
from tests.scheduler.world import World, play, running


def plugin_of(scheduler: Scheduler) -> NodeNUMAResource:
    [profile] = scheduler.profiles.values()
    return next(p for p in profile.plugins if isinstance(p, NodeNUMAResource))


def holders(scheduler: Scheduler, name: str = "a") -> dict[int, int]:
    """CPU → how many pods hold it, as the scheduler knows it."""
    row = scheduler.table.row_of(name)
    assert row is not None
    node_allocation = plugin_of(scheduler).books.at(row).node_allocation
    return {cpu: hold.ref_count for cpu, hold in node_allocation.holds.items()}


async def machine(world: World, name: str = "a") -> None:
    world.api.put("Node", node(name))
    world.api.put("NodeResourceTopology", report(name))
    await world.settle()


def test_what_a_pod_got_is_on_the_pod_before_it_is_bound() -> None:
    async def story(world: World) -> None:
        await machine(world)
        for number in range(3):
            world.api.put("Pod", pod(f"p{number}", qos="LSR"))
        await world.settle(1)

        assert set(world.api.placements().values()) == {"a"}
        bound = [cpus_of(body) for body in world.api.pods()]
        assert [len(cpus) for cpus in bound] == [4, 4, 4]
        assert len(frozenset().union(*bound)) == 12
        assert holders(world.scheduler) == dict.fromkeys(frozenset().union(*bound), 1)

    play(story)


def test_a_report_wakes_pods_that_wait_for_it() -> None:
    async def story(world: World) -> None:
        world.api.put("Node", node("a"))
        world.api.put("Pod", pod("p", qos="LSR"))
        await world.settle(5)
        assert "1 node(s) invalid CPU Topology" in world.condition("p")["message"]

        world.api.put("NodeResourceTopology", report("a"))
        await world.settle(5)

        assert world.api.placements() == {"p": "a"}

    play(story)


def test_a_pod_that_ends_makes_room_for_one_that_waits_for_its_cpus() -> None:
    async def story(world: World) -> None:
        await machine(world)
        numa = {"numaTopologyPolicy": "SingleNUMANode"}
        for number in range(2):
            world.api.put("Pod", pod(f"p{number}", cpu="6", numa=numa))
        await world.settle(1)
        world.api.put("Pod", pod("late", cpu="4", numa=numa))
        await world.settle(5)
        assert "Unaligned NUMA Hint" in world.condition("late")["message"]

        world.api.remove("Pod", "p0", "default")
        await world.settle(5)

        assert world.api.placements()["late"] == "a"

    play(story)


def test_a_failed_binding_gives_the_cpus_back_and_the_next_attempt_gets_some() -> None:
    async def story(world: World) -> None:
        await machine(world)
        world.api.fail_next["bind"] = [errors.Conflict("somebody was faster")]
        world.api.put("Pod", pod("p", qos="LSR"))
        await world.settle(10)

        assert world.api.placements() == {"p": "a"}
        [body] = world.api.pods()
        assert holders(world.scheduler) == dict.fromkeys(cpus_of(body), 1)
        world.api.remove("Pod", "p", "default")
        await world.settle()
        assert holders(world.scheduler) == {}

    play(story, strict=False)


def test_a_new_leader_leaves_every_cpu_where_it_is() -> None:
    async def story(world: World) -> None:
        await machine(world)
        for number in range(2):
            world.api.put("Pod", pod(f"p{number}", qos="LSR"))
        await world.settle(1)
        before = holders(world.scheduler)

        successor = World(None)
        successor.api = world.api
        successor.scheduler = Scheduler(world.api, world.scheduler.config)
        async with running(successor, strict=True):
            assert holders(successor.scheduler) == before

    play(story)


def test_people_are_reported_when_a_pod_shares_numa_nodes_that_it_wants_alone() -> None:
    async def story(world: World) -> None:
        world.api.put("Node", node("a"))
        world.api.put("NodeResourceTopology", report("a"))
        await world.settle()
        world.api.put("Pod", pod("wide", cpu="10", qos="LSR"))
        await world.settle(1)
        numa = {"numaTopologyPolicy": "BestEffort"}
        world.api.put("Pod", pod("p", cpu="2", numa=numa))
        await world.settle(5)

        assert world.api.placements()["p"] == "a"
        [event] = world.api.events("NUMANodeShared")
        assert event["involvedObject"]["name"] == "p"

    play(story)
