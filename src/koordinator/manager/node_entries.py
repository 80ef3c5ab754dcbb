"""Which entry of a configuration counts for a node: the first whose selector matches (spec 02 §3.1)."""

import logging
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from koordinator.api import label_selector
from koordinator.api.affinity import LabelSelector
from koordinator.api.errors import ProtocolError

log = logging.getLogger(__name__)


class NodeEntry(Protocol):
    """An element of `nodeConfigs` or `nodeStrategies`."""

    @property
    def name(self) -> str:
        """For people only."""

    @property
    def node_selector(self) -> LabelSelector | None:
        """Absent matches no node, empty matches every node."""


E = TypeVar("E", bound=NodeEntry)


def first_match(entries: Sequence[E], node_labels: Mapping[str, str]) -> E | None:
    """The entry that counts for a node with these labels; entries with an invalid selector are skipped."""
    for entry in entries:
        if entry.node_selector is None:
            continue
        try:
            if label_selector.matches(entry.node_selector, node_labels):
                return entry
        except ProtocolError as error:
            log.warning("node entry skipped", extra={"entry": entry.name, "error": str(error)})
    return None
