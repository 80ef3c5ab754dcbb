"""Sum what the nodes of each selector have, kept up to date as nodes change.

A change of one node costs one look per selector; asking for a sum costs what the sum has. Only a new selector
looks at all nodes.
"""

import logging
from collections.abc import Callable, Iterable

import msgspec

from koordinator.api import label_selector, quantity, resource_list
from koordinator.api.affinity import LabelSelector
from koordinator.api.core import Node
from koordinator.api.label_selector import Predicate
from koordinator.api.resource_list import Amounts
from koordinator.manager.quota.profile import is_schedulable
from koordinator.manager.quota.running_total import RunningTotal

log = logging.getLogger(__name__)


class _Share(msgspec.Struct, frozen=True):
    """The share of a node in the sums of the selectors that choose it."""

    labels: dict[str, str]
    allocatable: Amounts
    is_schedulable: bool


class _Selection:
    """The sums of one selector."""

    __slots__ = ("chosen", "matches", "selector", "total", "unschedulable")

    def __init__(self, selector: LabelSelector) -> None:
        self.selector = selector
        self.matches: Predicate = label_selector.compile_selector(selector)
        self.chosen: dict[str, _Share] = {}
        self.total = RunningTotal()
        self.unschedulable = RunningTotal()

    def take(self, node: str) -> bool:
        share = self.chosen.pop(node, None)
        if share is None:
            return False
        self.total.take(share.allocatable)
        if not share.is_schedulable:
            self.unschedulable.take(share.allocatable)
        return True

    def add(self, node: str, share: _Share) -> bool:
        if not self.matches(share.labels):
            return False
        self.chosen[node] = share
        self.total.add(share.allocatable)
        if not share.is_schedulable:
            self.unschedulable.add(share.allocatable)
        return True


class NodeTotals:
    """Sums of allocatable by key, where each key has a selector. `on_change` hears the keys whose sums change."""

    def __init__(self, on_change: Callable[[str], None]) -> None:
        self._on_change = on_change
        self._shares: dict[str, _Share] = {}
        self._selections: dict[str, _Selection] = {}

    def select(self, key: str, selector: LabelSelector) -> None:
        """Keep sums for the key from now on. Raises: ProtocolError when the selector is invalid."""
        known = self._selections.get(key)
        if known is not None and known.selector == selector:
            return
        self._selections.pop(key, None)
        selection = _Selection(selector)
        for node, share in self._shares.items():
            selection.add(node, share)
        self._selections[key] = selection

    def drop(self, key: str) -> None:
        """Keep no sums for the key any more."""
        self._selections.pop(key, None)

    def sums(self, key: str) -> tuple[Amounts, Amounts]:
        """Return all that the selected nodes have, and what of it is on nodes that take no pods."""
        selection = self._selections[key]
        return selection.total.amounts(), selection.unschedulable.amounts()

    def put(self, node: Node) -> None:
        """A node appeared or changed. Most changes of nodes are heartbeats, which concern nobody here."""
        name = node.metadata.name
        try:
            allocatable = resource_list.of(node.status.allocatable)
        except quantity.QuantityError as error:
            log.warning("node not counted for quota profiles", extra={"node": name, "error": str(error)})
            self.remove(name)
            return
        share = _Share(node.metadata.labels, allocatable, is_schedulable(node))
        if self._shares.get(name) == share:
            return
        self._shares[name] = share
        for key, selection in self._selections.items():
            was_chosen = selection.take(name)
            if selection.add(name, share) or was_chosen:
                self._on_change(key)

    def remove(self, name: str) -> None:
        """A node is gone."""
        if self._shares.pop(name, None) is None:
            return
        for key, selection in self._selections.items():
            if selection.take(name):
                self._on_change(key)


def is_heartbeat(old: Node, new: Node) -> bool:
    """Return whether nothing has changed between two states of a node that quota profiles look at."""
    return (
        old.status.allocatable == new.status.allocatable
        and old.metadata.labels == new.metadata.labels
        and is_schedulable(old) == is_schedulable(new)
    )


def totals_of(nodes: Iterable[Node], selector: LabelSelector) -> tuple[Amounts, Amounts]:
    """`sums` for nodes that are there now. Raises: ProtocolError when the selector is invalid."""
    totals = NodeTotals(lambda _: None)
    totals.select("", selector)
    for node in nodes:
        totals.put(node)
    return totals.sums("")
