"""Whole lives of reservations and of pods with and without one, under random faults and restarts of the scheduler.

Nodes come and go, pods outlive them, and Reservations are placed onto pods that leave.

At every step, by what the API says: reserved room is used by no stranger, and a reservation for one owner is given to
one pod ever. When all is quiet, whoever waits fits nowhere, and the books are those of a scheduler that starts anew.
"""

import asyncio
import contextlib
import logging
import random

import pytest

from koordinator.api.core import Node, Pod
from koordinator.api.quantity import milli
from koordinator.api.reservation import RESERVATION_ALLOCATED, Reservation
from koordinator.cluster import errors
from koordinator.scheduler.plugins.reservation.ledger import ReservationLedger
from koordinator.scheduler.scheduler import Scheduler
from tests.cluster import virtual_loop
from tests.cluster.faulty_cluster import Faults, FaultyCluster
from tests.scheduler.reservation.reservation_world import Json, ReservationWorld, scheduler
from tests.scheduler.world import node, pod

NODES, NODE_MILLI = 3, 4_000
APPS = ("red", "blue")
UNREST_S, SETTLE_S = 25.0, 700.0
PRE_ALLOCATING = {"preAllocation": True, "allocatePolicy": "Restricted"}
ONTO_SEVERAL = {
    **PRE_ALLOCATING,
    "allocateOnce": False,
    "preAllocationPolicy": {"mode": "Default", "enableMultiple": True},
}


def owned(name: str, app: str, cpu_milli: int) -> Json:
    body = pod(name, cpu=f"{cpu_milli}m", memory=None)
    body["metadata"]["labels"] = {"app": app}
    return body


def used_by(found: Pod) -> str:
    allocated = RESERVATION_ALLOCATED.read(found.metadata.annotations, found.key)
    return allocated.uid if allocated is not None else ""


def asks_milli(found: Pod) -> int:
    return milli(found.spec.containers[0].resources.requests["cpu"])


def held_milli(pods: list[Pod], rooms: dict[str, Reservation]) -> dict[str, int]:
    """What each node holds: plain pods, and of each reservation what it reserves or its owners use, if that is more."""
    held: dict[str, int] = {}
    inside: dict[str, int] = {}
    for each in pods:
        node_name, room = each.spec.node_name, rooms.get(used_by(each))
        if not node_name or each.status.phase in ("Succeeded", "Failed"):
            continue
        if room is not None and room.status.phase == "Available" and room.status.node_name == node_name:
            inside[room.metadata.uid] = inside.get(room.metadata.uid, 0) + asks_milli(each)
        else:
            held[node_name] = held.get(node_name, 0) + asks_milli(each)
    for uid, room in rooms.items():
        if room.status.phase != "Available":
            continue
        amount, used = milli(room.status.allocatable["cpu"]), inside.get(uid, 0)
        is_kept = room.spec.allocate_policy != "Restricted" or used <= amount
        assert is_kept, f"{room.key} gives more than it holds"
        held[room.status.node_name] = held.get(room.status.node_name, 0) + max(amount, used)
    return held


