"""What the configuration says about each node, worked out once per kind of node.

Nodes of a pool agree in the labels that count and so share one answer: a changed configuration costs one merge per
kind, and per node one look at its labels.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from koordinator.api.core import Node
from koordinator.manager import colocation_config
from koordinator.manager.colocation_config import ColocationState, NodeStrategy, StrategyTable
from koordinator.manager.node_entries import REMEMBERED_MAX, EntryTable, NodeEntry, Signature

E = TypeVar("E", bound=NodeEntry)


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


class LatestEntries(Generic[E]):
    """The table of the entries that were asked about last, which are those of the configuration in force."""

    def __init__(self) -> None:
        self._entries: Sequence[E] | None = None
        self._table: EntryTable[E] = EntryTable(())

    def first(self, entries: Sequence[E], node_labels: Mapping[str, str]) -> E | None:
        """The entry that counts for a node with these labels."""
        if entries is not self._entries:
            self._entries, self._table = entries, EntryTable(entries)
        return self._table.first(node_labels)
