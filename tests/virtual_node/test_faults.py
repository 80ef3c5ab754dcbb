"""Whole lives of lending, drawn from a seed: requests and answers are lost, watches break, the process is killed at any
moment, and users and services on both sides do what they like meanwhile.

Safety holds at every moment: a borrower's pod is created in the lender at most once, and does not go from the borrower
before its containers have ended. Then the faults stop, and both clusters have to agree within minutes.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import numpy as np
import pytest

from koordinator.api.core import Node, Pod
from koordinator.cluster import errors
from koordinator.cluster.protocol import Cluster
from koordinator.cluster.write_through import ClusterWrite, WriteThrough
from koordinator.virtual_node import objects
from koordinator.virtual_node.objects import PodDocument
from koordinator.virtual_node.table import LenderTable
from koordinator.virtual_node.virtual_node import VirtualNodes
from tests.cluster.faulty_cluster import Faults, FaultyCluster
from tests.virtual_node.world import LENT, NODE, World, cpu_of, lives, run

R = TypeVar("R")

SEEDS = range(6)
LIVES = 4
LIFE_S = 240.0
SETTLED_S = 700.0


class Checked(WriteThrough):
    """One side's API with a witness: what got through, and what must not."""

    def __init__(self, inner: Cluster, world: World, *, is_lender: bool) -> None:
        super().__init__(inner)
        self._world, self._is_lender = world, is_lender
        self.created: dict[str, list[str]] = {}
        """Names that were created in the lender, by uid of the borrower's pod."""

    async def _send(self, write: ClusterWrite, effect: Callable[[], Awaitable[R]]) -> R:
        if write.kind == "Pod" and write.verb == "delete" and not self._is_lender:
            await self._ended_in_lender(write.namespace, write.name)
        body = dict(write.body) if isinstance(write.body, dict) else {}
        result = await effect()
        if write.kind == "Pod" and write.verb == "create":
            uid = body["metadata"]["annotations"]["tidal.scheduling.koordinator.sh/pod-uid"]
            self.created.setdefault(uid, []).append(body["metadata"]["name"])
            assert len(self.created[uid]) == 1, f"{uid} was created twice"
        return result

    async def _ended_in_lender(self, namespace: str, name: str) -> None:
        """A pod may go from the borrower only when the lender has none for it."""
        with contextlib.suppress(errors.NotFound):
            pod = await self._inner.get(PodDocument, name, namespace)
            lent = await self._world.lender.pods(LENT)
            assert pod.metadata.uid not in map(objects.borrowed_uid, lent.values()), name


