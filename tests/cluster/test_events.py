"""Event correlation (pure) and the recorder, on virtual time."""

import asyncio
import contextlib
import gc
import random
import tracemalloc
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.meta import ObjectReference
from koordinator.clock import LoopClock
from koordinator.cluster import errors
from koordinator.cluster.events import (
    MESSAGE_BYTES_MAX,
    QUEUE_MAX,
    STAND_BACK_MAX,
    STAND_BACK_S_MAX,
    WRITERS,
    Correlator,
    EventAction,
    EventRecorder,
    EventSeverity,
    Occurrence,
)
from koordinator.cluster.memory import MemoryCluster
from tests.cluster import virtual_loop
from tests.cluster.fake_backend import FakeBackend

EPOCH_S = 1_700_000_000.0


def occurrence(name: str = "web-0", message: str = "no room", reason: str = "FailedScheduling") -> Occurrence:
    regarding = ObjectReference(api_version="v1", kind="Pod", namespace="shop", name=name, uid=f"uid-{name}")
    return Occurrence(regarding=regarding, severity="Warning", reason=reason, message=message)


def test_a_repeated_event_raises_the_count_of_one_object() -> None:
    correlator = Correlator()

    first = correlator.judge(occurrence(), EPOCH_S)
    again = correlator.judge(occurrence(), EPOCH_S + 7)

    assert (first.action, first.count) == (EventAction.CREATE, 1)
    assert (again.action, again.count, again.name) == (EventAction.COUNT, 2, first.name)
    assert (again.first_s, again.last_s) == (EPOCH_S, EPOCH_S + 7)


def test_many_variants_of_one_event_are_combined() -> None:
    correlator = Correlator()

    verdicts = [correlator.judge(occurrence(message=f"variant {n}"), EPOCH_S + n) for n in range(12)]

    assert [v.action for v in verdicts] == [EventAction.CREATE] * 10 + [EventAction.COUNT] * 2
    assert verdicts[8].message == "variant 8"
    assert [v.message for v in verdicts[9:]] == [
        f"(combined from similar events): variant {n}" for n in (9, 10, 11)
    ]
    assert [v.count for v in verdicts[9:]] == [1, 2, 3]


def test_variants_are_told_apart_again_after_a_quiet_window() -> None:
    correlator = Correlator()
    for n in range(12):
        correlator.judge(occurrence(message=f"variant {n}"), EPOCH_S)

    later = correlator.judge(occurrence(message="variant 99"), EPOCH_S + 601)

    assert later.message == "variant 99"


def test_countless_variants_are_not_remembered_one_by_one() -> None:
    correlator = Correlator()
    for n in range(10_000):
        correlator.judge(occurrence(message=f"variant {n}"), EPOCH_S)

    (variants,) = correlator._variants._recent.values()
    assert len(variants.identities) < 10
    assert len(correlator._written._recent) == 10


def test_the_last_objects_are_remembered_and_the_first_are_forgotten() -> None:
    correlator = Correlator()
    for n in range(10_000):
        correlator.judge(occurrence(f"web-{n}"), EPOCH_S)

    last, first = (correlator.judge(occurrence(f"web-{n}"), EPOCH_S) for n in (9_999 - 2_000, 0))
    assert (last.action, first.action) == (EventAction.COUNT, EventAction.CREATE)


def test_events_about_many_objects_take_a_kilobyte_each() -> None:
    correlator, count = Correlator(), 1_000
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for n in range(count):
            correlator.judge(occurrence(f"web-{n}-" + "x" * 50, message=f"variant {n} " * 20), EPOCH_S)
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert taken < 600 * count


def test_a_flood_about_one_object_is_dropped_and_others_are_not_touched() -> None:
    correlator = Correlator()

    verdicts = [correlator.judge(occurrence(), EPOCH_S) for _ in range(27)]

    assert [v.action for v in verdicts[24:]] == [EventAction.COUNT, EventAction.DROP, EventAction.DROP]
    assert correlator.judge(occurrence("web-1"), EPOCH_S).action is EventAction.CREATE
    refilled = correlator.judge(occurrence(), EPOCH_S + 300)
    assert (refilled.action, refilled.count) == (EventAction.COUNT, 28)


def test_names_differ_even_where_time_stands_still() -> None:
    correlator = Correlator()

    names = {correlator.judge(occurrence(reason=f"R{n}"), EPOCH_S).name for n in range(20)}

    assert len(names) == 20
    assert all(name.startswith("web-0.") for name in names)


