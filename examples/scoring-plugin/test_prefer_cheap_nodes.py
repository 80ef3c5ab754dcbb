"""How to test a plugin without a cluster: an engine, a few nodes, a few pods."""

from pathlib import Path

from koordinator.api import decode
from koordinator.api.core import Node, Pod
from koordinator.clock import FixedClock
from koordinator.scheduler.config import config
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.table.pod_info import PodInfo

CONFIG = Path(__file__).parent / "scheduler.yaml"


def node(name, price):
    return {
        "metadata": {"name": name, "labels": {"example.com/price-per-hour": price}},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}},
    }


def pod(name):
    requests = {"cpu": "1", "memory": "1Gi"}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"containers": [{"name": "main", "resources": {"requests": requests}}]},
    }


def place(engine, name):
    """The node that the pod gets."""
    profile = engine.profiles["koord-scheduler"]
    info = PodInfo.of(decode.from_builtins(pod(name), Pod), engine.table.registry)
    return engine.cycle.run(profile, info, profile.class_key(info), attempt=1, now_s=0.0).node_name


def placements(**options):
    """Where nine pods of one core go, one after the other."""
    engine = Engine(config.parse(CONFIG.read_bytes()), FixedClock(), plugins=installed_plugins(), **options)
    for name, price in (("dear", "3.5"), ("cheap", "0.5"), ("fair", "1.5"), ("odd", "a lot")):
        engine.table.set_node(decode.from_builtins(node(name, price), Node))
    return [place(engine, f"p{number}") for number in range(9)]


def test_cheap_nodes_are_filled_first():
    assert placements() == ["cheap"] * 4 + ["fair"] * 4 + ["dear"]


def test_sharing_evaluations_changes_nothing():
    assert placements() == placements(classes_max=0)
