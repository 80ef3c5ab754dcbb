"""Policies of other packages in the ConfigMap and in NodeSLOs: what an add-on is, and which are installed.

A package offers an add-on as an entry point of the group `ENTRY_POINTS` that leads to a `NodeSLOAddon` or a
`ColocationAddon` (docs/node-policies.md). One that cannot be used costs a warning, never the manager.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from typing import Any, Protocol, runtime_checkable

import msgspec

from koordinator.api import interference, slo
from koordinator.api.affinity import LabelSelector
from koordinator.api.annotations.codec import Annotation, Payload
from koordinator.api.core import Node
from koordinator.cluster.supervise import attempt
from koordinator.manager.config.node_entries import first_match

log = logging.getLogger(__name__)

ENTRY_POINTS = "koordinator.manager.addons"


@runtime_checkable
class NodeSLOAddon(Protocol):
    """Puts a policy under `spec.extensions` of NodeSLOs."""

    @property
    def name(self) -> str:
        """Return its key there."""

    def parse(self, data: Mapping[str, str]) -> Any:
        """Return what the ConfigMap's `data` configures ({} without a ConfigMap), merged as far as possible.

        Raises: ProtocolError when it is malformed; what was parsed last stays in force, and an event tells.
        """

    def of_node(self, config: Any, node: Node) -> Any:
        """Return the policy of a node as JSON, None for none; `config` as `parse` gave it. Pure and quick.

        Raises: ProtocolError when it cannot be told; what the NodeSLO says then stays.
        """


class ColocationAddon(msgspec.Struct, frozen=True, kw_only=True):
    """A member of `extensions` in `colocation-config`: its default, and what is wrong with a value, in words."""

    name: str
    default: Any = None
    """None: unset."""
    problems: Callable[[Any], list[str]] = lambda _: []


class Addons(msgspec.Struct, frozen=True):
    """All that are installed."""

    node_slo: tuple[NodeSLOAddon, ...] = ()
    colocation: tuple[ColocationAddon, ...] = ()


NONE = Addons()


def installed() -> Addons:
    """Return our own add-ons and those of all installed packages."""
    found = read_entries(metadata.entry_points(group=ENTRY_POINTS))
    return msgspec.structs.replace(found, node_slo=(EVICTION, INTERFERENCE, SHADOW, *found.node_slo))


def read_entries(entries: Iterable[metadata.EntryPoint]) -> Addons:
    """Return the add-ons that entry points lead to, by name; of two with one name neither is used."""
    node_slo: dict[str, list[NodeSLOAddon]] = {}
    colocation: dict[str, list[ColocationAddon]] = {}
    for entry in entries:
        found = attempt(entry.load)
        if isinstance(found, Exception):
            log.warning("add-on invalid", extra={"addon": entry.name, "error": repr(found)})
        elif isinstance(found, ColocationAddon):
            colocation.setdefault(found.name, []).append(found)
        elif isinstance(found, NodeSLOAddon):
            node_slo.setdefault(found.name, []).append(found)
        else:
            log.warning("add-on invalid", extra={"addon": entry.name, "error": f"{entry.value} is none"})
    return Addons(_single(node_slo), _single(colocation))


def _single(found: Mapping[str, list[Any]]) -> tuple[Any, ...]:
    for name, several in found.items():
        if len(several) > 1:
            log.warning("add-on invalid", extra={"addon": name, "error": "several packages offer it"})
    return tuple(several[0] for _, several in sorted(found.items()) if len(several) == 1)


class _LayeredConfig(Payload, frozen=True, kw_only=True):
    cluster_strategy: dict[str, Any] = {}
    node_strategies: list[dict[str, Any]] = []


class LayeredEntry(msgspec.Struct, frozen=True):
    """A node strategy: as it is written, or laid over the cluster's."""

    name: str
    node_selector: LabelSelector | None
    strategy: dict[str, Any]


class LayeredStrategies(msgspec.Struct, frozen=True):
    """The layers of a configuration: as they are written, or each laid over those below."""

    cluster_strategy: dict[str, Any]
    node_strategies: list[LayeredEntry]


class _Profile(Payload, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None


class LayeredAddon:
    """An add-on configured as the built-in keys are: `clusterStrategy`, and `nodeStrategies` by selector.

    `key` is that of the ConfigMap, `name` that of the extension. Strategies are JSON objects of any content;
    an entry's members count over the cluster's, which count over `default`. The first entry that matches a
    node counts. Without the key nodes have no such extension.
    """

    def __init__(self, name: str, key: str, default: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self.key = key
        self._default = dict(default or {})
        self._codec = Annotation(key, _LayeredConfig)
        self._profiles = Annotation(f"{key}: nodeStrategies", _Profile)

    def parse(self, data: Mapping[str, str]) -> LayeredStrategies | None:
        """Raises: ProtocolError."""
        text = data.get(self.key)
        if text is None:
            return None
        found = self.decode(text, "ConfigMap")
        cluster = laid_over(self._default, found.cluster_strategy)
        entries = [
            msgspec.structs.replace(entry, strategy=laid_over(cluster, entry.strategy))
            for entry in found.node_strategies
        ]
        return LayeredStrategies(cluster, entries)

    def decode(self, text: str, obj: str = "") -> LayeredStrategies:
        """Return the layers that a text has. Raises: ProtocolError."""
        parsed = self._codec.decode(text, obj)
        entries = [self._entry(body, obj) for body in parsed.node_strategies]
        return LayeredStrategies(parsed.cluster_strategy, entries)

    def of_node(self, config: LayeredStrategies | None, node: Node) -> dict[str, Any] | None:
        """Return the first matching entry, else the cluster's strategy; None without the key."""
        if config is None:
            return None
        entry = first_match(config.node_strategies, node.metadata.labels)
        return config.cluster_strategy if entry is None else entry.strategy

    def _entry(self, body: Mapping[str, Any], obj: str) -> LayeredEntry:
        profile = self._profiles.decode(msgspec.json.encode(body).decode(), obj)
        own = {name: value for name, value in body.items() if name not in ("name", "nodeSelector")}
        return LayeredEntry(profile.name, profile.node_selector, own)


def laid_over(base: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with what `upper` says; objects are merged member by member, null counts as absent."""
    result = dict(base)
    for name, value in upper.items():
        if value is None:
            continue
        have = result.get(name)
        if isinstance(have, Mapping) and isinstance(value, Mapping):
            value = laid_over(have, value)
        result[name] = value
    return result


EVICTION = LayeredAddon(slo.EVICTION, "eviction-config")
"""Settings of the eviction strategies of the node agent that the reference does not have, by feature gate."""
INTERFERENCE = LayeredAddon(interference.INTERFERENCE, "interference-config")
"""Settings of the loop by which batch follows what services feel, which the reference does not have."""
SHADOW = LayeredAddon(slo.SHADOW, "shadow-config")
"""Add-on that names the node agent's strategies that decide and do nothing."""
