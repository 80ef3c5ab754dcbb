"""Plugins take part in what happens after a failed attempt, and choose who comes next."""

from typing import Any, ClassVar

import pytest

from koordinator.scheduler.plugin.capabilities import NextPodPlugin
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.framework import (
    PermitPlugin,
    PermitResult,
    PreFilterPlugin,
    PreFilterResult,
)
from koordinator.scheduler.plugin.handle import Handling, SchedulingFailure, nomination_after
from koordinator.scheduler.plugin.status import SUCCESS, Status, error, unschedulable
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.extending import with_plugins
from tests.scheduler.world import World, node, play, pod


class Handler(PreFilterPlugin[None]):
    name = "Handler"
    answer: ClassVar[Handling] = Handling.GO_ON
    asked: ClassVar[list[SchedulingFailure]] = []
    failures: ClassVar[list[SchedulingFailure]] = []

    def __init__(self, args: Any, handle: Any) -> None:
        super().__init__(args, handle)
        handle.on_failure(self._asked)
        handle.after_failure(self.failures.append)

    def pre_filter(self, state: None) -> PreFilterResult:
        return PreFilterResult()

    def _asked(self, failure: SchedulingFailure) -> Handling:
        self.asked.append(failure)
        return self.answer


class SecondHandler(Handler):
    name = "SecondHandler"
    asked: ClassVar[list[SchedulingFailure]] = []
    failures: ClassVar[list[SchedulingFailure]] = []


class RaisingHandler(Handler):
    name = "RaisingHandler"

    def _asked(self, failure: SchedulingFailure) -> Handling:
        raise RuntimeError("a bug")


def fresh() -> None:
    for kind in (Handler, SecondHandler):
        kind.asked.clear()
        kind.failures.clear()


@pytest.mark.parametrize(
    ("answer", "event_count", "is_queued", "second_asked"),
    [
        pytest.param(Handling.GO_ON, 1, True, 1, id="goes on"),
        pytest.param(Handling.QUIETLY, 0, True, 0, id="quietly"),
        pytest.param(Handling.DONE, 0, False, 0, id="done"),
    ],
)
def test_the_first_handler_that_ends_it_decides_and_all_are_reported(
    answer: Handling, event_count: int, is_queued: bool, second_asked: int
) -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="1")
        uid = world.api.put("Pod", pod("p", cpu="2"))["metadata"]["uid"]
        await world.settle(0.5)
        assert len(world.api.events("FailedScheduling")) == event_count
        assert (world.condition("p") != {}) == bool(event_count)
        assert (uid in world.scheduler.queue) == is_queued
        assert not world.scheduler.queue.events_in_flight()

    fresh()
    Handler.answer = answer
    play(story, **with_plugins(Handler, SecondHandler))
    Handler.answer = Handling.GO_ON
    (failure,) = Handler.asked
    assert failure.pod.key == "default/p"
    assert failure.rejected_by == {"NodeResourcesFit"}
    assert "Insufficient cpu" in failure.status.message
    assert len(SecondHandler.asked) == second_asked
    assert len(Handler.failures) == len(SecondHandler.failures) == 1


def test_a_handler_that_raises_changes_nothing() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="1")
        world.api.put("Pod", pod("p", cpu="2"))
        await world.settle(0.5)
        assert len(world.api.events("FailedScheduling")) == 1

    fresh()
    play(story, strict=False, **with_plugins(RaisingHandler, SecondHandler))
    assert len(SecondHandler.asked) == 1


@pytest.mark.parametrize(
    ("plugin", "said", "left"),
    [
        pytest.param("JobPreemptionSuccessPlugin", None, "node-0", id="the job made room: its node"),
        pytest.param("JobRejectPlugin", "other", None, id="the job fails: as it was"),
        pytest.param("JobPreemptionFailurePlugin", None, "", id="the job could not make room: none"),
        pytest.param("Coscheduling", "other", "other", id="anybody else: what the attempt said"),
        pytest.param("", None, None, id="nobody: as it was"),
    ],
)
def test_a_jobs_preemption_takes_the_nomination_over(plugin: str, said: str | None, left: str | None) -> None:
    assert nomination_after(unschedulable("x").by(plugin), "node-0", said) == left