class EventServer(FakeBackend):
    """Keeps events by name instead of pods."""

    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        self.refuse: errors.ApiError | None = None

    def _called(self, what: str) -> None:
        super()._called(what)
        if self.refuse is not None:
            raise self.refuse

    def events(self) -> list[dict[str, Any]]:
        return [record.obj for record in self.records.values()]

    async def patch(self, resource: Any, namespace: str, name: str, patch: Any, *rest: Any) -> Any:
        self._called("patch")
        return self.put(self.get(resource, namespace, name).obj | patch)


@contextlib.asynccontextmanager
async def recording(
    stand_back: Callable[[], bool] = lambda: False,
) -> AsyncIterator[tuple[EventServer, EventRecorder]]:
    server = EventServer(LoopClock(asyncio.get_running_loop(), EPOCH_S))
    cluster = MemoryCluster(server)
    recorder = EventRecorder(
        cluster, "koord-scheduler", instance="machine-1", rng=random.Random(1), stand_back=stand_back
    )
    task = asyncio.create_task(recorder.run())
    try:
        yield server, recorder
    finally:
        task.cancel()
        await asyncio.wait([task])


def test_events_are_written_in_the_form_users_know() -> None:
    async def scenario() -> None:
        async with recording() as (server, recorder):
            recorder.warning(occurrence().regarding, "FailedScheduling", "no room")
            await asyncio.sleep(5)
            recorder.warning(occurrence().regarding, "FailedScheduling", "no room")
            await recorder.flush()

            (event,) = server.events()
            assert event["involvedObject"]["name"] == "web-0"
            assert (event["type"], event["reason"]) == ("Warning", "FailedScheduling")
            assert event["source"] == {"component": "koord-scheduler"}
            assert event["count"] == 2
            assert event["firstTimestamp"] == "2023-11-14T22:13:20Z"
            assert event["lastTimestamp"] == "2023-11-14T22:13:25Z"

    virtual_loop.run(scenario())


def test_an_event_that_aged_out_is_written_anew_with_its_count() -> None:
    async def scenario() -> None:
        async with recording() as (server, recorder):
            recorder.normal(occurrence().regarding, "Scheduled", "to n1")
            await recorder.flush()
            server.records.clear()
            recorder.normal(occurrence().regarding, "Scheduled", "to n1")
            await recorder.flush()

            assert [event["count"] for event in server.events()] == [2]

    virtual_loop.run(scenario())


def test_events_about_cluster_scoped_objects_live_in_the_default_namespace() -> None:
    async def scenario() -> None:
        async with recording() as (server, recorder):
            recorder.normal(ObjectReference(kind="Node", name="n1"), "NodeReady", "ready")
            await recorder.flush()
            assert server.events()[0]["metadata"]["namespace"] == "default"

    virtual_loop.run(scenario())


def test_recording_never_blocks_and_counts_what_does_not_fit() -> None:
    async def scenario() -> None:
        async with recording() as (_, recorder):
            for n in range(QUEUE_MAX + 5):
                recorder.normal(ObjectReference(kind="Node", name=f"n{n}"), "NodeReady", "ready")
            assert recorder.dropped_count == 5

    virtual_loop.run(scenario())


def test_events_stand_back_while_something_is_more_urgent_but_not_for_long() -> None:
    async def scenario() -> None:
        urgent = [True]
        async with recording(lambda: urgent[0]) as (server, recorder):
            recorder.normal(occurrence("a").regarding, "Scheduled", "to n1")
            await asyncio.sleep(1)
            assert server.events() == []

            urgent[0] = False
            await asyncio.sleep(0.01)
            assert len(server.events()) == 1

            urgent[0] = True
            recorder.normal(occurrence("b").regarding, "Scheduled", "to n1")
            await asyncio.sleep(STAND_BACK_S_MAX - 0.1)
            assert len(server.events()) == 1
            await asyncio.sleep(0.2)
            assert len(server.events()) == 2

            recorder.normal(occurrence("c").regarding, "Scheduled", "to n1")
            await recorder.flush()
            assert len(server.events()) == 3

    virtual_loop.run(scenario())


def test_events_do_not_stand_back_once_half_of_the_queue_is_full() -> None:
    async def scenario() -> None:
        async with recording(lambda: True) as (server, recorder):
            for n in range(STAND_BACK_MAX + 20):
                recorder.normal(ObjectReference(kind="Node", name=f"n{n}"), "NodeReady", "ready")
            await asyncio.sleep(1)
            assert len(server.events()) == 20
            assert recorder.pending_count == STAND_BACK_MAX

    virtual_loop.run(scenario())


