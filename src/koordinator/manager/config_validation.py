"""Whether a new `slo-controller-config`, or new labels of a node, may be accepted (spec 02 §13).

Pure. Refusals name the key, the member and the rule; their text has the form that tools of the reference
parse: `___{"reason":...,"message":...}___`.
"""

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from koordinator.api import slo_config
from koordinator.api.annotations.codec import Annotation
from koordinator.api.errors import ProtocolError
from koordinator.api.slo_config import ColocationConfig, ResourceQOSConfig, SystemConfig
from koordinator.manager import config_validation_network as network
from koordinator.manager import config_validation_rules as rules
from koordinator.manager import config_validation_selectors as selectors
from koordinator.manager.config_validation_selectors import NodeLabels, Overlap
from koordinator.manager.node_entries import NodeEntry

Data = Mapping[str, str]


class Reason(enum.StrEnum):
    """Why something is refused, as users of the reference know it (its spelling included)."""

    NONE = ""
    PARSE = "ParseConfigFail"
    PARAMETER = "ConfigParamInvalid"
    OVERLAP = "NodeStrategiesOverlap"
    CONFLICT = "ExistNodeConfict"


class ConfigVerdict(msgspec.Struct, frozen=True):
    """Whether the change may be accepted; `message` is for people, or JSON for the last two reasons."""

    reason: Reason = Reason.NONE
    message: str = ""

    @property
    def allowed(self) -> bool:
        """Nothing was found."""
        return self.reason is Reason.NONE

    @property
    def text(self) -> str:
        """What the API server shows."""
        body = msgspec.json.encode({"reason": self.reason.value, "message": self.message}).decode()
        return f"___{body}___"


ALLOWED = ConfigVerdict()


class ValidationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`names_needed` is flag `--node-strategy-name-need-check`.

    `as_reference` also refuses what only the reference refuses: `resource-qos-config` without
    `system-config`, and bandwidths that it adds up wrongly.
    """

    names_needed: bool = False
    as_reference: bool = False


class _Section(msgspec.Struct, frozen=True):
    """A checked key: how it is decoded, what rule each of its layers obeys."""

    codec: Annotation[Any]
    rule: Callable[[Any], list[str]]


_SECTIONS = (
    _Section(slo_config.COLOCATION, rules.colocation),
    _Section(slo_config.RESOURCE_THRESHOLD, rules.threshold),
    _Section(slo_config.RESOURCE_QOS, rules.qos),
    _Section(slo_config.SYSTEM, rules.system),
    _Section(slo_config.CPU_BURST, rules.burst),
)
"""In the order in which they are checked; other keys are not."""
_BY_KEY = {section.codec.key: section for section in _SECTIONS}


def validate_config_map(old: Data, new: Data, nodes: NodeLabels, options: ValidationOptions) -> ConfigVerdict:
    """The first objection to a created or updated ConfigMap; `old` is {} for a new one.

    Only keys that changed and are not empty are looked at. Their entries must not overlap, neither by their
    selectors nor on any of `nodes`.
    """
    parsed: list[tuple[str, Sequence[NodeEntry]]] = []
    for section in _SECTIONS:
        key = section.codec.key
        text = new.get(key, "")
        if text == "" or text == old.get(key, ""):
            continue
        try:
            config = section.codec.decode(text)
            system = _system_config(key, new, options)
        except ProtocolError as error:
            return ConfigVerdict(Reason.PARSE, str(error))
        if not (verdict := _check(section, config, system, options)).allowed:
            return verdict
        parsed.append((key, _entries(config)))
    return _first_conflict(parsed, nodes)


def _system_config(key: str, data: Data, options: ValidationOptions) -> SystemConfig:
    """The `system-config` next to `resource-qos-config`, whose bandwidths must fit it.

    Raises: ProtocolError when it is malformed or, as the reference wants it, absent.
    """
    text = data.get(slo_config.SYSTEM.key, "")
    if key != slo_config.RESOURCE_QOS.key or (text == "" and not options.as_reference):
        return SystemConfig()
    return slo_config.SYSTEM.decode(text)


def _check(section: _Section, config: Any, system: SystemConfig, options: ValidationOptions) -> ConfigVerdict:
    key, path, entries = section.codec.key, _entries_path(config), _entries(config)
    problems = selectors.selector_problems(path, entries)
    problems = problems or content_problems(key, config, system, as_reference=options.as_reference)
    if not problems and options.names_needed:
        problems = selectors.name_problems(path, entries)
    if problems:
        return ConfigVerdict(Reason.PARAMETER, f"{key}: {'; '.join(problems)}")
    if found := selectors.overlap(entries):
        return ConfigVerdict(Reason.OVERLAP, _overlap_message(key, found))
    return ALLOWED


def content_problems(key: str, config: Any, system: SystemConfig, *, as_reference: bool = False) -> list[str]:
    """What is wrong with the values of a key's decoded `config`, in words; empty when they are valid."""
    problems = [
        f"{path}.{problem}" if path else problem
        for path, layer in _layers(config)
        for problem in _BY_KEY[key].rule(layer)
    ]
    if isinstance(config, ResourceQOSConfig):
        problems += network.problems(config, system, as_reference=as_reference)
    return problems


def validate_node_labels(
    data: Data, node: str, old: Mapping[str, str], new: Mapping[str, str]
) -> ConfigVerdict:
    """Whether a node may change its labels: no configuration may then have several entries for it.

    Keys of the ConfigMap's `data` that cannot be understood are skipped.
    """
    if old == new:
        return ALLOWED
    parsed: list[tuple[str, Sequence[NodeEntry]]] = []
    for section in _SECTIONS:
        try:
            if text := data.get(section.codec.key, ""):
                parsed.append((section.codec.key, _entries(section.codec.decode(text))))
        except ProtocolError:
            continue
    return _first_conflict(parsed, {node: new})


def _first_conflict(parsed: Sequence[tuple[str, Sequence[NodeEntry]]], nodes: NodeLabels) -> ConfigVerdict:
    for key, entries in parsed:
        if found := selectors.conflict(entries, nodes):
            return ConfigVerdict(Reason.CONFLICT, _overlap_message(key, found))
    return ALLOWED


def _overlap_message(key: str, found: Overlap) -> str:
    nodes = [found.node] if found.node else []
    body = {"config": key, "strategies": list(found.entries), "exampleNodes": nodes}
    return msgspec.json.encode(body).decode()


def _layers(config: Any) -> Iterator[tuple[str, Any]]:
    """The cluster's strategy and each entry, with where it stands."""
    if isinstance(config, ColocationConfig):
        yield "", config
    elif config.cluster_strategy is not None:
        yield "clusterStrategy", config.cluster_strategy
    for index, entry in enumerate(_entries(config)):
        yield f"{_entries_path(config)}[{index}]", entry


def _entries(config: Any) -> Sequence[NodeEntry]:
    found: Sequence[NodeEntry] = (
        config.node_configs if isinstance(config, ColocationConfig) else config.node_strategies
    )
    return found


def _entries_path(config: Any) -> str:
    return "nodeConfigs" if isinstance(config, ColocationConfig) else "nodeStrategies"
