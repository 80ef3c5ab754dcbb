"""Decide whether a new `slo-controller-config`, or new labels of a node, may be accepted (behaviour/manager 13).

Pure. Refusals name the key, the member and the rule; their text has the form that tools of the reference parse:
`___{"reason":...,"message":...}___`.

Only the first entry that matches a node counts at run time, so entries that overlap hide each other by their order:
they are refused while they are written.
"""

import enum
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from koordinator.api import label_selector, slo_config
from koordinator.api.affinity import LabelSelector
from koordinator.api.annotations.codec import Annotation
from koordinator.api.errors import ProtocolError
from koordinator.api.slo_config import (
    ColocationConfig,
    CPUNormalizationConfig,
    HostApplicationConfig,
    ResourceAmplificationConfig,
    ResourceQOSConfig,
    SystemConfig,
)
from koordinator.manager.config import addons
from koordinator.manager.config import validation_rules as rules
from koordinator.manager.config.addons import LayeredAddon
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


Data = Mapping[str, str]

_FLAT = (ColocationConfig, HostApplicationConfig, CPUNormalizationConfig, ResourceAmplificationConfig)
"""Keys whose cluster strategy stands at the top level, with entries in `nodeConfigs`."""


class ValidationReason(enum.StrEnum):
    """The reason for a refusal, as users of the reference know it (its spelling included)."""

    NONE = ""
    PARSE = "ParseConfigFail"
    PARAMETER = "ConfigParamInvalid"
    OVERLAP = "NodeStrategiesOverlap"
    CONFLICT = "ExistNodeConfict"


class ConfigVerdict(msgspec.Struct, frozen=True):
    """The decision on a change; `message` is for people, or JSON for the last two reasons."""

    reason: ValidationReason = ValidationReason.NONE
    message: str = ""

    @property
    def allowed(self) -> bool:
        """Nothing was found."""
        return self.reason is ValidationReason.NONE

    @property
    def text(self) -> str:
        """Return the text that the API server shows. Tools parse it: the message is text or, for the last two reasons,
        an object."""
        is_object = self.reason in (ValidationReason.OVERLAP, ValidationReason.CONFLICT)
        message = msgspec.Raw(self.message.encode()) if is_object else self.message
        body = msgspec.json.encode({"reason": self.reason.value, "message": message}).decode()
        return f"___{body}___"


ALLOWED = ConfigVerdict()


class _Section(msgspec.Struct, frozen=True):
    """A checked key: how it is decoded, what rule each of its layers obeys.

    `is_exclusive`: every entry needs a selector, and no two may match the same node.
    """

    codec: Annotation[Any] | LayeredAddon
    rule: Callable[[Any], list[str]]
    is_exclusive: bool = True


_SECTIONS = (
    _Section(slo_config.COLOCATION, rules.colocation),
    _Section(slo_config.RESOURCE_THRESHOLD, rules.threshold),
    _Section(slo_config.RESOURCE_QOS, rules.qos),
    _Section(slo_config.SYSTEM, rules.system),
    _Section(slo_config.CPU_BURST, rules.burst),
)
"""In the order in which they are checked."""
_MORE_SECTIONS = (
    _Section(slo_config.HOST_APPLICATION, rules.host_applications, is_exclusive=False),
    _Section(slo_config.CPU_NORMALIZATION, rules.normalization, is_exclusive=False),
    _Section(slo_config.RESOURCE_AMPLIFICATION, rules.amplification, is_exclusive=False),
    _Section(addons.EVICTION, rules.eviction, is_exclusive=False),
    _Section(addons.INTERFERENCE, rules.interference, is_exclusive=False),
    _Section(addons.SHADOW, rules.shadow, is_exclusive=False),
)
"""The reference lets these pass unseen (the last three are ours). Entries may overlap, as in configurations in use."""
_BY_KEY = {section.codec.key: section for section in (*_SECTIONS, *_MORE_SECTIONS)}


def validate_config_map(
    old: Data, new: Data, nodes: NodeLabels, *, names_needed: bool = False
) -> ConfigVerdict:
    """Return the first objection to a created or updated ConfigMap; `old` is {} for a new one.

    Only keys that changed and are not empty are looked at. Entries of most keys must not overlap, neither by
    their selectors nor on any of `nodes`. `names_needed` is flag `--node-strategy-name-need-check`.
    """
    parsed: list[tuple[str, Sequence[NodeEntry]]] = []
    for section in _BY_KEY.values():
        key = section.codec.key
        text = new.get(key, "")
        if text == "" or text == old.get(key, ""):
            continue
        try:
            config = section.codec.decode(text)
            system = _system_config(key, new)
        except ProtocolError as error:
            return ConfigVerdict(ValidationReason.PARSE, str(error))
        if not (verdict := _check(section, config, system, names_needed)).allowed:
            return verdict
        if section.is_exclusive:
            parsed.append((key, _entries(config)))
    if not (verdict := _bandwidth(old, new)).allowed:
        return verdict
    return _first_conflict(parsed, nodes)


