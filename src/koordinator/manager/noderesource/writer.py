"""Writing nodes and their zones: newest wish wins, one write per node at a time, a bounded number at once.

Deciding never waits for writing. While the API (or the client's limiter) is slower than decisions change, wishes
replace each other, so a change of ten thousand nodes is spread over the time that the limiter gives it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from koordinator.api.core import Node
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.cluster import errors
from koordinator.cluster.backoff import retry_after_s
from koordinator.cluster.protocol import Cluster
from koordinator.cluster.supervise import Guard
from koordinator.manager.metrics import FAILED, SUCCEEDED
from koordinator.manager.noderesource import rows
from koordinator.manager.noderesource import target as targets
from koordinator.manager.noderesource.rows import NodeRow
from koordinator.manager.noderesource.target import NodeTarget
from koordinator.prometheus import Counter

CONCURRENT_WRITES_MAX = 16

STATUS_FAILED, META_FAILED, ZONES_FAILED = "updateNodeStatus", "patchNodeMeta", "updateNodeResourceTopology"
"""Reasons of `slo_controller_node_resource_reconcile_count`."""


class NodePatch(msgspec.Struct, frozen=True):
    """The part of a target that is to be written. `zone_threshold` None leaves zones alone.

    A write that takes away is urgent: it does not wait until ten thousand others were written.
    """

    target: NodeTarget
    with_status: bool
    zone_threshold: float | None = None
    is_urgent: bool = False


class _Waiting:
    """Names that wait to be written, urgent ones first; each once, and none while it is being written."""

    def __init__(self) -> None:
        self._urgent: OrderedDict[str, None] = OrderedDict()
        self._others: OrderedDict[str, None] = OrderedDict()
        self._held: set[str] = set()
        self._come_again: dict[str, bool] = {}
        self._any = asyncio.Event()

    def add(self, name: str, *, is_urgent: bool) -> None:
        if name in self._held:
            self._come_again[name] = is_urgent
            return
        if is_urgent:
            self._others.pop(name, None)
            self._urgent[name] = None
        elif name not in self._urgent:
            self._others[name] = None
        self._any.set()

    async def get(self) -> str:
        """Return the next name; the caller must call `done` when it has finished with it."""
        while not (self._urgent or self._others):
            self._any.clear()
            await self._any.wait()
        name, _ = (self._urgent or self._others).popitem(last=False)
        self._held.add(name)
        return name

    def done(self, name: str) -> None:
        self._held.discard(name)
        if name in self._come_again:
            self.add(name, is_urgent=self._come_again.pop(name))


class NodeWriter:
    """`again` takes (name, seconds) of nodes to be decided about anew, 0 for when their failures allow."""

    def __init__(
        self,
        cluster: Cluster,
        reconciles: Counter,
        guard: Guard,
        *,
        row: Callable[[str], NodeRow | None],
        written: Callable[[str, Node | None, bool], None],
        zones_written: Callable[[str], None],
        again: Callable[[str, float], None],
    ) -> None:
        self._cluster = cluster
        self._reconciles = reconciles
        self._guard = guard
        self._row = row
        self._written = written
        self._zones_written = zones_written
        self._again = again
        self._queue = _Waiting()
        self._planned: dict[str, NodePatch] = {}

    @property
    def pending_count(self) -> int:
        """Nodes that wait to be written."""
        return len(self._planned)

    def plan(self, name: str, planned: NodePatch | None) -> None:
        """Have a node written; None takes back an earlier wish that has not been carried out."""
        if planned is None:
            self._planned.pop(name, None)
        else:
            self._planned[name] = planned
            self._queue.add(name, is_urgent=planned.is_urgent)

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(CONCURRENT_WRITES_MAX):
                group.create_task(self._work(), name=f"noderesource writer {number}")

    async def _work(self) -> None:
        while True:
            name = await self._queue.get()
            try:
                planned = self._planned.pop(name, None)
                if planned is not None:
                    await self._guard.call_async(self._carry_out, name, planned)
            finally:
                self._queue.done(name)

    async def _carry_out(self, name: str, planned: NodePatch) -> None:
        reason = ZONES_FAILED
        try:
            await self._write_zones(name, planned)
            reason = STATUS_FAILED if planned.with_status else META_FAILED
            await self._write_node(name, planned)
        except errors.NotFound:
            pass  # gone since; word of it is on its way to us
        except Exception as error:
            self._reconciles.inc(FAILED, reason)
            self._again(name, retry_after_s(error))
            raise
        self._reconciles.inc(SUCCEEDED, "")

    async def _write_node(self, name: str, planned: NodePatch) -> None:
        row = self._row(name)
        if row is None or row.node is None:
            return
        patch = targets.node_patch(row.node, planned.target, with_status=planned.with_status)
        node = None
        if patch:
            # The uid keeps what was meant for a node from a later one of its name.
            if row.node.metadata.uid:
                patch.setdefault("metadata", {})["uid"] = row.node.metadata.uid
            node = await self._cluster.patch(Node, name, patch, subresource="status")
        self._written(name, node, planned.with_status)

    async def _write_zones(self, name: str, planned: NodePatch) -> None:
        row = self._row(name)
        if row is None or row.topology is None or planned.zone_threshold is None:
            return
        found = row.topology
        updated, changed = rows.zones_target(found.zones, planned.target.zones, planned.zone_threshold)
        if changed:
            patch: dict[str, Any] = {
                # Zones are one list: only its very version that we read may be replaced.
                "metadata": {"resourceVersion": found.metadata.resource_version},
                "zones": [msgspec.to_builtins(zone) for zone in updated],
            }
            await self._cluster.patch(NodeResourceTopology, name, patch)
        self._zones_written(name)
