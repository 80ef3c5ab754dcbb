"""Gangs whose quota has no room for all of them: they wait for it to grow, and not for what they give back."""

from tests.scheduler.coscheduling.test_backoff import Attempts
from tests.scheduler.coscheduling.test_plugin import Json, member, placed
from tests.scheduler.world import World, play, pod

LABEL = "quota.scheduling.koordinator.sh/name"


def quota(cpu: str) -> Json:
    amount = {"cpu": cpu, "memory": "99Gi"}
    return {"metadata": {"name": "team", "namespace": "default"}, "spec": {"min": amount, "max": amount}}


def in_team(body: Json, priority: int = 0) -> Json:
    body["metadata"].setdefault("labels", {})[LABEL] = "team"
    body["spec"]["priority"] = priority
    return body


def test_a_gang_that_its_quota_refuses_sleeps_until_the_quota_grows() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="8")
        world.api.put("ElasticQuota", quota("4"))
        await world.settle(2)
        attempts = Attempts(world)
        for number in range(6):
            world.api.put("Pod", in_team(member(f"job-{number}", "job", 6)))
        await world.settle(200)
        assert placed(world) == []
        assert attempts.total("job") == 6
        conditions = [world.condition(f"job-{number}")["message"] for number in range(6)]
        assert any("team" in text and "due to member" not in text for text in conditions)
        world.api.put("ElasticQuota", quota("6"))
        await world.settle(15)
        assert len(placed(world)) == 6

    play(story)


def test_only_as_many_members_as_the_minimum_need_room_in_the_quota() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="8")
        world.api.put("ElasticQuota", quota("4"))
        await world.settle(2)
        attempts = Attempts(world)
        for number in range(6):
            world.api.put("Pod", in_team(member(f"job-{number}", "job", 3)))
        await world.settle(200)
        assert len(placed(world)) == 4
        assert attempts.total("job") <= 12

    play(story)


def test_nobody_is_evicted_for_a_gang_that_would_still_not_fit_its_quota() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="8")
        world.api.put("ElasticQuota", quota("4"))
        await world.settle(2)
        for number in range(4):
            world.api.put("Pod", in_team(pod(f"low-{number}"), priority=1))
        await world.settle(2)
        for number in range(6):
            world.api.put("Pod", in_team(member(f"job-{number}", "job", 6), priority=9))
        await world.settle(60)
        assert placed(world) == [f"low-{number}" for number in range(4)]

    play(story)
