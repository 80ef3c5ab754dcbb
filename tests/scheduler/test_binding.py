"""The binder alone: how many at a time, and what becomes of placements when it ends."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.scheduler.loop.binding import DRAIN_S, Binder, BindingCycle, BindingRules
from koordinator.scheduler.plugin.framework import BindPlugin
from koordinator.scheduler.plugin.status import SUCCESS, Status
from koordinator.scheduler.table.pod_info import PodInfo
from tests.cluster import virtual_loop
from tests.scheduler.world import World, node, pod


class Desk:
    """A binder over the jobs of a real cycle, whose Bind plugin does as it is told."""

    def __init__(self, bind: Callable[[PodInfo], Awaitable[Status]], bindings_max: int = 4) -> None:
        self.bound: list[tuple[str, bool]] = []
        self.returned: list[str] = []
        self.world = World(None)
        big = node("node-0", cpu="1000", memory="1000Gi", pods=1000)
        self.world.scheduler.table.set_node(from_builtins(big, Node))
        [profile] = self.world.scheduler.profiles.values()
        [binder] = [plugin for plugin in profile.binds if plugin.name == "DefaultBinder"]
        self._profile, self._bind = profile, bind
        self._patch(binder)
        self.binder = Binder(
            BindingRules(
                bindings_max=bindings_max,
                live=lambda pod: pod,
                has_node=lambda name: True,
                finished=lambda job, status: self.bound.append((job.placed.pod.key, status.is_success)),
                interrupted=lambda job: self.returned.append(job.placed.pod.key),
            ),
            self.world.scheduler.waiting,
        )

    def _patch(self, binder: BindPlugin[None]) -> None:
        async def bind(pod: PodInfo, node_name: str) -> Status:
            return await self._bind(pod)

        binder.bind = bind  # type: ignore[method-assign]

    def start(self, count: int) -> None:
        scheduler = self.world.scheduler
        for number in range(count):
            info = PodInfo.of(from_builtins(pod(f"pod-{number}"), Pod), scheduler.table.registry)
            key = self._profile.class_key(info)
            scheduler.queue.add(info, self._profile.name, key, 0.0)
            entry = scheduler.queue.pop(0.0)
            assert entry is not None
            self.uid = info.uid
            placed: Any = scheduler.engine.cycle.run(self._profile, info, key, 1, 0.0)
            self.binder.start(BindingCycle(self._profile, entry, placed))


def play(story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await story()

    virtual_loop.run(main())


def test_no_more_bindings_than_allowed_are_under_way() -> None:
    async def story() -> None:
        under_way = [0, 0]

        async def bind(_: PodInfo) -> Status:
            under_way[0] += 1
            under_way[1] = max(under_way)
            await asyncio.sleep(1.0)
            under_way[0] -= 1
            return SUCCESS

        desk = Desk(bind)
        async with asyncio.TaskGroup() as group:
            desk.binder.open(group)
            desk.start(10)
            assert desk.binder.is_full
            await desk.binder.room()
            assert asyncio.get_running_loop().time() == pytest.approx(2.0)
            await asyncio.sleep(5.0)
            await desk.binder.close()
        assert under_way[1] == 4
        assert len(desk.bound) == 10
        assert desk.returned == []

    play(story)


def test_an_ending_binder_waits_for_answers_and_hands_back_what_was_not_begun() -> None:
    async def story() -> None:
        async def bind(_: PodInfo) -> Status:
            await asyncio.sleep(1.0)
            return SUCCESS

        desk = Desk(bind)
        async with asyncio.TaskGroup() as group:
            desk.binder.open(group)
            desk.start(6)
            await asyncio.sleep(0.5)
            await desk.binder.close()
        assert sorted(desk.bound) == [(f"default/pod-{number}", True) for number in range(4)]
        assert desk.returned == ["default/pod-4", "default/pod-5"]
        assert desk.binder.in_progress_count == 0

    play(story)


def test_an_ending_binder_does_not_wait_for_ever() -> None:
    async def story() -> None:
        async def bind(_: PodInfo) -> Status:
            await asyncio.sleep(1_000.0)
            return SUCCESS

        desk = Desk(bind)
        async with asyncio.TaskGroup() as group:
            desk.binder.open(group)
            desk.start(2)
            await asyncio.sleep(0.5)
            await desk.binder.close()
        assert asyncio.get_running_loop().time() == pytest.approx(0.5 + DRAIN_S)
        assert desk.bound == []
        assert sorted(desk.returned) == ["default/pod-0", "default/pod-1"]

    play(story)


def test_where_bindings_never_wait_one_worker_does_them_all() -> None:
    async def story() -> None:
        async def bind(_: PodInfo) -> Status:
            return SUCCESS

        desk = Desk(bind, bindings_max=64)
        async with asyncio.TaskGroup() as group:
            desk.binder.open(group)
            desk.start(50)
            for _ in range(5):
                await asyncio.sleep(0)
            workers = [task for task in asyncio.all_tasks() if task.get_name().startswith("binder")]
            assert len(workers) <= 2
            await desk.binder.close()
        assert len(desk.bound) == 50

    play(story)


def test_a_binder_that_ended_begins_again() -> None:
    async def story() -> None:
        async def bind(_: PodInfo) -> Status:
            await asyncio.sleep(1.0)
            return SUCCESS

        desk = Desk(bind)
        for _ in range(2):
            async with asyncio.TaskGroup() as group:
                desk.binder.open(group)
                desk.start(1)
                await asyncio.sleep(2.0)
                await desk.binder.close()
            desk.world.scheduler.table.unassign(desk.uid)
        assert desk.bound == [("default/pod-0", True)] * 2

    play(story)
