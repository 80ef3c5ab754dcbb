"""Plays scheduler and kubelets for tests: pods get a node, start, become ready, end, and die when told."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from koordinator import clock
from koordinator.api.core import Pod
from koordinator.cluster import errors
from tests.local.controllers.world import World


class Fate(msgspec.Struct, frozen=True):
    """What becomes of a pod: ready after `ready_s` (None: never), then ended after `run_s` (None: never)."""

    ready_s: float | None = 1.0
    run_s: float | None = None
    exit_code: int = 0
    stop_s: float = 1.0


class FakeKubelet:
    """`fate_of` decides about each pod when it is first seen. `nodes` are handed out in turn."""

    def __init__(
        self,
        world: World,
        fate_of: Callable[[Pod], Fate] = lambda _: Fate(),
        nodes: tuple[str, ...] = ("n0", "n1", "n2"),
    ) -> None:
        self._world = world
        self._fate_of = fate_of
        self._nodes = nodes
        self._count = 0
        self._seen: dict[str, Fate] = {}
        self._stopping: set[str] = set()
        self._queue: asyncio.Queue[Callable[[], Any]] = asyncio.Queue()
        self._pods = world.factory.informer(Pod)
        self._pods.add_handler(self._on_pod, lambda _, pod: self._on_pod(pod))

    async def run(self) -> None:
        while True:
            action = await self._queue.get()
            try:
                await action()
            except (errors.NotFound, errors.Conflict):
                continue

    def _on_pod(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        if uid not in self._seen:
            self._seen[uid] = fate = self._fate_of(pod)
            self._queue.put_nowait(lambda: self._place(pod))
            if fate.ready_s is not None:
                self._later(fate.ready_s, lambda: self.set_ready(pod))
                if fate.run_s is not None:
                    end_s = fate.ready_s + fate.run_s
                    self._later(end_s, lambda: self.end(pod, fate.exit_code))
        if pod.metadata.deletion_timestamp is not None and uid not in self._stopping:
            self._stopping.add(uid)
            self._later(self._seen[uid].stop_s, lambda: self._remove(pod))

    def _later(self, delay_s: float, action: Callable[[], Any]) -> None:
        asyncio.get_running_loop().call_later(delay_s, self._queue.put_nowait, action)

    async def _place(self, pod: Pod) -> None:
        if pod.spec.node_name:
            return
        node = pinned_node(pod) or self._nodes[self._count % len(self._nodes)]
        self._count += 1
        await self._world.cluster.bind(pod.metadata.namespace, pod.metadata.name, node, uid=pod.metadata.uid)

    async def set_ready(self, pod: Pod, ready: bool = True) -> None:
        now = clock.rfc3339(self._world.cluster.clock.now())
        condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": now}
        await self._status(pod, {"phase": "Running", "startTime": now, "conditions": [condition]})

    async def end(self, pod: Pod, exit_code: int = 0, **more: Any) -> None:
        now = clock.rfc3339(self._world.cluster.clock.now())
        done = {"exitCode": exit_code, "finishedAt": now}
        container = {"name": "c", "state": {"terminated": done}}
        phase = "Failed" if exit_code else "Succeeded"
        conditions = [{"type": "Ready", "status": "False", "lastTransitionTime": now}]
        conditions += more.pop("conditions", [])
        await self._status(
            pod, {"phase": phase, "conditions": conditions, "containerStatuses": [container], **more}
        )

    async def _status(self, pod: Pod, status: dict[str, Any]) -> None:
        meta = pod.metadata
        fresh = await self._world.cluster.get(Pod, meta.name, meta.namespace)
        if fresh.metadata.uid != meta.uid or fresh.status.phase in ("Succeeded", "Failed"):
            return
        patch = {"metadata": {"uid": meta.uid}, "status": status}
        await self._world.cluster.patch(Pod, meta.name, patch, meta.namespace, subresource="status")

    async def _remove(self, pod: Pod) -> None:
        meta = pod.metadata
        await self._world.cluster.delete(Pod, meta.name, meta.namespace, uid=meta.uid, grace_period_s=0)


def pinned_node(pod: Pod) -> str:
    """The node that a daemon pod's affinity names."""
    affinity = pod.spec.affinity
    node = affinity.node_affinity if affinity is not None else None
    required = node.required_during_scheduling_ignored_during_execution if node is not None else None
    for term in required.node_selector_terms if required is not None else []:
        for field in term.match_fields:
            if field.key == "metadata.name":
                return field.values[0]
    return ""
