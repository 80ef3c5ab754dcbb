"""Objects of which each node has exactly one of its name, which lives and dies with it (behaviour/manager 4, 11).

What such an object should say is the matter of its `Rules`; here are the caches, the queue and the writes.

A change of the configuration may mean another object for each of ten thousand nodes. `NodeSweep` compares nodes in
slices of a few milliseconds; only those that differ are queued, and only as fast as the queue empties: a node
that joins meanwhile waits for `WAITING_MAX` others at most, not for the whole cluster.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from koordinator.api.core import Node
from koordinator.api.meta import Object
from koordinator.cluster import errors
from koordinator.cluster.controller import Controller, WorkQueue
from koordinator.cluster.protocol import PatchType
from koordinator.cluster.supervise import Guard
from koordinator.manager.metrics import FAILED, SUCCEEDED
from koordinator.manager.parts import ManagerContext
from koordinator.prometheus import Counter

T = TypeVar("T", bound=Object)
R = TypeVar("R", bound=Object, contravariant=True)

WORKERS = 4
"""Writes at a time: enough to fill the API's limit of the manager, few enough to leave room for others."""
UNSEEN_TRIES_MAX = 3
"""An object that exists and does not come by watch so often does not fit its view: its spec is replaced."""


class ObjectUpdate(msgspec.Struct, frozen=True):
    """A patch of exactly what differs."""

    patch: Mapping[str, Any] | Sequence[Any]
    type: PatchType = PatchType.MERGE


class ObjectRules(Protocol[R]):
    """The rules for the object of a node."""

    def is_ready(self) -> bool:
        """Return whether a configuration is known; until then nothing is written."""

    def matters(self, old: Node, new: Node) -> bool:
        """Return whether a change of a node may change its object."""

    def spec(self, node: Node) -> dict[str, Any]:
        """Return the whole spec of an object that is not known, as JSON."""

    def update(self, node: Node, obj: R) -> ObjectUpdate | None:
        """Return what is to be written, None when the object says what it should."""

    def worked_out(self, node: Node, obj: R | None) -> None:
        """Count that the object of a node was worked out in a reconcile."""


