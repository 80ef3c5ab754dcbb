"""Is `slo-controller-config` there, understood, valid, and does it mean what its author thought?

Configurations of the protocol ignore what they do not know (behaviour/manager 3.1), so nothing else tells of members
that nobody reads: mostly names that were mistyped.
"""

import difflib
import json
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Union

import msgspec

from koordinator.api import label_selector, slo_config
from koordinator.api.annotations.codec import Annotation
from koordinator.api.core import ConfigMap, Node
from koordinator.api.errors import ProtocolError
from koordinator.api.slo_config import SystemConfig
from koordinator.doctor.finding import Finding, FindingSeverity, edit, some_of
from koordinator.doctor.snapshot import ClusterSnapshot
from koordinator.manager.config import colocation_config, node_slo_spec, validation
from koordinator.manager.config.node_entries import NodeEntry
from koordinator.manager.config.validation import NodeLabels
from koordinator.manager.webhooks import table


class _Key(msgspec.Struct, frozen=True):
    """A data key: its codec and type, the member with its node entries, whether the webhook knows rules for it."""

    codec: Annotation[Any]
    payload: type[Any]
    entries: str
    has_rules: bool = True


_KEYS = (
    _Key(slo_config.COLOCATION, slo_config.ColocationConfig, "nodeConfigs"),
    _Key(slo_config.RESOURCE_THRESHOLD, slo_config.ThresholdConfig, "nodeStrategies"),
    _Key(slo_config.RESOURCE_QOS, slo_config.ResourceQOSConfig, "nodeStrategies"),
    _Key(slo_config.CPU_BURST, slo_config.CPUBurstConfig, "nodeStrategies"),
    _Key(slo_config.SYSTEM, slo_config.SystemConfig, "nodeStrategies"),
    _Key(slo_config.HOST_APPLICATION, slo_config.HostApplicationConfig, "nodeConfigs", has_rules=False),
    _Key(slo_config.CPU_NORMALIZATION, slo_config.CPUNormalizationConfig, "nodeConfigs", has_rules=False),
    _Key(
        slo_config.RESOURCE_AMPLIFICATION,
        slo_config.ResourceAmplificationConfig,
        "nodeConfigs",
        has_rules=False,
    ),
)
_NAMES = tuple(key.codec.key for key in _KEYS)


