"""`/validate-configmap`: a `slo-controller-config` that contradicts itself is refused (behaviour/manager 13.1)."""

from typing import Any

import msgspec

from koordinator.api.core import ConfigMap, Node
from koordinator.api.decode import from_builtins
from koordinator.manager.config import validation
from koordinator.manager.config.validation import ValidationOptions
from koordinator.manager.parts import ManagerContext
from koordinator.manager.webhooks.review import ALLOWED, AdmissionRequest, AdmissionVerdict, denied

DELETED = (
    "without this ConfigMap everything counts as not configured: co-location is switched off on all nodes"
)


class ConfigMapValidatingHandler:
    """Checks changes of the one ConfigMap against its rules and all nodes; others pass untouched."""

    def __init__(self, shared: ManagerContext) -> None:
        options = shared.options
        self._nodes = shared.factory.informer(Node)
        self._options = ValidationOptions(names_needed=options.node_strategy_name_need_check)
        self._key = (options.config_namespace, options.slo_config_name)

    async def __call__(self, request: AdmissionRequest) -> AdmissionVerdict:
        """Deletions are always allowed, with a warning of what they mean."""
        name = request.name or _name(request.object)
        if request.resource.resource != "configmaps" or request.sub_resource:
            return ALLOWED
        if (request.namespace, name) != self._key:
            return ALLOWED
        if request.operation == "DELETE":
            return AdmissionVerdict(warnings=(DELETED,))
        if request.operation not in ("CREATE", "UPDATE"):
            return ALLOWED
        try:
            old, new = _data(request.old_object), _data(request.object)
        except msgspec.ValidationError as error:
            return denied(f"ConfigMap {self._key[0]}/{self._key[1]}: {error}")
        nodes = {node.metadata.name: node.metadata.labels for node in self._nodes.objects.values()}
        found = validation.validate_config_map(old, new, nodes, self._options)
        return ALLOWED if found.allowed else denied(found.text)


def _name(obj: dict[str, Any] | None) -> str:
    metadata = (obj or {}).get("metadata")
    return str(metadata.get("name") or "") if isinstance(metadata, dict) else ""


def _data(obj: dict[str, Any] | None) -> dict[str, str]:
    return from_builtins(obj or {}, ConfigMap).data
