"""Configurations that contradict themselves are refused (behaviour/manager 13), and TidalPools that cannot be read
(behaviour/tidal 3).

`/validate-configmap` refuses a `slo-controller-config` that does (13.1), `/validate-node` labels for which a
configuration has several entries (13.2). What nobody will be able to read of a node's annotations and labels is told
as a warning.
"""

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from koordinator.api.core import ConfigMap, Node
from koordinator.api.decode import from_builtins
from koordinator.api.errors import ProtocolError
from koordinator.api.meta import ObjectMeta
from koordinator.api.tidal_pool import TidalPool
from koordinator.manager.config import validation
from koordinator.manager.config.validation import NodeRules
from koordinator.manager.parts import ManagerContext
from koordinator.manager.tidal.policy import policy_of
from koordinator.manager.webhooks import pod_rules
from koordinator.manager.webhooks.review import ALLOWED, AdmissionRequest, AdmissionVerdict, denied

log = logging.getLogger(__name__)


DELETED = (
    "without this ConfigMap everything counts as not configured: co-location is switched off on all nodes"
)


class ConfigMapValidatingHandler:
    """Checks changes of the one ConfigMap against its rules and all nodes; others pass untouched."""

    def __init__(self, shared: ManagerContext) -> None:
        options = shared.options
        self._nodes = shared.factory.informer(Node)
        self._names_needed = options.node_strategy_name_need_check
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
        found = validation.validate_config_map(old, new, nodes, names_needed=self._names_needed)
        return ALLOWED if found.allowed else denied(found.text)


def _name(obj: dict[str, Any] | None) -> str:
    metadata = (obj or {}).get("metadata")
    return str(metadata.get("name") or "") if isinstance(metadata, dict) else ""


def _data(obj: dict[str, Any] | None) -> dict[str, str]:
    return from_builtins(obj or {}, ConfigMap).data


_NOTHING = ObjectMeta()


class NodeValidatingHandler:
    """Checks what is new of a node against the entries of the ConfigMap as it is now."""

    def __init__(self, shared: ManagerContext) -> None:
        self._configs = shared.configs
        self._data: Mapping[str, str] | None = None
        self._rules = NodeRules({})

    async def __call__(self, request: AdmissionRequest) -> AdmissionVerdict:
        """Check a new node, which is only warned about: it must be able to join. Without configuration all is
        allowed."""
        if request.resource.resource != "nodes" or request.sub_resource:
            return ALLOWED
        if request.operation not in ("CREATE", "UPDATE") or request.object is None:
            return ALLOWED
        is_new = request.operation == "CREATE"
        name = request.name
        try:
            node = from_builtins(request.object, Node).metadata
            old = _NOTHING if is_new else from_builtins(request.old_object or {}, Node).metadata
        except msgspec.ValidationError as error:
            return denied(f"Node {name}: {error}")
        name = name or node.name
        warnings = pod_rules.node_warnings(node.annotations, old.annotations, node.labels, old.labels)
        found = self._current().check(name, old.labels, node.labels)
        if is_new and not found.allowed:
            log.warning("new node matches several entries", extra={"node": name, "problem": found.message})
            return AdmissionVerdict(warnings=(f"only the first entry counts: {found.message}", *warnings))
        if not found.allowed:
            return denied(found.text)
        return AdmissionVerdict(warnings=warnings) if warnings else ALLOWED

    def _current(self) -> NodeRules:
        """Return the rules of the ConfigMap in the cache, made once per version of it."""
        if self._configs.data is not self._data:
            self._data = self._configs.data
            self._rules = NodeRules(self._data or {})
        return self._rules


class TidalPoolValidatingHandler:
    """Checks what is new of a pool; one that is being deleted must be able to go."""

    async def __call__(self, request: AdmissionRequest) -> AdmissionVerdict:
        """Return whether the pool can be read."""
        if request.resource.resource != "tidalpools" or request.sub_resource or request.object is None:
            return ALLOWED
        if request.operation not in ("CREATE", "UPDATE"):
            return ALLOWED
        if request.old_object is not None and request.old_object.get("spec") == request.object.get("spec"):
            return ALLOWED
        try:
            policy_of(from_builtins(request.object, TidalPool))
        except msgspec.ValidationError as error:
            return denied(f"TidalPool {request.name}: {error}")
        except ProtocolError as error:
            return denied(str(error))
        return ALLOWED