class Life:
    """A cluster, its users, and one scheduler after the other."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = ReservationWorld()
        faults = Faults.drawn(self.rng)
        self.faulty = FaultyCluster(self.world.api, faults, random.Random(self.rng.getrandbits(64)))
        self.scheduler: Scheduler | None = None
        self._numbers = iter(range(10_000))
        self.used: dict[str, set[str]] = {}
        """Reservations that had an owner, with those that are there or have ended."""
        self.deleted: set[str] = set()
        """Pods that were taken away: after a restart nobody can know of them."""

    async def schedulers(self) -> None:
        while True:
            self.scheduler = scheduler(self.faulty)
            running = asyncio.create_task(self.scheduler.run())
            try:
                await asyncio.sleep(self.rng.choice((0.3, 3.0, 10.0, 10_000.0)))
            finally:
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await running

    # Users

    async def act(self) -> None:
        acts = (
            self._reserve,
            self._reserve,
            self._create,
            self._create,
            self._create,
            self._delete,
            self._finish,
            self._turn_node,
        )
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await self.rng.choice((*acts, self._withdraw))()

    async def _reserve(self) -> None:
        app = self.rng.choice(APPS)
        spec = {
            "allocateOnce": self.rng.choice((True, False)),
            "owners": [{"labelSelector": {"matchLabels": {"app": app}}}],
            "allocatePolicy": self.rng.choice(("Aligned", "Restricted")),
            "ttl": self.rng.choice(("5s", "0s")),
            **self.rng.choice(({}, PRE_ALLOCATING, ONTO_SEVERAL)),
        }
        cpu = f"{self.rng.choice((500, 1_000, 2_000))}m"
        containers = [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]
        template = {"spec": {"schedulerName": "koord-scheduler", "containers": containers}}
        name = f"{app}-{next(self._numbers)}"
        await self.world.api.create(
            Reservation, {"metadata": {"name": name}, "spec": {"template": template, **spec}}
        )

    async def _create(self) -> None:
        app = self.rng.choice((*APPS, "stranger"))
        body = owned(f"p{next(self._numbers)}", app, self.rng.choice((500, 1_000, 1_500)))
        await self.world.api.create(Pod, body, "default")

    async def _delete(self) -> None:
        for found in self._some(await self._pods()):
            self.deleted.add(found.metadata.uid)
            await self.world.delete_pod(found.metadata.name)

    async def _finish(self) -> None:
        for found in self._some(await self._pods()):
            if found.spec.node_name:
                await self.world.end(found.metadata.name)

    async def _withdraw(self) -> None:
        for found in self._some((await self.world.api.list(Reservation)).items):
            await self.world.api.delete(Reservation, found.metadata.name)

    async def _turn_node(self) -> None:
        """A node is gone for a while; what the API has of it stays."""
        name = f"node-{self.rng.randrange(NODES)}"
        if any(each.metadata.name == name for each in (await self.world.api.list(Node)).items):
            await self.world.api.delete(Node, name)
        else:
            await self.add_node(name)

    async def add_node(self, name: str) -> None:
        await self.world.api.create(Node, node(name, cpu=f"{NODE_MILLI}m"))

    def _some(self, found: list) -> list:  # type: ignore[type-arg]
        return [self.rng.choice(found)] if found else []

    async def _pods(self) -> list[Pod]:
        return (await self.world.api.list(Pod)).items

    # What must hold

    async def check_step(self) -> None:
        """At any time: no node is over-committed, what is reserved on it included."""
        pods = await self._pods()
        rooms = {each.metadata.uid: each for each in (await self.world.api.list(Reservation)).items}
        self._check_owners(pods, rooms)
        held = held_milli(pods, rooms)
        assert all(amount <= NODE_MILLI for amount in held.values()), held

    def _check_owners(self, pods: list[Pod], rooms: dict[str, Reservation]) -> None:
        """Owners use their own, and one that is for a single owner has one ever."""
        for each in pods:
            uid = used_by(each) if each.spec.node_name else ""
            if not uid:
                continue
            if (room := rooms.get(uid)) is not None and room.status.node_name:
                self.used.setdefault(uid, set()).add(each.metadata.uid)
                wanted = room.spec.owners[0].label_selector
                assert wanted is not None and wanted.match_labels["app"] == each.metadata.labels["app"]
        for uid, room in rooms.items():
            users = self.used.get(uid, set()) - self.deleted
            is_shared = room.spec.allocate_once is False
            assert is_shared or len(users) <= 1, f"{room.key} was given to {users}"

    async def check_settled(self) -> None:
        """Once all is quiet: whoever waits fits nowhere."""
        await self.check_step()
        pods = await self._pods()
        rooms = {each.metadata.uid: each for each in (await self.world.api.list(Reservation)).items}
        held = held_milli(pods, rooms)
        nodes = (await self.world.api.list(Node)).items
        most = max(NODE_MILLI - held.get(each.metadata.name, 0) for each in nodes)
        for each in pods:
            if not each.spec.node_name:
                assert asks_milli(each) > most, (
                    f"{each.key} asks for {asks_milli(each)} and would fit: {held}"
                )
                for room in rooms.values():
                    left = milli(room.status.allocatable.get("cpu", "0")) - milli(
                        room.status.allocated.get("cpu", "0")
                    )
                    is_for_it = room.metadata.name.startswith(each.metadata.labels["app"])
                    can_use = room.status.phase == "Available" and is_for_it
                    assert not can_use or asks_milli(each) > left, f"{each.key} could use {room.key}"
        for each in pods:
            used, on = rooms.get(used_by(each)), each.spec.node_name
            assert not on or used is None or used.status.node_name == on, f"{each.key} names {used}"
        for room in rooms.values():
            if room.status.phase in ("", "Pending"):
                containers = room.spec.template["spec"]["containers"]
                wanted = milli(containers[0]["resources"]["requests"]["cpu"])
                assert wanted > most, f"{room.key} asks for {wanted} and would fit: {held}"
                if room.spec.pre_allocation:
                    names = {each.metadata.name for each in nodes}
                    for each in pods:
                        self._check_left_alone(room, wanted, each, held, names)

    def _check_left_alone(
        self, room: Reservation, wanted: int, pod: Pod, held: dict[str, int], nodes: set[str]
    ) -> None:
        """A Reservation that waits could not be placed onto a pod."""
        on, asks = pod.spec.node_name, asks_milli(pod)
        is_for_it = room.metadata.name.startswith(pod.metadata.labels["app"])
        is_candidate = on in nodes and is_for_it and used_by(pod) in ("", room.metadata.uid)
        if is_candidate and pod.status.phase not in ("Succeeded", "Failed") and asks <= wanted:
            assert NODE_MILLI - held[on] + asks < wanted, f"{room.key} would fit when {pod.key} leaves"

    def books(self) -> Json:
        """What the scheduler that runs counts on each node, and in each reservation."""
        assert self.scheduler is not None
        table = self.scheduler.table
        counted = {table.name_of(row): int(table.requested[0, row]) for row in table.rows.tolist()}
        ledger = table.shared(ReservationLedger)
        rooms = {
            record.name: (sorted(owner.key for owner in record.owners.values()), dict(record.allocated))
            for row in table.rows.tolist()
            for record in ledger.at(row)
        }
        return {"nodes": counted, "rooms": rooms}


async def live(seed: int) -> int:
    """A whole life; how many reservations were used."""
    life = Life(seed)
    await life.world.serve(nodes=False)
    for number in range(NODES):
        await life.add_node(f"node-{number}")
    running = asyncio.create_task(life.schedulers(), name="schedulers")
    loop = asyncio.get_running_loop()
    try:
        until_s = loop.time() + UNREST_S
        while loop.time() < until_s:
            await life.act()
            await life.check_step()
            await asyncio.sleep(life.rng.uniform(0.0, 0.3))
            await life.check_step()
        life.faulty.heal()
        there = {each.metadata.name for each in (await life.world.api.list(Node)).items}
        for name in sorted({f"node-{number}" for number in range(NODES)} - there):
            await life.add_node(name)
        await asyncio.sleep(SETTLE_S)
        await life.check_settled()
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    await check_books(life)
    return len(life.used)


async def check_books(life: Life) -> None:
    """A scheduler that starts anew knows all from the objects, and has nothing to do."""
    kept = life.books()
    running = asyncio.create_task(life.schedulers())
    await asyncio.sleep(0.2)
    assert life.books() == kept
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Injected failures are logged by the thousand."""
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize("seed", (0, 1, 2, 42))
def test_reserved_room_is_given_once_and_to_its_owners_whatever_the_api_does(seed: int) -> None:
    assert virtual_loop.run(live(seed)) > 3
