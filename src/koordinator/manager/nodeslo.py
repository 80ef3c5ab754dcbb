"""What the NodeSLO of a node should say: cluster and node strategies merged, per section (spec 02 §11).

Pure. `sync` turns the ConfigMap into a merged configuration, `wanted_spec` picks what counts for one node.
Oddities of the reference are kept behind `as_reference`, for those who compare both (`nodeslo_reference`);
without it, what an administrator meant counts.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from koordinator.api import labels, node_labels, quantity, slo_config
from koordinator.api.annotations.codec import Annotation
from koordinator.api.core import Node
from koordinator.api.errors import ProtocolError
from koordinator.api.slo import (
    DEFAULT_CPU_BURST_STRATEGY,
    DEFAULT_SYSTEM_STRATEGY,
    DEFAULT_THRESHOLD_STRATEGY,
    NodeSLOSpec,
    ResourceQOSStrategy,
    SystemStrategy,
)
from koordinator.api.slo_config import (
    CPUBurstConfig,
    HostApplicationConfig,
    ResourceQOSConfig,
    SystemConfig,
    ThresholdConfig,
)
from koordinator.manager import nodeslo_reference
from koordinator.manager.node_entries import first_match
from koordinator.manager.overlay import overlay

log = logging.getLogger(__name__)

REASON_UNREADABLE = "SLOCfgUnmarshalFailed"
_CONFIG_MAP = f"ConfigMap {slo_config.CONFIG_NAME}"
_NO_BANDWIDTH = "0"

S = TypeVar("S", bound=msgspec.Struct)
C = TypeVar("C", bound=msgspec.Struct)
Layered = TypeVar("Layered", ThresholdConfig, ResourceQOSConfig, CPUBurstConfig, SystemConfig)


class NodeSLOConfig(msgspec.Struct, frozen=True):
    """The merged configuration: cluster strategies over the defaults, node entries over those."""

    threshold: ThresholdConfig = ThresholdConfig(cluster_strategy=DEFAULT_THRESHOLD_STRATEGY)
    qos: ResourceQOSConfig = ResourceQOSConfig(cluster_strategy=ResourceQOSStrategy())
    burst: CPUBurstConfig = CPUBurstConfig(cluster_strategy=DEFAULT_CPU_BURST_STRATEGY)
    system: SystemConfig = SystemConfig(cluster_strategy=DEFAULT_SYSTEM_STRATEGY)
    applications: HostApplicationConfig = HostApplicationConfig()


DEFAULT_CONFIG = NodeSLOConfig()


class SyncOutcome(msgspec.Struct, frozen=True):
    """The configuration after a ConfigMap was read; `problems` are the keys that were not understood."""

    config: NodeSLOConfig
    changed: bool
    problems: dict[str, str] = {}
    """Key -> what is wrong with it; that key's old configuration stays."""


def sync(old: NodeSLOConfig, data: Mapping[str, str] | None, *, as_reference: bool = False) -> SyncOutcome:
    """The next configuration from the ConfigMap's data (None: there is no ConfigMap), key by key."""
    problems: dict[str, str] = {}
    known = data or {}

    def section(key: Annotation[C], before: C, default: C, merge: Callable[[C], C]) -> C:
        text = known.get(key.key)
        if text is None:
            return default
        try:
            return merge(key.decode(text, _CONFIG_MAP))
        except ProtocolError as error:
            problems[key.key] = str(error)
            return before

    default = DEFAULT_CONFIG
    config = NodeSLOConfig(
        threshold=section(
            slo_config.RESOURCE_THRESHOLD,
            old.threshold,
            default.threshold,
            lambda parsed: _merged(parsed, DEFAULT_THRESHOLD_STRATEGY),
        ),
        qos=section(
            slo_config.RESOURCE_QOS,
            old.qos,
            default.qos,
            lambda parsed: _merged(
                nodeslo_reference.with_blocks_by_index(parsed) if as_reference else parsed,
                ResourceQOSStrategy(),
            ),
        ),
        burst=section(
            slo_config.CPU_BURST,
            old.burst,
            default.burst,
            lambda parsed: _merged(parsed, DEFAULT_CPU_BURST_STRATEGY),
        ),
        system=section(
            slo_config.SYSTEM,
            old.system,
            default.system,
            lambda parsed: _merged(
                nodeslo_reference.with_reset_bandwidth(parsed) if as_reference else parsed,
                DEFAULT_SYSTEM_STRATEGY,
            ),
        ),
        applications=section(
            slo_config.HOST_APPLICATION, old.applications, default.applications, lambda parsed: parsed
        ),
    )
    return SyncOutcome(config, config != old, problems)


