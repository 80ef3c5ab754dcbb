"""Who is tried again when, and what costs nothing while nothing happens."""

import asyncio
from typing import Any

import pytest

from koordinator.scheduler.plugins.elastic_quota import evictions
from koordinator.scheduler.plugins.elastic_quota.accounts import Statuses
from koordinator.scheduler.plugins.elastic_quota.book import QuotaBook
from koordinator.scheduler.plugins.elastic_quota.evictions import OverUse
from tests.scheduler.elastic_quota.test_lending import plugin_of
from tests.scheduler.elastic_quota.test_plugin import member, placed, quota, with_args
from tests.scheduler.world import World, play


def attempts(world: World) -> int:
    counts = next(iter(world.scheduler.engine.profiles))
    return sum(world.scheduler.metrics.of(counts).attempt_counts().values())


@pytest.mark.parametrize("by_flag", [False, True])
def test_the_end_of_a_pod_wakes_pods_of_its_quota_at_once_and_no_others(by_flag: bool) -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="10")
        for name in ("one", "two"):
            world.api.put("ElasticQuota", quota(name, low=1, high=1))
            world.api.put("Pod", member(f"{name}-first", name))
        await world.settle()
        for name in ("one", "two"):
            world.api.put("Pod", member(f"{name}-second", name))
        await world.settle(15)
        before = attempts(world)

        world.api.remove("Pod", "one-first", "default")
        await world.settle(5)

        assert placed(world) == ["one-second", "two-first"]
        assert attempts(world) == before + 1

    play(story, with_args(enableQueueHint=by_flag))


@pytest.mark.parametrize("by_flag", [False, True])
def test_a_larger_quota_wakes_its_pods(by_flag: bool) -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="10")
        for name in ("one", "two"):
            world.api.put("ElasticQuota", quota(name, low=1, high=1))
            for number in range(2):
                world.api.put("Pod", member(f"{name}-{number}", name))
        await world.settle(15)
        before = attempts(world)

        world.api.put("ElasticQuota", quota("one", low=1, high=2))
        await world.settle(5)

        assert placed(world) == ["one-0", "one-1", "two-0"]
        assert attempts(world) == before + 1

    play(story, with_args(enableQueueHint=by_flag))


@pytest.mark.parametrize("by_flag", [False, True])
def test_a_waiting_pod_that_changes_its_quota_is_tried_there(by_flag: bool) -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="10")
        for name in ("one", "two"):
            world.api.put("ElasticQuota", quota(name, low=1, high=1))
        for name in ("first", "second"):
            world.api.put("Pod", member(name, "one"))
        await world.settle(15)
        assert placed(world) == ["first"]

        world.api.put("Pod", member("second", "two"))
        await world.settle(12)

        assert placed(world) == ["first", "second"]

    play(story, with_args(enableQueueHint=by_flag))


def test_pods_that_come_after_the_snapshot_of_hints_wake_others_when_they_go() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="10")
        world.api.put("ElasticQuota", quota("team", low=1, high=1))
        world.api.put("ElasticQuota", quota("other", low=1, high=1))
        world.api.put("Pod", member("early", "team"))
        world.api.put("Pod", member("waiting", "other", cpu="2"))
        await world.settle(3)
        world.api.remove("Pod", "early", "default")
        await world.settle(3)  # the snapshot is taken
        world.api.put("Pod", member("late", "team"))
        await world.settle(3)
        world.api.put("Pod", member("next", "team"))
        await world.settle(15)

        world.api.remove("Pod", "late", "default")
        await world.settle(12)

        assert placed(world) == ["next"]

    play(story, with_args(enableQueueHint=True, quotaSnapshotUpdateInterval="1h"))


def test_what_a_sibling_no_longer_asks_for_wakes_the_pods_of_who_wants_more() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        for name in ("one", "two"):
            world.api.put("ElasticQuota", quota(name, low=2, high=4))
            for number in range(4):
                world.api.put("Pod", member(f"{name}-{number}", name))
        await world.settle(15)
        assert placed(world) == ["one-0", "one-1", "two-0", "two-1"]

        for number in range(4):
            world.api.remove("Pod", f"two-{number}", "default")
        await world.settle(12)

        assert placed(world) == ["one-0", "one-1", "one-2", "one-3"]

    play(story)