class NodeObjects(Generic[T]):
    """Creates, corrects and deletes the objects of one kind.

    `reconciles` counts (status, reason); `noun` ends the reasons of writes, as in `createNodeSLO`.
    """

    def __init__(
        self,
        shared: ManagerContext,
        view: type[T],
        rules: ObjectRules[T],
        *,
        name: str,
        noun: str,
        reconciles: Counter,
    ) -> None:
        self._cluster = shared.cluster
        self._view = view
        self._rules = rules
        self._noun = noun
        self._reconciles = reconciles
        self._nodes = shared.factory.informer(Node)
        self._objects = shared.factory.informer(view)
        self._controller: Controller[str] = Controller(name, self._reconcile, workers=WORKERS)
        self.queue = self._controller.queue
        shared.metrics.queues.watch(name, self.queue)
        self.sweep = NodeSweep(self.queue, self._node_names, self._differs)
        self._nodes.add_handler(self._add, self._on_node, self._add)
        self._objects.add_handler(self._add, self._on_object, self._add)

    def _add(self, obj: Object) -> None:
        self.queue.add(obj.metadata.name)

    def _on_node(self, old: Node, new: Node) -> None:
        if old is new or self._rules.matters(old, new):
            self._add(new)

    def _on_object(self, old: T, new: T) -> None:
        if old.metadata.generation != new.metadata.generation or not new.metadata.generation:
            self._add(new)

    def _node_names(self) -> list[str]:
        return [name for _, name in self._nodes.objects]

    def _differs(self, name: str) -> bool:
        node, obj = self._nodes.get(name), self._objects.get(name)
        return node is not None and (obj is None or self._rules.update(node, obj) is not None)

    async def run(self) -> None:
        """Work until cancelled."""
        for informer in (self._nodes, self._objects):
            await informer.synced.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._controller.run(), name=self._controller.guard.name)
            group.create_task(self.sweep.run(), name=f"{self._controller.guard.name} sweep")

    async def _reconcile(self, name: str) -> None:
        try:
            await self._bring_about(name)
        finally:
            self.sweep.key_done()

    async def _bring_about(self, name: str) -> None:
        node, obj = self._nodes.get(name), self._objects.get(name)
        if node is None:
            if obj is not None:
                await self._delete(obj)
            return
        if not self._rules.is_ready():
            return  # every node is looked at again once a configuration is known
        self._rules.worked_out(node, obj)
        if obj is None:
            await self._create(name, node)
        elif update := self._rules.update(node, obj):
            patching = self._cluster.patch(self._view, name, update.patch, patch_type=update.type)
            await self._counted("update", patching)
        else:
            self._reconciles.inc(SUCCEEDED, "")

    async def _create(self, name: str, node: Node) -> None:
        spec = self._rules.spec(node)
        if self.queue.failures(name) >= UNSEEN_TRIES_MAX:
            patch = [{"op": "add", "path": "/spec", "value": spec}]
            patching = self._cluster.patch(self._view, name, patch, patch_type=PatchType.JSON)
            try:
                await self._counted("update", patching)
            except errors.NotFound:
                self.queue.forget(name)  # it did not exist: the next try creates it
                raise
            return
        await self._counted(
            "create", self._cluster.create(self._view, {"metadata": {"name": name}, "spec": spec})
        )

    async def _delete(self, obj: T) -> None:
        """Unless the node exists and merely cannot be read: the agent's reports would be lost with it."""
        name = obj.metadata.name
        try:
            await self._cluster.get(Node, name)
        except errors.NotFound:
            pass
        except errors.ApiError:
            self._reconciles.inc(FAILED, "reconcileNodeGetError")
            raise
        else:
            return  # it came back, which the watch will tell
        try:
            await self._counted("delete", self._cluster.delete(self._view, name, uid=obj.metadata.uid))
        except errors.NotFound:
            return

    async def _counted(self, verb: str, write: Awaitable[Any]) -> None:
        reason = f"{verb}{self._noun}"
        try:
            await write
        except errors.NotFound:
            if verb != "delete":
                self._reconciles.inc(FAILED, reason)
            raise
        except errors.ApiError:
            self._reconciles.inc(FAILED, reason)
            raise
        self._reconciles.inc(SUCCEEDED, reason)


SLICE = 256  # nodes compared before others get their turn: some 5 ms
WAITING_MAX = 64  # keys that may wait; the API's own limit decides how fast they leave


class NodeSweep:
    """Queues the names among `names()` for which `differs` holds, once after each `begin`."""

    def __init__(
        self, queue: WorkQueue[str], names: Callable[[], Iterable[str]], differs: Callable[[str], bool]
    ) -> None:
        self.guard = Guard("sweep over nodes")
        self.queued_count = 0
        self._queue = queue
        self._names = names
        self._differs = differs
        self._wanted = asyncio.Event()
        self._has_room = asyncio.Event()

    def begin(self) -> None:
        """Look at all nodes, again if that is being done already."""
        self._wanted.set()

    def key_done(self) -> None:
        """A worker has finished with a key, so that there may be room for another."""
        self._has_room.set()

    async def run(self) -> None:
        """Sweep whenever that is wanted, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            # A change in the middle is seen by the nodes that come after it, the others come again.
            for number, name in enumerate(list(self._names()), 1):
                await self._look_at(name)
                if number % SLICE == 0:
                    await asyncio.sleep(0)

    async def _look_at(self, name: str) -> None:
        # A node for which that cannot be told is worked on, too: whoever does says why.
        if self.guard.answer(self._differs, name, otherwise=lambda _: True):
            while len(self._queue) >= WAITING_MAX:
                self._has_room.clear()
                await self._has_room.wait()
            self._queue.add(name)
            self.queued_count += 1
