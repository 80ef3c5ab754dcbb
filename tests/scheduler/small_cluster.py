"""A scheduler that decides only, on the nodes and pods of a case: what runs, without its loops."""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.clock import FixedClock
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.config.config import PluginConfig, PluginRef, PluginSet, SchedulerConfig
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.evaluation_cache import evaluate
from koordinator.scheduler.engine.post_filter import CycleDiagnosis
from koordinator.scheduler.engine.view import View
from koordinator.scheduler.plugin.framework import Plugin
from koordinator.scheduler.plugin.topology_tree import TopologyTree
from koordinator.scheduler.plugins import built_in
from koordinator.scheduler.table.pod_info import PodInfo

NOW_S = 1_800_000_000.0
P = TypeVar("P")


class SmallCluster:
    """The engine of one profile, to which a test's own plugins may be added, and its table. `network` is the tree of
    the network, if there is one."""

    def __init__(self, settings: SchedulerConfig, *plugins: type[Plugin[Any]]) -> None:
        own = built_in.PLUGINS | {plugin.name: plugin for plugin in plugins}
        known = own if plugins else built_in.installed_plugins()
        self.network: TopologyTree | None = None
        self.engine = Engine(
            _with(settings, plugins), FixedClock(NOW_S), plugins=known, network=lambda: self.network
        )
        self.table = self.engine.table
        [self.profile] = self.engine.profiles.values()

    @classmethod
    def shipped(cls, **args: dict[str, Any]) -> "SmallCluster":
        """With the shipped configuration, and arguments of plugins by name."""
        shipped = default_plugins.shipped_config()
        own = [PluginConfig(name=name, args=given) for name, given in args.items()]
        profiles = [
            msgspec.structs.replace(each, plugin_config=[*each.plugin_config, *own])
            for each in shipped.profiles
        ]
        return cls(msgspec.structs.replace(shipped, profiles=profiles))

    def plugin(self, kind: type[P]) -> P:
        return next(each for each in self.profile.plugins if isinstance(each, kind))

    def node(self, body: dict[str, Any]) -> None:
        self.table.set_node(from_builtins(body, Node))

    def pod(self, body: dict[str, Any], *, is_assumed: bool = False) -> PodInfo:
        """A pod; one with a node takes its place there, `is_assumed` before it is bound."""
        info = PodInfo.of(from_builtins(body, Pod), self.table.registry)
        if info.node_name:
            self.table.assign(info, info.node_name, assumed=is_assumed)
        return info

    def refused(self, pod: PodInfo) -> CycleDiagnosis:
        """What nodes answered to a pod."""
        view = View(self.profile, self.table, self.engine.nominations, pod)
        return CycleDiagnosis(view, evaluate(self.profile, self.table, pod), {})


def _with(settings: SchedulerConfig, plugins: Sequence[type[Plugin[Any]]]) -> SchedulerConfig:
    """The settings of one profile, with plugins at all points that they implement."""
    [profile] = settings.profiles
    if not plugins or profile.plugins is None:
        return settings
    more = PluginSet(enabled=[PluginRef(name=plugin.name) for plugin in plugins])
    changed = msgspec.structs.replace(profile.plugins, multi_point=more)
    return msgspec.structs.replace(settings, profiles=[msgspec.structs.replace(profile, plugins=changed)])
