"""The loops that keep Reservations: owners, ends, garbage, gauges; API in, API out, on virtual time."""

import asyncio

import pytest

from koordinator.api import labels
from koordinator.api.core import Node, Pod
from koordinator.api.reservation import Reservation
from koordinator.clock import rfc3339
from tests.scheduler.reservation.reservation_world import (
    HOUR_S,
    ReservationWorld,
    play,
    scheduler,
    scheduling,
)


def phase_of(reservation: Reservation | None) -> str:
    return reservation.status.phase if reservation is not None else "gone"


def owners_of(reservation: Reservation) -> list[str]:
    return [owner.name for owner in reservation.status.current_owners]


def test_a_reservation_for_one_is_used_up_by_its_first_owner() -> None:
    async def story(world: ReservationWorld) -> None:
        room = await world.reserve("room", node_name="n")
        await asyncio.sleep(5)
        assert phase_of(await world.get("room")) == "Available"
        await world.owner("p", room, cpu="1")
        await asyncio.sleep(0.1)
        used = await world.get("room")
        assert (phase_of(used), owners_of(used)) == ("Succeeded", ["p"])
        assert used.status.allocated == {"cpu": "1"}, "memory is not reserved"
        assert [(each.type, each.status, each.reason) for each in used.status.conditions] == [
            ("Scheduled", "True", "Scheduled"),
            ("Ready", "False", "Succeeded"),
        ]
        await asyncio.sleep(5)
        assert await world.events("Succeeded") == ["Used by default/p"]

        await world.delete_pod("p")
        await asyncio.sleep(HOUR_S + 60)
        assert await world.get("room") == used, "nothing happens to it any more"

    play(story)


def test_a_reservation_for_many_lists_who_uses_it_now() -> None:
    async def story(world: ReservationWorld) -> None:
        room = await world.reserve("room", node_name="n", allocateOnce=False)
        for name in "abc":
            await world.owner(name, room)
        await asyncio.sleep(1.1)
        assert (await world.get("room")).status.allocated == {"cpu": "3"}
        await world.end("a")
        await world.delete_pod("b")
        await asyncio.sleep(1.1)
        now = await world.get("room")
        assert (phase_of(now), owners_of(now), now.status.allocated) == ("Available", ["c"], {"cpu": "1"})
        await world.delete_pod("c")
        await asyncio.sleep(1.1)
        left = await world.get("room")
        assert (owners_of(left), left.status.allocated) == ([], {"cpu": "0"}) or not left.status.allocated

    play(story)


def test_a_hundred_owners_that_come_one_by_one_cost_a_write_a_second() -> None:
    async def story(world: ReservationWorld) -> None:
        room = await world.reserve("room", cpu="1000", node_name="n", allocateOnce=False)
        written: list[Reservation] = []

        async def watch() -> None:
            version = room.metadata.resource_version
            async for batch in world.api.watch(Reservation, resource_version=version):
                written.extend(event.obj for event in batch if event.obj is not None)

        watching = asyncio.create_task(watch())
        for number in range(100):
            await world.owner(f"p{number}", room, cpu="10m")
            await asyncio.sleep(0.02)
        await asyncio.sleep(1.1)
        watching.cancel()
        assert written[-1].status.allocated == {"cpu": "1"} and len(owners_of(written[-1])) == 100
        assert len(written) <= 4

    play(story)


def test_a_pod_elsewhere_or_of_another_reservation_is_no_owner() -> None:
    async def story(world: ReservationWorld) -> None:
        await world.node("m")
        room, other = await world.reserve("room", node_name="n"), await world.reserve("other", node_name="n")
        await world.owner("elsewhere", room, node_name="m")
        await world.owner("p", other)
        await asyncio.sleep(5)
        assert (phase_of(await world.get("room")), owners_of(await world.get("room"))) == ("Available", [])

    play(story)


def test_an_owner_that_ran_while_nobody_looked_has_used_the_room_up() -> None:
    async def story(world: ReservationWorld) -> None:
        room = await world.reserve("room")
        await world.owner("p", room)
        await world.end("p")
        await world.place(room, "n")
        await asyncio.sleep(1)
        assert phase_of(await world.get("room")) == "Succeeded"

    play(story)


