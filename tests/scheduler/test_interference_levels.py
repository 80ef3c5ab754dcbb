"""Nodes whose services suffer from batch get no more of it for a while, and pairs that hurt are kept apart."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import interference
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.interference import Fading
from koordinator.clock import rfc3339
from koordinator.scheduler.plugins.load_aware.plugin import LoadAwareScheduling
from tests.scheduler.world import World, play, pod

BATCH, PROD = 5_500, 9_500
HALF_LIFE_S = 600


def metric(
    world: World, name: str, percent: int = 0, pairs: Sequence[tuple[str, str]] = ()
) -> dict[str, Any]:
    now_s = world.clock.now()
    until = rfc3339(now_s + HALF_LIFE_S)
    told = {
        "percent": percent,
        "at": rfc3339(now_s),
        "halfLifeSeconds": HALF_LIFE_S,
        "pairs": [{"victim": victim, "culprit": culprit, "until": until} for victim, culprit in pairs],
    }
    return {
        "metadata": {"name": name},
        "status": {
            "updateTime": rfc3339(now_s),
            "nodeMetric": {"nodeUsage": {"resources": {"cpu": "1", "memory": "1Gi"}}},
            "extensions": {"interference": told} if percent or pairs else {},
        },
    }


def owned(name: str, workload: str, **more: Any) -> dict[str, Any]:
    found = pod(name, **more)
    owner = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "name": workload,
        "uid": workload,
        "controller": True,
    }
    found["metadata"]["ownerReferences"] = [owner]
    return found


async def places(world: World, names: str, count: int, priority: int, workload: str = "") -> set[str]:
    for number in range(count):
        name = f"{names}-{number}"
        one = owned(name, workload, priority=priority) if workload else pod(name, priority=priority)
        world.api.put("Pod", one)
    await world.settle()
    placed = world.api.placements()
    return {placed[f"{names}-{number}"] for number in range(count)}


def report(world: World, told: Mapping[str, int]) -> None:
    for name, percent in told.items():
        world.api.put("NodeMetric", metric(world, name, percent))


def test_a_suffering_node_gets_services_but_no_batch_until_it_has_been_calm_for_a_while() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="64", memory="256Gi")
        report(world, {"node-0": 80, "node-1": 0})
        await world.settle()

        assert await places(world, "batch", 6, BATCH) == {"node-1"}
        assert await places(world, "web", 6, PROD) == {"node-0", "node-1"}

        world.api.remove("Node", "node-1")
        assert await places(world, "late", 1, BATCH) == {""}
        message = world.condition("late-0")["message"]
        assert "node(s) have services that suffer from batch" in message

        for _ in range(9):
            await world.settle(60)
            # Reports go on; what they tell is of the time when services suffered.
            old = world.api.objects["NodeMetric"][("", "node-0")]
            status = dict(old["status"], updateTime=rfc3339(world.clock.now()))
            world.api.put("NodeMetric", {"metadata": {"name": "node-0"}, "status": status})
        assert world.api.placements()["late-0"] == "node-0"

    play(story)


def test_a_node_that_suffered_a_little_is_only_less_welcome() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="64", memory="256Gi")
        report(world, {"node-0": 40, "node-1": 0})
        await world.settle()

        assert await places(world, "batch", 6, BATCH) == {"node-1"}
        world.api.remove("Node", "node-1")
        assert await places(world, "late", 1, BATCH) == {"node-0"}

    play(story)


def test_a_culprit_does_not_meet_its_victim_again_on_any_node_for_a_while() -> None:
    async def story(world: World) -> None:
        world.nodes(3, cpu="64", memory="256Gi")
        report(world, {f"node-{number}": 0 for number in range(3)})
        victim = owned("web-0", "web", priority=PROD)
        victim["spec"]["nodeName"] = "node-0"
        world.api.put("Pod", victim)
        await world.settle()
        pair = ("default/StatefulSet/web", "default/StatefulSet/train")
        world.api.put("NodeMetric", metric(world, "node-2", 0, [pair]))  # where they met
        await world.settle()

        assert await places(world, "train", 8, BATCH, "train") == {"node-1", "node-2"}
        assert "node-0" in await places(world, "other", 8, BATCH, "other")

        # The victim comes to where its culprit is only when nowhere else is room.
        assert await places(world, "more", 2, PROD, "web") == {"node-0"}

        world.api.remove("Node", "node-1")
        world.api.remove("Node", "node-2")
        assert await places(world, "again", 1, BATCH, "train") == {""}
        assert "run a workload that suffered from this one" in world.condition("again-0")["message"]
        world.api.put("NodeMetric", metric(world, "node-0"))
        world.api.remove("NodeMetric", "node-2")
        await world.settle(1)
        world.api.put("NodeMetric", metric(world, "node-0"))
        await world.settle(60)
        assert world.api.placements()["again-0"] == "node-0", "who told of the pair is gone"

    play(story)


def test_a_victim_is_counted_where_its_node_was_away_when_the_pair_was_told() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="64", memory="256Gi")
        report(world, {"node-0": 0, "node-1": 0})
        for name in ("web-0", "web-1"):
            victim = owned(name, "web", priority=PROD)
            victim["spec"]["nodeName"] = "node-0"
            world.api.put("Pod", victim)
        await world.settle()
        gone = world.api.objects["Node"][("", "node-0")]
        world.api.remove("Node", "node-0")
        pair = ("default/StatefulSet/web", "default/StatefulSet/train")
        world.api.put("NodeMetric", metric(world, "node-1", 0, [pair]))
        await world.settle()
        world.api.put("Node", gone)
        await world.settle()

        assert await places(world, "train", 4, BATCH, "train") == {"node-1"}

    play(story)


def test_a_level_goes_with_its_report_though_the_node_is_away() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="64", memory="256Gi")
        report(world, {"node-0": 80, "elsewhere": 0})
        world.api.put("Pod", {**pod("runs"), "spec": {**pod("runs")["spec"], "nodeName": "node-0"}})
        await world.settle()
        away = world.api.objects["Node"][("", "node-0")]
        world.api.remove("Node", "node-0")
        await world.settle()
        world.api.remove("NodeMetric", "node-0")
        await world.settle()
        world.api.put("Node", away)
        await world.settle()

        assert await places(world, "batch", 1, BATCH) == {"node-0"}

    play(story)


def test_what_cannot_be_read_changes_nothing() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="64", memory="256Gi")
        bad = metric(world, "node-0", 80)
        for wrong in ({"percent": 180}, {"at": "yesterday"}, {"pairs": 7}):
            told = bad["status"]["extensions"]["interference"] | wrong
            world.api.put(
                "NodeMetric", bad | {"status": bad["status"] | {"extensions": {"interference": told}}}
            )
            await world.settle()
        assert await places(world, "batch", 2, BATCH) == {"node-0"}

    play(story)


def test_without_a_signal_pods_share_evaluations_as_before() -> None:
    async def story(world: World) -> None:
        world.nodes(2)
        report(world, {"node-0": 0, "node-1": 0})
        await world.settle()
        (profile,) = world.scheduler.engine.profiles.values()
        plugin = next(each for each in profile.plugins if isinstance(each, LoadAwareScheduling))
        keys = {
            plugin.live_key(each)
            for row in world.scheduler.table.rows.tolist()
            for each in world.scheduler.table.pods_at(row).values()
        }
        assert await places(world, "web", 2, PROD) <= {"node-0", "node-1"}
        assert len(keys) <= 1 and not plugin.looks_further()

    play(story)


@given(
    percent=st.integers(0, 100),
    half_life_s=st.floats(1, 1e4),
    age_s=st.floats(-10, 1e5),
    later_s=st.floats(0, 1e4),
)
def test_a_level_only_falls_and_ends(percent: int, half_life_s: float, age_s: float, later_s: float) -> None:
    fading = Fading(percent, 0.0, half_life_s)

    assert 0 <= fading.level(age_s + later_s) <= fading.level(age_s) <= percent
    assert fading.level(half_life_s * 5) == 0
    if percent >= interference.LEVEL_PERCENT_MIN:
        assert fading.level(0.0) == percent


@pytest.mark.parametrize(
    ("owner", "labels", "workload"),
    [
        (("ReplicaSet", "web-7d4"), {"pod-template-hash": "7d4"}, "n/Deployment/web"),
        (("ReplicaSet", "web"), {}, "n/ReplicaSet/web"),
        (("Job", "train"), {}, "n/Job/train"),
        (None, {}, "n/Pod/p"),
    ],
)
def test_a_workload_outlives_its_pods(
    owner: tuple[str, str] | None, labels: dict[str, str], workload: str
) -> None:
    meta: dict[str, Any] = {"name": "p", "namespace": "n", "labels": labels}
    if owner is not None:
        meta["ownerReferences"] = [{"kind": owner[0], "name": owner[1], "uid": "u", "controller": True}]

    assert interference.workload_of(from_builtins({"metadata": meta}, Pod)) == workload
