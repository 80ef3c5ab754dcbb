"""`/validate-node`: no labels for which a configuration has several entries (behaviour/manager 13.2).

What nobody will be able to read of a node's annotations and labels is told as a warning.
"""

import logging
from collections.abc import Mapping

import msgspec

from koordinator.api.core import Node
from koordinator.api.decode import from_builtins
from koordinator.api.meta import ObjectMeta
from koordinator.manager.config.validation import NodeRules
from koordinator.manager.parts import ManagerContext
from koordinator.manager.webhooks import annotation_checks
from koordinator.manager.webhooks.review import ALLOWED, AdmissionRequest, AdmissionVerdict, denied

log = logging.getLogger(__name__)

_NOTHING = ObjectMeta()


class NodeValidatingHandler:
    """Checks what is new of a node against the entries of the ConfigMap as it is now."""

    def __init__(self, shared: ManagerContext) -> None:
        self._configs = shared.configs
        self._data: Mapping[str, str] | None = None
        self._rules = NodeRules({})

    async def __call__(self, request: AdmissionRequest) -> AdmissionVerdict:
        """A new node is only warned about: it must be able to join. Without configuration all is allowed."""
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
        warnings = annotation_checks.node_warnings(node.annotations, old.annotations, node.labels, old.labels)
        found = self._current().check(name, old.labels, node.labels)
        if is_new and not found.allowed:
            log.warning("new node matches several entries", extra={"node": name, "problem": found.message})
            return AdmissionVerdict(warnings=(f"only the first entry counts: {found.message}", *warnings))
        if not found.allowed:
            return denied(found.text)
        return AdmissionVerdict(warnings=warnings) if warnings else ALLOWED

    def _current(self) -> NodeRules:
        """The rules of the ConfigMap in the cache, made once per version of it."""
        if self._configs.data is not self._data:
            self._data = self._configs.data
            self._rules = NodeRules(self._data or {})
        return self._rules