def test_an_owner_that_is_gone_before_its_use_was_written_has_used_the_room_up() -> None:
    async def story(world: ReservationWorld) -> None:
        room = await world.reserve("room", node_name="n")
        await asyncio.sleep(5)
        await world.owner("p", room)
        await world.delete_pod("p")
        await asyncio.sleep(0.1)
        used = await world.get("room")
        assert (phase_of(used), owners_of(used)) == ("Succeeded", ["p"])

    play(story)


def test_the_time_is_over_after_the_ttl_not_before() -> None:
    async def story(world: ReservationWorld) -> None:
        await world.reserve("room", node_name="n")
        await world.reserve("waits")
        await world.reserve("forever", node_name="n", ttl="0s")
        await asyncio.sleep(HOUR_S - 1)
        assert phase_of(await world.get("room")) == "Available"
        await asyncio.sleep(20)
        late = await world.get("room")
        assert phase_of(late) == "Failed"
        assert [(each.type, each.status, each.reason) for each in late.status.conditions][1:] == [
            ("Ready", "False", "Expired")
        ]
        assert phase_of(await world.get("forever")) == "Available"
        assert phase_of(await world.get("waits")) in ("", "Pending"), "who has no node does not expire"
        assert await world.events("Expired") == ["Ended: it is older than spec.ttl 1h"]

    play(story)


def test_the_nearer_of_both_ends_counts() -> None:
    async def story(world: ReservationWorld) -> None:
        soon = rfc3339(world.clock.now() + 100)
        await world.reserve("room", node_name="n", ttl="2h", expires=soon)
        await asyncio.sleep(90)
        assert phase_of(await world.get("room")) == "Available"
        await asyncio.sleep(30)
        assert phase_of(await world.get("room")) == "Failed"

    play(story)


def test_more_time_given_in_the_last_moment_counts() -> None:
    async def story(world: ReservationWorld) -> None:
        await world.reserve("room", node_name="n")
        await asyncio.sleep(HOUR_S - 1)
        await world.api.patch(Reservation, "room", {"spec": {"ttl": "2h"}})
        await asyncio.sleep(HOUR_S - 10)
        assert phase_of(await world.get("room")) == "Available"
        await asyncio.sleep(60)
        assert phase_of(await world.get("room")) == "Failed"

    play(story, late=Reservation)


def test_room_ends_with_its_node() -> None:
    async def story(world: ReservationWorld) -> None:
        await world.node("m")
        await world.reserve("here", node_name="n")
        await world.reserve("there", node_name="m")
        await asyncio.sleep(1)
        await world.api.delete(Node, "m")
        await asyncio.sleep(1)
        assert phase_of(await world.get("here")) == "Available"
        assert phase_of(await world.get("there")) == "Failed"
        assert await world.events("Expired") == ["Ended: node m is gone"]

    play(story)


def test_a_node_that_the_cache_does_not_know_yet_ends_nothing() -> None:
    async def story(world: ReservationWorld) -> None:
        await world.node("new")
        await world.reserve("room", node_name="new")
        await asyncio.sleep(60)
        assert phase_of(await world.get("room")) == "Available"

    play(story, late=Node)


def test_what_ended_a_day_ago_is_deleted() -> None:
    async def story(world: ReservationWorld) -> None:
        used, _ = await world.reserve("used", node_name="n"), await world.reserve("late", node_name="n")
        await world.reserve("broken", node_name="n", ttl="0s")
        await world.api.patch(Reservation, "broken", {"status": {"phase": "Failed"}}, subresource="status")
        await world.owner("p", used)
        await asyncio.sleep(HOUR_S)
        await asyncio.sleep(23 * HOUR_S - 100)
        ends = [phase_of(await world.find(each)) for each in ("used", "broken", "late")]
        assert ends == ["Succeeded", "Failed", "Failed"]
        await asyncio.sleep(200)
        ends = [phase_of(await world.find(each)) for each in ("used", "broken", "late")]
        assert ends == ["gone", "gone", "Failed"], "also what somebody else gave up"
        await asyncio.sleep(HOUR_S + 100)
        assert await world.find("late") is None

    play(story)


