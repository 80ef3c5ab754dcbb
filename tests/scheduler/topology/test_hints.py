"""A pod that one of the two plugins refused sleeps through events that cannot help it."""

from typing import Any

import pytest

from koordinator.api.core import Namespace, Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.clock import FixedClock
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.topology.reference import HOSTNAME, REQUIRED
from tests.scheduler.world import node, pod

Json = dict[str, Any]
ZONE = "topology.kubernetes.io/zone"
WEB = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": ZONE}
LIKES: Json = {"affinity": {"podAffinity": {REQUIRED: [WEB]}}}
SHUNS: Json = {"affinity": {"podAntiAffinity": {REQUIRED: [WEB]}}}
RULE = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}
SPREADS: Json = {"topologySpreadConstraints": [{**RULE, "labelSelector": WEB["labelSelector"]}]}
ADDED, UPDATED, DELETED = (
    ClusterEvent.ASSIGNED_POD_ADDED,
    ClusterEvent.ASSIGNED_POD_UPDATED,
    ClusterEvent.ASSIGNED_POD_DELETED,
)


class Scene:
    def __init__(self) -> None:
        self.engine = Engine(default_plugins.shipped_config(), FixedClock(0.0), plugins=installed_plugins())
        [self.profile] = self.engine.profiles.values()
        self.engine.table.set_node(from_builtins(node("n", labels={ZONE: "a"}), Node))

    def info(self, app: str, *, namespace: str = "default", leaving: bool = False, **spec: Any) -> PodInfo:
        body = pod(app, **spec)
        body["metadata"].update(labels={"app": app}, namespace=namespace, uid=app)
        if leaving:
            body["metadata"]["deletionTimestamp"] = "2024-01-01T00:00:00Z"
        return PodInfo.of(from_builtins(body, Pod), self.engine.table.registry)

    def wakes(self, refused: PodInfo, event: ClusterEvent, old: Any, new: Any) -> bool:
        name = "PodTopologySpread" if refused.pod.spec.topology_spread_constraints else "InterPodAffinity"
        plugin = next(p for p in self.profile.plugins if p.name == name)
        row = self.engine.table.row_of("n")
        return event in plugin.wakes_on and plugin.wakes(QueueingEvent(event, row, old, new), refused)


@pytest.mark.parametrize(
    ("wish", "event", "old", "new", "expected"),
    [
        (LIKES, ADDED, None, "web", True),
        (LIKES, ADDED, None, "db", False),
        (LIKES, DELETED, "db", None, False),
        (LIKES, UPDATED, "db", "web", True),
        (LIKES, UPDATED, "db", "cache", False),
        (SHUNS, ADDED, None, "web", False),
        (SHUNS, DELETED, "web", None, True),
        (SHUNS, DELETED, "db", None, False),
        (SHUNS, UPDATED, "web", "db", True),
        (SHUNS, UPDATED, "db", "web", False),
        (SPREADS, ADDED, None, "web", True),
        (SPREADS, ADDED, None, "db", False),
        (SPREADS, DELETED, "web", None, True),
        (SPREADS, DELETED, "db", None, False),
        (SPREADS, UPDATED, "web", "web", False),
    ],
)
def test_pods_that_matter_wake(
    wish: Json, event: ClusterEvent, old: str | None, new: str | None, expected: bool
) -> None:
    scene = Scene()
    before = None if old is None else scene.info(old)
    after = None if new is None else scene.info(new)
    assert scene.wakes(scene.info("client", **wish), event, before, after) is expected


def test_a_pod_that_starts_to_leave_counts_no_more_for_spreading() -> None:
    scene = Scene()
    change = (scene.info("web"), scene.info("web", leaving=True))
    assert scene.wakes(scene.info("client", **SPREADS), UPDATED, *change)
    assert not scene.wakes(scene.info("client", **SHUNS), UPDATED, *change)


def test_pods_of_other_namespaces_do_not_matter() -> None:
    scene = Scene()
    far = scene.info("web", namespace="far")
    for wish in (LIKES, SPREADS):
        assert not scene.wakes(scene.info("client", **wish), ADDED, None, far)


