"""A cycle: what plugins ask for is carried out within limits, or only told in a dry run; one that fails ends it."""

import asyncio
from typing import Any

import pytest

from koordinator import clock
from koordinator.api import labels
from koordinator.api.core import Node, Pod
from koordinator.api.groups import PodDisruptionBudget
from koordinator.api.storage import PersistentVolumeClaim
from koordinator.cluster import errors
from koordinator.descheduler import http
from koordinator.descheduler.cycle import CycleReport, Pass
from koordinator.descheduler.descheduler import Descheduler
from koordinator.descheduler.http import HttpOptions
from koordinator.descheduler.plugin import Actions, EvictAction, Observation
from tests.descheduler import builders
from tests.descheduler.world import World, config, run

DIRECT: dict[str, Any] = {
    "defaultJobMode": "EvictDirectly",
    "maxMigratingPerWorkload": 9,
    "maxUnavailablePerWorkload": 9,
    "objectLimiters": {"workload": {"duration": "0s"}},
    "maxMigratingPerNode": 0,
}


def everybody(seen: Observation) -> Actions[None]:
    """A plugin that wants all pods gone."""
    for node in seen.nodes:
        for pod in seen.pods_of[node.metadata.name]:
            yield EvictAction(pod, "all go")


def outcomes(report: CycleReport) -> list[str]:
    return [one.outcome for one in report.evictions]


def with_pass(running: Descheduler, start: Any = everybody) -> Descheduler:
    running.profiles[0].balance.append(Pass("Everybody", start))
    return running


def test_evictions_stop_at_the_limits_of_the_cycle_and_the_next_one_has_limits_of_its_own() -> None:
    async def scenario(world: World) -> None:
        await world.deployment("web", 10, "n0")
        async with world.descheduling(config(args=DIRECT, maxNoOfPodsToEvictPerNode=2)) as running:
            report = await with_pass(running).cycle()
            assert outcomes(report)[:3] == ["accepted", "accepted", "limited"]
            assert report.counts == {"accepted": 2, "limited": 8}
            assert report.evictions[2].why == "maxNoOfPodsToEvictPerNode 2 of node n0"
            assert len(await world.jobs()) == 2
            assert (await running.cycle()).counts["accepted"] == 2

    run(scenario)


def test_a_dry_run_asks_nobody_and_counts_as_if() -> None:
    async def scenario(world: World) -> None:
        await world.deployment("web", 10, "n0")
        body = config(args=DIRECT, dryRun=True, maxNoOfPodsToEvictTotal=3)
        async with world.descheduling(body) as running:
            assert (await with_pass(running).cycle()).counts == {"dry run": 3, "limited": 7}
            assert not await world.jobs()

    run(scenario)


def test_a_plugin_that_the_api_fails_ends_the_cycle_and_the_next_one_runs() -> None:
    def broken(seen: Observation) -> Actions[None]:
        yield from ()
        raise errors.ServiceUnavailable("out of luck")

    async def scenario(world: World) -> None:
        await world.deployment("web", 10, "n0")
        async with world.descheduling(config(args=DIRECT)) as running:
            running.profiles[0].deschedule.append(Pass("Broken", broken))
            report = await with_pass(running).cycle()
            assert (report.error, report.evictions) == ("profile koord-descheduler: Broken: out of luck", [])
            running.profiles[0].deschedule.clear()
            assert (await running.cycle()).counts["accepted"] > 0

    run(scenario)


def test_a_node_that_is_not_ready_takes_no_part_and_one_node_alone_is_no_cluster() -> None:
    async def scenario(world: World) -> None:
        async with world.descheduling(config()) as running:
            down = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
            for name in ("n1", "n2"):
                await world.cluster.patch(Node, name, down, subresource="status")
            await asyncio.sleep(1)
            report = await running.cycle()
            assert (report.nodes, "1 ready nodes" in report.error) == (1, True)

    run(scenario)


def test_ranks_are_written_as_deletion_costs_once() -> None:
    async def scenario(world: World) -> None:
        await world.deployment("web", 4, "n0")
        async with world.descheduling(config(balance="ScaleDownBinPack")) as running:
            await asyncio.sleep(1)
            key = labels.POD_DELETION_COST
            pods = await world.pods()
            assert sorted(pod.metadata.annotations[key] for pod in pods) == ["0", "1", "2", "3"]
            versions = {pod.metadata.resource_version for pod in pods}
            await running.cycle()
            assert {pod.metadata.resource_version for pod in await world.pods()} == versions

    run(scenario)


def test_default_evictor_evicts_at_once_through_the_api() -> None:
    async def scenario(world: World) -> None:
        pods = await world.deployment("web", 3, "n0")
        body = config()
        on = {"enabled": [{"name": "DefaultEvictor"}], "disabled": [{"name": "*"}]}
        body["profiles"][0]["plugins"] |= {"evict": on, "filter": on}
        body["profiles"][0]["pluginConfig"] = []
        async with world.descheduling(body) as running:
            assert (await with_pass(running).cycle()).counts == {"accepted": 3}
            assert not await world.jobs()
        await world.until(lambda now: not {_uid(pod) for pod in now} & {_uid(pod) for pod in pods})

    run(scenario)