@pytest.mark.parametrize(("args", "phase"), [({}, "Pending"), ({"expirePending": True}, "Failed")])
def test_a_reservation_without_a_node_ends_if_that_is_wished(args: dict[str, bool], phase: str) -> None:
    async def story(world: ReservationWorld) -> None:
        await world.reserve("room", ttl="1m")
        await asyncio.sleep(59)
        assert phase_of(await world.get("room")) in ("", "Pending")
        await asyncio.sleep(16)
        assert (phase_of(await world.get("room")) or "Pending") == phase

    play(story, **args)


def test_settings_that_do_nothing_are_told(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: ReservationWorld) -> None:
        await asyncio.sleep(0.1)

    gates = "LazyReservationRestore=true,SkipReservationFitsNode=true"
    play(story, gates, reservationSelectorIndex={"enabled": True})
    assert [each.getMessage() for each in caplog.records if "has no effect" in each.getMessage()] == [
        "argument reservationSelectorIndex of the plugin Reservation has no effect",
        "feature gate LazyReservationRestore has no effect",
    ]


def test_garbage_can_be_kept() -> None:
    async def story(world: ReservationWorld) -> None:
        await world.reserve("late", node_name="n", ttl="1s")
        await asyncio.sleep(200)
        assert phase_of(await world.get("late")) == "Failed"

    play(story, disableGarbageCollection=True, gcDurationSeconds=1, gcIntervalSeconds=1)


def test_a_time_that_nobody_can_read_is_told_and_holds_up_nobody() -> None:
    async def story(world: ReservationWorld) -> None:
        await world.reserve("odd", node_name="n", ttl="soon")
        late = await world.reserve("room", node_name="n", ttl="10s")
        await asyncio.sleep(60)
        assert phase_of(await world.get("room")) == "Failed", late
        assert phase_of(await world.get("odd")) == "Available"
        [reported] = await world.events("InvalidReservation")
        assert "odd: spec.ttl" in reported

    play(story)


def test_pods_lose_the_name_of_a_deleted_reservation_if_that_is_wished() -> None:
    async def story(world: ReservationWorld) -> None:
        room, other = await world.reserve("room", node_name="n"), await world.reserve("other", node_name="n")
        await world.owner("p", room)
        await world.owner("q", other)
        await asyncio.sleep(1)
        await world.api.delete(Reservation, "room")
        await asyncio.sleep(1)
        found = {each.metadata.name: each.metadata.annotations for each in (await world.api.list(Pod)).items}
        assert labels.RESERVATION_ALLOCATED not in found["p"]
        assert labels.RESERVATION_ALLOCATED in found["q"]

    play(story, "CleanExpiredReservationAllocated=true")


def test_without_the_gate_pods_keep_it() -> None:
    async def story(world: ReservationWorld) -> None:
        room = await world.reserve("room", node_name="n")
        await world.owner("p", room)
        await asyncio.sleep(1)
        await world.api.delete(Reservation, "room")
        await asyncio.sleep(1)
        [pod] = (await world.api.list(Pod)).items
        assert labels.RESERVATION_ALLOCATED in pod.metadata.annotations

    play(story)


def test_gauges_tell_phases_and_amounts_as_they_are_now() -> None:
    async def story(world: ReservationWorld) -> None:
        made = scheduler(world.api)
        async with scheduling(made):
            room = await world.reserve("room", node_name="n", allocateOnce=False)
            await world.owner("p", room, cpu="1")
            await asyncio.sleep(2)
            text = made.metrics.registry.text()
            assert 'scheduler_reservation_status_phase{name="room",phase="Available"} 1' in text
            assert 'scheduler_reservation_status_phase{name="room",phase="Pending"} 0' in text
            for kind, number, unit in (
                ("allocatable", "4", "core"),
                ("allocated", "1", "core"),
                ("utilization", "0.25", "ratio"),
            ):
                line = f'{{type="{kind}",name="room",resource="cpu",unit="{unit}"}} {number}'
                assert f"scheduler_reservation_resource{line}\n" in text, text
            await world.api.delete(Reservation, "room")
            await asyncio.sleep(0.1)
            assert 'name="room"' not in made.metrics.registry.text()

    play(story)


def test_no_gauges_without_a_resync() -> None:
    async def story(world: ReservationWorld) -> None:
        made = scheduler(world.api, resyncIntervalSeconds=0)
        async with scheduling(made):
            assert "scheduler_reservation" not in made.metrics.registry.text()

    play(story)