class Life:
    """Users, services and a process that is killed now and then."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.faults = Faults.drawn(self.rng)
        self.lender = Checked(world.lender.cluster, world, is_lender=True)
        self.borrower = Checked(world.borrower.cluster, world, is_lender=False)
        self.number = 0
        self.ended: dict[str, str] = {}
        """Phases in which the borrower's pods ended, by uid: they stay so."""

    def faulty(self, inner: Cluster) -> FaultyCluster:
        return FaultyCluster(inner, self.faults, random.Random(self.rng.getrandbits(32)))

    async def one_life(self) -> None:
        """A process, from its start until it is killed."""
        sides = self.faulty(self.lender), self.faulty(self.borrower)
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self.world.lending(*sides))
            until_s = self.world.now_s() + self.rng.uniform(10.0, LIFE_S)
            while self.world.now_s() < until_s:
                await asyncio.sleep(self.rng.uniform(0.1, 8.0))
                with contextlib.suppress(errors.ApiError):
                    await self.rng.choice(self.deeds())()
                await self.check()
            for side in sides:  # as SIGKILL: nothing that it would do on the way out gets through
                side.misbehave(Faults(lost_before_ratio=1.0))

    def deeds(self) -> list[Callable[[], Awaitable[Any]]]:
        return [
            self.borrow,
            self.borrow,
            self.borrow,
            self.delete_borrowed,
            self.forget_borrowed,
            self.delete_lent,
            self.finish_lent,
            self.add_online,
            self.remove_online,
            self.change_usage,
            self.cordon,
            self.pause_kubelets,
            self.lose_virtual_node,
        ]

    async def borrow(self) -> None:
        self.number += 1
        await self.world.borrow(f"job-{self.number}", str(self.rng.choice((1, 2, 8, 20, 40))))

    async def any_borrowed(self) -> PodDocument | None:
        pods = list((await self.world.borrower.pods("default")).values())
        return self.rng.choice(pods) if pods else None

    async def any_lent(self) -> PodDocument | None:
        pods = list((await self.world.lender.pods(LENT)).values())
        return self.rng.choice(pods) if pods else None

    async def delete_borrowed(self) -> None:
        if (pod := await self.any_borrowed()) is not None:
            await self.world.borrower.cluster.delete(Pod, pod.metadata.name, "default")

    async def forget_borrowed(self) -> None:
        if (pod := await self.any_borrowed()) is not None:
            await self.world.borrower.cluster.delete(Pod, pod.metadata.name, "default", grace_period_s=0)

    async def delete_lent(self) -> None:
        if (pod := await self.any_lent()) is not None:
            grace_s = self.rng.choice((0, 30))
            await self.world.lender.cluster.delete(Pod, pod.metadata.name, LENT, grace_period_s=grace_s)

    async def finish_lent(self) -> None:
        if (pod := await self.any_lent()) is not None and pod.phase == "Running":
            phase = self.rng.choice(("Succeeded", "Failed"))
            await self.world.lender.tell(PodDocument, pod, {"phase": phase})

    async def add_online(self) -> None:
        self.number += 1
        await self.world.online(f"web-{self.number}", str(self.rng.choice((1, 4, 16, 30))))

    async def remove_online(self) -> None:
        pods = await self.world.lender.pods("default")
        if pods:
            name = self.rng.choice(sorted(pods))
            await self.world.lender.cluster.delete(Pod, name, "default", grace_period_s=0)

    async def change_usage(self) -> None:
        self.world.usage[self.rng.choice(("n0", "n1"))] = self.rng.choice((100, 4_000, 20_000))
        self.world.silent = set(self.rng.sample(("n0", "n1"), self.rng.choice((0, 0, 1))))

    async def cordon(self) -> None:
        name, state = self.rng.choice(("n0", "n1")), self.rng.choice((None, None, True))
        await self.world.lender.cluster.patch(Node, name, {"spec": {"unschedulable": state}})

    async def pause_kubelets(self) -> None:
        self.world.kubelets = self.rng.random() < 0.7

    async def lose_virtual_node(self) -> None:
        if self.rng.random() < 0.2:
            await self.world.borrower.cluster.delete(Node, NODE)

    async def check(self) -> None:
        """What has to hold at every moment."""
        for pod in (await self.world.borrower.pods("default")).values():
            before = self.ended.get(pod.metadata.uid)
            assert before in (None, pod.phase), f"{pod.key} was {before} and is {pod.phase}"
            if pod.has_ended:
                self.ended[pod.metadata.uid] = pod.phase

    async def settle(self) -> None:
        """From here on nothing fails, and nobody does anything new: both sides have to agree."""
        world = self.world
        world.kubelets, world.silent = True, set()
        world.usage = {}
        for name in ("n0", "n1"):
            await world.lender.cluster.patch(Node, name, {"spec": {"unschedulable": None}})
        async with world.lending(self.lender, self.borrower) as nodes:
            await world.pass_time(SETTLED_S)
            await self.check()
            await self.agree(nodes)
            for name in await world.borrower.pods("default"):
                await world.borrower.cluster.delete(Pod, name, "default")
            await world.nothing_lent()
            assert not await world.borrower.pods("default")

    async def agree(self, nodes: VirtualNodes) -> None:
        borrowed = {one.metadata.uid: one for one in (await self.world.borrower.pods("default")).values()}
        lent = {objects.borrowed_uid(one): one for one in (await self.world.lender.pods(LENT)).values()}
        for uid, pod in borrowed.items():
            assert not pod.is_deleted, pod.key
            if pod.phase == "Running":
                assert lent[uid].phase == "Running" and not lent[uid].is_deleted, pod.key
            elif not pod.has_ended:
                assert pod.status.get("reason") == "OutOfHole", (pod.key, pod.status)
                assert uid not in lent, pod.key
        for uid, pod in lent.items():
            assert uid in borrowed, pod.key
            assert pod.has_ended or borrowed[uid].phase == "Running", pod.key
        await self.books_are_right(nodes.table)

    async def books_are_right(self, table: LenderTable) -> None:
        for row, name in enumerate(table.names):
            on_it = [
                one
                for one in (await self.world.lender.cluster.list(Pod)).items
                if one.spec.node_name == name and lives(one)
            ]
            ours = sum(cpu_of(one) for one in on_it if one.metadata.namespace == LENT)
            assert table.lent[row, 0] == ours, name
            assert table.others[row, 0] == sum(map(cpu_of, on_it)) - ours + claimed(table, row), name
        assert (table.lent >= 0).all() and (table.others >= 0).all()


def claimed(table: LenderTable, row: int) -> int:
    """Milli-cores that are kept on a node for online pods without a place."""
    kept = [pod for uid, pod in table.waiting.items() if table.claimed_row(uid) == row]
    return int(np.sum([cpu_of(pod) for pod in kept]))


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_runs_twice_and_nothing_is_left_behind(seed: int) -> None:
    async def scenario(world: World) -> None:
        life = Life(world, seed)
        for _ in range(LIVES):
            await life.one_life()
        await life.settle()

    run(scenario, seed)
