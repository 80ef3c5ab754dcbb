"""Plugins with bugs: each costs its pod an attempt, at whatever point it raises, and nobody else anything."""

from typing import ClassVar

import numpy as np
import pytest

from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.framework import (
    FilterPlugin,
    PermitPlugin,
    PermitResult,
    PreBindPlugin,
    PreEnqueuePlugin,
    ReasonCodes,
    ReservePlugin,
)
from koordinator.scheduler.plugin.status import SUCCESS, PodPatch, Status, unschedulable
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.world import World, node, play, pod, requested_cpu, with_plugins


class Buggy(FilterPlugin[None]):
    """Raises for one pod."""

    name = "Buggy"

    def class_key(self, pod: PodInfo) -> str:
        return pod.key

    def prepare(self, pod: PodInfo) -> None:
        if pod.key == "default/unlucky":
            raise ZeroDivisionError("a bug")

    def filter(self, state: None, rows: Rows) -> ReasonCodes:
        return np.zeros(rows.size, np.uint16)


def test_a_bug_in_a_plugin_costs_one_pod_an_attempt_and_nobody_else() -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        world.api.put("Pod", pod("unlucky"))
        world.api.put("Pod", pod("web"))
        await world.settle()

        assert world.api.placements() == {"unlucky": "", "web": "node-0"}
        assert world.condition("unlucky")["message"] == "scheduling failed: ZeroDivisionError: a bug"
        assert world.scheduler.queue.counts()["backoff"] == 1

    play(story, strict=False, **with_plugins(Buggy, filter="Buggy"))


class Broken(
    PreEnqueuePlugin[None], FilterPlugin[None], ReservePlugin[None], PermitPlugin[None], PreBindPlugin[None]
):
    """Raises wherever the pod's label says, for as long as `is_broken`; refuses a pod that wants to sleep."""

    name = "Broken"
    wakes_on = (ClusterEvent.NODE_ADDED,)
    is_broken: ClassVar[bool] = True

    def _at(self, point: str, pod: PodInfo) -> None:
        if self.is_broken and pod.pod.metadata.labels.get("breaks") == point:
            raise ZeroDivisionError(f"a bug in {point}")

    def class_key(self, pod: PodInfo) -> str:
        self._at("class_key", pod)
        return pod.key

    def prepare(self, pod: PodInfo) -> None:
        self._at("prepare", pod)

    def pre_enqueue(self, pod: PodInfo) -> Status:
        self._at("pre_enqueue", pod)
        return SUCCESS

    def filter(self, state: None, rows: Rows) -> ReasonCodes:
        return np.zeros(rows.size, np.uint16)

    def reserve(self, state: None, pod: PodInfo, row: int) -> Status:
        self._at("reserve", pod)
        return SUCCESS

    def unreserve(self, state: None, pod: PodInfo, node_name: str) -> None:
        if pod.pod.metadata.labels.get("breaks"):
            raise ZeroDivisionError("a bug in unreserve")

    def permit(self, state: None, pod: PodInfo, node_name: str) -> PermitResult:
        self._at("permit", pod)
        return PermitResult()

    def is_slow(self, state: None, pod: PodInfo) -> bool:
        self._at("is_slow", pod)
        return False

    async def pre_bind(self, state: None, pod: PodInfo, node_name: str, patch: PodPatch) -> Status:
        self._at("pre_bind", pod)
        return SUCCESS


@pytest.mark.parametrize("point", ["prepare", "reserve", "permit", "pre_bind"])
def test_a_plugin_that_raises_fails_its_pod_with_an_event_and_holds_up_nobody(point: str) -> None:
    async def story(world: World) -> None:
        Broken.is_broken = True
        world.nodes(1)
        body = pod("unlucky")
        body["metadata"]["labels"] = {"breaks": point}
        world.api.put("Pod", body)
        world.api.put("Pod", pod("web"))
        await world.settle(0.1)

        assert world.api.placements() == {"unlucky": "", "web": "node-0"}
        assert requested_cpu(world) == [1000]
        assert f"ZeroDivisionError: a bug in {point}" in world.api.events("FailedScheduling")[0]["message"]

        Broken.is_broken = False
        await world.settle(15)
        assert world.api.placements()["unlucky"] == "node-0"
        assert requested_cpu(world) == [2000]

    points = ("preEnqueue", "filter", "reserve", "permit", "preBind")
    play(story, strict=False, **with_plugins(Broken, **dict.fromkeys(points, "Broken")))


@pytest.mark.parametrize("point", ["class_key", "is_slow"])
def test_a_plugin_that_cannot_say_what_its_pod_is_like_does_not_stop_it(point: str) -> None:
    async def story(world: World) -> None:
        Broken.is_broken = True
        world.nodes(1)
        body = pod("unlucky")
        body["metadata"]["labels"] = {"breaks": point}
        world.api.put("Pod", body)
        await world.settle(0.1)

        assert world.api.placements() == {"unlucky": "node-0"}

    play(story, strict=False, **with_plugins(Broken, filter="Broken", preBind="Broken"))


def test_a_gate_that_raises_keeps_its_pod_until_it_does_not() -> None:
    async def story(world: World) -> None:
        Broken.is_broken = True
        world.nodes(1)
        body = pod("unlucky")
        body["metadata"]["labels"] = {"breaks": "pre_enqueue"}
        put = world.api.put("Pod", body)
        world.api.put("Pod", pod("web"))
        await world.settle(0.1)
        assert world.api.placements() == {"unlucky": "", "web": "node-0"}

        Broken.is_broken = False
        world.api.put("Pod", {**put, "spec": {**put["spec"], "priority": 1}})
        await world.settle(0.1)
        assert world.api.placements()["unlucky"] == "node-0"

    play(story, strict=False, **with_plugins(Broken, preEnqueue="Broken"))


class Sleepy(FilterPlugin[None]):
    """Refuses all nodes, and cannot tell what would help."""

    name = "Sleepy"
    wakes_on = (ClusterEvent.NODE_ADDED,)
    reasons = None
    refuses: ClassVar[bool] = True

    def filter(self, state: None, rows: Rows) -> ReasonCodes:
        return np.full(rows.size, int(self.refuses), np.uint16)

    def refusal(self, state: None, code: int) -> Status:
        return unschedulable("not today")

    def epoch(self, state: None) -> bool:
        return self.refuses

    def wakes(self, event: QueueingEvent, pod: PodInfo) -> bool:
        raise ZeroDivisionError("a bug in a hint")


def test_a_hint_that_raises_wakes_the_pod() -> None:
    async def story(world: World) -> None:
        Sleepy.refuses = True
        world.nodes(1)
        world.api.put("Pod", pod("web"))
        await world.settle(2)
        assert world.scheduler.queue.counts()["unschedulable"] == 1

        Sleepy.refuses = False
        world.api.put("Node", node("node-1"))
        await world.settle(2)
        assert world.api.placements()["web"] in ("node-0", "node-1")

    play(story, strict=False, **with_plugins(Sleepy, filter="Sleepy"))
