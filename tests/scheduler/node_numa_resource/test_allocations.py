"""How: nodes, reports and pods come, change and go in a drawn order, pods are placed in between; after each step the
books must be those of a scheduler that starts anew from the objects, and no CPU may be in two pods."""

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.scheduler.engine.results import Placed
from koordinator.scheduler.table.trial import trial_of
from tests.scheduler.node_numa_resource.cluster import (
    Cluster,
    Json,
    books_of,
    bound_to,
    cpus_of,
    node,
    numa_of,
    pod,
    report,
)

NAMES = ("a", "b")
RESERVED = {"node.koordinator.sh/reservation": '{"reservedCPUs":"0-1,8"}'}
REPORT = {name: report(name, annotations=RESERVED, memory_gi=8) for name in NAMES}
STEPS = ("place", "place", "place", "finish", "node", "report", "trial", "unreserve", "strip", "stale")


class Objects:
    """What an API would hold, and the scheduler that follows it."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.nodes: set[str] = set()
        self.reports: set[str] = set()
        self.bound: dict[str, Json] = {}
        self.count = 0

    def rebuilt(self) -> Cluster:
        """Another scheduler that sees pods first, reports next and nodes last."""
        fresh = Cluster()
        for body in self.bound.values():
            fresh.assign(body)
        for name in sorted(self.reports):
            fresh.set_report(REPORT[name])
        for name in sorted(self.nodes, reverse=True):
            fresh.set_node(node(name, cpus=16))
        return fresh

    async def step(self, what: str, number: int, kind: Json) -> None:
        name = NAMES[number % len(NAMES)]
        await getattr(self, f"_{what}")(name, number, kind)

    async def _place(self, name: str, number: int, kind: Json) -> None:
        self.count += 1
        body = pod(f"p{self.count}", **kind)
        if isinstance(self.cluster.run(body), Placed):
            info = self.cluster.table.place_of(body["metadata"]["uid"])
            assert info is not None
            node_name = self.cluster.table.name_of(info.row)
            bound = bound_to(body, node_name, await self.cluster.written(info.pod, node_name))
            self.cluster.assign(bound)
            self.bound[body["metadata"]["uid"]] = bound

    async def _unreserve(self, name: str, number: int, kind: Json) -> None:
        placed = self.cluster.run(pod("gives-up", **kind))
        if isinstance(placed, Placed):
            self.cluster.engine.cycle.forget(
                self.cluster.profile, placed.pod, placed.evaluation, placed.node_name
            )

    async def _finish(self, name: str, number: int, kind: Json) -> None:
        if self.bound:
            uid = sorted(self.bound)[number % len(self.bound)]
            del self.bound[uid]
            self.cluster.table.unassign(uid)

    async def _strip(self, name: str, number: int, kind: Json) -> None:
        """Somebody takes a pod's annotations away."""
        if self.bound:
            uid = sorted(self.bound)[number % len(self.bound)]
            body = self.bound[uid]
            stripped = {**body, "metadata": {**body["metadata"], "annotations": {}}}
            self.bound[uid] = stripped
            self.cluster.assign(stripped)

    async def _stale(self, name: str, number: int, kind: Json) -> None:
        """An event of a pod as it is already."""
        for body in list(self.bound.values()):
            self.cluster.assign(body)

    async def _node(self, name: str, number: int, kind: Json) -> None:
        if name in self.nodes:
            self.nodes.remove(name)
            self.cluster.table.remove_node(name)
        else:
            self.nodes.add(name)
            self.cluster.set_node(node(name, cpus=16))

    async def _report(self, name: str, number: int, kind: Json) -> None:
        if name in self.reports:
            self.reports.remove(name)
            self.cluster.remove_report(REPORT[name])
        else:
            self.reports.add(name)
            self.cluster.set_report(REPORT[name])

    async def _trial(self, name: str, number: int, kind: Json) -> None:
        table = self.cluster.table
        row = table.row_of(name)
        if row is None:
            return
        pods = list(table.pods_at(row).values())
        with trial_of(table) as trial:
            for info in pods:
                trial.take(info)
            for info in pods[: number % (len(pods) + 1)]:
                trial.add(info, name)

    def check_books(self) -> None:
        assert books_of(self.cluster) == books_of(self.rebuilt())

    def check_cpus(self) -> None:
        for name in NAMES:
            here = [body for body in self.bound.values() if body["spec"]["nodeName"] == name]
            bound = [cpu for body in here for cpu in cpus_of(body)]
            assert len(bound) == len(set(bound))
            assert not set(bound) & {0, 1, 8}
            for numa, capacity_milli in ((0, 6_000), (1, 7_000)):
                parts = [numa_of(body).get(numa, {}) for body in here]
                assert sum(milli(part.get("cpu", "0")) for part in parts) <= capacity_milli


def milli(text: Any) -> int:
    return int(text[:-1]) if str(text).endswith("m") else 1_000 * int(text)


kinds = st.fixed_dictionaries(
    {
        "cpu": st.sampled_from(("1", "2", "4")),
        "qos": st.sampled_from(("", "LSR")),
        "numa": st.sampled_from(
            (None, {"numaTopologyPolicy": "SingleNUMANode"}, {"numaTopologyPolicy": "Restricted"})
        ),
        "spec": st.sampled_from((None, {"requiredCPUBindPolicy": "SpreadByPCPUs"})),
    }
)


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 7), kinds), max_size=20))
@settings(max_examples=60, deadline=None)
def test_the_books_are_those_of_a_scheduler_that_starts_anew(steps: list[tuple[str, int, Json]]) -> None:
    async def story() -> None:
        objects = Objects()
        for name in NAMES:
            await objects.step("node", NAMES.index(name), {})
            await objects.step("report", NAMES.index(name), {})
        for i, (what, number, kind) in enumerate(steps):
            await objects.step(what, number, kind)
            objects.check_cpus()
            if i % 5 == 4:
                objects.check_books()
        objects.check_books()

    asyncio.run(story())
