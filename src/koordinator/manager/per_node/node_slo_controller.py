"""One NodeSLO per node, telling the node agent which policies to run (behaviour/manager 11).

The object lives and dies with its node; each section that differs is replaced as a whole.
"""

from typing import Any

import msgspec

from koordinator.api import labels, slo_config
from koordinator.api.core import Node
from koordinator.api.slo import NodeSLO, NodeSLOSpec
from koordinator.cluster.protocol import PatchType
from koordinator.manager.config import node_slo_spec
from koordinator.manager.config.addons import LayeredAddon
from koordinator.manager.config.slo_configs import ConfigSection
from koordinator.manager.metrics import FAILED, SUCCEEDED
from koordinator.manager.parts import ManagerContext
from koordinator.manager.per_node.node_objects import NodeObjects, ObjectUpdate

_PARSED = {
    "getResourceThresholdSpec": slo_config.RESOURCE_THRESHOLD.key,
    "getResourceQOSSpec": slo_config.RESOURCE_QOS.key,
    "getCPUBurstConfigSpec": slo_config.CPU_BURST.key,
    "getSystemConfigSpec": slo_config.SYSTEM.key,
    "getHostApplicationConfig": slo_config.HOST_APPLICATION.key,
}
_EXTENSIONS_PARSED = "getNodeSLOExtension"


class NodeSLOController:
    """Creates, corrects and deletes NodeSLO objects."""

    def __init__(self, shared: ManagerContext) -> None:
        counter = shared.metrics.nodeslo_reconciles
        self._objects = NodeObjects(
            shared, NodeSLO, _Rules(shared), name="nodeslo", noun="NodeSLO", reconciles=counter
        )
        shared.configs.on_change(ConfigSection.NODE_SLO, self._objects.sweep.begin)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._objects.run()


class _Rules:
    """The rules for the NodeSLO of a node."""

    def __init__(self, shared: ManagerContext) -> None:
        self._configs = shared.configs
        self._addons = shared.configs.addons.node_slo
        # A layered policy depends on labels only; what a stranger's depends on is not known.
        self._follows_annotations = not all(isinstance(each, LayeredAddon) for each in self._addons)
        self._parses = shared.metrics.nodeslo_parses

    def is_ready(self) -> bool:
        return self._configs.is_known

    def matters(self, old: Node, new: Node) -> bool:
        before, after = old.metadata, new.metadata
        if before.labels != after.labels or _bandwidth(old) != _bandwidth(new):
            return True
        return self._follows_annotations and before.annotations != after.annotations

    def spec(self, node: Node) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self._wanted(node, None))
        return found

    def update(self, node: Node, obj: NodeSLO) -> ObjectUpdate | None:
        changes = changed_sections(obj.spec, self._wanted(node, obj))
        return ObjectUpdate(changes, PatchType.JSON) if changes else None

    def worked_out(self, node: Node, obj: NodeSLO | None) -> None:
        problems = self._configs.problems
        for reason, key in _PARSED.items():
            self._parses.inc(FAILED if key in problems else SUCCEEDED, reason)
        if self._addons:
            is_good = all(addon.name in self._configs.extensions for addon in self._addons)
            self._parses.inc(SUCCEEDED if is_good else FAILED, _EXTENSIONS_PARSED)

    def _wanted(self, node: Node, obj: NodeSLO | None) -> NodeSLOSpec:
        """Extensions of add-ons that are not installed here stay as they are."""
        old = obj.spec.extensions if obj is not None else {}
        if not (old or self._addons):
            return self._configs.node_specs.of(node)
        found = node_slo_spec.node_extensions(old, self._addons, self._configs.extensions, node)
        return self._configs.node_specs.of(node, found)


def changed_sections(old: NodeSLOSpec, new: NodeSLOSpec) -> list[dict[str, Any]]:
    """Return the JSON patch that replaces the sections that differ; none when both mean the same."""
    if node_slo_spec.is_same(old, new):
        return []
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
