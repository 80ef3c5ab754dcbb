"""A scheduler that decides only, on the nodes and pods of a case: what runs, without its loops."""

from typing import Any, TypeVar

import msgspec

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.clock import FixedClock
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.config.config import PluginConfig, SchedulerConfig
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.evaluation_cache import evaluate
from koordinator.scheduler.engine.post_filter import CycleDiagnosis
from koordinator.scheduler.engine.view import View
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.table.pod_info import PodInfo

NOW_S = 1_800_000_000.0
P = TypeVar("P")


class SmallCluster:
    """The engine of one profile, and its table."""

    def __init__(self, settings: SchedulerConfig) -> None:
        self.engine = Engine(settings, FixedClock(NOW_S), plugins=installed_plugins())
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
        return CycleDiagnosis(view, self.profile, evaluate(self.profile, self.table, pod), {})