def test_pods_that_ask_for_the_same_share_an_evaluation_whatever_their_quotas() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="10")
        for name in ("one", "two"):
            world.api.put("ElasticQuota", quota(name, low=1, high=1))
        await world.settle()
        plugin = plugin_of(world)

        for name in ("one", "two"):
            world.api.put("Pod", member(f"{name}-pod", name))
            await world.settle()
        infos = list(world.scheduler.table.pods_at(0).values())

        assert len(infos) == 2
        assert plugin.class_key(infos[0]) == plugin.class_key(infos[1])
        assert plugin.sleep_key(infos[0]) != plugin.sleep_key(infos[1])

    play(story)


def test_nothing_runs_while_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = 0
    write = Statuses._write

    async def counted(self: Any, names: list[str]) -> None:
        nonlocal rounds
        rounds += 1
        await write(self, names)

    monkeypatch.setattr(Statuses, "_write", counted)

    async def story(world: World) -> None:
        nonlocal rounds
        world.nodes(1, cpu="4")
        world.api.put("ElasticQuota", quota("one", low=2, high=4))
        world.api.put("Pod", member("pod", "one"))
        await world.settle(30)
        assert placed(world) == ["pod"]

        rounds = 0
        await world.settle(600)
        assert rounds == 0

        world.api.remove("Pod", "pod", "default")
        await world.settle(1.1)
        assert rounds == 1
        assert world.api.objects["ElasticQuota"]["quotas", "one"]["status"]["used"] == {"cpu": "0"}

    play(story, with_args(monitorAllQuotas=True))


def test_how_long_steps_take_is_reported_by_operation() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        world.api.put("ElasticQuota", quota("one", low=2, high=4))
        world.api.put("Pod", member("pod", "one"))
        await world.settle(3)
        world.api.remove("Pod", "pod", "default")
        world.api.remove("ElasticQuota", "one", "quotas")
        await world.settle(3)

        text = world.scheduler.metrics.text()
        for operation in (
            "OnPodAdd",
            "OnPodUpdate",
            "OnPodDelete",
            "ReservePod",
            "UnreservePod",
            "RefreshRuntime",
        ):
            line = f'scheduler_elastic_quota_process_latency_count{{operation="{operation}"}}'
            assert line in text, operation
        assert "scheduler_update_elastic_quota_status_duration_seconds_count" in text

    play(story)


def test_over_use_is_looked_for_where_something_changed_only(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    check = OverUse._check

    async def noted(self: Any, name: str, seen_s: float) -> None:
        looked.append(name)
        await check(self, name, seen_s)

    monkeypatch.setattr(OverUse, "_check", noted)

    async def story(world: World) -> None:
        world.nodes(1, cpu="40", memory="64Gi")
        for number in range(20):
            world.api.put("ElasticQuota", quota(f"team-{number}", low=2, high=4))
            world.api.put("Pod", member(f"pod-{number}", f"team-{number}"))
        for number in range(3):
            world.api.put("Pod", member(f"more-{number}", "team-3", priority=number))
        await world.settle(30)
        looked.clear()

        world.api.put("Pod", member("late", "team-7"))
        await world.settle(5)
        assert set(looked) - {"koordinator-root-quota"} == {"team-7"}

        looked.clear()
        world.api.put("ElasticQuota", quota("team-3", low=1, high=2))
        await world.settle(15)
        assert set(looked) - {"koordinator-root-quota"} == {"team-3"}
        assert len(looked) >= 10
        assert len(placed(world)) == 24  # delayEvictTime is not over
        await world.settle(15)
        assert [name for name in placed(world) if name.startswith("more")] == ["more-1", "more-2"]

    play(story, with_args(monitorAllQuotas=True, delayEvictTime="20s"))


def test_evictions_for_over_use_go_some_at_a_time_and_end_when_the_quota_may_use_more() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="80", memory="200Gi")
        for name in ("search", "ads"):
            world.api.put("ElasticQuota", quota(name, low=40, high=80))
        for number in range(80):
            world.api.put("Pod", member(f"ads-{number}", "ads"))
        await world.settle(5)
        assert len(placed(world)) == 80

        under_way, most = 0, 0

        async def slow_eviction(namespace: str, name: str, **_: Any) -> None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(1)
            under_way -= 1
            world.api.remove("Pod", name, namespace)
            if len(world.api.objects["Pod"]) == 80 + 40 - 5:
                for number in range(40):
                    world.api.remove("Pod", f"search-{number}", "default")

        world.api.evict = slow_eviction  # type: ignore[method-assign]
        for number in range(40):
            world.api.put("Pod", member(f"search-{number}", "search"))
        await world.settle(60)

        assert most == evictions.EVICTIONS_AT_ONCE
        assert len(placed(world)) == 80 - evictions.EVICTIONS_AT_ONCE

    play(story, with_args(monitorAllQuotas=True, delayEvictTime="20s"))


