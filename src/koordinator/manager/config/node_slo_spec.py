"""Decide what the NodeSLO of a node says: cluster and node strategies merged, per section (behaviour/manager 11).

Pure. `sync` turns the ConfigMap into a merged configuration, `wanted_spec` picks what counts for one node.
"""

import logging
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from koordinator.api import labels, node_labels, quantity, schema, slo, slo_config
from koordinator.api.annotations.codec import Annotation
from koordinator.api.core import Node
from koordinator.api.errors import ProtocolError
from koordinator.api.slo import (
    DEFAULT_CPU_BURST_STRATEGY,
    DEFAULT_SYSTEM_STRATEGY,
    DEFAULT_THRESHOLD_STRATEGY,
    NodeSLOSpec,
    SystemStrategy,
)
from koordinator.api.slo_config import (
    CPUBurstConfig,
    HostApplicationConfig,
    ResourceQOSConfig,
    SystemConfig,
    ThresholdConfig,
)
from koordinator.api.slo_qos import ResourceQOSStrategy
from koordinator.manager.config.addons import NodeSLOAddon
from koordinator.manager.config.node_entries import (
    REMEMBERED_MAX,
    Signature,
    first_match,
    overlay,
    selector_keys,
)

log = logging.getLogger(__name__)

REASON_UNREADABLE = "SLOCfgUnmarshalFailed"
REASON_INVALID = "SLOCfgInvalid"
"""Ours; in the reference the API server refuses the NodeSLOs."""
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


SECTIONS = {
    slo_config.RESOURCE_THRESHOLD.key: ("threshold", "resource_used_threshold_with_be"),
    slo_config.RESOURCE_QOS.key: ("qos", "resource_qos_strategy"),
    slo_config.CPU_BURST.key: ("burst", "cpu_burst_strategy"),
    slo_config.SYSTEM.key: ("system", "system_strategy"),
    slo_config.HOST_APPLICATION.key: ("applications", "host_applications"),
}
"""Key → the member of a `NodeSLOConfig`, and that of a `NodeSLOSpec`."""


class NodeSLOSync(msgspec.Struct, frozen=True):
    """The configuration after a ConfigMap was read; `problems` are the keys that were not understood."""

    config: NodeSLOConfig
    changed: bool
    problems: dict[str, str] = {}
    """Key -> what is wrong with it; that key's old configuration stays."""


def sync(old: NodeSLOConfig, data: Mapping[str, str] | None) -> NodeSLOSync:
    """Return the next configuration from the ConfigMap's data (None: there is no ConfigMap), key by key."""
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
            lambda parsed: _merged(parsed, ResourceQOSStrategy()),
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
            lambda parsed: _merged(parsed, DEFAULT_SYSTEM_STRATEGY),
        ),
        applications=section(
            slo_config.HOST_APPLICATION, old.applications, default.applications, lambda parsed: parsed
        ),
    )
    return NodeSLOSync(config, config != old, problems)


def storable(old: NodeSLOConfig, new: NodeSLOConfig) -> tuple[NodeSLOConfig, dict[str, str]]:
    """Return the new configuration, with the old one of each key that has a value beyond what a NodeSLO may say, and
    what is wrong there: the API server would refuse the changes of all other keys with it."""
    kept: dict[str, Any] = {}
    refused: dict[str, str] = {}
    for key, (member, _) in SECTIONS.items():
        section, before = getattr(new, member), getattr(old, member)
        if section != before and (problem := next(schema.out_of_bounds(section), "")):
            kept[member] = before
            refused[key] = f"{_CONFIG_MAP}: {key}: {problem}"
    return msgspec.structs.replace(new, **kept), refused


_EMPTY_COUNTS = frozenset(
    {"cpu_policy", "net_qos_policy", "ingress_request", "ingress_limit", "egress_request", "egress_limit"}
)
"""Empty, they bring nodes back to the default: the usual policy, no bandwidth assured, no limit."""


def _merged(parsed: Layered, default: msgspec.Struct) -> Layered:
    """Return a section with its cluster strategy over the default, and each node entry over that."""
    given = parsed.cluster_strategy
    cluster = default if given is None else _over(default, given)
    entries = [_over(_over(entry, cluster), entry) for entry in parsed.node_strategies]
    return msgspec.structs.replace(parsed, cluster_strategy=cluster, node_strategies=entries)