def _bandwidth(old: Data, new: Data) -> ConfigVerdict:
    """Return whether a changed `system-config` leaves room for what an unchanged `resource-qos-config` asks for."""
    system_key, qos_key = slo_config.SYSTEM.key, slo_config.RESOURCE_QOS.key
    text, qos_text = new.get(system_key, ""), new.get(qos_key, "")
    if text in ("", old.get(system_key, "")) or qos_text == "" or qos_text != old.get(qos_key, ""):
        return ALLOWED
    try:
        qos = slo_config.RESOURCE_QOS.decode(qos_text)
    except ProtocolError:
        return ALLOWED  # it was so before
    before = rules.bandwidth_problems(qos, _decoded_system(old))
    problems = [
        each for each in rules.bandwidth_problems(qos, slo_config.SYSTEM.decode(text)) if each not in before
    ]
    if problems:
        return ConfigVerdict(ValidationReason.PARAMETER, f"{system_key}: {qos_key}: {'; '.join(problems)}")
    return ALLOWED


def _decoded_system(data: Data) -> SystemConfig:
    try:
        return slo_config.SYSTEM.decode(data.get(slo_config.SYSTEM.key, "") or "{}")
    except ProtocolError:
        return SystemConfig()


def _system_config(key: str, data: Data) -> SystemConfig:
    """Return the `system-config` next to `resource-qos-config`, whose bandwidths must fit it.

    Raises: ProtocolError when it is malformed.
    """
    text = data.get(slo_config.SYSTEM.key, "")
    if key != slo_config.RESOURCE_QOS.key or text == "":
        return SystemConfig()
    return slo_config.SYSTEM.decode(text)


def _check(section: _Section, config: Any, system: SystemConfig, names_needed: bool) -> ConfigVerdict:
    key, path, entries = section.codec.key, _entries_path(config), _entries(config)
    problems = selector_problems(path, entries, may_be_empty=not section.is_exclusive)
    problems = problems or content_problems(key, config, system)
    if not problems and names_needed and section.is_exclusive:
        problems = name_problems(path, entries)
    if problems:
        return ConfigVerdict(ValidationReason.PARAMETER, f"{key}: {'; '.join(problems)}")
    if section.is_exclusive and (found := overlap(entries)):
        return ConfigVerdict(ValidationReason.OVERLAP, _overlap_message(key, found))
    return ALLOWED


def content_problems(key: str, config: Any, system: SystemConfig) -> list[str]:
    """Return what is wrong with the values of a key's decoded `config`, in words; empty when they are valid."""
    problems = [
        f"{path}.{problem}" if path else problem
        for path, layer in _layers(config)
        for problem in _BY_KEY[key].rule(layer)
    ]
    if isinstance(config, ResourceQOSConfig):
        problems += rules.bandwidth_problems(config, system)
    return problems


class NodeRules:
    """The demands of a ConfigMap's `data` on the labels of nodes.

    Keys that cannot be understood are skipped, and so are those with an entry without a usable selector: an empty
    one, which stands for all other nodes, would fit whatever another one fits.
    """

    def __init__(self, data: Data) -> None:
        self._tables: list[tuple[str, EntryTable[NodeEntry]]] = []
        for section in _SECTIONS:
            try:
                if text := data.get(section.codec.key, ""):
                    entries = _entries(section.codec.decode(text))
                    if not selector_problems("", entries):
                        self._tables.append((section.codec.key, EntryTable(entries)))
            except ProtocolError:
                continue

    def check(self, node: str, old: Mapping[str, str], new: Mapping[str, str]) -> ConfigVerdict:
        """Return whether a node may change its labels: several entries of one key must not match then."""
        for key, table in self._tables if new != old else ():
            if names := _several(table, new):
                return ConfigVerdict(ValidationReason.CONFLICT, _overlap_message(key, Overlap(names, node)))
        return ALLOWED


def _first_conflict(parsed: Sequence[tuple[str, Sequence[NodeEntry]]], nodes: NodeLabels) -> ConfigVerdict:
    for key, entries in parsed:
        if found := conflict(entries, nodes):
            return ConfigVerdict(ValidationReason.CONFLICT, _overlap_message(key, found))
    return ALLOWED


def _overlap_message(key: str, found: Overlap) -> str:
    body: dict[str, Any] = {"config": key, "strategies": list(found.entries)}
    if found.node:
        body["exampleNodes"] = [found.node]
    return msgspec.json.encode(body).decode()


def _layers(config: Any) -> Iterator[tuple[str, Any]]:
    """Yield the cluster's strategy and each entry, with where it stands."""
    if isinstance(config, _FLAT):
        yield "", config
    elif config.cluster_strategy is not None:
        yield "clusterStrategy", config.cluster_strategy
    for index, entry in enumerate(_entries(config)):
        yield f"{_entries_path(config)}[{index}]", entry


def _entries(config: Any) -> Sequence[NodeEntry]:
    found: Sequence[NodeEntry] = getattr(
        config, "node_configs" if isinstance(config, _FLAT) else "node_strategies"
    )
    return found


def _entries_path(config: Any) -> str:
    return "nodeConfigs" if isinstance(config, _FLAT) else "nodeStrategies"
