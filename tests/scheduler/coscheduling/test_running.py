"""What the running gangs know about their members."""

from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.scheduler.plugins.coscheduling.plugin import Coscheduling
from koordinator.scheduler.plugins.coscheduling.running import RunningGangs
from tests.scheduler.coscheduling.test_plugin import member
from tests.scheduler.world import World, play

KEY = "default/a"


def gangs_of(world: World) -> RunningGangs:
    (profile,) = world.scheduler.engine.profiles.values()
    (found,) = [each.gangs for each in profile.plugins if isinstance(each, Coscheduling)]
    return found


def cpu_of(gangs: RunningGangs) -> int:
    info = gangs.info(KEY)
    assert info is not None
    return dict(info.requests)[0]


def test_a_member_in_the_queue_is_not_read_again_unless_the_queue_has_an_older_one() -> None:
    async def story(world: World) -> None:
        world.api.put("Pod", member("a", "job", 2))
        await world.settle()
        gangs = gangs_of(world)
        pod = gangs.pod(KEY)
        assert pod is not None
        queued = world.scheduler.queue.find(pod.metadata.uid)
        assert queued is not None
        assert gangs.info(KEY) is queued.pod
        assert cpu_of(gangs) == 1000

        larger = member("a", "job", 2, cpu="3")
        larger["metadata"]["uid"] = pod.metadata.uid
        gangs.rounds.on_pod_update(from_builtins(larger, Pod))
        assert cpu_of(gangs) == 3000

    play(story)


def test_a_round_is_that_of_its_own_members_only() -> None:
    async def story(world: World) -> None:
        world.api.put("Pod", member("a", "job", 2))
        await world.settle()
        gangs = gangs_of(world)
        mine = gangs.pod(KEY)
        assert mine is not None
        stranger = from_builtins({"metadata": {"name": "alone", "namespace": "default"}}, Pod)
        world.api.put("Pod", member("b", "job", 2))
        gangs.rounds.on_pod_add(from_builtins(member("b", "job", 2), Pod))
        gangs.rounds.begin(mine)
        assert gangs.round_of(mine) is not None
        assert gangs.round_of(stranger) is None

    play(story)


def test_a_member_that_is_not_queued_is_read_once_for_each_of_its_states() -> None:
    async def story(world: World) -> None:
        body = member("a", "job", 2)
        body["spec"]["nodeName"] = "elsewhere"
        world.api.put("Pod", body)
        await world.settle()
        gangs = gangs_of(world)
        first = gangs.info(KEY)
        assert first is not None and gangs.info(KEY) is first

        world.api.remove("Pod", "a", "default")
        await world.settle()
        assert gangs.info(KEY) is None

    play(story)
