"""The ConfigMap `slo-controller-config`, followed once for everybody (behaviour/manager 3.2).

Each consumer has its own part of it and is told when that part changed. A key that cannot be understood keeps
its last configuration, which a Warning event on the ConfigMap tells. A deleted ConfigMap counts as one without
any key, and so does a key with empty text: removing a policy removes it at once, not at the next restart.
"""

import contextlib
import enum
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from koordinator.api import slo_config
from koordinator.api.core import ConfigMap
from koordinator.api.errors import ProtocolError
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.supervise import Guard
from koordinator.manager.config import (
    addons,
    amplification,
    colocation_config,
    cpu_normalization,
    node_slo_spec,
)
from koordinator.manager.config.addons import Addons, NodeSLOAddon
from koordinator.manager.config.colocation_config import ColocationState, StrategyTable
from koordinator.manager.config.node_slo_spec import NodeSLOConfig, SpecTable

log = logging.getLogger(__name__)

REASON_DELETED = "SLOConfigDeleted"
"""Ours; the reference keeps the last configuration until it is restarted."""
DELETED = (
    "the configuration was deleted: everything counts as not configured, so co-location is off on all nodes"
)


class ConfigSection(enum.Enum):
    """A part of the configuration with consumers of its own."""

    COLOCATION = enum.auto()
    NODE_SLO = enum.auto()
    CPU_NORMALIZATION = enum.auto()
    AMPLIFICATION = enum.auto()


