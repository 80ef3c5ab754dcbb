"""Whole lives of a scheduler under random faults: safe at every step, and in the end everything is settled.

A seed draws the faults, the cluster and what its users do. While faults go on, nobody may be double-booked and
nothing may leak; when they have stopped, every pod is bound or told truthfully why not, and the scheduler knows
exactly what one knows that has just started. A failing seed fails again.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from koordinator.api.core import Node, Pod
from koordinator.api.quantity import milli
from koordinator.clock import LoopClock
from koordinator.cluster import errors
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import registry
from koordinator.scheduler.config import config
from koordinator.scheduler.plugin.framework import PermitPlugin, PermitResult, PreBindPlugin, ReservePlugin
from koordinator.scheduler.plugin.status import SUCCESS, Code, PodPatch, Status
from koordinator.scheduler.plugins import built_in
from koordinator.scheduler.scheduler import Scheduler
from koordinator.scheduler.table.pod_info import PodInfo
from tests.churn.table_differences import differences
from tests.cluster import virtual_loop
from tests.cluster.faulty_cluster import Faults, FaultyCluster
from tests.scheduler.world import EPOCH_S, node, pod

Json = dict[str, Any]

NODES = 4
NODE_MILLI = 4_000
UNREST_S = 30.0
STEP_S = 0.05
SETTLE_S = 700.0
"""Longer than the longest wait of the queue, with the retries of events behind it."""


class Ledger(ReservePlugin[None], PermitPlugin[None], PreBindPlugin[None]):
    """Keeps a book of its own, holds some pods, writes on others, and has a bug that shows once per pod."""

    name = "Ledger"

    def __init__(self, args: Any, handle: Any) -> None:
        super().__init__(args, handle)
        self.booked: dict[str, str] = {}
        self._seen: set[tuple[str, str]] = set()

    def _first(self, what: str, pod: PodInfo) -> bool:
        """Whether this pod is of those that `what` concerns, and meets it for the first time."""
        concerned = pod.pod.metadata.labels.get(what) == "yes" and (what, pod.uid) not in self._seen
        self._seen.add((what, pod.uid))
        return concerned

    def reserve(self, state: None, pod: PodInfo, row: int) -> Status:
        self.booked[pod.uid] = self.handle.table.name_of(row)
        if self._first("raises-in-reserve", pod):
            raise RuntimeError("a bug in reserve")
        return SUCCESS

    def unreserve(self, state: None, pod: PodInfo, node_name: str) -> None:
        self.booked.pop(pod.uid, None)

    def permit(self, state: None, pod: PodInfo, node_name: str) -> PermitResult:
        held = self._first("held", pod)
        return PermitResult(Status(Code.WAIT), timeout_s=1.0) if held else PermitResult()

    def is_slow(self, state: None, pod: PodInfo) -> bool:
        return pod.pod.metadata.labels.get("slow") == "yes"

    async def pre_bind(self, state: None, pod: PodInfo, node_name: str, patch: PodPatch) -> Status:
        if self._first("raises-in-prebind", pod):
            raise RuntimeError("a bug in PreBind")
        if pod.pod.metadata.labels.get("slow") == "yes":
            await asyncio.sleep(0.7)
        if pod.pod.metadata.labels.get("written") == "yes":
            patch.annotations["example.com/node"] = node_name
        return SUCCESS


LABELS = ("raises-in-reserve", "held", "slow", "raises-in-prebind", "written")

CONFIG = config.decode(
    {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [
            {
                "schedulerName": "koord-scheduler",
                "plugins": {
                    point: {"enabled": [{"name": "Ledger"}]} for point in ("reserve", "permit", "preBind")
                },
            }
        ],
    }
)


class Life:
    """A cluster, its users, and one scheduler after the other. `restart_at` counts moments of requests."""

    def __init__(self, seed: int, restart_at: int | None = None) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        clock = LoopClock(asyncio.get_running_loop(), EPOCH_S)
        self.api = MemoryCluster(registry.in_memory(clock, checks=False))
        faults = Faults.drawn(self.rng)
        self.faulty = FaultyCluster(self.api, faults, random.Random(self.rng.getrandbits(64)))
        self.faulty.on_moment = self._moment
        self.scheduler = self._new_scheduler()
        self._moments_left = restart_at
        self._restart = asyncio.Event()
        self._numbers = iter(range(10_000))

    def _new_scheduler(self) -> Scheduler:
        return Scheduler(self.faulty, CONFIG, seed=self.seed, plugins={**built_in.PLUGINS, "Ledger": Ledger})

    def _moment(self) -> None:
        if self._moments_left is not None:
            self._moments_left -= 1
            if self._moments_left == 0:
                self._restart.set()

    # The scheduler

    async def schedule(self) -> None:
        """Run schedulers for ever: when it is time for a restart, the next begins with nothing."""
        while True:
            running = asyncio.create_task(self.scheduler.run())
            over = asyncio.create_task(self._restart.wait())
            try:
                await asyncio.wait((running, over), return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    running.result()  # it never ends by itself
            finally:
                over.cancel()
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await running
            self._restart.clear()
            await self._check_stopped()
            self.scheduler = self._new_scheduler()

    # Users

    async def act(self) -> None:
        """Something that users, kubelets and administrators do."""
        act = self.rng.choice(
            (self._create,) * 5 + (self._delete, self._finish, self._lose_node, self._touch)
        )
        with contextlib.suppress(errors.NotFound, errors.AlreadyExists):
            await act()

    async def _create(self) -> None:
        body = pod(f"pod-{next(self._numbers)}", cpu=f"{self.rng.choice((500, 1_000, 1_500, 3_000))}m")
        body["metadata"]["labels"] = {name: "yes" for name in LABELS if self.rng.random() < 0.15}
        await self.api.create(Pod, body, "default")

    async def _delete(self) -> None:
        for found in await self._some_pod():
            await self.api.delete(Pod, found.metadata.name, "default", grace_period_s=0)

    async def _finish(self) -> None:
        for found in await self._some_pod():
            if found.spec.node_name:
                patch = {"status": {"phase": "Succeeded"}}
                await self.api.patch(Pod, found.metadata.name, patch, "default", subresource="status")

    async def _touch(self) -> None:
        for found in await self._some_pod():
            patch = {"metadata": {"labels": {"touched": str(self.rng.random())}}}
            await self.api.patch(Pod, found.metadata.name, patch, "default")

    async def _lose_node(self) -> None:
        """A node goes; what was on it is deleted, as its controllers do, and it comes back."""
        name = f"node-{self.rng.randrange(NODES)}"
        await self.api.delete(Node, name)
        await asyncio.sleep(self.rng.uniform(0.0, 1.0))
        for found in (await self.api.list(Pod)).items:
            if found.spec.node_name == name:
                await self.api.delete(Pod, found.metadata.name, "default", grace_period_s=0)
        await self.api.create(Node, node(name, cpu=f"{NODE_MILLI}m"))

    async def _some_pod(self) -> list[Pod]:
        found = (await self.api.list(Pod)).items
        return [self.rng.choice(found)] if found else []

    # What must hold

    async def used_milli(self) -> dict[str, int]:
        """Milli-cores of the pods on each node, as the API says."""
        used: dict[str, int] = {}
        for found in (await self.api.list(Pod)).items:
            if found.spec.node_name and found.status.phase not in ("Succeeded", "Failed"):
                amount = milli(found.spec.containers[0].resources.requests["cpu"])
                used[found.spec.node_name] = used.get(found.spec.node_name, 0) + amount
        return used

    async def check_step(self) -> None:
        """At any time: no node is over-committed, and nothing is booked for nobody."""
        used = await self.used_milli()
        assert all(amount <= NODE_MILLI for amount in used.values()), used
        scheduler = self.scheduler
        await self._check_assumed(scheduler)
        self._check_ledger(scheduler)
        if scheduler.synced.is_set():
            self._check_queue(scheduler)

    async def _check_assumed(self, scheduler: Scheduler) -> None:
        """Who is assumed is being bound, or was bound there and the watch has yet to tell."""
        places = {found.metadata.uid: found.spec.node_name for found in (await self.api.list(Pod)).items}
        in_flight = 0
        for place in scheduler.table.places():
            if place.assumed and place.pod.uid in scheduler.queue:
                in_flight += 1
            elif place.assumed:
                node_name = scheduler.table.name_of(place.row)
                truth = places.get(place.pod.uid, node_name)
                assert truth == node_name, (
                    f"{place.pod.key} is assumed on {node_name}, and nobody works on it"
                )
        assert in_flight <= scheduler.bindings_in_progress

    def _check_ledger(self, scheduler: Scheduler) -> None:
        """The plugin's book holds nothing of pods that wait."""
        for uid, booked in _ledger(scheduler).booked.items():
            place = scheduler.table.place_of(uid)
            assert place is not None or scheduler.queue.find(uid) is None, f"{uid} is booked on {booked}"

    def _check_queue(self, scheduler: Scheduler) -> None:
        """Every pod that the scheduler knows to wait is in its queue."""
        for found in scheduler.caches.pods.list():
            if not found.spec.node_name and found.status.phase not in ("Succeeded", "Failed"):
                uid = found.metadata.uid
                assert uid in scheduler.queue or scheduler.table.place_of(uid), f"{found.key} is forgotten"

    async def _check_stopped(self) -> None:
        """A scheduler that was stopped works on nothing, and assumes only what it knows to be bound."""
        assert self.scheduler.bindings_in_progress == 0
        await self._check_assumed(self.scheduler)
        assert not list(self.scheduler.waiting)

    async def check_settled(self) -> None:
        """Once all is quiet: every pod is bound or truly does not fit, and the scheduler knows it all exactly."""
        await self.check_step()
        scheduler, used = self.scheduler, await self.used_milli()
        assert scheduler.table.assumed_count == 0
        assert scheduler.bindings_in_progress == 0
        nodes = {found.metadata.name for found in (await self.api.list(Node)).items}
        for found in (await self.api.list(Pod)).items:
            if found.spec.node_name:
                continue
            wanted = milli(found.spec.containers[0].resources.requests["cpu"])
            free = {name: NODE_MILLI - used.get(name, 0) for name in nodes}
            assert wanted > max(free.values(), default=0), f"{found.key} would fit: {free}"
            [condition] = [each for each in found.status.conditions if each.type == "PodScheduled"]
            assert (condition.status, condition.reason) == ("False", "Unschedulable")
            assert "Insufficient cpu" in condition.message
        fresh = Scheduler(self.api, CONFIG, plugins={**built_in.PLUGINS, "Ledger": Ledger})
        async with fresh.following():
            assert differences(scheduler, fresh, [pod("probe")]) == []


