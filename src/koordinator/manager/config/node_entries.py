"""Choose the entry of a configuration that counts for a node: the first whose selector matches (behaviour/manager 3.1).

Layers of configuration lie over one another: only what the upper one says counts. `sync` is for the keys whose
consumers have an own copy and no value checks, CPU normalization and amplification (behaviour/manager 3.2).
"""

import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from koordinator.api import label_selector, slo_config
from koordinator.api.affinity import LabelSelector
from koordinator.api.annotations.codec import Annotation
from koordinator.api.errors import ProtocolError
from koordinator.api.label_selector import Predicate
from koordinator.api.slo_config import CPUNormalizationConfig, ResourceAmplificationConfig

log = logging.getLogger(__name__)

S = TypeVar("S", bound=msgspec.Struct)


def overlay(base: S, upper: msgspec.Struct, *, empty_text_counts: frozenset[str] = frozenset()) -> S:
    """`base` with the members that `upper` sets; members that only one of the two types has are left alone.

    Structs merge recursively, maps per key, lists are replaced. Empty text does not count, except in the
    fields named; empty lists and maps never do. `False` and `0` do.
    """
    known = set(base.__struct_fields__)
    changes: dict[str, Any] = {}
    for name in upper.__struct_fields__:
        value = getattr(upper, name)
        if name not in known or value is None or (value == "" and name not in empty_text_counts):
            continue
        have = getattr(base, name)
        if isinstance(value, msgspec.Struct) and isinstance(have, msgspec.Struct):
            changes[name] = overlay(have, value, empty_text_counts=empty_text_counts)
        elif isinstance(value, dict):
            if value:
                changes[name] = {**(have or {}), **value}
        elif value != []:
            changes[name] = value
    return msgspec.structs.replace(base, **changes)


REMEMBERED_MAX = 16_384
"""Different label values whose answer is remembered; twice the nodes of a large cluster, if all differ."""

TABLES_MAX = 16
"""Lists of entries whose table is remembered; a manager has one per key of the ConfigMap."""

Signature = tuple[str | None, ...]
"""The values of the labels that a configuration asks for, in a fixed order; None for a missing label."""


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
    """Return the entry that counts for a node with these labels; entries with an invalid selector are skipped.

    `entries` are not changed afterwards: they are part of a parsed configuration.
    """
    if not entries:
        return None
    found: E | None = _table(_Identity(entries)).first(node_labels)
    return found


def selector_keys(entries: Iterable[NodeEntry]) -> frozenset[str]:
    """Return the labels that the selectors look at: nodes that agree in them are treated alike."""
    found: set[str] = set()
    for entry in entries:
        if entry.node_selector is not None:
            found.update(entry.node_selector.match_labels)
            found.update(condition.key for condition in entry.node_selector.match_expressions)
    return frozenset(found)


class EntryTable(Generic[E]):
    """Entries with their selectors made ready once, for a configuration that many nodes are held against.

    An answer depends on the labels that selectors name, so each combination of their values is worked out once:
    most clusters have a handful of pools and thousands of nodes.
    """

    def __init__(self, entries: Sequence[E]) -> None:
        self.keys = tuple(sorted(selector_keys(entries)))
        self._rules: list[tuple[E, Predicate]] = []
        self._known: dict[Signature, tuple[E, ...]] = {}
        for entry in entries:
            if entry.node_selector is None:
                continue
            try:
                self._rules.append((entry, label_selector.compile_selector(entry.node_selector)))
            except ProtocolError as error:
                log.warning("node entry skipped", extra={"entry": entry.name, "error": str(error)})

    def matching(self, node_labels: Mapping[str, str]) -> tuple[E, ...]:
        """Return all entries that match, in order."""
        get = node_labels.get
        signature = tuple([get(key) for key in self.keys])
        found = self._known.get(signature)
        if found is None:
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            found = tuple(entry for entry, matches in self._rules if matches(node_labels))
            self._known[signature] = found
        return found

    def first(self, node_labels: Mapping[str, str]) -> E | None:
        """Return the entry that counts."""
        found = self.matching(node_labels)
        return found[0] if found else None


class _Identity:
    """A list of entries, equal to itself only: lists of a configuration are compared by which they are."""

    __slots__ = ("entries",)

    def __init__(self, entries: Sequence[Any]) -> None:
        self.entries = entries

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.entries is other.entries

    def __hash__(self) -> int:
        return id(self.entries)


@functools.lru_cache(maxsize=TABLES_MAX)
def _table(entries: _Identity) -> EntryTable[Any]:
    """Many nodes are held against the same few lists, one after the other."""
    return EntryTable(entries.entries)


C = TypeVar("C", CPUNormalizationConfig, ResourceAmplificationConfig)

_CONFIG_MAP = f"ConfigMap {slo_config.CONFIG_NAME}"


class RatioSync(msgspec.Struct, Generic[C], frozen=True):
    """The configuration in force after a ConfigMap was read; `problem` is empty when it was understood."""

    config: C
    problem: str = ""


def sync(codec: Annotation[C], default: C, old: C, data: Mapping[str, str] | None) -> RatioSync[C]:
    """Return the next configuration, node entries on top of the cluster's; one that is not understood keeps `old`.

    Without the key, or without a ConfigMap (`data` None), it is `default`; empty text is not understood.
    """
    text = (data or {}).get(codec.key)
    if text is None:
        return RatioSync(default)
    try:
        parsed = codec.decode(text, _CONFIG_MAP)
    except ProtocolError as error:
        return RatioSync(old, str(error))
    cluster = overlay(default, parsed)
    entries = [overlay(overlay(entry, cluster), entry) for entry in parsed.node_configs]
    return RatioSync(msgspec.structs.replace(cluster, node_configs=entries))