class SLOConfigs:
    """All parts in force."""

    def __init__(
        self,
        factory: InformerFactory,
        events: EventRecorder,
        *,
        namespace: str = slo_config.CONFIG_NAMESPACE,
        name: str = slo_config.CONFIG_NAME,
        addons: Addons = addons.NONE,
    ) -> None:
        self.colocation = ColocationState(colocation_config.default_config(addons.colocation))
        self.strategies = StrategyTable(self.colocation.config)
        """Co-location strategies of nodes; another one after each change."""
        self.node_slo = NodeSLOConfig()
        self.node_specs = SpecTable(self.node_slo)
        """NodeSLO specs of nodes, without extensions; another one after each change."""
        self.unread: frozenset[str] = frozenset(node_slo_spec.SECTIONS)
        """Keys of NodeSLOs that were never understood: what nodes have of them, from before a restart, stays."""
        self.extensions: dict[str, Any] = {}
        """Add-on by name -> what it made of the ConfigMap; missing as long as it could not."""
        self.cpu_normalization = cpu_normalization.DEFAULT_CONFIG
        self.amplification = amplification.DEFAULT_CONFIG
        self.addons = addons
        self.is_known = False
        """True once the ConfigMap, or its absence, was seen."""
        self.problems: dict[str, str] = {}
        """Key -> why its text, or a part of it, is not in force."""
        self.data: Mapping[str, str] | None = None
        """Data of the ConfigMap; None while there is none."""
        self.guard = Guard("configuration")
        self._is_speaking = False
        self._unreported: list[tuple[ConfigMap, str, str]] = []
        self._events = events
        self._name = name
        self._listeners: dict[ConfigSection, list[Callable[[], None]]] = {part: [] for part in ConfigSection}
        self._maps = factory.informer(ConfigMap, namespace, field_selector=f"metadata.name={name}")
        self._maps.add_handler(self._on_map, self._on_map_changed, self._on_map_gone)

    def on_change(self, part: ConfigSection, listener: Callable[[], None]) -> None:
        """Call `listener` whenever the merged configuration of that part has changed."""
        self._listeners[part].append(listener)

    @contextlib.contextmanager
    def speaking(self) -> Iterator[None]:
        """Tell users by events, of what is wrong already, too. Only the leader does: all instances read alike."""
        self._is_speaking = True
        unreported, self._unreported = self._unreported, []
        for occurrence in unreported:
            self._events.warning(*occurrence)
        try:
            yield
        finally:
            self._is_speaking = False

    async def ready(self) -> None:
        """Until the first configuration is known, even if it is that there is none."""
        await self._maps.synced.wait()
        if not self.is_known:
            self._apply(None, None)

    def _on_map(self, config_map: ConfigMap) -> None:
        if config_map.metadata.name == self._name:
            self._apply(config_map, config_map.data)

    def _on_map_changed(self, old: ConfigMap, new: ConfigMap) -> None:
        if old.data != new.data:
            self._on_map(new)

    def _on_map_gone(self, config_map: ConfigMap) -> None:
        if config_map.metadata.name == self._name:
            log.warning("configuration deleted", extra={"config_map": config_map.key})
            self._apply(None, None)
            self._event(config_map, REASON_DELETED, DELETED)

    def _apply(self, config_map: ConfigMap | None, data: Mapping[str, str] | None) -> None:
        """Work out all parts, then tell who listens to those that changed."""
        is_first, self.is_known = not self.is_known, True
        self.data = data
        self.problems = {}
        self._unreported.clear()
        data_by_key = {key: text for key, text in (data or {}).items() if text.strip()}
        for part, changed in (
            (ConfigSection.COLOCATION, self._take_colocation(config_map, data_by_key)),
            (ConfigSection.NODE_SLO, self._take_node_slo(config_map, data_by_key)),
            (ConfigSection.CPU_NORMALIZATION, self._take_cpu_normalization(config_map, data_by_key)),
            (ConfigSection.AMPLIFICATION, self._take_amplification(config_map, data_by_key)),
        ):
            if changed or is_first:
                for listener in self._listeners[part]:
                    self.guard.call(listener)

    def _take_colocation(self, config_map: ConfigMap | None, data_by_key: Mapping[str, str]) -> bool:
        outcome = colocation_config.sync(self.colocation, data_by_key, self.addons.colocation)
        # An error that came or went counts, too: policies that were kept on account of it are due.
        changed = outcome.changed or outcome.state != self.colocation
        self.colocation = outcome.state
        if self.strategies.config != outcome.state.config:
            self.strategies = StrategyTable(outcome.state.config)
        key = slo_config.COLOCATION.key
        if outcome.problem:
            reason = (
                colocation_config.REASON_UNREADABLE
                if outcome.unreadable
                else colocation_config.REASON_INVALID
            )
            self._record_problem(config_map, key, outcome.problem, reason)
        for problem in outcome.entry_problems:
            self._record_problem(config_map, key, problem, colocation_config.REASON_INVALID)
        return changed

    def _take_node_slo(self, config_map: ConfigMap | None, data_by_key: Mapping[str, str]) -> bool:
        outcome = node_slo_spec.sync(self.node_slo, data_by_key)
        config, refused = node_slo_spec.storable(self.node_slo, outcome.config)
        for key, problem in outcome.problems.items():
            self._record_problem(config_map, key, problem, node_slo_spec.REASON_UNREADABLE)
        for key, problem in refused.items():
            self._record_problem(config_map, key, problem, node_slo_spec.REASON_INVALID)
        unread = self.unread & (outcome.problems.keys() | refused.keys())
        changed = config != self.node_slo or unread != self.unread
        self.unread = unread
        if config != self.node_slo:
            self.node_slo = config
            self.node_specs = SpecTable(config)
        return self._take_extensions(config_map, data_by_key) or changed

    def _take_extensions(self, config_map: ConfigMap | None, data_by_key: Mapping[str, str]) -> bool:
        changed = False
        for addon in self.addons.node_slo:
            # A stranger's code must not keep the other keys from being read.
            changed |= self.guard.answer(
                self._take_extension, addon, config_map, data_by_key, otherwise=lambda _: False
            )
        return changed

    def _take_extension(
        self, addon: NodeSLOAddon, config_map: ConfigMap | None, data_by_key: Mapping[str, str]
    ) -> bool:
        try:
            config = addon.parse(data_by_key)
        except ProtocolError as error:
            self._record_problem(
                config_map, f"extension {addon.name}", str(error), node_slo_spec.REASON_UNREADABLE
            )
            return False
        if addon.name in self.extensions and self.extensions[addon.name] == config:
            return False
        self.extensions[addon.name] = config
        return True

    def _take_cpu_normalization(self, config_map: ConfigMap | None, data_by_key: Mapping[str, str]) -> bool:
        outcome = cpu_normalization.sync(self.cpu_normalization, data_by_key)
        if outcome.problem:
            key = slo_config.CPU_NORMALIZATION.key
            self._record_problem(config_map, key, outcome.problem, cpu_normalization.REASON_UNREADABLE)
        changed = outcome.config != self.cpu_normalization
        self.cpu_normalization = outcome.config
        return changed

    def _take_amplification(self, config_map: ConfigMap | None, data_by_key: Mapping[str, str]) -> bool:
        outcome = amplification.sync(self.amplification, data_by_key)
        if outcome.problem:
            key = slo_config.RESOURCE_AMPLIFICATION.key
            self._record_problem(config_map, key, outcome.problem, amplification.REASON_UNREADABLE)
        changed = outcome.config != self.amplification
        self.amplification = outcome.config
        return changed

    def _record_problem(self, config_map: ConfigMap | None, key: str, problem: str, reason: str) -> None:
        self.problems[key] = f"{self.problems[key]}; {problem}" if key in self.problems else problem
        log.warning("configuration not used", extra={"key": key, "problem": problem})
        if config_map is not None:
            self._event(config_map, reason, problem)

    def _event(self, config_map: ConfigMap, reason: str, message: str) -> None:
        if self._is_speaking:
            self._events.warning(config_map, reason, message)
        else:
            self._unreported.append((config_map, reason, message))