def _ledger(scheduler: Scheduler) -> Ledger:
    [profile] = scheduler.profiles.values()
    [found] = [plugin for plugin in profile.plugins if isinstance(plugin, Ledger)]
    return found


@contextlib.asynccontextmanager
async def living(seed: int, restart_at: int | None = None) -> AsyncIterator[Life]:
    life = Life(seed, restart_at)
    for number in range(NODES):
        await life.api.create(Node, node(f"node-{number}", cpu=f"{NODE_MILLI}m"))
    task = asyncio.create_task(life.schedule(), name="schedulers")
    try:
        yield life
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def live(seed: int, restart_at: int | None = None) -> None:
    async with living(seed, restart_at) as life:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + UNREST_S
        while loop.time() < until_s:
            await life.act()
            await life.check_step()
            await asyncio.sleep(life.rng.uniform(0.0, 4 * STEP_S))
            await life.check_step()
        life.faulty.heal()
        await asyncio.sleep(SETTLE_S)
        await life.check_settled()


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Injected failures are logged by the thousand."""
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize("seed", range(10))
def test_whatever_the_api_does_pods_are_placed_once_and_nothing_leaks(seed: int) -> None:
    virtual_loop.run(live(seed))


@pytest.mark.parametrize("restart_at", [1, 2, 3, 5, 8, 13, 34, 55, 144, 233])
@pytest.mark.parametrize("seed", range(3))
def test_a_scheduler_restarted_at_any_request_leaves_nothing_half_done(seed: int, restart_at: int) -> None:
    virtual_loop.run(live(100 + seed, restart_at))
