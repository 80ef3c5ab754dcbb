"""What plugins can do beyond the stock extension points, shown with small plugins made for it."""

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import pytest

from koordinator.api.core import Node, Pod
from koordinator.api.device import Device
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.clock import FixedClock
from koordinator.scheduler.config import config
from koordinator.scheduler.config.config import SchedulerConfig
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.plugin.capabilities import (
    ApiAnswer,
    ApiProvider,
    ApiRequest,
    BackgroundController,
    ControllerFilter,
    ControllerFilterError,
    ControllerProvider,
    Endpoint,
)
from koordinator.scheduler.plugin.framework import (
    PermitPlugin,
    PermitResult,
    PreEnqueuePlugin,
    PreFilterPlugin,
    PreFilterResult,
    QueueSortPlugin,
    Watch,
)
from koordinator.scheduler.plugin.status import SUCCESS, Status, unschedulable
from koordinator.scheduler.plugins import built_in
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.extending import with_plugins
from tests.scheduler.world import World, node, play, pod


class Answering(PreFilterPlugin[None], ApiProvider[None], ControllerProvider[None]):
    name = "Answering"
    per_profile = True
    ticks = 0
    crashes = 0

    def pre_filter(self, state: None) -> PreFilterResult:
        return PreFilterResult()

    def endpoints(self) -> Sequence[Endpoint]:
        return [Endpoint("node/{name}", lambda request: ApiAnswer({"node": request.path["name"]}))]

    def controllers(self) -> Sequence[BackgroundController]:
        return [BackgroundController("ticking", self._tick)]

    async def _tick(self) -> None:
        type(self).ticks += 1
        await asyncio.sleep(3600)


def two_profiles() -> dict[str, Any]:
    options = with_plugins(Answering)
    profile = options["config"].profiles[0]
    other = msgspec.structs.replace(profile, scheduler_name="other")
    return options | {"config": SchedulerConfig(profiles=[profile, other])}


def test_a_plugin_in_two_profiles_runs_its_controllers_and_answers_once() -> None:
    Answering.ticks = 0

    async def story(world: World) -> None:
        await world.settle(1)
        endpoints = world.scheduler.engine.endpoints()
        assert [each.path for each in endpoints["Answering"]] == ["node/{name}"]
        answer = endpoints["Answering"][0].answer(ApiRequest(path={"name": "a"}))
        assert (answer.status, answer.body) == (200, {"node": "a"})

    play(story, **two_profiles())
    assert Answering.ticks == 1


def test_controllers_of_an_unwanted_plugin_do_not_run() -> None:
    Answering.ticks = 0

    async def story(world: World) -> None:
        await world.settle(1)

    play(story, **two_profiles(), controller_filter=ControllerFilter.of(["*", "-Answering"]))
    assert Answering.ticks == 0


def test_a_controller_that_fails_starts_anew_and_costs_nobody_else_anything() -> None:
    class Failing(Answering):
        name = "Failing"

        async def _tick(self) -> None:
            type(self).ticks += 1
            if type(self).ticks < 3:
                raise RuntimeError("broken")
            await asyncio.sleep(3600)

    async def story(world: World) -> None:
        await world.settle(10)

    play(story, strict=False, **with_plugins(Failing))
    assert Failing.ticks == 3


@pytest.mark.parametrize(
    ("entries", "allowed"),
    [
        pytest.param(["*"], {"A", "B"}, id="star means all"),
        pytest.param(["*", "-A"], {"B"}, id="a minus takes out"),
        pytest.param(["A"], {"A"}, id="names alone mean only these"),
        pytest.param(["A", "-A"], set(), id="no wins over yes"),
        pytest.param([], set(), id="nothing means none"),
    ],
)
def test_the_controller_filter_reads_as_the_flag_does(entries: list[str], allowed: set[str]) -> None:
    found = ControllerFilter.of(entries, known=("A", "B"))
    assert {name for name in ("A", "B") if found.allows(name)} == allowed


@pytest.mark.parametrize("entry", ["", "-", "C", "-C"])
def test_a_controller_filter_that_names_nothing_is_refused(entry: str) -> None:
    with pytest.raises(ControllerFilterError):
        ControllerFilter.of([entry], known=("A", "B"))


def test_companions_are_those_of_the_plugins_own_profile() -> None:
    async def story(world: World) -> None:
        for name, profile in world.scheduler.profiles.items():
            (own,) = (plugin for plugin in profile.plugins if plugin.name == "Answering")
            assert own.handle.profile.name == name
            assert own.handle.companions(Answering) == (own,)

    play(story, **two_profiles())


