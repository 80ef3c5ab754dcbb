"""What goes wrong between the release of a gang and the last of its bindings."""

import asyncio
from collections import Counter
from collections.abc import Callable

from koordinator.api.core import Node, Pod
from koordinator.cluster import errors
from tests.cluster import virtual_loop
from tests.scheduler.coscheduling.stage import Json, Moment, Stage, member, stage
from tests.scheduler.world import node, pod

SIZE = 4
ALL = [f"job-{number}" for number in range(SIZE)]


def gang(size: int = SIZE, minimum: int = SIZE) -> list[Json]:
    return [member(f"job-{number}", "job", minimum) for number in range(size)]


def refusing(binding: str, times: int) -> Moment:
    """The API fails that many bindings of a pod."""
    left = times

    def moment(what: str) -> None:
        nonlocal left
        if what == f"before bind {binding}" and left:
            left -= 1
            raise errors.InternalError("the node is not to be reached")

    return moment


def once(what: str, act: Callable[[], None]) -> Moment:
    """Does something the first time that it comes to that."""
    is_done = False

    def moment(now: str) -> None:
        nonlocal is_done
        if now == what and not is_done:
            is_done = True
            act()

    return moment


def play(story: Callable[[Stage], object]) -> None:
    async def main() -> None:
        async with stage() as played:
            await story(played)  # type: ignore[misc]

    virtual_loop.run(main())


def test_a_member_whose_binding_fails_finds_its_place_again_though_others_wait_for_room() -> None:
    async def story(played: Stage) -> None:
        await played.nodes("2", "2")
        await played.pods(*gang())
        played.moment = refusing("job-2", 12)
        await played.start()
        await asyncio.sleep(0.5)
        assert await played.bound() == ["job-0", "job-1", "job-3"]

        await played.pods(*(pod(f"single-{number}") for number in range(3)))
        await asyncio.sleep(30)

        assert await played.bound() == ALL

    play(story)


def test_a_member_that_is_never_bound_leaves_the_scheduler_in_peace() -> None:
    async def story(played: Stage) -> None:
        await played.nodes("3", "3")
        await played.pods(*gang())
        refuse, tried = refusing("job-2", 10**6), Counter[str]()

        def moment(what: str) -> None:
            tried[what] += 1
            refuse(what)

        played.moment = moment
        await played.start()
        await asyncio.sleep(600)

        assert await played.bound() == ["job-0", "job-1", "job-3"]
        assert 15 < tried["permit job-2"] < 90, "no more than once in its longest backoff"
        await played.pods(pod("other"))
        await asyncio.sleep(1)
        assert await played.bound("other") == ["other"]

    play(story)


def test_the_room_of_a_member_is_kept_as_long_as_it_tries_though_the_api_refuses_it_for_minutes() -> None:
    async def story(played: Stage) -> None:
        await played.nodes("2", "2")
        await played.pods(*gang())
        is_down, refuse = True, refusing("job-2", 10**6)

        def moment(what: str) -> None:
            if is_down:
                refuse(what)

        played.moment = moment
        await played.start()
        await asyncio.sleep(1)
        await played.pods(pod("single"))
        await asyncio.sleep(400)
        assert await played.bound() == ["job-0", "job-1", "job-3"]

        is_down = False
        await asyncio.sleep(15)

        assert await played.bound() == ALL

    play(story)


def test_room_that_no_binding_takes_is_for_others_after_ten_minutes() -> None:
    async def story(played: Stage) -> None:
        await played.nodes("2", "2")
        await played.pods(*gang())
        played.moment = refusing("job-2", 10**6)
        await played.start()
        await asyncio.sleep(1)
        await played.pods(pod("single"))
        await asyncio.sleep(700)

        assert await played.bound("single") == ["single"]

    play(story)


def test_a_member_deleted_after_the_release_is_replaced_by_one_that_takes_its_place() -> None:
    async def story(played: Stage) -> None:
        await played.nodes("2", "2")
        await played.pods(*gang())
        gone: list[asyncio.Task[None]] = []

        def delete() -> None:
            deletion = played.api.delete(Pod, "job-1", "default", grace_period_s=0)
            gone.append(asyncio.get_running_loop().create_task(deletion))

        played.moment = once("before bind job-1", delete)
        await played.start()
        await asyncio.sleep(5)
        assert gone and await played.bound() == ["job-0", "job-2", "job-3"]

        await played.pods(member("job-9", "job", SIZE))
        await asyncio.sleep(15)

        assert await played.bound() == ["job-0", "job-2", "job-3", "job-9"]
        assert played.scheduler.table.assumed_count == 0

    play(story)


def test_a_gang_whose_node_vanishes_after_the_release_goes_elsewhere_as_a_whole() -> None:
    async def story(played: Stage) -> None:
        await played.nodes("4")
        await played.pods(*gang())
        gone: list[asyncio.Task[None]] = []

        def delete() -> None:
            gone.append(asyncio.get_running_loop().create_task(played.api.delete(Node, "node-0")))

        played.moment = once("permit job-3", delete)
        await played.start()
        await asyncio.sleep(5)
        assert gone
        await played.api.create(Node, node("node-1", cpu="4"))
        for each in (await played.api.list(Pod)).items:
            if each.spec.node_name == "node-0":
                await played.api.delete(Pod, each.metadata.name, "default", grace_period_s=0)
                await played.pods(member(each.metadata.name, "job", SIZE))
        await asyncio.sleep(30)

        places = {each.spec.node_name for each in (await played.api.list(Pod)).items}
        assert places == {"node-1"}

    play(story)


def test_lenient_members_whose_time_is_up_give_their_places_to_others() -> None:
    async def story(played: Stage) -> None:
        await played.nodes("3")
        annotations = {"mode": "NonStrict", "waiting-time": "30s"}
        bodies = [member(f"job-{number}", "job", 4, annotations=annotations) for number in range(4)]
        await played.pods(*bodies)
        await played.start()
        await asyncio.sleep(5)
        assert len(list(played.scheduler.waiting)) == 3, "three of four keep their places"
        await played.pods(pod("other"))
        await asyncio.sleep(5)
        assert await played.bound() == []

        await asyncio.sleep(60)

        assert await played.bound() == ["other"]

    play(story)
