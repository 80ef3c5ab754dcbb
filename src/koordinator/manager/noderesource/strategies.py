"""The colocation strategy of each node, worked out once per kind of node.

Nodes of a pool have the same entry, annotation and labels, and so share one strategy: a changed configuration
costs one merge per kind, and per node one look at its labels.
"""

import logging
from collections.abc import Callable

from koordinator.api import label_selector, labels
from koordinator.api.core import Node
from koordinator.api.errors import ProtocolError
from koordinator.api.label_selector import Predicate
from koordinator.manager import colocation_config
from koordinator.manager.colocation_config import ColocationState, NodeStrategy

log = logging.getLogger(__name__)

KINDS_MAX = 10_000  # annotations that change all the time must not fill memory

_LABELS = (
    labels.NODE_CPU_RECLAIM_RATIO,
    labels.NODE_MEMORY_RECLAIM_RATIO,
    labels.NODE_MID_STATIC_CPU_RESERVED_RATIO,
    labels.NODE_MID_STATIC_MEMORY_RESERVED_RATIO,
)
_NO_ENTRY = -1

_Kind = tuple[int, str | None, tuple[str | None, ...]]


class Strategies:
    """`state` gives the configuration in force; call `clear` when it has changed."""

    def __init__(self, state: Callable[[], ColocationState]) -> None:
        self._state = state
        self._known: dict[_Kind, NodeStrategy] = {}
        self._selectors: list[tuple[int, Predicate]] | None = None

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()
        self._selectors = None

    def of(self, node: Node) -> NodeStrategy | None:
        """None while no configuration was ever understood."""
        state = self._state()
        if not state.available:
            return None
        annotation = node.metadata.annotations.get(labels.NODE_COLOCATION_STRATEGY)
        own = node.metadata.labels
        kind = (self._entry(state, node), annotation, tuple(own.get(key) for key in _LABELS))
        found = self._known.get(kind)
        if found is None:
            if len(self._known) >= KINDS_MAX:
                self._known.clear()
            strategy = colocation_config.node_strategy(state.config, node)
            found = self._known[kind] = colocation_config.resource_strategy(state.config, strategy)
        return found

    def _entry(self, state: ColocationState, node: Node) -> int:
        """Which node entry counts for the node: the first that matches."""
        if self._selectors is None:
            self._selectors = []
            for index, entry in enumerate(state.config.node_configs):
                if entry.node_selector is None:
                    continue
                try:
                    self._selectors.append((index, label_selector.compile_selector(entry.node_selector)))
                except ProtocolError as error:
                    log.warning("nodeConfigs entry skipped", extra={"entry": entry.name, "error": str(error)})
        for index, matches in self._selectors:
            if matches(node.metadata.labels):
                return index
        return _NO_ENTRY
