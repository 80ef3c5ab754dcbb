"""Whole lives of reservations under random faults: phases only go forward, nothing ends before its time, and when
all is quiet every status tells what is so.

A seed draws the faults, what users, kubelets and the binding do, and when the scheduler is restarted. The test
watches the API itself, so that it sees every version of every reservation.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from koordinator.api.core import Node, Pod
from koordinator.api.reservation import RESERVATION_ALLOCATED, Reservation
from koordinator.clock import parse_rfc3339, rfc3339
from koordinator.cluster import errors
from koordinator.cluster.protocol import EventType
from koordinator.scheduler.scheduler import Scheduler
from tests.cluster import virtual_loop
from tests.cluster.faulty_cluster import Faults, FaultyCluster
from tests.scheduler.reservation.reservation_world import ReservationWorld, scheduler

NODES = ("a", "b", "c")
UNREST_S = 120.0
SETTLE_S = 200.0
"""Longer than the longest life that is drawn, with the retries of a write behind it."""
KEEP_S, GC_S = 30, 7

LEGAL = {
    "": {"", "Pending", "Available", "Failed"},
    "Pending": {"Pending", "Available", "Failed"},
    "Available": {"Available", "Succeeded", "Failed"},
    "Succeeded": {"Succeeded"},
    "Failed": {"Failed"},
}


class Witness:
    """Sees all versions of all reservations, and which nodes there are."""

    def __init__(self, world: ReservationWorld) -> None:
        self._world = world
        self._seen: dict[str, Reservation] = {}
        self.lost_nodes: set[str] = set()
        """Nodes that were away at some time."""
        self.ends: dict[str, int] = {}

    async def watch(self) -> None:
        version = (await self._world.api.list(Reservation)).resource_version
        async for batch in self._world.api.watch(Reservation, resource_version=version):
            for event in batch:
                if event.obj is not None and event.type is EventType.DELETED:
                    self._deleted(event.obj)
                elif event.obj is not None:
                    self._changed(event.obj)

    def _changed(self, new: Reservation) -> None:
        old = self._seen.get(new.metadata.uid)
        self._seen[new.metadata.uid] = new
        was, now = (old.status.phase if old is not None else ""), new.status.phase
        assert now in LEGAL[was], f"{new.key}: {was} → {now}"
        if was != now and now in ("Succeeded", "Failed"):
            self.ends[now] = self.ends.get(now, 0) + 1
        if was != now and now == "Failed":
            assert self._may_expire(new), f"{new.key} expired at {self._world.now()}: {new}"
        if was != now and now == "Succeeded":
            assert new.spec.allocate_once is not False and new.status.current_owners, new

    def _may_expire(self, gone: Reservation) -> bool:
        if gone.status.node_name in self.lost_nodes:
            return True
        end_s = self.end_s(gone)
        return end_s is not None and self._world.clock.now() > end_s

    @staticmethod
    def end_s(reservation: Reservation) -> float | None:
        spec, created = reservation.spec, reservation.metadata.creation_timestamp
        if spec.ttl == "0s":
            return None
        ends = [parse_rfc3339(spec.expires)] if spec.expires else []
        if spec.ttl and created:
            ends.append(parse_rfc3339(created) + float(spec.ttl.removesuffix("s")))
        return min(ends, default=None)

    def _deleted(self, gone: Reservation) -> None:
        # Users delete none here, so it was collected.
        assert gone.status.phase in ("Succeeded", "Failed"), (
            f"{gone.key} was collected while {gone.status.phase}"
        )


class Life:
    """A cluster, its users, and one scheduler after the other."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = ReservationWorld()
        self.faulty = FaultyCluster(
            self.world.api, Faults.drawn(self.rng), random.Random(self.rng.getrandbits(64))
        )
        self.witness = Witness(self.world)
        self._numbers = iter(range(10_000))

    async def schedulers(self) -> None:
        """One after the other; each begins with nothing."""
        while True:
            made: Scheduler = scheduler(self.faulty, gcDurationSeconds=KEEP_S, gcIntervalSeconds=GC_S)
            running = asyncio.create_task(made.run())
            try:
                await asyncio.sleep(self.rng.choice((0.5, 5.0, 40.0, 1_000.0)))
            finally:
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await running

    async def act(self) -> None:
        acts: tuple[Callable[[], Awaitable[None]], ...] = (
            self._reserve,
            self._reserve,
            self._bind,
            self._bind,
            self._use,
            self._use,
            self._leave,
            self._prolong,
            self._lose_node,
        )
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await self.rng.choice(acts)()

    async def _some(self) -> Reservation | None:
        found = (await self.world.api.list(Reservation)).items
        return self.rng.choice(found) if found else None

    async def _reserve(self) -> None:
        spec: dict[str, Any] = {
            "ttl": self.rng.choice(("0s", "5s", "30s", "100s")),
            "allocateOnce": self.rng.choice((True, False)),
        }
        if self.rng.random() < 0.2:
            spec["expires"] = rfc3339(self.world.clock.now() + self.rng.uniform(1.0, 90.0))
        await self.world.reserve(f"r{next(self._numbers)}", **spec)

    async def _bind(self) -> None:
        """What Bind does: not to one that has failed, and only while it is what it was."""
        for found in (await self.world.api.list(Reservation)).items:
            nodes = [each.metadata.name for each in (await self.world.api.list(Node)).items]
            if not found.status.node_name and found.status.phase in ("", "Pending") and nodes:
                await self.world.place(found, self.rng.choice(nodes))
                return

    async def _use(self) -> None:
        found = await self._some()
        if found is not None and found.status.node_name:
            node_name = self.rng.choice((found.status.node_name,) * 4 + NODES)
            await self.world.owner(f"p{next(self._numbers)}", found, node_name=node_name)

    async def _leave(self) -> None:
        pods = (await self.world.api.list(Pod)).items
        if pods:
            name = self.rng.choice(pods).metadata.name
            await (self.world.delete_pod(name) if self.rng.random() < 0.5 else self.world.end(name))

    async def _prolong(self) -> None:
        found = await self._some()
        if found is not None:
            spec = {"ttl": self.rng.choice(("0s", "60s", "100s"))}
            await self.world.api.patch(Reservation, found.metadata.name, {"spec": spec})

    async def _lose_node(self) -> None:
        if self.rng.random() < 0.3:
            name = self.rng.choice(NODES)
            self.witness.lost_nodes.add(name)
            await self.world.api.delete(Node, name)
            await asyncio.sleep(self.rng.choice((0.0, 3.0)))
            await self.world.node(name)

    async def check_settled(self) -> None:
        """Every status tells what is so."""
        pods = (await self.world.api.list(Pod)).items
        now_s = self.world.clock.now()
        for each in (await self.world.api.list(Reservation)).items:
            if each.status.phase != "Available":
                # The last look was at most an interval ago.
                continue
            end_s = self.witness.end_s(each)
            assert end_s is None or now_s <= end_s + 20.0, f"{each.key} should have expired"
            using = [pod for pod in pods if _uses(pod, each)]
            is_once = each.spec.allocate_once is not False
            assert not (is_once and using), f"{each.key} is used up"
            alive = [pod for pod in using if pod.status.phase not in ("Succeeded", "Failed")]
            reported = sorted(owner.name for owner in each.status.current_owners)
            assert reported == sorted(pod.metadata.name for pod in alive), each.key
            assert each.status.allocated.get("cpu", "0") == str(len(alive)), each.status