def test_an_unreachable_api_is_tried_again_and_a_refusal_is_not() -> None:
    async def scenario() -> None:
        async with recording() as (server, recorder):
            server.failures = [errors.ConnectionFailed("refused")] * 2
            recorder.normal(occurrence().regarding, "Scheduled", "to n1")
            await recorder.flush()
            assert len(server.events()) == 1
            assert asyncio.get_running_loop().time() >= 20

            server.refuse = errors.Forbidden("namespace shop is being terminated")
            calls = len(server.calls)
            recorder.normal(occurrence().regarding, "Evicted", "memory")
            await recorder.flush()
            assert len(server.calls) == calls + 1
            assert recorder.dropped_count == 1

    virtual_loop.run(scenario())


@pytest.mark.parametrize("letter", ["x", "ü", "車"])
def test_long_messages_are_cut_between_characters(letter: str) -> None:
    async def scenario() -> None:
        async with recording() as (server, recorder):
            recorder.normal(occurrence().regarding, "Scheduled", letter * 2000)
            await recorder.flush()
            message = server.events()[0]["message"]
            assert MESSAGE_BYTES_MAX - 3 <= len(message.encode()) <= MESSAGE_BYTES_MAX
            assert message.endswith(f"{letter} ...")

    virtual_loop.run(scenario())


class SlowServer(EventServer):
    """Each write takes a second."""

    def __init__(self, clock: LoopClock) -> None:
        super().__init__(clock)
        self.under_way = self.under_way_max = 0

    async def create(self, *args: Any) -> Any:
        self.under_way += 1
        self.under_way_max = max(self.under_way_max, self.under_way)
        await asyncio.sleep(1)
        self.under_way -= 1
        return await super().create(*args)


def test_an_event_with_an_action_has_all_that_the_newer_form_knows() -> None:
    async def scenario() -> None:
        async with recording() as (server, recorder):
            victim = from_builtins({"metadata": {"name": "victim", "namespace": "shop", "uid": "1"}}, Pod)
            winner = from_builtins({"metadata": {"name": "winner", "namespace": "shop", "uid": "2"}}, Pod)
            other = from_builtins({"metadata": {"name": "other", "namespace": "shop", "uid": "3"}}, Pod)
            for _ in range(2):
                recorder.event(
                    victim, EventSeverity.NORMAL, "Preempted", "gone", action="Preempting", related=winner
                )
                await asyncio.sleep(5)
            recorder.event(
                victim, EventSeverity.NORMAL, "Preempted", "gone", action="Preempting", related=other
            )
            await recorder.flush()

            event, of_other = server.events()
            assert event["action"] == "Preempting"
            assert event["eventTime"] == "2023-11-14T22:13:20.000000Z"
            assert event["reportingComponent"] == "koord-scheduler"
            assert event["reportingInstance"] == "koord-scheduler-machine-1"
            assert (event["related"]["kind"], event["related"]["uid"]) == ("Pod", "2")
            assert event["series"] == {"count": 2, "lastObservedTime": "2023-11-14T22:13:25.000000Z"}
            assert of_other["related"]["uid"] == "3" and "series" not in of_other

    virtual_loop.run(scenario())


def test_events_about_many_objects_are_written_side_by_side_and_in_order_for_each() -> None:
    async def scenario() -> None:
        server = SlowServer(LoopClock(asyncio.get_running_loop(), EPOCH_S))
        recorder = EventRecorder(MemoryCluster(server), "koord-scheduler", rng=random.Random(1))
        task = asyncio.create_task(recorder.run())
        for n in range(200):
            recorder.normal(
                ObjectReference(kind="Pod", namespace="shop", name=f"web-{n}"), "Scheduled", "to n1"
            )
            if n < 3:
                for step in range(3):
                    reference = ObjectReference(kind="Pod", namespace="shop", name=f"web-{n}")
                    recorder.normal(reference, f"Step{step}", "done")

        await recorder.flush()

        assert len(server.events()) == 209 and recorder.dropped_count == 0
        assert 4 < server.under_way_max <= WRITERS
        for n in range(3):
            about = [e["reason"] for e in server.events() if e["involvedObject"]["name"] == f"web-{n}"]
            assert about == ["Scheduled", "Step0", "Step1", "Step2"]
        task.cancel()
        await asyncio.wait([task])

    virtual_loop.run(scenario())
