"""The interface of a plugin."""

from collections.abc import Sequence
from typing import Protocol

from koordinator.manager.noderesource.rows import NodeRow
from koordinator.manager.noderesource.target import NodeTarget


class NodeResourcePlugin(Protocol):
    """One subject. Plugins run in a fixed order, so that later ones may read the targets of earlier ones."""

    name: str

    def calculate(self, rows: Sequence[NodeRow], targets: Sequence[NodeTarget]) -> int:
        """Add to `targets` (one per row) what these nodes should say; for how many nodes it could not tell.

        Every row has a node with facts, and a withdrawal; being switched off is a target like any other.
        """
        ...