def _uses(pod: Pod, reservation: Reservation) -> bool:
    allocated = RESERVATION_ALLOCATED.read(pod.metadata.annotations, pod.key)
    is_named = allocated is not None and allocated.uid == reservation.metadata.uid
    return is_named and pod.spec.node_name == reservation.status.node_name


async def live(seed: int) -> dict[str, int]:
    """A whole life; how many reservations ended how."""
    life = Life(seed)
    await life.world.serve()
    for name in NODES:
        await life.world.node(name)
    loop = asyncio.get_running_loop()
    watching = asyncio.create_task(life.witness.watch())
    running = asyncio.create_task(life.schedulers())
    try:
        until_s = loop.time() + UNREST_S
        while loop.time() < until_s:
            await life.act()
            await asyncio.sleep(life.rng.uniform(0.0, 1.5))
        life.faulty.heal()
        await asyncio.sleep(SETTLE_S)
        await life.check_settled()
        if watching.done():
            watching.result()
    finally:
        for task in (running, watching):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
    return life.witness.ends


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Injected failures are logged by the thousand."""
    caplog.set_level(logging.CRITICAL)


def test_phases_only_go_forward_and_nothing_ends_before_its_time() -> None:
    ends: dict[str, int] = {}
    for seed in range(6):
        for phase, count in virtual_loop.run(live(seed)).items():
            ends[phase] = ends.get(phase, 0) + count
    assert ends["Succeeded"] > 10 and ends["Failed"] > 10, "the lives are worth looking at"