class Watching(PreFilterPlugin[None]):
    name = "Watching"
    seen: ClassVar[dict[str, Any]] = {}

    def __init__(self, args: Any, handle: Any) -> None:
        super().__init__(args, handle)
        for view in (Pod, Node, Device):
            handle.watch(Watch(view, self._saw, lambda old, new: self._saw(new), lambda obj: None))

    def pre_filter(self, state: None) -> PreFilterResult:
        return PreFilterResult()

    def _saw(self, obj: Any) -> None:
        self.seen[type(obj).__name__] = obj


def test_plugins_see_objects_with_current_names_only() -> None:
    async def story(world: World) -> None:
        world.api.put("Node", node("a", extra={"koordinator.sh/batch-cpu": "1000"}))
        world.api.put("Pod", pod("p", requests={"koordinator.sh/batch-cpu": "500"}))
        devices = {"spec": {"devices": [{"resources": {"kubernetes.io/gpu-core": 100}}]}}
        world.api.put("Device", {"metadata": {"name": "a"}, **devices})
        await world.settle(1)
        assert world.api.placements() == {"p": "a"}

    play(story, **with_plugins(Watching))
    seen = Watching.seen
    assert seen["Pod"].spec.containers[0].resources.requests == {"kubernetes.io/batch-cpu": "500"}
    assert seen["Node"].status.allocatable["kubernetes.io/batch-cpu"] == "1000"
    assert seen["Device"].spec.devices[0].resources == {"koordinator.sh/gpu-core": 100}


@pytest.mark.parametrize(
    ("labels", "gates", "scheduled"),
    [
        pytest.param({}, "", False, id="asks for another scheduler"),
        pytest.param(
            {"scheduling.koordinator.sh/scheduler-name": "koord-scheduler"}, "", True, id="the label counts"
        ),
    ],
)
def test_the_label_names_the_scheduler(labels: dict[str, str], gates: str, scheduled: bool) -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        body = pod("p", scheduler="default-scheduler")
        body["metadata"]["labels"] = labels
        world.api.put("Pod", body)
        await world.settle(1)
        assert bool(world.api.placements()["p"]) is scheduled

    play(story, gates=FeatureGates.of(Component.SCHEDULER, gates))


def test_gated_transforms_act_on_what_is_scheduled() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="1", extra={"x.io/cpu": "9000"})
        body = pod("p", cpu="2", memory=None, priority=0)
        body["metadata"]["annotations"] = {"pod.koordinator.sh/replace-resources": "cpu:x.io/cpu"}
        body["metadata"]["labels"] = {"koordinator.sh/priority-class": "koord-mid"}
        stored = world.api.put("Pod", body)
        await world.settle(1)
        place = world.scheduler.table.place_of(stored["metadata"]["uid"])
        assert place is not None
        assert (place.pod.priority, place.pod.pod.spec.preemption_policy) == (7500, "Never")
        assert dict(place.pod.requests) == {world.scheduler.table.registry.column("x.io/cpu"): 2_000}

    names = ("ReplaceResources", "Priority", "PreemptionPolicy")
    flag = ",".join(f"{name}Transformer=true" for name in names)
    play(story, gates=FeatureGates.of(Component.SCHEDULER, flag))


def test_profiles_of_one_scheduler_place_by_their_own_weights() -> None:
    def packing(name: str, kind: str) -> config.ProfileConfig:
        args = {"scoringStrategy": {"type": kind, "resources": [{"name": "cpu", "weight": 1}]}}
        fit = config.PluginRef(name="NodeResourcesFit", weight=100)
        return config.ProfileConfig(
            scheduler_name=name,
            plugins=config.Plugins(score=config.PluginSet(enabled=[fit])),
            plugin_config=[config.PluginConfig(name="NodeResourcesFit", args=args)],
        )

    async def story(world: World) -> None:
        world.nodes(2)
        world.api.put("Pod", pod("first", nodeName="node-0"))
        for name in ("pack", "spread"):
            world.api.put("Pod", pod(name, scheduler=name))
            await world.settle(1)
        assert world.api.placements() == {"first": "node-0", "spread": "node-1", "pack": "node-0"}

    async def both_are_told(world: World) -> None:
        await story(world)
        assert {event["source"]["component"] for event in world.api.events("Scheduled")} == {"spread", "pack"}

    profiles = [packing("spread", "LeastAllocated"), packing("pack", "MostAllocated")]
    play(both_are_told, SchedulerConfig(profiles=profiles))


