"""Profiles with small plugins of a test's own, and an engine to ask without an API."""

from collections.abc import Sequence
from typing import Any

import msgspec

from koordinator.api import decode
from koordinator.api.core import Node, Pod
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.clock import FixedClock
from koordinator.scheduler.config import config, default_plugins
from koordinator.scheduler.config.config import SchedulerConfig
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.results import Placed, Unplaced
from koordinator.scheduler.plugin.framework import Plugin, PostFilterPlugin
from koordinator.scheduler.plugins import built_in
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.world import Json, node

SCHEDULER = "koord-scheduler"


def with_plugins(*plugins: type[Plugin[Any]]) -> dict[str, Any]:
    """Options of a scheduler with the shipped profile and more plugins, at all points that they implement."""
    refs = [config.PluginRef(name=plugin.name) for plugin in plugins]
    shipped = default_plugins.shipped_profile()
    assert shipped.plugins is not None
    more = msgspec.structs.replace(shipped.plugins, multi_point=config.PluginSet(enabled=refs))
    # The shipped profile names its PostFilter plugins one by one.
    after = msgspec.structs.replace(
        more.post_filter, enabled=[*more.post_filter.enabled, *_at_post_filter(plugins)]
    )
    profile = msgspec.structs.replace(shipped, plugins=msgspec.structs.replace(more, post_filter=after))
    return {
        "config": SchedulerConfig(profiles=[profile]),
        "plugins": built_in.PLUGINS | {plugin.name: plugin for plugin in plugins},
    }


def _at_post_filter(plugins: Sequence[type[Plugin[Any]]]) -> list[config.PluginRef]:
    return [config.PluginRef(name=plugin.name) for plugin in plugins if issubclass(plugin, PostFilterPlugin)]


class Desk:
    """An engine with nodes, asked pod by pod."""

    def __init__(self, *plugins: type[Plugin[Any]], gates: str = "", **options: Any) -> None:
        self.engine = Engine(
            clock=FixedClock(1_000.0),
            gates=FeatureGates.of(Component.SCHEDULER, gates),
            **with_plugins(*plugins),
            **options,
        )
        self.profile = self.engine.profiles[SCHEDULER]
        self.table = self.engine.table

    def nodes(self, *names: str, **parts: Any) -> "Desk":
        for name in names:
            self.table.set_node(decode.from_builtins(node(name, **parts), Node))
        return self

    def info(self, pod: Json) -> PodInfo:
        pod = {**pod, "metadata": {"uid": pod["metadata"]["name"], **pod["metadata"]}}
        return PodInfo.of(decode.from_builtins(pod, Pod), self.table.registry)

    def plugin(self, name: str) -> Any:
        return next(plugin for plugin in self.profile.plugins if plugin.name == name)

    def run(self, pod: Json, attempt: int = 1) -> Placed | Unplaced:
        info = self.info(pod)
        key = self.profile.class_key(info)
        return self.engine.cycle.run(self.profile, info, key, attempt, 1_000.0)

    def place(self, pod: Json) -> str:
        """The node of a pod that finds one."""
        found = self.run(pod)
        assert isinstance(found, Placed), found
        return found.node_name

    def refuse(self, pod: Json) -> Unplaced:
        """What is said about a pod that finds none."""
        found = self.run(pod)
        assert isinstance(found, Unplaced), found
        return found
