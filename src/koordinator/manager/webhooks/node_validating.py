"""`/validate-node`: no labels for which a configuration has several entries (spec 02 §13.2)."""

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from koordinator.api.core import Node
from koordinator.api.decode import from_builtins
from koordinator.manager.config_validation import NodeRules
from koordinator.manager.parts import Shared
from koordinator.manager.webhooks.review import ALLOWED, AdmissionRequest, Verdict, denied

log = logging.getLogger(__name__)


class NodeValidatingHandler:
    """Checks new labels of nodes against the entries of the ConfigMap as it is now."""

    def __init__(self, shared: Shared) -> None:
        self._configs = shared.configs
        self._data: Mapping[str, str] | None = None
        self._rules = NodeRules({})

    async def __call__(self, request: AdmissionRequest) -> Verdict:
        """A new node is only warned about: it must be able to join. Without configuration all is allowed."""
        if request.resource.resource != "nodes" or request.sub_resource:
            return ALLOWED
        if request.operation not in ("CREATE", "UPDATE") or request.object is None:
            return ALLOWED
        is_new = request.operation == "CREATE"
        name = request.name
        try:
            node = from_builtins(request.object, Node)
            old = {} if is_new else _labels(request.old_object)
        except msgspec.ValidationError as error:
            return denied(f"Node {name}: {error}")
        name, new = name or node.metadata.name, node.metadata.labels
        if old == new:
            return ALLOWED
        found = self._current().check(name, new)
        if found.allowed:
            return ALLOWED
        if is_new:
            log.warning("new node matches several entries", extra={"node": name, "problem": found.message})
            return Verdict(warnings=(f"only the first entry counts: {found.message}",))
        return denied(found.text)

    def _current(self) -> NodeRules:
        """The rules of the ConfigMap in the cache, made once per version of it."""
        if self._configs.data is not self._data:
            self._data = self._configs.data
            self._rules = NodeRules(self._data or {})
        return self._rules


def _labels(obj: dict[str, Any] | None) -> dict[str, str]:
    return from_builtins(obj or {}, Node).metadata.labels
