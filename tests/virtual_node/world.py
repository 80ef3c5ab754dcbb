"""Two clusters in this process under virtual time: a lender with nodes, agents and a scheduler of its own, and a
borrower whose pods are bound by hand. Between them runs what is tested."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from koordinator import clock as clocks
from koordinator.api.core import Namespace, Node, Pod
from koordinator.api.groups import PriorityClass
from koordinator.api.meta import Object
from koordinator.api.node_metric import NodeMetric
from koordinator.cluster import errors
from koordinator.cluster.leader import LeaderElector
from koordinator.cluster.memory import MemoryCluster
from koordinator.cluster.protocol import Cluster
from koordinator.cluster.supervise import strictly
from koordinator.local import cluster as local
from koordinator.local import registry
from koordinator.simulate import virtual_time
from koordinator.virtual_node.objects import PodDocument
from koordinator.virtual_node.virtual_node import VirtualNodeConfig, VirtualNodes, identity_of

Json = dict[str, Any]

LOOK_S = 0.5
REPORT_S = 60.0
NODE = "tidal-web"
LENT = "tidal-web"
"""The namespace of lent pods, for a lender that calls itself `web`."""


class Side:
    """One cluster with what stands for kubelets: pods on its nodes run, and end when they are deleted."""

    def __init__(self, cluster: MemoryCluster, backend: Any) -> None:
        self.cluster = cluster
        self.backend = backend
        self.on_evicted: Callable[[], Any] = lambda: None
        """Called when a kubelet first sees that a pod was deleted."""
        self.started: dict[str, int] = {}
        """How often each pod was started, by its uid."""

    async def add_node(self, name: str, cpu: int = 32, memory: str = "128Gi", **marks: str) -> None:
        allocatable = {"cpu": str(cpu), "memory": memory, "pods": "110"}
        status = {"allocatable": allocatable, "capacity": allocatable}
        ready = [{"type": "Ready", "status": "True"}]
        body = {"metadata": {"name": name, "labels": marks}, "status": {**status, "conditions": ready}}
        await self.cluster.create(Node, body)

    async def pods(self, namespace: str = "") -> dict[str, PodDocument]:
        found = await self.cluster.list(PodDocument, namespace)
        return {one.metadata.name: one for one in found.items}

    async def tell(self, view: type[Object], obj: Object, status: Json) -> None:
        meta = obj.metadata
        await self.cluster.patch(view, meta.name, {"status": status}, meta.namespace, subresource="status")

    async def run_pods(self, is_node: Callable[[str], bool]) -> None:
        """One look of all kubelets."""
        for pod in (await self.cluster.list(Pod)).items:
            if not pod.spec.node_name or not is_node(pod.spec.node_name):
                continue
            with contextlib.suppress(errors.NotFound, errors.Conflict):
                if pod.metadata.deletion_timestamp:
                    self.on_evicted()
                    await self.cluster.delete(
                        Pod, pod.metadata.name, pod.metadata.namespace, grace_period_s=0
                    )
                elif pod.status.phase in ("", "Pending"):
                    self.started[pod.metadata.uid] = self.started.get(pod.metadata.uid, 0) + 1
                    await self.tell(Pod, pod, running(pod))


def running(pod: Pod) -> Json:
    states = [
        {"name": one.name, "ready": True, "image": one.image, "imageID": "", "restartCount": 0}
        | {"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
        for one in pod.spec.containers
    ]
    ready = [{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady")]
    kept = [{"type": one.type, "status": one.status} for one in pod.status.conditions]
    conditions = ready + [one for one in kept if one["type"] not in ("Ready", "ContainersReady")]
    return {"phase": "Running", "conditions": conditions, "containerStatuses": states, "podIP": "10.0.0.7"}


class World:
    """What a scenario may touch. `usage` is what the lender's nodes use besides borrowed pods, in milli-cores."""

    def __init__(self, lender: Side, borrower: Side, seed: int = 0) -> None:
        self.lender, self.borrower = lender, borrower
        self.usage: dict[str, int] = {}
        self.lent_usage = 1_000
        self.schedules = True
        self.places = True
        """Whether the lender's scheduler places borrowed pods."""
        self.kubelets = True
        self.silent: set[str] = set()
        """Nodes whose agents report nothing."""
        self.rng = random.Random(seed)

    @contextlib.asynccontextmanager
    async def lending(
        self,
        lender: Cluster | None = None,
        borrower: Cluster | None = None,
        *,
        election: LeaderElector | None = None,
        **options: Any,
    ) -> AsyncIterator[VirtualNodes]:
        """A running process, until the end of the block."""
        config = VirtualNodeConfig(source="web", **options)
        made = VirtualNodes(
            lender or self.lender.cluster,
            borrower or self.borrower.cluster,
            config,
            borrower_uid=await identity_of(self.borrower.cluster),
            rng=random.Random(self.rng.getrandbits(32)),
        )
        task = asyncio.create_task(made.run(election))
        try:
            while not made.synced.is_set() and not task.done():  # noqa: ASYNC110 (time is virtual)
                await asyncio.sleep(0.1)
            yield made
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

    async def borrow(
        self, name: str, cpu: str = "4", node: str = NODE, *, bind: bool = True, **spec: Any
    ) -> PodDocument:
        """A borrower's pod that its scheduler has bound to the virtual node."""
        body = pod_body(name, cpu, **spec)
        made = await self.borrower.cluster.create(PodDocument, body, "default")
        if bind:
            await self.borrower.cluster.bind("default", name, node)
        return made

    def now_s(self) -> float:
        return self.lender.cluster.clock.now()

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def gone(self, name: str, within_s: float = 60.0) -> None:
        """Until the borrower has no such pod."""

        async def holds() -> bool:
            return name not in await self.borrower.pods("default")

        await self.until(holds, within_s)

    async def nothing_lent(self, within_s: float = 60.0) -> None:
        async def holds() -> bool:
            return not await self.lender.pods(LENT)

        await self.until(holds, within_s)

    async def ready(self, state: str) -> None:
        """Until the virtual node's condition Ready has this status."""

        async def holds() -> bool:
            conditions = (await self.node()).status.conditions
            return [one.status for one in conditions if one.type == "Ready"] == [state]

        await self.until(holds)

    async def has_nodes(self, *names: str) -> bool:
        """Whether the borrower has these virtual nodes, each with something to offer."""
        found = {one.metadata.name: one for one in (await self.borrower.cluster.list(Node)).items}
        return all(name in found and found[name].status.allocatable.get("cpu", "0") != "0" for name in names)

    async def are(self, things: list[Any]) -> bool:
        return bool(things)

    def allocatable_now(self) -> str:
        """The CPU that the virtual node tells at this moment."""
        node = self.borrower.backend.store.table("nodes").get("", NODE)
        return str(node.obj["status"]["allocatable"]["cpu"])

    async def online(self, name: str, cpu: str, node: str = "", **spec: Any) -> None:
        """An online pod of the lender; bound where a node is given."""
        body = pod_body(name, cpu, priorityClassName="koord-prod", **spec)
        await self.lender.cluster.create(PodDocument, body, "default")
        if node:
            await self.lender.cluster.bind("default", name, node)

    async def borrowed(self, name: str) -> PodDocument:
        return await self.borrower.cluster.get(PodDocument, name, "default")

    async def node(self, name: str = NODE) -> Node:
        return await self.borrower.cluster.get(Node, name)

    async def until(self, holds: Callable[[], Awaitable[Any]], within_s: float = 60.0) -> None:
        async with asyncio.timeout(within_s):
            while True:
                with contextlib.suppress(errors.NotFound):
                    if await holds():
                        return
                await asyncio.sleep(LOOK_S)

    async def phase(self, name: str, phase: str, reason: str = "", within_s: float = 60.0) -> PodDocument:
        """The borrower's pod, once it is in this phase."""

        async def holds() -> bool:
            pod = await self.borrowed(name)
            return pod.phase == phase and pod.status.get("reason", "") == reason

        await self.until(holds, within_s)
        return await self.borrowed(name)

    async def offers(self, cpu: str, within_s: float = 60.0) -> None:
        """Until the virtual node has so much CPU."""

        async def holds() -> bool:
            return (await self.node()).status.allocatable.get("cpu") == cpu

        await self.until(holds, within_s)

    # What the lender's own components do

    async def play(self) -> None:
        """Schedulers and kubelets, for ever."""
        while True:
            if self.schedules:
                await self._schedule()
            if self.kubelets:
                await self.lender.run_pods(lambda _: True)
            await asyncio.sleep(LOOK_S)

    async def _schedule(self) -> None:
        """Bind pods to the one node that they insist on; tell others that there is no place, unless there is."""
        nodes = {one.metadata.name: one for one in (await self.lender.cluster.list(Node)).items}
        pods = (await self.lender.cluster.list(Pod)).items
        for pod in pods:
            if (
                pod.spec.node_name
                or pod.metadata.deletion_timestamp
                or pod.status.phase not in ("", "Pending")
            ):
                continue
            wanted = node_of(pod)
            if wanted and not self.places:
                wanted = "none"
            for name in [wanted] if wanted else sorted(nodes):
                selector = pod.spec.node_selector.items()
                if name in nodes and not selector <= nodes[name].metadata.labels.items():
                    continue
                used = sum(cpu_of(one) for one in pods if one.spec.node_name == name and lives(one))
                if name in nodes and used + cpu_of(pod) <= 1000 * int(nodes[name].status.allocatable["cpu"]):
                    with contextlib.suppress(errors.ApiError):
                        await self.lender.cluster.bind(pod.metadata.namespace, pod.metadata.name, name)
                    break
            else:
                no = {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": "0/2 nodes",
                }
                if not pod.status.conditions:
                    await self.lender.tell(Pod, pod, {"conditions": [no]})
            pods = (await self.lender.cluster.list(Pod)).items

    async def report(self) -> None:
        """Agents, for ever: each minute what their nodes use."""
        while True:
            for node in (await self.lender.cluster.list(Node)).items:
                if node.metadata.name not in self.silent:
                    await self._report(node.metadata.name)
            await asyncio.sleep(REPORT_S)

    async def _report(self, name: str) -> None:
        used = {"web-0": self.usage.get(name, 100)}
        for pod in (await self.lender.cluster.list(Pod, LENT)).items:
            if pod.spec.node_name == name and pod.status.phase == "Running":
                used[pod.metadata.name] = self.lent_usage
        total = {"resources": {"cpu": f"{sum(used.values())}m", "memory": "1Gi"}}
        status = {
            "updateTime": clocks.rfc3339(self.lender.cluster.clock.now()),
            "nodeMetric": {
                "nodeUsage": total,
                "aggregatedNodeUsages": [{"duration": "10m0s", "usage": {"p95": total}}],
            },
            "podsMetric": [
                {"name": pod, "namespace": LENT, "podUsage": {"resources": {"cpu": f"{milli}m"}}}
                for pod, milli in used.items()
                if pod != "web-0"
            ],
        }
        try:
            await self.lender.cluster.patch(NodeMetric, name, {"status": status}, subresource="status")
        except errors.NotFound:
            with contextlib.suppress(errors.AlreadyExists):
                await self.lender.cluster.create(NodeMetric, {"metadata": {"name": name}, "spec": {}})
            await self.lender.cluster.patch(NodeMetric, name, {"status": status}, subresource="status")


