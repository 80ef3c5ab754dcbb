"""`/validate-configmap` and `/validate-node`: configuration that contradicts itself is refused (spec 02 §13)."""

import logging
from typing import Any

import msgspec

from koordinator.api import slo_config
from koordinator.api.core import ConfigMap, Node
from koordinator.api.decode import from_builtins
from koordinator.cluster.informer import InformerFactory
from koordinator.manager import config_validation
from koordinator.manager.config_validation import ConfigVerdict, ValidationOptions
from koordinator.manager.webhooks.review import ALLOWED, AdmissionRequest, Verdict, denied

log = logging.getLogger(__name__)

CONFIG_MAP_PATH = "/validate-configmap"
NODE_PATH = "/validate-node"


class ConfigMapValidatingHandler:
    """Checks changes of the one ConfigMap against its rules and all nodes; others pass untouched."""

    def __init__(
        self,
        factory: InformerFactory,
        options: ValidationOptions = ValidationOptions(),  # noqa: B008
        *,
        namespace: str = slo_config.CONFIG_NAMESPACE,
        name: str = slo_config.CONFIG_NAME,
    ) -> None:
        self._nodes = factory.informer(Node)
        self._options = options
        self._key = (namespace, name)

    async def __call__(self, request: AdmissionRequest) -> Verdict:
        """Deletions are always allowed."""
        is_ours = (request.namespace, request.name or _name(request.object)) == self._key
        if request.resource.resource != "configmaps" or request.sub_resource or not is_ours:
            return ALLOWED
        if request.operation not in ("CREATE", "UPDATE"):
            return ALLOWED
        nodes = {node.metadata.name: node.metadata.labels for node in self._nodes.objects.values()}
        try:
            old, new = _data(request.old_object), _data(request.object)
        except msgspec.ValidationError as error:
            return denied(f"ConfigMap {self._key[0]}/{self._key[1]}: {error}")
        return _verdict(config_validation.validate_config_map(old, new, nodes, self._options))


class NodeValidatingHandler:
    """Checks new labels of nodes against the entries of the configuration in force."""

    def __init__(
        self,
        factory: InformerFactory,
        *,
        namespace: str = slo_config.CONFIG_NAMESPACE,
        name: str = slo_config.CONFIG_NAME,
    ) -> None:
        self._maps = factory.informer(ConfigMap, namespace, field_selector=f"metadata.name={name}")
        self._namespace, self._name = namespace, name

    async def __call__(self, request: AdmissionRequest) -> Verdict:
        """A new node is only logged: it must be able to join. Without configuration all is allowed."""
        config_map = self._maps.get(self._name, self._namespace)
        if request.resource.resource != "nodes" or request.sub_resource or config_map is None:
            return ALLOWED
        if request.operation not in ("CREATE", "UPDATE") or request.object is None:
            return ALLOWED
        name = request.name or _name(request.object)
        is_new = request.operation == "CREATE"
        try:
            old = {} if is_new else _labels(request.old_object)
            new = _labels(request.object)
        except msgspec.ValidationError as error:
            return denied(f"Node {name}: {error}")
        found = config_validation.validate_node_labels(config_map.data, name, old, new)
        if is_new and not found.allowed:
            log.warning("new node matches several entries", extra={"node": name, "problem": found.message})
            return ALLOWED
        return _verdict(found)


def _verdict(found: ConfigVerdict) -> Verdict:
    return ALLOWED if found.allowed else denied(found.text)


def _name(obj: dict[str, Any] | None) -> str:
    metadata = (obj or {}).get("metadata")
    return str(metadata.get("name") or "") if isinstance(metadata, dict) else ""


def _data(obj: dict[str, Any] | None) -> dict[str, str]:
    return from_builtins(obj or {}, ConfigMap).data


def _labels(obj: dict[str, Any] | None) -> dict[str, str]:
    return from_builtins(obj or {}, Node).metadata.labels