def test_somebody_who_wanted_to_be_alone_makes_room_by_going() -> None:
    scene = Scene()
    assert scene.wakes(scene.info("client", **LIKES), DELETED, scene.info("hermit", **SHUNS), None)


@pytest.mark.parametrize("wish", [LIKES, SHUNS, SPREADS])
def test_of_a_nodes_labels_only_topology_keys_matter(wish: Json) -> None:
    scene = Scene()
    old = from_builtins(node("n", labels={ZONE: "a"}), Node)
    moved = from_builtins(node("n", labels={ZONE: "b"}), Node)
    marked = from_builtins(node("n", labels={ZONE: "a", "team": "red"}), Node)
    client = scene.info("client", **wish)
    assert scene.wakes(client, ClusterEvent.NODE_LABELS, old, moved)
    assert not scene.wakes(client, ClusterEvent.NODE_LABELS, old, marked)


def test_taints_matter_to_who_honours_them() -> None:
    scene = Scene()
    old = from_builtins(node("n", labels={ZONE: "a"}), Node)
    new = from_builtins(node("n", labels={ZONE: "a"}, taints=[{"key": "t", "effect": "NoSchedule"}]), Node)
    [constraint] = SPREADS["topologySpreadConstraints"]
    honours = {"topologySpreadConstraints": [{**constraint, "nodeTaintsPolicy": "Honor"}]}
    assert not scene.wakes(scene.info("client", **SPREADS), ClusterEvent.NODE_TAINTS, old, new)
    assert scene.wakes(scene.info("client", **honours), ClusterEvent.NODE_TAINTS, old, new)


def test_a_new_node_helps_when_it_has_the_keys() -> None:
    scene = Scene()
    without = from_builtins({"metadata": {"name": "n", "labels": {HOSTNAME: "n"}}}, Node)
    with_key = from_builtins(node("n", labels={ZONE: "a"}), Node)
    client = scene.info("client", **SPREADS)
    assert scene.wakes(client, ClusterEvent.NODE_ADDED, None, with_key)
    assert not scene.wakes(client, ClusterEvent.NODE_ADDED, None, without)
    assert scene.wakes(scene.info("client", **SHUNS), ClusterEvent.NODE_ADDED, None, with_key)
    assert not scene.wakes(scene.info("client", **LIKES), ClusterEvent.NODE_ADDED, None, with_key)


def test_labels_of_namespaces_matter_to_terms_that_ask_for_them() -> None:
    scene = Scene()
    labelled = from_builtins({"metadata": {"name": "far", "labels": {"team": "a"}}}, Namespace)
    asks = {**WEB, "namespaceSelector": {"matchLabels": {"team": "a"}}}
    client = scene.info("client", affinity={"podAffinity": {REQUIRED: [asks]}})
    assert scene.wakes(client, ClusterEvent.NAMESPACE, None, labelled)
    assert not scene.wakes(scene.info("client", **LIKES), ClusterEvent.NAMESPACE, None, labelled)


def test_a_label_that_changes_counts_for_a_pod_whose_nodes_stay_the_same() -> None:
    scene = Scene()
    for name in ("m", "o"):
        scene.engine.table.set_node(from_builtins(node(name, labels={ZONE: "b"}), Node))
    scene.engine.table.assign(scene.info("web"), "m")
    soft = {**RULE, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": WEB["labelSelector"]}
    asked = scene.info("web2", topologySpreadConstraints=[soft])
    plugin: Any = next(each for each in scene.profile.plugins if each.name == "PodTopologySpread")
    state, rows = plugin.prepare(asked), scene.engine.table.rows[:2].copy()

    def scores() -> list[int]:
        found: list[int] = plugin.normalize_at(state, plugin.score(state, rows), rows).tolist()
        return found

    before = scores()
    assert before[0] > before[1], "the pod is in zone b"
    assert scores() == before
    frame = state.frame
    scores()
    assert state.frame is frame, "kept while nothing changes"
    scene.engine.table.set_node(from_builtins(node("n", labels={ZONE: "b"}), Node))
    assert scores()[0] == scores()[1], "now both are"
