"""Keeps the tree of the network in step with ClusterNetworkTopology `default` and the labels of nodes.

Nodes are looked at when their labels change, the tree is made anew at most every ten seconds, and only when
a node has moved in it. Source: behaviour/gangs 13.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from koordinator.api.core import Node
from koordinator.api.meta import Object
from koordinator.api.network_topology import OBJECT_NAME, ClusterNetworkTopology
from koordinator.clock import Clock
from koordinator.cluster import errors
from koordinator.cluster.protocol import Cluster
from koordinator.scheduler.plugin.capabilities import BackgroundController
from koordinator.scheduler.plugin.framework import Watch
from koordinator.scheduler.plugin.topology_tree import (
    Path,
    PathFinder,
    TopologySpecError,
    TopologyTree,
    assemble,
    details,
)

log = logging.getLogger(__name__)

PERIOD_S = 10.0
"""A tree stands that long at least: nodes come and get their labels in bursts."""

RecordEvent = Callable[[Object, str, str, str], None]
"""Object, severity, reason, message."""


class NetworkTopologyManager:
    """The tree, None without a (proper) ClusterNetworkTopology. `changed` is called, on the leader, when there is
    another tree; `record_event` writes events."""

    def __init__(
        self, cluster: Cluster, clock: Clock, record_event: RecordEvent, changed: Callable[[], None]
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._record_event = record_event
        self._changed = changed
        self._object: ClusterNetworkTopology | None = None
        self._finder: PathFinder | None = None
        self._problem = ""
        """Reason for which the layers of the object cannot be used; the former ones stay."""
        self._reported_problem = ""
        self._labels: dict[str, Mapping[str, str]] = {}
        self._paths: dict[str, Path] = {}
        self._tree: TopologyTree | None = None
        self._version = 0
        self._built_s = float("-inf")
        self._is_stale = False
        self._announced: TopologyTree | None = None
        self._is_status_due = False
        self._write_problem = ""
        self.background = BackgroundController("NetworkTopology", self._run)
        self.watches: tuple[Watch[Any], ...] = (
            Watch(Node, self._node_set, self._node_changed, self._node_gone),
            Watch.newest(ClusterNetworkTopology, self._object_set, self._object_gone),
        )

    def tree(self) -> TopologyTree | None:
        """Return the tree of now, give or take ten seconds."""
        if self._finder is None:
            return None
        if self._tree is None or (self._is_stale and self._clock.now() >= self._built_s + PERIOD_S):
            self._build(self._finder)
        return self._tree

    def _build(self, finder: PathFinder) -> None:
        self._version += 1
        self._tree = assemble(finder.layers, self._paths.values(), version=self._version)
        self._built_s = self._clock.now()
        self._is_stale = False
        self._is_status_due = True

    # What happens

    def _object_set(self, found: ClusterNetworkTopology) -> None:
        if found.metadata.name != OBJECT_NAME:
            return
        before, self._object = self._object, found
        self._is_status_due = True
        if before is not None and before.spec == found.spec:
            return
        try:
            finder = PathFinder(found.spec.network_topology_spec)
        except TopologySpecError as error:
            self._problem = str(error)
            log.warning(
                "network topology invalid, the last valid one is used",
                extra={"object": OBJECT_NAME, "field": "spec.networkTopologySpec", "reason": self._problem},
            )
            return
        self._problem = ""
        self._finder = finder
        self._paths = {
            name: path
            for name, labels in self._labels.items()
            if (path := finder.path(name, labels)) is not None
        }
        self._is_stale = True

    def _object_gone(self, gone: ClusterNetworkTopology) -> None:
        if gone.metadata.name == OBJECT_NAME:
            self._object = self._finder = self._tree = None
            self._problem = ""
            self._paths = {}

    def _node_set(self, node: Node) -> None:
        name = node.metadata.name
        self._labels[name] = node.metadata.labels
        path = self._finder.path(name, node.metadata.labels) if self._finder is not None else None
        if path == self._paths.get(name):
            return
        if path is None:
            del self._paths[name]
        else:
            self._paths[name] = path
        self._is_stale = True

    def _node_changed(self, old: Node, node: Node) -> None:
        if old.metadata.labels != node.metadata.labels or node.metadata.name not in self._labels:
            self._node_set(node)

    def _node_gone(self, node: Node) -> None:
        self._labels.pop(node.metadata.name, None)
        if self._paths.pop(node.metadata.name, None) is not None:
            self._is_stale = True

    # On the leader

    async def _run(self) -> None:
        while True:
            tree = self.tree()
            if tree is not self._announced:
                self._announced = tree
                self._changed()
            self._report_problem()
            await self._write_status(tree)
            await asyncio.sleep(PERIOD_S)

    def _report_problem(self) -> None:
        if self._problem == self._reported_problem:
            return
        self._reported_problem = self._problem
        if self._problem and self._object is not None:
            message = (
                f"spec.networkTopologySpec: {self._problem}; gangs are placed by the former layers, if any"
            )
            self._record_event(self._object, "Warning", "InvalidTopology", message)

    async def _write_status(self, tree: TopologyTree | None) -> None:
        found = self._object
        if not self._is_status_due or tree is None or found is None:
            return
        wanted = details(tree)
        self._is_status_due = False
        if wanted == found.status.detail_status:
            return
        body = {"status": {"detailStatus": msgspec.to_builtins(wanted)}}
        try:
            await self._cluster.patch(ClusterNetworkTopology, OBJECT_NAME, body, subresource="status")
        except errors.NotFound:
            return
        except errors.ApiError as error:
            self._is_status_due = True  # again in the next round
            if str(error) != self._write_problem:
                log.warning("network topology status not written", extra={"error": str(error)})
            self._write_problem = str(error)
            return
        self._write_problem = ""
