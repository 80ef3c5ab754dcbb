"""Decide whether one node could match, or does match, several entries of a configuration (behaviour/manager 13.1).

Only the first match counts at run time, so entries that overlap hide each other by their order; the webhook
refuses them while they are written.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from koordinator.api import label_selector
from koordinator.api.affinity import LabelSelector
from koordinator.api.errors import ProtocolError
from koordinator.manager.config.node_entries import EntryTable, NodeEntry

SAMPLES_MAX = 4_096  # label sets tried per selector; more would let one ConfigMap stall the webhook

Labels = Mapping[str, str]
NodeLabels = Mapping[str, Labels]
"""Node name -> its labels."""


class Overlap(msgspec.Struct, frozen=True):
    """Entries that match the same labels, by name; `node` is a node that has such labels, if one has."""

    entries: tuple[str, ...] = ()
    node: str = ""

    def __bool__(self) -> bool:
        return bool(self.entries)


def selector_problems(path: str, entries: Sequence[NodeEntry], *, may_be_empty: bool = False) -> list[str]:
    """Return what is wrong with the selectors of the entries in the list `path`, in words.

    An empty selector is meant as "all other nodes" where it `may_be_empty`.
    """
    problems = []
    for index, entry in enumerate(entries):
        where = f"{path}[{index}].nodeSelector"
        selector = entry.node_selector
        is_empty = selector == LabelSelector()
        if selector is None or (is_empty and not may_be_empty):
            problems.append(f"{where} is missing or empty, so it would match no node or hide all others")
            continue
        try:
            label_selector.compile_selector(selector)
        except ProtocolError as error:
            problems.append(f"{where}: {error.reason}")
    return problems


def name_problems(path: str, entries: Sequence[NodeEntry]) -> list[str]:
    """Return names that are missing or used twice, in words."""
    problems = []
    seen: set[str] = set()
    for index, entry in enumerate(entries):
        if not entry.name:
            problems.append(f"{path}[{index}].name is missing")
        elif entry.name in seen:
            problems.append(f"{path}[{index}].name {entry.name!r} is used twice")
        seen.add(entry.name)
    return problems


def overlap(entries: Sequence[NodeEntry]) -> Overlap:
    """Return the first entries found that match the same labels; selectors are valid.

    Tried are label sets made of each selector's own labels and values, so that overlaps over keys that only
    one of two selectors names are found by nodes only (`conflict`).
    """
    if len(entries) > 1:
        table = EntryTable(entries)
        for entry in entries:
            assert entry.node_selector is not None, f"selector of {entry.name} was not checked"
            for labels in _samples(entry.node_selector):
                if found := _several(table, labels):
                    return Overlap(found)
    return Overlap()


def conflict(entries: Sequence[NodeEntry], nodes: NodeLabels) -> Overlap:
    """Return the first node, by name, that matches several entries; invalid selectors match nothing."""
    if len(entries) > 1:
        table = EntryTable(entries)
        several = (name for name, labels in nodes.items() if _several(table, labels))
        if node := min(several, default=""):
            return Overlap(_several(table, nodes[node]), node)
    return Overlap()


def _several(table: EntryTable[NodeEntry], labels: Labels) -> tuple[str, ...]:
    """Return names of the matching entries when there are several, else none."""
    names = tuple(entry.name for entry in table.matching(labels))
    return names if len(names) > 1 else ()


def _samples(selector: LabelSelector) -> Iterator[dict[str, str]]:
    """Label sets that try every value of every condition, whatever its operator."""
    conditions = [condition for condition in selector.match_expressions if condition.values]
    count = math.lcm(*(len(condition.values) for condition in conditions))  # then they repeat
    for index in range(min(count, SAMPLES_MAX)):
        drawn = {c.key: c.values[index % len(c.values)] for c in conditions}
        yield {**selector.match_labels, **drawn}
