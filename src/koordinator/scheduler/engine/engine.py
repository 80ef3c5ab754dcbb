"""The deciding half of the scheduler: node table, plugins, cycles. It needs no API (simulation, explain)."""

# The capabilities are abstract on purpose; here they only tell instances apart.
# mypy: disable-error-code="type-abstract"

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.clock import Clock
from koordinator.cluster.protocol import Cluster
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.config.config import SchedulerConfig
from koordinator.scheduler.engine.batch import BatchWatch
from koordinator.scheduler.engine.cycle import Cycle
from koordinator.scheduler.engine.evaluation_cache import CLASSES_MAX, EvaluationCache
from koordinator.scheduler.engine.profile import build_profiles
from koordinator.scheduler.engine.view import Prospects, ProspectsSource
from koordinator.scheduler.plugin.capabilities import (
    ALL_CONTROLLERS,
    ApiProvider,
    BackgroundController,
    ControllerFilter,
    ControllerProvider,
    Endpoint,
    NextPodPlugin,
)
from koordinator.scheduler.plugin.events import QueueingEvent
from koordinator.scheduler.plugin.framework import Actions, Handle, Plugin, PluginType
from koordinator.scheduler.plugin.handle import FailureHandlers
from koordinator.scheduler.plugin.metrics import SchedulerMetrics
from koordinator.scheduler.plugin.topology_tree import TopologyTree
from koordinator.scheduler.table.nodes import NodeTable, RowKeeper
from koordinator.scheduler.table.pod_info import Nominations, PodInfo

log = logging.getLogger(__name__)

P = TypeVar("P", bound=Plugin[Any])


class Engine:
    """A node table with the plugins of a configuration on it.

    `plugins` are those that the configuration can name. `seed` decides ties between nodes. `classes_max` 0 evaluates
    every pod anew instead of sharing evaluations between equal pods; placements are the same, only slower. `happened`
    hears of events that plugins report; `cluster` and `actions` are what plugins act through; `network` is the tree of
    the network, None where nobody follows or describes it.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        clock: Clock,
        *,
        plugins: Mapping[str, PluginType],
        seed: int = 0,
        classes_max: int = CLASSES_MAX,
        cluster: Cluster | None = None,
        happened: Callable[[QueueingEvent], None] = lambda _: None,
        actions: Actions | None = None,
        gates: FeatureGates | None = None,
        network: Callable[[], TopologyTree | None] = lambda: None,
    ) -> None:
        """Raises: ConfigError."""
        self._network = network
        self.table = NodeTable(ResourceRegistry())
        self.handles: list[Handle] = []
        self._singletons: dict[type, Any] = {ProspectsSource: ProspectsSource(self.prospects)}
        self.metrics = SchedulerMetrics()
        self.nominations = Nominations()
        self.gates = gates if gates is not None else FeatureGates.of(Component.SCHEDULER)
        self._actions = actions or Actions()
        self.clock = clock
        self._cluster = cluster
        self._happened = happened
        self.plugin_types = plugins
        """Every plugin that a configuration can name."""
        self.profiles = build_profiles(
            default_plugins.without_managed_resources(config), plugins, self._build, self.gates
        )
        self.cache = EvaluationCache(self.table, classes_max=classes_max)
        watch = BatchWatch(self.metrics, clock.now)
        self.cycle = Cycle(self.table, self.cache, seed, self.nominations, watch)
        self.seed = seed
        self.explaining = asyncio.Lock()
        """One long explanation at a time, so that there is one slice of it between two turns of others."""

    def prospects(self, pod: PodInfo) -> Prospects | None:
        """Return what nodes say to pods of the pod's profile; None for pods of other schedulers."""
        profile = self.profiles.get(pod.pod.spec.scheduler_name)
        return None if profile is None else Prospects(profile, self.table, self.nominations, self.cache)

    def refresh(self, now_s: float) -> None:
        """Bring the columns that depend on the time up to date."""
        for profile in self.profiles.values():
            profile.refresh(now_s)

    def endpoints(self) -> dict[str, tuple[Endpoint, ...]]:
        """Return the endpoints that plugins answer over HTTP, by plugin name; of several instances the first
        answers."""
        return {plugin.name: tuple(plugin.endpoints()) for plugin in self.plugins_of(ApiProvider)}

    def controllers(self, wanted: ControllerFilter = ALL_CONTROLLERS) -> list[BackgroundController]:
        """Return the loops of plugins, once per plugin name; to be run on the leader only."""
        providers = self.plugins_of(ControllerProvider)
        return [each for plugin in providers if wanted.allows(plugin.name) for each in plugin.controllers()]

    def failure_handlers(self) -> FailureHandlers:
        """Return what plugins want done when attempts fail."""
        return FailureHandlers(
            [handler for handle in self.handles for handler in handle.before_failures],
            [handler for handle in self.handles for handler in handle.after_failures],
        )

    def next_pod_plugins(self) -> list[NextPodPlugin[Any]]:
        """Return the plugins that choose the next pod instead of the queue, in the order in which they are asked."""
        return self.plugins_of(NextPodPlugin)

    def plugins_of(self, kind: type[P]) -> list[P]:
        """Return the plugins of a kind, in order of the profiles; of those of one name the first."""
        found: dict[str, P] = {}
        for profile in self.profiles.values():
            for plugin in profile.plugins:
                if isinstance(plugin, kind):
                    found.setdefault(plugin.name, plugin)
        return list(found.values())

    def _build(self, kind: PluginType, args: Any) -> Plugin[Any]:
        # Two profiles may run one plugin with different arguments: each instance has its own columns.
        prefix = f"{kind.name}#{len(self.handles)}"
        columns = {
            spec.name: self.table.add_column(msgspec.structs.replace(spec, name=f"{prefix}/{spec.name}"))
            for spec in kind.columns_of(args)
        }
        handle = Handle(
            self.table,
            self.clock,
            columns=columns,
            cluster=self._cluster,
            happened=self._happened,
            actions=self._actions,
            nominations=self.nominations,
            gates=self.gates,
            metrics=self.metrics,
            singletons=self._singletons,
            network=self._network,
            serves=lambda name: name in self.profiles,
        )
        plugin = kind(args, handle)
        if isinstance(plugin, RowKeeper):
            self.table.add_keeper(plugin)
        self.handles.append(handle)
        return plugin