def wanted_spec(
    config: NodeSLOConfig,
    node: Node,
    *,
    extensions: Mapping[str, Any] | None = None,
) -> NodeSLOSpec:
    """Return the whole spec of a node's NodeSLO; `extensions` are those of add-ons (see `node_extensions`)."""
    node_labels_ = node.metadata.labels
    applications = first_match(config.applications.node_configs, node_labels_) or config.applications
    return NodeSLOSpec(
        resource_used_threshold_with_be=_of_node(DEFAULT_THRESHOLD_STRATEGY, config.threshold, node_labels_),
        resource_qos_strategy=_of_node(ResourceQOSStrategy(), config.qos, node_labels_),
        cpu_burst_strategy=_of_node(DEFAULT_CPU_BURST_STRATEGY, config.burst, node_labels_),
        system_strategy=_system(config.system, node),
        host_applications=applications.applications,
        extensions=dict(extensions or {}),
    )


def _of_node(default: S, section: Layered, node_labels_: Mapping[str, str]) -> S:
    """Return the strategy of a section for a node, as the plain type of `default`."""
    entry = first_match(section.node_strategies, node_labels_)
    chosen = section.cluster_strategy if entry is None else entry
    return default if chosen is None else _over(default, chosen)


def _over(base: S, upper: msgspec.Struct) -> S:
    return overlay(base, upper, empty_text_counts=_EMPTY_COUNTS)


def _system(section: SystemConfig, node: Node) -> SystemStrategy:
    """Return the system strategy; the node's own annotation has the last word on its bandwidth."""
    strategy = _of_node(DEFAULT_SYSTEM_STRATEGY, section, node.metadata.labels)
    try:
        noted = node_labels.network_bandwidth(node.metadata.annotations, f"Node {node.key}")
    except ProtocolError as error:
        log.warning(
            "node annotation ignored", extra={"key": labels.NODE_NETWORK_BANDWIDTH, "error": str(error)}
        )
        noted = None
    bandwidth = strategy.total_network_bandwidth if noted is None else noted.text
    return msgspec.structs.replace(
        strategy, total_network_bandwidth=quantity.canonical(bandwidth or _NO_BANDWIDTH)
    )


class SpecTable:
    """The specs of nodes under one configuration, worked out once per kind of node.

    A spec depends on the labels that selectors name; nodes alike in these share one, except for the bandwidth
    of their annotation and the extensions of add-ons.
    """

    def __init__(self, config: NodeSLOConfig) -> None:
        self.config = config
        sections = (config.threshold, config.qos, config.burst, config.system)
        keys = selector_keys(config.applications.node_configs)
        self._keys = sorted(keys.union(*(selector_keys(section.node_strategies) for section in sections)))
        self._known: dict[Signature, NodeSLOSpec] = {}

    def of(self, node: Node, extensions: Mapping[str, Any] = types.MappingProxyType({})) -> NodeSLOSpec:
        """Return the whole spec of a node's NodeSLO."""
        metadata = node.metadata
        get = metadata.labels.get
        signature = (metadata.annotations.get(labels.NODE_NETWORK_BANDWIDTH), *[get(k) for k in self._keys])
        found = self._known.get(signature)
        if found is None:
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            found = self._known[signature] = wanted_spec(self.config, node)
        return msgspec.structs.replace(found, extensions=dict(extensions)) if extensions else found


def node_extensions(
    old: Mapping[str, Any], addons: Sequence[NodeSLOAddon], configs: Mapping[str, Any], node: Node
) -> dict[str, Any]:
    """Return the extensions of a node: the old ones, with what each add-on wants now.

    `old` as in the object; the reference's form `{"Object": {...}}` is understood, too. `configs` is what each
    add-on made of the ConfigMap, by its name; an add-on without one has its say later.
    """
    found = slo.plain_extensions(old)
    for addon in addons:
        if addon.name not in configs:
            continue
        try:
            policy = addon.of_node(configs[addon.name], node)
        except ProtocolError as error:
            log.warning("extension kept", extra={"node": node.key, "addon": addon.name, "error": str(error)})
            continue
        if policy is None:
            found.pop(addon.name, None)
        else:
            found[addon.name] = policy
    return found


def is_same(old: NodeSLOSpec, new: NodeSLOSpec) -> bool:
    """Return whether both mean the same: equal amounts may be written in several ways."""
    return old == new or _canonical(old) == _canonical(new)


def _canonical(spec: NodeSLOSpec) -> NodeSLOSpec:
    system = spec.system_strategy
    if system is None or system.total_network_bandwidth is None:
        return spec
    try:
        bandwidth = quantity.canonical(system.total_network_bandwidth)
    except quantity.QuantityError:
        return spec  # somebody else wrote it; it will be replaced
    system = msgspec.structs.replace(system, total_network_bandwidth=bandwidth)
    return msgspec.structs.replace(spec, system_strategy=system)