class OtherSort(QueueSortPlugin[None]):
    name = "OtherSort"

    def sort_key(self, pod: PodInfo, queued_s: float) -> tuple[Any, ...]:
        return (queued_s,)


class SortArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    newest: bool = False


class SortWithArgs(OtherSort):
    name = "SortWithArgs"
    args = SortArgs


def test_profiles_need_the_same_arguments_of_the_queue_sort_plugin() -> None:
    sort = config.PluginSet(
        enabled=[config.PluginRef(name="SortWithArgs")], disabled=[config.PluginRef(name="*")]
    )
    profiles = [
        config.ProfileConfig(
            scheduler_name=name,
            plugins=config.Plugins(queue_sort=sort),
            plugin_config=[config.PluginConfig(name="SortWithArgs", args={"newest": name == "a"})],
        )
        for name in ("a", "b")
    ]
    with pytest.raises(config.SchedulerConfigError, match="same arguments of the QueueSort plugin"):
        Engine(
            SchedulerConfig(profiles=profiles),
            FixedClock(),
            plugins=built_in.PLUGINS | {"SortWithArgs": SortWithArgs},
        )


def test_profiles_need_the_same_queue_sort_plugin() -> None:
    star, other = config.PluginRef(name="*"), config.PluginRef(name="OtherSort")
    sort = config.PluginSet(enabled=[other], disabled=[star])
    profiles = [
        config.ProfileConfig(),
        config.ProfileConfig(scheduler_name="b", plugins=config.Plugins(queue_sort=sort)),
    ]
    with pytest.raises(config.SchedulerConfigError, match="all profiles need the same QueueSort plugin"):
        Engine(
            SchedulerConfig(profiles=profiles),
            FixedClock(),
            plugins=built_in.PLUGINS | {"OtherSort": OtherSort},
        )


class Pairing(PermitPlugin[None]):
    """Lets pods go in pairs: the first waits for the second, which may come in the same turn of the loop."""

    name = "Pairing"

    def __init__(self, args: Any, handle: Any) -> None:
        super().__init__(args, handle)
        self.first = ""

    def permit(self, state: None, pod: PodInfo, node_name: str) -> PermitResult:
        if not self.first:
            self.first = pod.uid
            return PermitResult(timeout_s=60.0)
        assert self.handle.actions.allow_waiting(self.first, "Pairing")
        assert not self.handle.actions.allow_waiting("nobody", "Pairing")
        self.first = ""
        return PermitResult()


def test_a_waiting_pod_can_be_let_go_by_the_very_next_one() -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        for number in range(4):
            world.api.put("Pod", pod(f"p{number}", cpu="500m"))
        await world.settle(1)
        assert set(world.api.placements().values()) == {"node-0"}
        assert list(world.scheduler.waiting) == []

    play(story, **with_plugins(Pairing))


def test_a_pod_that_waits_when_the_scheduler_stops_waits_no_more() -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        world.api.put("Pod", pod("alone"))
        await world.settle(1)
        assert len(list(world.scheduler.waiting)) == 1
        worlds.append(world)

    worlds: list[World] = []
    play(story, **with_plugins(Pairing))
    assert list(worlds[0].scheduler.waiting) == []
    assert worlds[0].scheduler.table.assumed_count == 0


class Counting(PreEnqueuePlugin[None]):
    """Knows the pods that it heard of, and lets no other one into the queue."""

    name = "Counting"

    def __init__(self, args: Any, handle: Any) -> None:
        super().__init__(args, handle)
        self.known: set[str] = set()
        handle.watch(Watch(Pod, self._on_pod, lambda _, pod: self._on_pod(pod), lambda _: None))

    def _on_pod(self, pod: Pod) -> None:
        self.known.add(pod.metadata.uid)

    def pre_enqueue(self, pod: PodInfo) -> Status:
        return SUCCESS if pod.uid in self.known else unschedulable("never heard of it")


def test_a_plugin_that_follows_pods_hears_of_each_before_the_queue_asks_about_it() -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        for number in range(3):
            world.api.put("Pod", pod(f"pod-{number}"))
        await world.settle()

        assert set(world.api.placements().values()) == {"node-0"}
        [follower] = [each for each in world.scheduler.caches.informers if each.view is Pod]
        assert follower is world.scheduler.caches.pods, "and nobody follows pods twice"

    play(story, **with_plugins(Counting))
