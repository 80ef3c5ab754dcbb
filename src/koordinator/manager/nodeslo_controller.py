"""One NodeSLO per node, telling the node agent which policies to run (spec 02 §11).

The object lives and dies with its node; each section that differs is replaced as a whole.
"""

from typing import Any

import msgspec

from koordinator.api import labels
from koordinator.api.core import Node
from koordinator.api.slo import NodeSLO, NodeSLOSpec
from koordinator.cluster import errors
from koordinator.cluster.controller import Controller
from koordinator.cluster.protocol import PatchType
from koordinator.manager import nodeslo
from koordinator.manager.parts import Shared
from koordinator.manager.slo_configs import Part

WORKERS = 4


class NodeSLOController:
    """Creates, corrects and deletes NodeSLO objects."""

    def __init__(self, shared: Shared) -> None:
        self._cluster = shared.cluster
        self._configs = shared.configs
        self._nodes = shared.factory.informer(Node)
        self._slos = shared.factory.informer(NodeSLO)
        self._controller: Controller[str] = Controller("nodeslo", self._reconcile, workers=WORKERS)
        shared.metrics.queues.watch("nodeslo", self._controller.queue)
        self._nodes.add_handler(self._add_node, self._on_node, self._add_node)
        self._slos.add_handler(self._add_slo, self._on_slo, self._add_slo)
        shared.configs.on_change(Part.NODE_SLO, self._on_config)

    def _add_node(self, node: Node) -> None:
        self._controller.queue.add(node.metadata.name)

    def _on_node(self, old: Node, new: Node) -> None:
        before, after = old.metadata, new.metadata
        if before.labels != after.labels or _bandwidth(old) != _bandwidth(new):
            self._add_node(new)

    def _add_slo(self, slo: NodeSLO) -> None:
        self._controller.queue.add(slo.metadata.name)

    def _on_slo(self, old: NodeSLO, new: NodeSLO) -> None:
        if old.spec != new.spec:
            self._add_slo(new)

    def _on_config(self) -> None:
        for node in self._nodes.objects.values():
            self._add_node(node)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._controller.run([self._nodes, self._slos])

    async def _reconcile(self, name: str) -> None:
        node, slo = self._nodes.get(name), self._slos.get(name)
        if node is None:
            if slo is not None:
                await self._delete(name)
            return
        kept = nodeslo.plain_extensions(slo.spec.extensions) if slo is not None else {}
        spec = nodeslo.wanted_spec(self._configs.node_slo, node, extensions=kept)
        if slo is None:
            body = {"metadata": {"name": name}, "spec": msgspec.to_builtins(spec)}
            try:
                await self._cluster.create(NodeSLO, body)
            except errors.AlreadyExists:
                self._controller.queue.add_rate_limited(name)  # our cache is behind
        elif changes := changed_sections(slo.spec, spec):
            await self._cluster.patch(NodeSLO, name, changes, patch_type=PatchType.JSON)

    async def _delete(self, name: str) -> None:
        try:
            await self._cluster.delete(NodeSLO, name)
        except errors.NotFound:
            return


def changed_sections(old: NodeSLOSpec, new: NodeSLOSpec) -> list[dict[str, Any]]:
    """The JSON patch that replaces the sections that differ; an empty list and an absent one are equal."""
    before, after = msgspec.to_builtins(old), msgspec.to_builtins(new)
    changes: list[dict[str, Any]] = [
        {"op": "add", "path": f"/spec/{key}", "value": value}
        for key, value in after.items()
        if before.get(key) != value
    ]
    changes += [{"op": "remove", "path": f"/spec/{key}"} for key in before if key not in after]
    if changes and not before:
        return [{"op": "add", "path": "/spec", "value": after}]
    return changes


def _bandwidth(node: Node) -> str | None:
    return node.metadata.annotations.get(labels.NODE_NETWORK_BANDWIDTH)