def _merged(parsed: Layered, default: msgspec.Struct) -> Layered:
    """A section with its cluster strategy over the default, and each node entry over that."""
    given = parsed.cluster_strategy
    cluster = default if given is None else overlay(default, given)
    entries = [overlay(overlay(entry, cluster), entry) for entry in parsed.node_strategies]
    return msgspec.structs.replace(parsed, cluster_strategy=cluster, node_strategies=entries)


def wanted_spec(
    config: NodeSLOConfig,
    node: Node,
    *,
    extensions: Mapping[str, Any] | None = None,
    as_reference: bool = False,
) -> NodeSLOSpec:
    """The whole spec of a node's NodeSLO; `extensions` are those of add-ons (see `node_extensions`)."""
    node_labels_ = node.metadata.labels
    applications = first_match(config.applications.node_configs, node_labels_) or config.applications
    return NodeSLOSpec(
        resource_used_threshold_with_be=_of_node(DEFAULT_THRESHOLD_STRATEGY, config.threshold, node_labels_),
        resource_qos_strategy=_of_node(ResourceQOSStrategy(), config.qos, node_labels_),
        cpu_burst_strategy=_of_node(DEFAULT_CPU_BURST_STRATEGY, config.burst, node_labels_),
        system_strategy=_system(config.system, node, as_reference),
        host_applications=applications.applications,
        extensions=dict(extensions or {}),
    )


def _of_node(default: S, section: Layered, node_labels_: Mapping[str, str]) -> S:
    """The strategy of a section for a node, as the plain type of `default`."""
    entry = first_match(section.node_strategies, node_labels_)
    chosen = section.cluster_strategy if entry is None else entry
    return default if chosen is None else overlay(default, chosen)


def _system(section: SystemConfig, node: Node, as_reference: bool) -> SystemStrategy | None:
    """The system strategy; the node's own annotation has the last word on its bandwidth."""
    strategy = _of_node(DEFAULT_SYSTEM_STRATEGY, section, node.metadata.labels)
    try:
        noted = node_labels.network_bandwidth(node.metadata.annotations, f"Node {node.key}")
    except ProtocolError as error:
        if as_reference:
            return None
        log.warning(
            "node annotation ignored", extra={"key": labels.NODE_NETWORK_BANDWIDTH, "error": str(error)}
        )
        noted = None
    bandwidth = strategy.total_network_bandwidth if noted is None else noted.text
    return msgspec.structs.replace(
        strategy, total_network_bandwidth=quantity.canonical(bandwidth or _NO_BANDWIDTH)
    )


class Extension(msgspec.Struct, frozen=True):
    """What an add-on wants under its key on a node; None removes the key."""

    key: str
    strategy: Any


ExtensionHook = Callable[[Node], Extension]
"""An add-on. Raises: ProtocolError when its configuration is malformed; what is there then stays."""

_NESTED = "Object"


def node_extensions(old: Mapping[str, Any], hooks: Sequence[ExtensionHook], node: Node) -> dict[str, Any]:
    """The extensions of a node: the old ones, with what each add-on wants now.

    `old` as in the object; the reference's form `{"Object": {...}}` is understood, too.
    """
    found = plain_extensions(old)
    for hook in hooks:
        try:
            extension = hook(node)
        except ProtocolError as error:
            log.warning("extension kept", extra={"node": node.key, "error": str(error)})
            continue
        if extension.strategy is None:
            found.pop(extension.key, None)
        else:
            found[extension.key] = extension.strategy
    return found


def plain_extensions(found: Mapping[str, Any]) -> dict[str, Any]:
    """Extensions by key, out of either form."""
    nested = found.get(_NESTED)
    return dict(nested) if len(found) == 1 and isinstance(nested, dict) else dict(found)
