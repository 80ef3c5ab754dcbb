"""The ConfigMap `slo-controller-config`, followed once for everybody (spec 02 §3.2).

Each consumer has its own part of it and is told when that part changed. A part that cannot be understood
keeps its last configuration, which a Warning event on the ConfigMap tells. A deleted ConfigMap counts as one
without any key, so that removing it switches co-location off at once instead of at the next restart.
"""

import enum
import logging
from collections.abc import Callable, Mapping

from koordinator.api import slo_config
from koordinator.api.core import ConfigMap
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory
from koordinator.manager import colocation_config, nodeslo
from koordinator.manager.colocation_config import ColocationState
from koordinator.manager.noderesource import amplification, cpu_normalization
from koordinator.manager.nodeslo import NodeSLOConfig

log = logging.getLogger(__name__)


class Part(enum.Enum):
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
    ) -> None:
        self.colocation = ColocationState()
        self.node_slo = NodeSLOConfig()
        self.cpu_normalization = cpu_normalization.DEFAULT_CONFIG
        self.amplification = amplification.DEFAULT_CONFIG
        self.problems: dict[str, str] = {}
        """Key -> why its last text is not in force."""
        self.data: Mapping[str, str] | None = None
        """What the ConfigMap says, None while there is none."""
        self._events = events
        self._name = name
        self._listeners: dict[Part, list[Callable[[], None]]] = {part: [] for part in Part}
        self._maps = factory.informer(ConfigMap, namespace, field_selector=f"metadata.name={name}")
        self._maps.add_handler(self._on_map, self._on_map_changed, self._on_map_gone)

    def on_change(self, part: Part, listener: Callable[[], None]) -> None:
        """Call `listener` whenever the merged configuration of that part has changed."""
        self._listeners[part].append(listener)

    async def ready(self) -> None:
        """Until the first configuration is known, even if it is that there is none."""
        await self._maps.synced.wait()
        if not self.colocation.available and not self._maps.objects:
            self._apply(None, None)

    def _on_map(self, config_map: ConfigMap) -> None:
        if config_map.metadata.name == self._name:
            self._apply(config_map, config_map.data)

    def _on_map_changed(self, old: ConfigMap, new: ConfigMap) -> None:
        if old.data != new.data:
            self._on_map(new)

    def _on_map_gone(self, config_map: ConfigMap) -> None:
        if config_map.metadata.name == self._name:
            log.warning("configuration deleted: co-location is off", extra={"config_map": config_map.key})
            self._apply(None, None)

    def _apply(self, config_map: ConfigMap | None, data: Mapping[str, str] | None) -> None:
        self.data = data
        self.problems = {}
        changed: list[Part] = []
        colocation = colocation_config.sync(self.colocation, data)
        self.colocation = colocation.state
        if colocation.changed:
            changed.append(Part.COLOCATION)
        if colocation.problem:
            reason = colocation_config.REASON_UNREADABLE if colocation.unreadable else ""
            self._tell(config_map, slo_config.COLOCATION.key, colocation.problem, reason)

        slo = nodeslo.sync(self.node_slo, data)
        self.node_slo = slo.config
        if slo.changed:
            changed.append(Part.NODE_SLO)
        for key, problem in slo.problems.items():
            self._tell(config_map, key, problem, nodeslo.REASON_UNREADABLE)

        normalization = cpu_normalization.sync(self.cpu_normalization, data)
        if normalization.config != self.cpu_normalization:
            self.cpu_normalization = normalization.config
            changed.append(Part.CPU_NORMALIZATION)
        if normalization.problem:
            key = slo_config.CPU_NORMALIZATION.key
            self._tell(config_map, key, normalization.problem, cpu_normalization.REASON_UNREADABLE)

        amplified = amplification.sync(self.amplification, data)
        if amplified.config != self.amplification:
            self.amplification = amplified.config
            changed.append(Part.AMPLIFICATION)
        if amplified.problem:
            key = slo_config.RESOURCE_AMPLIFICATION.key
            self._tell(config_map, key, amplified.problem, amplification.REASON_UNREADABLE)

        for part in changed:
            for listener in self._listeners[part]:
                listener()

    def _tell(self, config_map: ConfigMap | None, key: str, problem: str, reason: str) -> None:
        """`reason` of the event; without one, only the log hears of it."""
        self.problems[key] = problem
        log.warning("configuration not used", extra={"key": key, "problem": problem})
        if config_map is not None and reason:
            self._events.warning(config_map, reason, problem)