def test_a_round_of_evictions_asks_for_each_pod_a_few_times_however_many_quotas_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lookups = 0
    of_rounds: list[int] = []
    look, find = OverUse.look, QuotaBook.pod

    def counted(self: Any, key: str) -> Any:
        nonlocal lookups
        lookups += 1
        return find(self, key)

    async def noted(self: Any, *arguments: Any) -> None:
        before = lookups
        await look(self, *arguments)
        of_rounds.append(lookups - before)

    monkeypatch.setattr(OverUse, "look", noted)
    monkeypatch.setattr(QuotaBook, "pod", counted)
    evicted: set[str] = set()

    async def story(world: World) -> None:
        world.nodes(2, cpu="100", memory="200Gi")
        for number in range(30):
            world.api.put("ElasticQuota", quota(f"team-{number}", low=4, high=4))
            for pod in range(4):
                world.api.put("Pod", member(f"pod-{number}-{pod}", f"team-{number}"))
        await world.settle(5)
        assert len(placed(world)) == 120

        async def evict(namespace: str, name: str, **_: Any) -> None:
            evicted.add(name)  # the pod leaves later

        world.api.evict = evict  # type: ignore[method-assign]
        for number in range(30):
            world.api.put("ElasticQuota", quota(f"team-{number}", low=1, high=1))
        await world.settle(60)

        assert len(evicted) == 90
        assert max(of_rounds) <= 4 * 120

    play(story, with_args(monitorAllQuotas=True, delayEvictTime="20s"))


@pytest.mark.parametrize("is_seen", [pytest.param(True, id="seen"), pytest.param(False, id="not-seen-yet")])
def test_pods_that_leave_slowly_are_not_replaced_by_others(is_seen: bool) -> None:
    """`is_seen`: the cache shows that the pod leaves. Its kubelet reports meanwhile that it started before all others,
    which makes it the most important one."""
    evicted: set[str] = set()

    async def story(world: World) -> None:
        world.nodes(1, cpu="80", memory="200Gi")
        for name in ("search", "ads"):
            world.api.put("ElasticQuota", quota(name, low=40, high=80))
        bodies = {f"ads-{number}": member(f"ads-{number}", "ads", cpu="10") for number in range(8)}
        for body in bodies.values():
            world.api.put("Pod", body)
        await world.settle(5)
        assert len(placed(world)) == 8

        async def slow_eviction(namespace: str, name: str, **_: Any) -> None:
            evicted.add(name)
            body = dict(world.api.objects["Pod"][(namespace, name)])
            body["status"] = {"startTime": "2020-01-01T00:00:00Z"}
            if is_seen:
                body["metadata"] = body["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"}
            world.api.put("Pod", body)

        world.api.evict = slow_eviction  # type: ignore[method-assign]
        for number in range(4):
            world.api.put("Pod", member(f"search-{number}", "search", cpu="10"))
        await world.settle(60)
        assert len(evicted) == 4

        for name in evicted:
            world.api.remove("Pod", name, "default")
        await world.settle(60)
        assert len(evicted) == 4
        assert len(placed(world)) == 8

    play(story, with_args(monitorAllQuotas=True, delayEvictTime="5s"))