def check(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Everything about the ConfigMap that can be said without asking whether nodes follow it."""
    found = snapshot.slo_config
    if found is None:
        flags = snapshot.installation.manager_flags
        name = flags.get("slo-config-name", slo_config.CONFIG_NAME)
        namespace = flags.get("config-namespace", snapshot.namespace)
        yield Finding.warning(
            f"ConfigMap {namespace}/{name}",
            "missing",
            why="the defaults apply: co-location is off, and no node offers batch resources",
            do=("koordinator install --apply", "docs/run-the-manager.md has an example"),
        )
        return
    nodes = {node.metadata.name: node.metadata.labels for node in snapshot.nodes}
    for key in _KEYS:
        if text := found.data.get(key.codec.key, ""):
            yield from _key(snapshot, found, key, text, nodes)
        elif key.codec.key in found.data and key.codec is not slo_config.COLOCATION:
            yield _problem(snapshot, found, key.codec.key, "the text is empty")
    yield from _strangers(found)
    yield from _unprotected(snapshot, found)


def _problem(snapshot: ClusterSnapshot, found: ConfigMap, key: str, problem: str) -> Finding:
    is_checked = table.VALIDATE_CONFIG_MAP in snapshot.webhook_paths
    hint = (
        ()
        if is_checked
        else ("turn on the manager's feature gate ConfigMapValidatingWebhook: such edits are then refused",)
    )
    return Finding.error(
        found,
        f"{key}: {problem}",
        why="the manager keeps the last valid configuration, and has none after a restart",
        do=(edit(found), *hint),
    )


def _key(
    snapshot: ClusterSnapshot, found: ConfigMap, key: _Key, text: str, nodes: NodeLabels
) -> Iterator[Finding]:
    name = key.codec.key
    try:
        parsed = key.codec.decode(text)
    except ProtocolError as error:
        yield _problem(snapshot, found, name, error.reason)
        return
    entries: Sequence[NodeEntry] = getattr(
        parsed, "node_configs" if key.entries == "nodeConfigs" else "node_strategies"
    )
    problems = list(_bad_selectors(key.entries, entries))
    if key.has_rules:
        problems += validation.content_problems(name, parsed, _system(found.data))
    if problems:
        yield _problem(snapshot, found, name, "; ".join(dict.fromkeys(problems)))
    if unknown := unknown_members(text, key.payload):
        yield Finding.warning(
            found,
            f"{name}: unknown fields: {some_of(unknown)}",
            why="unknown fields are silently ignored",
            do=(edit(found),),
            objects=unknown if len(unknown) > 1 else (),
        )
    yield from _entries(found, key, entries, nodes)


def _system(data: Mapping[str, str]) -> SystemConfig:
    try:
        return slo_config.SYSTEM.decode(data.get(slo_config.SYSTEM.key) or "{}")
    except ProtocolError:
        return SystemConfig()  # which has a finding of its own


def _bad_selectors(path: str, entries: Sequence[NodeEntry]) -> Iterator[str]:
    for index, entry in enumerate(entries):
        try:
            if entry.node_selector is not None:
                label_selector.compile_selector(entry.node_selector)
        except ProtocolError as error:
            yield f"{path}[{index}].nodeSelector: {error.reason}"


def _entries(
    found: ConfigMap, key: _Key, entries: Sequence[NodeEntry], nodes: NodeLabels
) -> Iterator[Finding]:
    """Entries that hide each other, and those that no node ever gets."""
    if overlap := validation.conflict(entries, nodes):
        yield Finding.warning(
            found,
            f"{key.codec.key}: node {overlap.node} matches several entries of {key.entries}: "
            f"{', '.join(name or '(unnamed)' for name in overlap.entries)}",
            why=f"only the first one applies ({overlap.entries[0] or 'unnamed'}); the others have no effect there",
            do=(edit(found), f"kubectl get node {overlap.node} --show-labels"),
        )
    if not nodes:
        return
    for index, entry in enumerate(entries):
        label = f"{key.entries}[{index}]" + (f" ({entry.name})" if entry.name else "")
        try:
            selected = entry.node_selector is not None and any(
                map(label_selector.compile_selector(entry.node_selector), nodes.values())
            )
        except ProtocolError:
            continue
        if not selected:
            reason = "has no nodeSelector" if entry.node_selector is None else "matches no node"
            yield Finding.of(
                FindingSeverity.WARNING if entry.node_selector is None else FindingSeverity.NOTICE,
                found,
                f"{key.codec.key}: {label} {reason}",
                why="the entry has no effect",
                do=("kubectl get nodes --show-labels", edit(found)),
            )


def _strangers(found: ConfigMap) -> Iterator[Finding]:
    """Keys that look like ours, but are not; others belong to add-ons."""
    for name in sorted(found.data.keys() - set(_NAMES)):
        if alike := difflib.get_close_matches(name, _NAMES, n=1, cutoff=0.8):
            yield Finding.warning(
                found,
                f"unknown key {name} (did you mean {alike[0]}?)",
                why="unknown keys are silently ignored",
                do=(edit(found),),
            )


def _unprotected(snapshot: ClusterSnapshot, found: ConfigMap) -> Iterator[Finding]:
    """Yield nodes that lend resources without holding batch pods down when services need them back."""
    outcome = node_slo_spec.sync(node_slo_spec.DEFAULT_CONFIG, found.data)
    if slo_config.RESOURCE_THRESHOLD.key in outcome.problems:
        return  # the manager goes on with what it understood before, which nobody else knows
    thresholds = outcome.config
    exposed = [
        node.metadata.name
        for node in snapshot.nodes
        if lends(snapshot, node) and not _is_suppressed(thresholds, node)
    ]
    if not exposed:
        return
    yield Finding.warning(
        found,
        f"{slo_config.RESOURCE_THRESHOLD.key} is off on nodes that offer batch resources: {some_of(exposed)}",
        why="node agents neither suppress nor evict batch pods when services need the CPU and memory back",
        do=(edit(found) + '    # resource-threshold-config: {"clusterStrategy": {"enable": true}}',),
        objects=exposed,
    )


def _is_suppressed(config: node_slo_spec.NodeSLOConfig, node: Node) -> bool:
    strategy = node_slo_spec.wanted_spec(config, node).resource_used_threshold_with_be
    return strategy is not None and bool(strategy.enable)


def lends(snapshot: ClusterSnapshot, node: Node) -> bool:
    """Return whether the configuration lets the node lend Batch resources; False when it is not understood."""
    config = snapshot.colocation
    return config is not None and not colocation_config.is_disabled(
        config, colocation_config.node_strategy(config, node)
    )


def unknown_members(text: str, payload: type[Any]) -> list[str]:
    """Paths of members that the type does not have, with the name that was probably meant.

    Names count case-insensitively; a text that is no JSON has none, as whoever decodes it says so.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return list(_walk(value, payload, ""))


def _walk(value: Any, kind: Any, path: str) -> Iterator[str]:
    kind = _plain(kind)
    origin = typing.get_origin(kind)
    if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        known = {each.encode_name.lower(): each for each in msgspec.structs.fields(kind)}
        for name, member in value.items():
            where = f"{path}.{name}" if path else str(name)
            field = known.get(str(name).lower())
            if field is None:
                yield where + _meant(str(name), [each.encode_name for each in known.values()])
            else:
                yield from _walk(member, field.type, where)
    elif isinstance(value, dict) and origin is dict:
        item = typing.get_args(kind)[1]
        for name, member in value.items():
            yield from _walk(member, item, f"{path}.{name}")
    elif isinstance(value, list) and origin is list:
        (item,) = typing.get_args(kind)
        for index, member in enumerate(value):
            yield from _walk(member, item, f"{path}[{index}]")


def _plain(kind: Any) -> Any:
    """Return the type without annotations and without None."""
    while True:
        origin = typing.get_origin(kind)
        if origin is Annotated:
            kind = typing.get_args(kind)[0]
        elif origin in (Union, types.UnionType):
            members = [each for each in typing.get_args(kind) if each is not types.NoneType]
            if len(members) != 1:
                return Any
            kind = members[0]
        else:
            return kind


def _meant(name: str, known: list[str]) -> str:
    alike = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {alike[0]}?)" if alike else ""
