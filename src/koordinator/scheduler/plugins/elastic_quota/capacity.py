"""What the nodes of the cluster have together. Source: behaviour/elastic-quota 5.3."""

from koordinator.api import resource_list
from koordinator.api.resource_list import Amounts


class Capacity:
    """Sum of what pods may use of the known nodes, ready or not."""

    def __init__(self) -> None:
        self._nodes: dict[str, Amounts] = {}
        self.total: Amounts = {}

    def add(self, node: str, allocatable: Amounts) -> None:
        """A node came; one that is known already is ignored."""
        if node not in self._nodes:
            self.update(node, allocatable)

    def update(self, node: str, allocatable: Amounts) -> None:
        """A node has changed, or is new."""
        delta = resource_list.sub(allocatable, self._nodes.get(node, {}))
        self._nodes[node] = allocatable
        self.total = resource_list.add(self.total, delta)

    def remove(self, node: str) -> None:
        """A node is gone; an unknown one is ignored."""
        if node in self._nodes:
            self.total = resource_list.sub(self.total, self._nodes.pop(node))