@pytest.mark.parametrize(("age", "count"), [("10m", 1), ("0s", 2), ("", 3)])
def test_a_young_pod_stays_where_the_evictor_asks_for_an_age(age: str, count: int) -> None:
    async def scenario(world: World) -> None:
        pods = await world.deployment("web", 3, "n0")
        now_s = world.cluster.clock.now()
        for pod, age_s in zip(pods, (601, 599), strict=False):
            started = {"status": {"startTime": clock.rfc3339(now_s - age_s)}}
            await world.cluster.patch(Pod, pod.metadata.name, started, "default", subresource="status")
        body = config()
        on = {"enabled": [{"name": "DefaultEvictor"}], "disabled": [{"name": "*"}]}
        body["profiles"][0]["plugins"] |= {"evict": on, "filter": on}
        body["profiles"][0]["pluginConfig"] = [{"name": "DefaultEvictor", "args": {"minPodAge": age}}]
        async with world.descheduling(body) as running:
            with_pass(running, _everybody_that_may(running))
            assert (await running.cycle()).counts == {"accepted": count}

    run(scenario)


@pytest.mark.parametrize(("selector", "count"), [(None, 0), ({}, 3), ({"matchLabels": {"app": "web"}}, 3)])
def test_a_budget_without_a_selector_covers_no_pod(selector: dict[str, Any] | None, count: int) -> None:
    async def scenario(world: World) -> None:
        await world.deployment("web", 3, "n0")
        spec = {"maxUnavailable": 3} | ({} if selector is None else {"selector": selector})
        await world.cluster.create(PodDisruptionBudget, {"metadata": {"name": "b"}, "spec": spec}, "default")
        body = config()
        on = {"enabled": [{"name": "DefaultEvictor"}], "disabled": [{"name": "*"}]}
        body["profiles"][0]["plugins"] |= {"evict": on, "filter": on}
        args = {"ignorePodsWithoutPDB": True}
        body["profiles"][0]["pluginConfig"] = [{"name": "DefaultEvictor", "args": args}]
        async with world.descheduling(body) as running:
            await asyncio.sleep(5)
            await running.profiles[0].prepare()
            pods = running.caches.pods_of_node("n0")
            assert sum(running.profiles[0].may_evict(pod) for pod in pods) == count

    run(scenario)


@pytest.mark.parametrize(
    ("spec", "is_spared"),
    [
        ({"storageClassName": "fast"}, True),
        ({"storageClassName": "slow"}, False),
        ({"storageClassName": ""}, True),
        ({}, True),
        (None, True),
    ],
)
def test_a_claim_whose_class_cannot_be_told_protects_its_pod(
    spec: dict[str, Any] | None, is_spared: bool
) -> None:
    async def scenario(world: World) -> None:
        if spec is not None:
            claim = {"metadata": {"name": "c"}, "spec": spec}
            await world.cluster.create(PersistentVolumeClaim, claim, "default")
        body = config()
        on = {"enabled": [{"name": "DefaultEvictor"}], "disabled": [{"name": "*"}]}
        body["profiles"][0]["plugins"] |= {"evict": on, "filter": on}
        only = {"PodsWithPVC": {"protectedStorageClasses": [{"name": "fast"}]}}
        args = {"podProtections": {"extraEnabled": ["PodsWithPVC"], "config": only}}
        body["profiles"][0]["pluginConfig"] = [{"name": "DefaultEvictor", "args": args}]
        async with world.descheduling(body) as running:
            volume = {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}
            assert running.profiles[0].may_evict(builders.pod("p", "n0", volumes=[volume])) is not is_spared

    run(scenario)


def _everybody_that_may(running: Descheduler) -> Any:
    def start(seen: Observation) -> Actions[None]:
        for node in seen.nodes:
            for pod in seen.pods_of[node.metadata.name]:
                if running.profiles[0].may_evict(pod):
                    yield EvictAction(pod)

    return start


def _uid(pod: Pod) -> str:
    return pod.metadata.uid


@pytest.mark.parametrize("is_on", [True, False])
def test_its_verbosity_is_changed_over_http_where_profiling_is_on(is_on: bool) -> None:
    async def scenario(world: World) -> None:
        async with world.descheduling({**config(), "enableProfiling": is_on}) as running:
            app = http.application(running, HttpOptions(set_verbosity=lambda _: None))
            paths = {resource.canonical for resource in app.router.resources()}
            assert ("/debug/flags/v" in paths, "/healthz" in paths) == (is_on, True)

    run(scenario)


@pytest.mark.parametrize("wanted", ["True", "False"])
def test_a_pod_goes_by_a_condition_that_holds(wanted: str) -> None:
    async def scenario(world: World) -> None:
        pods = await world.deployment("web", 10, "n0")
        disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
        conditions = [{"type": "Ready", "status": "True"}, disrupted]
        name = pods[1].metadata.name
        await world.cluster.patch(
            Pod, name, {"status": {"conditions": conditions}}, "default", subresource="status"
        )
        body = config(args=DIRECT)
        [profile] = body["profiles"]
        profile["plugins"]["deschedule"] = {"enabled": [{"name": "PodLifeTime"}]}
        args = {"conditions": [{"type": "DisruptionTarget", "status": wanted}]}
        profile["pluginConfig"].append({"name": "PodLifeTime", "args": args})
        async with world.descheduling(body) as running:
            asked = [one.pod for one in running.reports[0].evictions]
            assert asked == ([f"default/{name}"] if wanted == "True" else [])

    run(scenario)
