"""Stories of whole scheduling: API in, API out, on virtual time."""

from koordinator.scheduler.config import default_plugins
from tests.scheduler.world import World, node, play, pod


def test_a_pod_is_bound_to_the_emptiest_node_and_its_owner_is_reported() -> None:
    async def story(world: World) -> None:
        world.api.put("Node", node("small", cpu="2", memory="4Gi"))
        world.api.put("Node", node("big", cpu="8", memory="32Gi"))

        world.api.put("Pod", pod("web"))
        await world.settle()

        assert world.api.placements() == {"web": "big"}
        [event] = world.api.events("Scheduled")
        assert event["message"] == "Successfully assigned default/web to big"

    play(story)


def test_a_pod_that_fits_nowhere_says_why_and_is_placed_when_room_appears() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="1", memory="64Gi")
        world.api.put("Node", node("cordoned", unschedulable=True))

        world.api.put("Pod", pod("wide", cpu="3"))
        await world.settle()

        message = "0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient cpu."
        message += " no new claims to deallocate, preemption: 0/3 nodes are available: "
        message += "3 Preemption is not helpful for scheduling."
        condition = world.condition("wide")
        assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")
        assert condition["message"] == message
        [event] = world.api.events("FailedScheduling")
        assert (event["type"], event["message"]) == ("Warning", message)

        world.api.put("Node", node("new"))
        await world.settle(2)
        assert world.api.placements()["wide"] == "new"

    play(story)


def test_pods_of_other_schedulers_are_left_alone_but_count() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="2")
        world.api.put("Pod", pod("theirs", scheduler="other", nodeName="node-0", cpu="1500m"))
        world.api.put("Pod", pod("waiting", scheduler="other"))
        world.api.put("Pod", pod("ours"))
        await world.settle()

        assert world.api.placements() == {"theirs": "node-0", "waiting": "", "ours": ""}

    play(story)


def test_one_scheduler_serves_two_names() -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        world.api.put("Pod", pod("a"))
        world.api.put("Pod", pod("b", scheduler="default-scheduler"))
        await world.settle()

        assert set(world.api.placements().values()) == {"node-0"}

    play(story, default_plugins.shipped_config("koord-scheduler", "default-scheduler"))


def test_a_taint_that_nobody_had_before_keeps_out_pods_that_tolerate_as_little_as_others_did() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="16")
        world.api.put("Pod", pod("before", cpu="8", nodeSelector={"kubernetes.io/hostname": "node-1"}))
        await world.settle()
        taint = {"key": "broken", "value": "", "effect": "NoSchedule"}
        world.api.put("Node", node("node-0", cpu="16", taints=[taint]))
        await world.settle()
        world.api.put("Pod", pod("after", cpu="1"))
        await world.settle()
        world.api.put("Pod", pod("tolerant", cpu="1", tolerations=[{"operator": "Exists"}]))
        await world.settle()

        places = world.api.placements()
        assert places == {"before": "node-1", "after": "node-1", "tolerant": "node-0"}

    play(story)