def pod_body(name: str, cpu: str, **spec: Any) -> Json:
    resources = {"requests": {"cpu": cpu, "memory": "1Gi"}}
    containers = [{"name": "main", "image": "job", "resources": resources, **spec.pop("container", {})}]
    return {"metadata": {"name": name}, "spec": {"restartPolicy": "Never", "containers": containers, **spec}}


def node_of(pod: Pod) -> str:
    """The node that the pod insists on; empty for any."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    return required.node_selector_terms[0].match_fields[0].values[0] if required is not None else ""


def cpu_of(pod: Pod) -> int:
    return sum(1000 * int(one.resources.requests.get("cpu", 0)) for one in pod.spec.containers)


def lives(pod: Pod) -> bool:
    return pod.status.phase not in ("Succeeded", "Failed")


def run(scenario: Callable[[World], Awaitable[None]], seed: int = 0) -> None:
    """Run a scenario to its end; unexpected errors fail the test."""

    async def main(clock: clocks.LoopClock) -> None:
        sides = []
        for number in range(2):
            backend = registry.in_memory(clock, checks=False, seed=seed + number)
            cluster = MemoryCluster(backend)
            await local.install(cluster)
            with contextlib.suppress(errors.AlreadyExists):
                await cluster.create(Namespace, {"metadata": {"name": "kube-system"}})
            await cluster.create(PriorityClass, {"metadata": {"name": "system"}, "value": 1})
            sides.append(Side(cluster, backend))
        world = World(*sides, seed=seed)
        for name in ("n0", "n1"):
            await world.lender.add_node(name)
        with strictly():
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(world.play()), group.create_task(world.report())]
                await scenario(world)
                for task in tasks:
                    task.cancel()

    virtual_time.run_virtual(main)
