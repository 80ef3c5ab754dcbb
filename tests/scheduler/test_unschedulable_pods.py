"""Which refused pods an event wakes: exactly those that it can help, however many sleep."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import labels
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.clock import FixedClock
from koordinator.scheduler.config import config
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.queue.queued_pod import QueuedPod
from koordinator.scheduler.queue.unschedulable_pods import UnschedulablePods
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.world import World, node, play, pod

PROFILE = "koord-scheduler"
FIT = frozenset(("NodeResourcesFit",))


class Bedroom:
    """Sleeping pods next to a few nodes, without a running scheduler."""

    def __init__(self, *nodes: dict[str, Any]) -> None:
        self.engine = Engine(config.SchedulerConfig(), FixedClock(), plugins=installed_plugins())
        self.profile = self.engine.profiles[PROFILE]
        plugins = {plugin.name: plugin for plugin in self.profile.plugins}
        self.unschedulable = UnschedulablePods(lambda _: plugins)
        self.table = self.engine.table
        for body in nodes:
            self.table.set_node(from_builtins(body, Node))

    def info(self, body: dict[str, Any]) -> PodInfo:
        body["metadata"].setdefault("uid", body["metadata"]["name"])
        return PodInfo.of(from_builtins(body, Pod), self.table.registry)

    def sleep(self, body: dict[str, Any], refused_by: frozenset[str] = FIT) -> None:
        info = self.info(body)
        entry = QueuedPod(info, PROFILE, self.profile.class_key(info), 0.0, rejected_by=refused_by)
        self.unschedulable.add(entry)

    def woken(self, event: ClusterEvent, on: str | None = None, old: Any = None, new: Any = None) -> set[str]:
        row = None if on is None else self.table.row_of(on)
        found = self.unschedulable.woken_by(QueueingEvent(event, row, old, new))
        return {uid for wakeup in found if not wakeup.blocked_by for uid in wakeup.uids}


def test_a_pod_that_left_wakes_those_that_fit_on_its_node_now() -> None:
    room = Bedroom(node("a", cpu="4"))
    room.sleep(pod("small", cpu="2"))
    room.sleep(pod("large", cpu="8"))

    assert room.woken(ClusterEvent.ASSIGNED_POD_DELETED, "a") == {"small"}


def test_news_from_a_node_wakes_nobody_whom_other_filters_keep_out_of_it() -> None:
    taint = {"key": "dedicated", "value": "x", "effect": "NoSchedule"}
    room = Bedroom(node("a", cpu="4", taints=[taint]), node("b", cpu="4", labels={"disk": "ssd"}))
    room.sleep(pod("plain"))
    room.sleep(pod("picky", nodeSelector={"disk": "hdd"}))

    assert room.woken(ClusterEvent.NODE_ADDED, "a") == set()
    assert room.woken(ClusterEvent.NODE_ALLOCATABLE, "b") == {"plain"}
    assert room.woken(ClusterEvent.ASSIGNED_POD_DELETED, "b") == {"plain"}


NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


def test_a_node_that_joins_before_it_is_ready_wakes_the_pods_that_wait_for_room_once_it_is() -> None:
    async def story(world: World) -> None:
        world.api.put("Node", node("small", cpu="1"))
        world.api.put("Pod", pod("web", cpu="2"))
        await world.settle(20)
        world.api.put("Node", node("new", cpu="4", taints=[NOT_READY]))
        await world.settle(20)
        assert world.scheduler.queue.counts()["unschedulable"] == 1
        assert world.scheduler.queue.rejections == {("NodeResourcesFit", PROFILE): 1}

        world.api.put("Node", node("new", cpu="4"))
        await world.settle(5)
        assert world.api.placements()["web"] == "new"

    play(story)


def test_a_pod_whose_taint_went_while_its_node_was_full_is_woken_when_there_is_room() -> None:
    async def story(world: World) -> None:
        world.api.put("Node", node("a", cpu="1"))
        world.api.put("Pod", pod("first", cpu="1"))
        await world.settle(5)
        world.api.put("Node", node("a", cpu="1", taints=[NOT_READY]))
        world.api.put("Pod", pod("second", cpu="1"))
        await world.settle(20)
        world.api.put("Node", node("a", cpu="1"))
        await world.settle(20)
        assert world.api.placements() == {"first": "a", "second": ""}

        world.api.remove("Pod", "first", "default")
        await world.settle(5)
        assert world.api.placements() == {"second": "a"}

    play(story)


@pytest.mark.parametrize("is_meek", [False, True])
def test_a_pod_that_may_evict_the_others_now_that_an_important_one_is_gone(is_meek: bool) -> None:
    """As kube-scheduler, which tries again whenever a pod is deleted."""

    async def story(world: World) -> None:
        world.api.put("Node", node("a", cpu="2"))
        world.api.put("Pod", pod("low", cpu="500m", priority=10))
        world.api.put("Pod", pod("mid", cpu="500m", priority=100))
        await world.settle(5)
        policy = {"preemptionPolicy": "Never"} if is_meek else {}
        world.api.put("Pod", pod("large", cpu="2", priority=100, **policy))
        await world.settle(20)
        assert not world.api.placements()["large"]

        world.api.remove("Pod", "mid", "default")
        await world.settle(20)
        left = {"low": "a", "large": ""} if is_meek else {"large": "a"}
        assert world.api.placements() == left

    play(story)


def test_a_pod_that_room_is_made_for_waits_until_it_is_there() -> None:
    room = Bedroom(node("a", cpu="2"))
    room.table.assign(room.info(pod("low", cpu="1", priority=1, nodeName="a")), "a")
    room.sleep(pod("high", cpu="2", priority=2))
    assert room.woken(ClusterEvent.ASSIGNED_POD_DELETED, "a") == {"high"}

    room.engine.nominations.set(room.info(pod("high", cpu="2", priority=2)), "a")
    assert room.woken(ClusterEvent.ASSIGNED_POD_DELETED, "a") == set()


def test_a_node_that_opens_while_less_important_pods_fill_it() -> None:
    async def story(world: World) -> None:
        world.api.put("Node", node("a", cpu="1"))
        world.api.put("Pod", pod("low", cpu="1", priority=1))
        await world.settle(5)
        world.api.put("Node", node("a", cpu="1", taints=[NOT_READY]))
        world.api.put("Pod", pod("high", cpu="1", priority=2))
        await world.settle(20)
        world.api.put("Node", node("a", cpu="1"))
        await world.settle(20)
        assert world.api.placements() == {"high": "a"}

    play(story)


PROTECTED = {labels.DISABLE_PREEMPTIBLE: "true"}
PODS = st.tuples(st.integers(0, 4), st.integers(0, 3), st.booleans())
"""Cores that a pod asks for, its priority, and whether nobody may evict it (it evicts nobody)."""


@given(
    there=st.lists(PODS, max_size=5),
    asleep=st.lists(PODS, min_size=1, max_size=5),
    pods_max=st.integers(1, 6),
)
def test_a_deleted_pod_wakes_those_who_fit_or_would_without_the_less_important_ones(
    there: list[tuple[int, int, bool]], asleep: list[tuple[int, int, bool]], pods_max: int
) -> None:
    room = Bedroom(node("a", cpu="6", memory="64Gi", pods=pods_max))
    for number, (cores, importance, is_protected) in enumerate(there):
        body = pod(f"there-{number}", cpu=str(cores), memory=None, priority=importance, nodeName="a")
        body["metadata"]["labels"] = PROTECTED if is_protected else {}
        room.table.assign(room.info(body), "a")
    for number, (cores, importance, is_meek) in enumerate(asleep):
        policy = {"preemptionPolicy": "Never"} if is_meek else {}
        room.sleep(pod(f"p{number}", cpu=str(cores), memory=None, priority=importance, **policy))

    def has_room(cores: int, importance: int, is_meek: bool) -> bool:
        left = [
            each
            for each in there
            if is_meek or each[2] or each[1] >= importance  # those that stay
        ]
        return len(left) < pods_max and (not cores or cores + sum(each[0] for each in left) <= 6)

    expected = {f"p{number}" for number, each in enumerate(asleep) if has_room(*each)}
    assert room.woken(ClusterEvent.ASSIGNED_POD_DELETED, "a") == expected


def test_events_that_nobody_who_refused_listens_to_wake_nobody() -> None:
    room = Bedroom(node("a"))
    room.sleep(pod("web"))

    assert room.woken(ClusterEvent.NODE_LABELS, "a") == set()
    assert room.woken(ClusterEvent.WILDCARD) == {"web"}


ALONE = {
    "NodeAffinity": (pod("p", nodeSelector={"disk": "ssd"}), {"labels": {"disk": "ssd"}}, "NODE_LABELS"),
    "TaintToleration": (
        pod("p", tolerations=[{"key": "k", "operator": "Exists"}]),
        {"taints": [{"key": "k", "effect": "NoSchedule"}]},
        "NODE_TAINTS",
    ),
    "NodeUnschedulable": (pod("p"), {}, "NODE_TAINTS"),
    "NodeName": (pod("p"), {}, "NODE_ADDED"),
}


@pytest.mark.parametrize("plugin", ALONE)
def test_a_node_that_a_plugin_lets_the_pod_onto_now_wakes_it(plugin: str) -> None:
    body, good, event = ALONE[plugin]
    bad: dict[str, Any] = {"unschedulable": True, "taints": [{"key": "other", "effect": "NoExecute"}]}
    room = Bedroom(node("good", **good), node("bad", **bad))
    room.sleep(body, frozenset((plugin,)))

    assert room.woken(ClusterEvent[event], "good") == {"p"}
    assert room.woken(ClusterEvent[event], "bad") == set()


def test_a_host_port_that_is_free_again_wakes_who_wanted_it() -> None:
    def with_port(name: str, port: int) -> dict[str, Any]:
        body = pod(name)
        body["spec"]["containers"][0]["ports"] = [{"hostPort": port, "containerPort": port}]
        return body

    room = Bedroom(node("a"))
    room.table.assign(room.info(with_port("holder", 80)), "a")
    room.sleep(with_port("http", 80), frozenset(("NodePorts",)))
    room.sleep(with_port("https", 443), frozenset(("NodePorts",)))
    assert room.woken(ClusterEvent.ASSIGNED_POD_DELETED, "a") == {"https"}

    room.table.unassign("holder")
    assert room.woken(ClusterEvent.ASSIGNED_POD_DELETED, "a") == {"http", "https"}


UPDATES: dict[str, tuple[str, Callable[[dict[str, Any]], None], bool]] = {
    "asking for less": ("NodeResourcesFit", lambda body: _requests(body, "500m"), True),
    "asking for more": ("NodeResourcesFit", lambda body: _requests(body, "2"), False),
    "our own condition": ("NodeAffinity", lambda body: body.update(status={"phase": "Pending"}), False),
    "a label is not what Fit reads": (
        "NodeResourcesFit",
        lambda body: body["metadata"].update(labels={"a": "b"}),
        False,
    ),
    "a toleration": (
        "TaintToleration",
        lambda body: body["spec"].update(tolerations=[{"operator": "Exists"}]),
        True,
    ),
}


def _requests(body: dict[str, Any], cpu: str) -> None:
    body["spec"]["containers"][0]["resources"]["requests"]["cpu"] = cpu


@pytest.mark.parametrize("update", UPDATES)
def test_an_update_of_the_pod_wakes_it_only_if_it_can_help(update: str) -> None:
    plugin, change, helps = UPDATES[update]
    room = Bedroom(node("a"))
    room.sleep(pod("p"), frozenset((plugin,)))
    body = pod("p")
    change(body)

    woken = room.woken(ClusterEvent.POD_UPDATED, None, room.info(pod("p")), room.info(body))
    assert woken == ({"p"} if helps else set())


AMOUNT = st.sampled_from((0, 1, 2, 3, 4))


@given(
    used=st.tuples(AMOUNT, AMOUNT),
    wants=st.lists(st.tuples(AMOUNT, AMOUNT), max_size=8),
    gone=st.sets(st.integers(0, 7)),
)
def test_asking_all_at_once_wakes_the_same_pods_as_asking_each(
    used: tuple[int, int], wants: list[tuple[int, int]], gone: set[int]
) -> None:
    room = Bedroom(node("a", cpu="4", memory="4Gi"))
    room.table.assign(room.info(pod("there", cpu=str(used[0]), memory=f"{used[1]}Gi")), "a")
    for number, (cpu, memory) in enumerate(wants):
        room.sleep(pod(f"p{number}", cpu=str(cpu), memory=f"{memory}Gi"))
    for number in gone & set(range(len(wants))):
        room.unschedulable.discard(f"p{number}")

    fitting = {
        f"p{number}"
        for number, want in enumerate(wants)
        if number not in gone and (np.add(want, used) <= 4).all()
    }
    assert room.woken(ClusterEvent.ASSIGNED_POD_DELETED, "a") == fitting


def test_the_condition_that_we_write_does_not_bring_the_pod_back() -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        world.api.put("Pod", pod("picky", nodeSelector={"disk": "ssd"}))
        await world.settle(20)
        entry = next(iter(world.scheduler.queue._entries.values()))
        assert entry.attempt_count == 1

    play(story)
