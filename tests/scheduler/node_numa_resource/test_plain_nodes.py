"""Nodes that say nothing about CPUs and NUMA nodes."""

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.clock import FixedClock
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.results import Placed
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.world import node, pod


def test_pods_are_placed_on_more_of_them_than_the_table_starts_with() -> None:
    engine = Engine(default_plugins.shipped_config(), FixedClock(0.0), plugins=installed_plugins())
    [profile] = engine.profiles.values()
    for number in range(200):
        engine.table.set_node(from_builtins(node(f"node-{number}"), Node))
    info = PodInfo.of(from_builtins(pod("pod"), Pod), engine.table.registry)

    result = engine.cycle.run(profile, info, profile.class_key(info), 1, 0.0)

    assert isinstance(result, Placed)
