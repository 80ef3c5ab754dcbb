"""Reserving room in quotas: whatever is slow, lost or contended, no limit is exceeded, and everybody is answered."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator import clock as clocks
from koordinator.api import crd, labels, resource_list
from koordinator.api.core import Namespace
from koordinator.api.groups import CustomResourceDefinition
from koordinator.api.sigs import ElasticQuota
from koordinator.cluster.informer import InformerFactory
from koordinator.local import registry
from koordinator.manager.options import QuotaUpdateOptions
from koordinator.manager.quota.evaluation import QuotaLookupError
from koordinator.manager.quota.evaluator import QuotaEvaluationError, QuotaEvaluator
from koordinator.simulate import virtual_time
from tests.manager.quota.builders import quota_body
from tests.manager.quota.distant import Cluster

MANIFESTS = [m for m in crd.manifests() if m["spec"]["names"]["kind"] == "ElasticQuota"]


class World:
    """One API server and some instances of the manager."""

    def __init__(self, clusters: list[Cluster], evaluators: list[QuotaEvaluator]) -> None:
        self.clusters, self.evaluators = clusters, evaluators

    async def admit(self, cpu: int, instance: int = 0, name: str = "web") -> bool:
        request = resource_list.of({"cpu": str(cpu)})
        return (await self.evaluators[instance].admit(name, request)).allowed

    async def used(self, name: str = "web") -> int:
        quota = await self.clusters[0].get(ElasticQuota, name, "quotas")
        text = quota.metadata.annotations.get(labels.QUOTA_CHILD_REQUEST, '{"cpu": 0}')
        return int(msgspec.json.decode(text)["cpu"])


def run(
    scenario: Callable[[World], Awaitable[None]],
    *,
    instances: int = 1,
    seed: int = 0,
    options: QuotaUpdateOptions = QuotaUpdateOptions(),  # noqa: B008
    **distance: float,
) -> None:
    async def main(clock: clocks.LoopClock) -> None:
        backend = registry.in_memory(clock, checks=False)
        rng = random.Random(seed)
        clusters = [Cluster(backend, rng, **distance) for _ in range(instances)]
        for manifest in MANIFESTS:
            await clusters[0].create(CustomResourceDefinition, manifest)
        await clusters[0].create(Namespace, {"metadata": {"name": "quotas"}})
        await clusters[0].create(ElasticQuota, quota_body("web", high={"cpu": "10"}), "quotas")
        factories = [InformerFactory(cluster, random.Random(0)) for cluster in clusters]
        evaluators = [
            QuotaEvaluator(cluster, factory, options, rng)
            for cluster, factory in zip(clusters, factories, strict=True)
        ]
        async with asyncio.TaskGroup() as group:
            for factory in factories:
                factory.start(group)
                await factory.wait_synced()
            await scenario(World(clusters, evaluators))
            for factory in factories:
                await factory.stop()

    virtual_time.run_virtual(main)


@settings(max_examples=30, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 1), st.floats(0, 0.3)), max_size=14),
    seed=st.integers(0, 1_000),
    fault_ratio=st.sampled_from([0.0, 0.0, 0.2]),
    fresh=st.booleans(),
    jitter_s=st.sampled_from([0.0, 0.05]),
)
def test_two_instances_never_admit_more_than_the_limit(
    requests: list[tuple[int, int, float]], seed: int, fault_ratio: float, fresh: bool, jitter_s: float
) -> None:
    options = QuotaUpdateOptions(conflict_fresh_get=fresh, retry_jitter_s=jitter_s)
    admitted: list[int] = []

    async def scenario(world: World) -> None:
        async def create(cpu: int, instance: int, at_s: float) -> None:
            await asyncio.sleep(at_s)
            try:
                if await world.admit(cpu, instance):
                    admitted.append(cpu)
            except QuotaEvaluationError:
                assert fault_ratio or len(requests) > 4, "a few pods without faults must get their answer"

        await asyncio.gather(*(create(*request) for request in requests))
        used = await world.used()
        assert sum(admitted) <= used <= 10
        if not fault_ratio:
            assert sum(admitted) == used
            if sum(cpu for cpu, _, _ in requests) <= 10 and len(requests) <= 4:
                assert len(admitted) == len(requests)

    run(scenario, instances=2, seed=seed, options=options, delay_s=0.1, fault_ratio=fault_ratio)


def test_pods_that_come_together_are_decided_in_order_with_one_write() -> None:
    async def scenario(world: World) -> None:
        answers = await asyncio.gather(*(world.admit(cpu) for cpu in (4, 4, 4, 2, 1)))

        assert answers == [True, True, False, True, False]
        (patch,) = world.clusters[0].patches
        assert patch["metadata"]["annotations"] == {labels.QUOTA_CHILD_REQUEST: '{"cpu":"10"}'}
        assert patch["metadata"]["resourceVersion"] != ""
        assert patch.keys() == {"metadata"}
        assert patch["metadata"].keys() == {"annotations", "resourceVersion"}

    run(scenario)


def test_pods_that_come_during_a_write_are_the_next_batch() -> None:
    async def scenario(world: World) -> None:
        first = asyncio.ensure_future(world.admit(1))
        await asyncio.sleep(0)
        later = [asyncio.ensure_future(world.admit(1)) for _ in range(5)]
        await asyncio.sleep(0.001)
        later += [asyncio.ensure_future(world.admit(1)) for _ in range(5)]

        assert sum(await asyncio.gather(first, *later)) == 10
        assert len(world.clusters[0].patches) == 2

    run(scenario, delay_s=0.1)


def test_a_change_by_somebody_else_is_seen_after_the_conflict_even_before_the_watch_tells() -> None:
    async def scenario(world: World) -> None:
        near, far = world.clusters
        far.news_s = 60.0
        annotations = {labels.QUOTA_CHILD_REQUEST: '{"cpu":"7"}'}
        await near.patch(ElasticQuota, "web", {"metadata": {"annotations": annotations}}, "quotas")

        assert await world.admit(4, 1) is False
        assert await world.admit(3, 1) is True
        assert await world.used() == 10

    run(scenario, instances=2)


@pytest.mark.parametrize(("fresh", "reads"), [(False, 0), (True, 1)])
def test_after_a_conflict_the_api_is_asked_only_where_the_cache_is_behind_or_not_trusted(
    fresh: bool, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(world: World) -> None:
        far = world.clusters[1]
        asked: list[str] = []
        get, patch = far.get, far.patch

        async def counted(view: type[Any], name: str, *rest: Any) -> Any:
            asked.append(name)
            return await get(view, name, *rest)

        async def overtaken(*request: Any) -> Any:
            monkeypatch.setattr(far, "patch", patch)
            assert await world.admit(3)
            await asyncio.sleep(1)  # the watch tells
            return await patch(*request)

        monkeypatch.setattr(far, "get", counted)
        monkeypatch.setattr(far, "patch", overtaken)
        assert await world.admit(7, 1) is True
        assert asked == ["web"] * reads
        assert await world.used() == 10

    run(scenario, instances=2, options=QuotaUpdateOptions(conflict_fresh_get=fresh))


def test_an_own_write_counts_before_the_watch_shows_it() -> None:
    async def scenario(world: World) -> None:
        world.clusters[0].news_s = 60.0
        assert await world.admit(6) is True
        writes = len(world.clusters[0].patches)
        assert await world.admit(6) is False
        assert await world.admit(4) is True
        assert len(world.clusters[0].patches) == writes + 1, "no conflict with ourselves"

    run(scenario)


def test_who_waits_ten_seconds_is_told_so_and_its_place_is_free_again() -> None:
    async def scenario(world: World) -> None:
        (cluster,) = world.clusters
        cluster.delay_s = 1_000.0
        cluster.rng = random.Random(1)  # the first write takes minutes
        with pytest.raises(QuotaEvaluationError, match="elastic quota evaluation timed out"):
            await world.admit(6)

        cluster.delay_s = 0.0
        await asyncio.sleep(30)
        assert await world.admit(10) is True

    run(scenario)


def test_a_quota_that_is_deleted_meanwhile_is_not_found() -> None:
    async def scenario(world: World) -> None:
        (cluster,) = world.clusters
        cluster.delay_s = 1.0
        waiting = asyncio.ensure_future(world.admit(1))
        await asyncio.sleep(0)
        await cluster.delete(ElasticQuota, "web", "quotas")

        with pytest.raises(QuotaLookupError, match="elastic quota web not found"):
            await waiting
        await asyncio.sleep(2)
        with pytest.raises(QuotaLookupError, match="elastic quota web not found"):
            await world.admit(1)

    run(scenario)


def test_a_quota_that_can_never_be_written_fails_its_pods_after_the_retries_and_not_the_next() -> None:
    async def scenario(world: World) -> None:
        (cluster,) = world.clusters
        cluster.fault_ratio = 1.0
        with pytest.raises(QuotaEvaluationError, match="quota quotas/web could not be updated: not now"):
            await world.admit(1)
        assert len(cluster.patches) == 4, "once, and three retries"

        cluster.fault_ratio = 0.0
        assert await world.admit(1) is True

    run(scenario)


def test_a_dry_run_reserves_nothing_and_what_a_quota_does_not_count_is_not_written() -> None:
    async def scenario(world: World) -> None:
        (evaluator,) = world.evaluators
        request = resource_list.of({"cpu": "11"})
        assert not (await evaluator.admit("web", request, dry_run=True)).allowed
        assert (await evaluator.admit("web", resource_list.of({"cpu": "1"}), dry_run=True)).allowed
        assert (await evaluator.admit("web", resource_list.of({"memory": "1Gi"}))).allowed
        assert (await evaluator.admit(labels.DEFAULT_QUOTA_NAME, request)).allowed
        assert world.clusters[0].patches == []

    run(scenario)


def test_many_quotas_are_worked_on_side_by_side_but_not_all_at_once() -> None:
    async def scenario(world: World) -> None:
        (cluster,) = world.clusters
        for number in range(40):
            await cluster.create(ElasticQuota, quota_body(f"q{number}", high={"cpu": "1"}), "quotas")
        await asyncio.sleep(1)
        cluster.delay_s = 0.1
        at_once: list[int] = []

        async def create(number: int) -> None:
            assert await world.admit(1, name=f"q{number}")

        async def look() -> None:
            while True:
                await asyncio.sleep(0.001)
                at_once.append(len(cluster.patches))

        looking = asyncio.ensure_future(look())
        await asyncio.gather(*(create(number) for number in range(40)))
        looking.cancel()
        assert at_once[0] == 16
        assert len(cluster.patches) == 40

    run(scenario)
