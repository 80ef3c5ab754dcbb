"""Work out what the configuration says about each node, once per kind of node.

Nodes of a pool agree in the labels that count and so share one answer: a changed configuration costs one merge per
kind, and per node one look at its labels.
"""

from collections.abc import Callable

from koordinator.api.core import Node
from koordinator.manager.config import colocation_config
from koordinator.manager.config.colocation_config import ColocationState, NodeStrategy, StrategyTable
from koordinator.manager.config.node_entries import REMEMBERED_MAX, Signature


class Strategies:
    """Colocation strategies. `state` gives the configuration in force."""

    def __init__(self, state: Callable[[], ColocationState]) -> None:
        self._state = state
        self._table: StrategyTable | None = None
        self._known: dict[Signature, NodeStrategy] = {}

    def of(self, node: Node) -> NodeStrategy | None:
        """None while no configuration was ever understood."""
        state = self._state()
        if not state.available:
            return None
        table = self._table
        if table is None or table.config is not state.config:
            table = self._table = StrategyTable(state.config)
            self._known.clear()
        signature = table.signature(node)
        found = self._known.get(signature)
        if found is None:
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            found = colocation_config.resource_strategy(state.config, table.of(node))
            self._known[signature] = found
        return found