class Holding(PermitPlugin[None]):
    name = "Holding"

    def permit(self, state: None, pod: PodInfo, node_name: str) -> PermitResult:
        return PermitResult(SUCCESS, timeout_s=600.0)


def test_a_waiting_pod_whose_job_made_room_is_nominated_to_its_node() -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        uid = world.api.put("Pod", pod("p"))["metadata"]["uid"]
        await world.settle(0.5)
        waiting = world.scheduler.waiting.find(uid)
        assert waiting is not None
        waiting.reject("JobPreemptionSuccessPlugin", "preempt success")
        await world.settle(0.5)
        assert world.scheduler.engine.nominations.node_of(uid) == "node-0"
        assert world.api.pods()[0]["status"]["nominatedNodeName"] == "node-0"

    play(story, **with_plugins(Holding))


class Chooser(PreFilterPlugin[None], NextPodPlugin[None]):
    """Wants pods in the order of a list; one name raises."""

    name = "Chooser"
    wanted: ClassVar[list[str]] = []
    tried: ClassVar[list[str]] = []

    def prepare(self, pod: PodInfo) -> None:
        self.tried.append(pod.pod.metadata.name)

    def pre_filter(self, state: None) -> PreFilterResult:
        return PreFilterResult()

    def next_pod(self) -> str | None:
        uid = self.wanted.pop(0) if self.wanted else None
        if uid == "raise":
            raise RuntimeError("a bug")
        return uid


def test_the_plugins_choice_comes_before_the_queues_order() -> None:
    async def story(world: World) -> None:
        uids = {}
        for name in ("a", "b", "c", "d"):
            uids[name] = world.api.put("Pod", pod(name, node_selector={}))["metadata"]["uid"]
        await world.settle(0.5)
        Chooser.tried.clear()
        Chooser.wanted[:] = [uids["c"], "no such pod", uids["b"], "raise"]
        world.nodes(1)
        await world.settle(15)
        assert Chooser.tried == ["c", "b", "a", "d"]
        told = world.scheduler.metrics.text()
        assert "scheduler_next_pod_delete_from_queue_latency_count 3" in told
        assert "scheduler_next_pod_delete_from_queue_latency_sum 0\n" in told, (
            "virtual time stands still meanwhile"
        )

    play(story, strict=False, **with_plugins(Chooser))


def test_a_gated_pod_cannot_be_chosen() -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        gated = pod("g", schedulingGates=[{"name": "wait"}])
        uid = world.api.put("Pod", gated)["metadata"]["uid"]
        await world.settle(0.5)
        assert world.scheduler.queue.take(uid, world.clock.now(), by="") is None
        assert world.scheduler.queue.counts()["gated"] == 1

    play(story)


def test_an_event_without_a_condition_moves_all_pods() -> None:
    """The reference's adapter for such events moves nothing (C10)."""

    async def story(world: World) -> None:
        world.api.put("Node", node("small", cpu="1"))
        for number in range(3):
            world.api.put("Pod", pod(f"p{number}", cpu="2"))
        await world.settle(5)
        assert world.scheduler.queue.counts()["unschedulable"] == 3
        world.scheduler.queue.happened(QueueingEvent(ClusterEvent.WILDCARD), world.clock.now())
        assert world.scheduler.queue.counts()["unschedulable"] == 0

    play(story)


def test_an_error_is_handled_like_a_refusal() -> None:
    class Erring(Handler):
        name = "Erring"

        def pre_filter(self, state: None) -> PreFilterResult:
            return PreFilterResult(_failing())

    def _failing() -> Status:
        return error("cannot tell")

    async def story(world: World) -> None:
        world.nodes(1)
        world.api.put("Pod", pod("p"))
        await world.settle(0.2)

    fresh()
    play(story, **with_plugins(Erring))
    assert {failure.status.message for failure in Handler.asked} == {"cannot tell"}
