"""One NodeSLO per node, telling the node agent which policies to run (spec 02 §11).

The object lives and dies with its node; each section that differs is replaced as a whole.
"""

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from koordinator.api import labels, slo_config
from koordinator.api.core import ConfigMap, Node
from koordinator.api.slo import NodeSLO, NodeSLOSpec
from koordinator.cluster import errors
from koordinator.cluster.controller import Controller
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.protocol import Cluster, PatchType
from koordinator.manager import nodeslo
from koordinator.manager.nodeslo import NodeSLOConfig

log = logging.getLogger(__name__)

WORKERS = 4


class NodeSLOConfigSource:
    """Follows the ConfigMap. A deleted one changes nothing: the last configuration stays until a restart."""

    def __init__(
        self,
        factory: InformerFactory,
        events: EventRecorder,
        *,
        namespace: str = slo_config.CONFIG_NAMESPACE,
        name: str = slo_config.CONFIG_NAME,
    ) -> None:
        self.config = NodeSLOConfig()
        self._events = events
        self._name = name
        self._listeners: list[Callable[[], None]] = []
        self._maps = factory.informer(ConfigMap, namespace, field_selector=f"metadata.name={name}")
        self._maps.add_handler(self._on_map, self._on_map_changed)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever the merged configuration has changed."""
        self._listeners.append(listener)

    async def ready(self) -> None:
        """Until the ConfigMap was read, or there is none."""
        await self._maps.synced.wait()

    def _on_map_changed(self, old: ConfigMap, new: ConfigMap) -> None:
        if old.data != new.data:
            self._on_map(new)

    def _on_map(self, config_map: ConfigMap) -> None:
        if config_map.metadata.name != self._name:
            return
        outcome = nodeslo.sync(self.config, config_map.data)
        self.config = outcome.config
        for key, problem in outcome.problems.items():
            log.warning("configuration not used", extra={"key": key, "problem": problem})
            self._events.warning(config_map, nodeslo.REASON_UNREADABLE, problem)
        if outcome.changed:
            for listener in self._listeners:
                listener()


class NodeSLOController:
    """Creates, corrects and deletes NodeSLO objects."""

    def __init__(self, cluster: Cluster, factory: InformerFactory, config: NodeSLOConfigSource) -> None:
        self._cluster = cluster
        self._config = config
        self._nodes = factory.informer(Node)
        self._slos = factory.informer(NodeSLO)
        self._controller: Controller[str] = Controller("nodeslo", self._reconcile, workers=WORKERS)
        self._nodes.add_handler(self._add_node, self._on_node, self._add_node)
        self._slos.add_handler(self._add_slo, self._on_slo, self._add_slo)
        config.on_change(self._on_config)

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
        await self._config.ready()
        await self._controller.run([self._nodes, self._slos])

    async def _reconcile(self, name: str) -> None:
        node, slo = self._nodes.get(name), self._slos.get(name)
        if node is None:
            if slo is not None:
                await self._delete(name)
            return
        kept = nodeslo.plain_extensions(slo.spec.extensions) if slo is not None else {}
        spec = nodeslo.wanted_spec(self._config.config, node, extensions=kept)
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
