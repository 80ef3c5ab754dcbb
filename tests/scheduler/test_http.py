"""What the scheduler serves over HTTP."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.node_metric import NodeMetric
from koordinator.clock import FixedClock
from koordinator.scheduler.config import config, default_plugins
from koordinator.scheduler.plugin.capabilities import ApiAnswer, ApiProvider, ApiRequest, Endpoint
from koordinator.scheduler.plugin.framework import ReservePlugin
from koordinator.scheduler.plugins import built_in
from koordinator.scheduler.plugins.load_aware.plugin import LoadAwareScheduling
from koordinator.scheduler.scheduler import Scheduler
from koordinator.scheduler.serve import http
from koordinator.scheduler.serve.http import HttpOptions
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.fake_cluster import FakeCluster
from tests.scheduler.world import World, node, play, pod


class Answering(ApiProvider[None], ReservePlugin[None]):
    name = "Answering"

    def endpoints(self) -> list[Endpoint]:
        def answer(request: ApiRequest) -> ApiAnswer:
            return ApiAnswer({"name": request.path["name"], "detail": request.query.get("detail")}, 200)

        return [Endpoint("thing/{name}", answer)]


@contextlib.asynccontextmanager
async def client_of(scheduler: Scheduler, options: HttpOptions = HttpOptions()) -> AsyncIterator[TestClient]:  # noqa: B008
    async with TestClient(TestServer(http.application(scheduler, options))) as client:
        yield client


async def test_nodes_are_reported_by_the_leader_only() -> None:
    scheduler = Scheduler(FakeCluster(FixedClock()))
    scheduler.table.set_node(from_builtins(node("n-1", cpu="2"), Node))
    leading = [False]

    async with client_of(scheduler, HttpOptions(is_leader=lambda: leading[0])) as client:
        refused = await client.get("/apis/v1/nodes/n-1")
        assert (refused.status, await refused.json()) == (503, {"message": "the instance is not leader"})
        leading[0] = True
        assert (await (await client.get("/apis/v1/nodes/n-1")).json())["allocatable"]["cpu"] == "2"
        missing = await client.get("/apis/v1/nodes/n-2")
        assert (missing.status, await missing.json()) == (404, {"message": "cannot find node n-2"})


async def test_a_standby_names_the_leader() -> None:
    standby = HttpOptions(is_leader=lambda: False, leader=lambda: "other_1_0a")
    async with client_of(Scheduler(FakeCluster(FixedClock())), standby) as client:
        refused = await client.get("/apis/v1/nodes/n-1")
        assert (refused.status, (await refused.json())["leader"]) == (503, "other_1_0a")


async def test_health_tells_each_check_when_asked_or_unwell() -> None:
    scheduler = Scheduler(FakeCluster(FixedClock()))
    trouble = [""]

    async with client_of(scheduler, HttpOptions(lease=lambda: trouble[0])) as client:

        async def get(path: str) -> tuple[int, str]:
            response = await client.get(path)
            return response.status, await response.text()

        assert await get("/healthz") == (200, "ok")
        verbose = "[+]ping ok\n[+]leaderElection ok\nhealthz check passed\n"
        assert await get("/healthz?verbose") == (200, verbose)
        status, text = await get("/readyz")
        assert status == 503 and "[-]informer-sync failed: caches are not filled yet" in text
        scheduler.synced.set()
        assert await get("/readyz") == (200, "ok")
        trouble[0] = "failed election to renew leadership on lease koord-scheduler"
        assert (await get("/livez"))[0] == 500
        assert await get("/livez/ping") == (200, "ok")
        assert await get("/livez?exclude=leaderElection") == (200, "ok")

        _, slis = await get("/metrics/slis")
        lines = slis.splitlines()
        assert "# TYPE kubernetes_healthcheck gauge" in lines
        assert 'kubernetes_healthcheck{name="leaderElection",type="livez"} 0' in lines
        assert 'kubernetes_healthcheck{name="informer-sync",type="readyz"} 1' in lines
        assert 'kubernetes_healthchecks_total{name="informer-sync",status="error",type="readyz"} 1' in lines
        assert 'kubernetes_healthchecks_total{name="ping",status="success",type="livez"} 3' in lines


async def test_debug_switches_are_put() -> None:
    scheduler = Scheduler(FakeCluster(FixedClock()))
    levels: list[int] = []
    debug = scheduler.observer.debug

    async with client_of(scheduler, HttpOptions(set_verbosity=levels.append)) as client:
        for flag, value in (("s", "3"), ("f", "true"), ("d", "1"), ("db", "true"), ("v", "4")):
            response = await client.put(f"/debug/flags/{flag}", data=value)
            assert (response.status, "successfully set" in await response.text()) == (200, True)
        for flag, value in (("s", "many"), ("f", "maybe"), ("v", "")):
            assert (await client.put(f"/debug/flags/{flag}", data=value)).status == 400

    switches = (debug.top_scores, debug.filters, debug.diagnosis, debug.diagnosis_blocking)
    assert (switches, levels) == ((3, True, True, True), [4])


async def test_plugins_answer_below_their_names() -> None:
    settings = config.decode(
        {"profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": "Answering"}]}}}]}
    )
    plugins = {**built_in.PLUGINS, "Answering": Answering}
    scheduler = Scheduler(FakeCluster(FixedClock()), settings, plugins=plugins)

    async with client_of(scheduler) as client:
        found = await (await client.get("/apis/v1/plugins/Answering/thing/a?detail=all")).json()
        services = await (await client.get("/apis/v1/__services__")).json()

    assert found == {"name": "a", "detail": "all"}
    assert "GET /apis/v1/plugins/Answering/thing/{name}" in services


async def test_the_estimated_load_of_a_node_is_shown() -> None:
    scheduler = Scheduler(FakeCluster(FixedClock(1_700_000_000.0)))
    scheduler.table.set_node(from_builtins(node("n-1", cpu="8"), Node))
    [plugin] = [
        each
        for each in scheduler.profiles["koord-scheduler"].plugins
        if isinstance(each, LoadAwareScheduling)
    ]
    for name in ("b", "a"):
        info = PodInfo.of(from_builtins(pod(name, cpu="2", memory="1Gi"), Pod), scheduler.table.registry)
        scheduler.table.assign(info, "n-1")

    async with client_of(scheduler) as client:

        async def get(name: str) -> Any:
            return await (await client.get(f"/apis/v1/plugins/LoadAwareScheduling/node/{name}")).json()

        assert await get("nobody") == {}
        before = await get("n-1")
        usage = {"nodeUsage": {"resources": {"cpu": "1", "memory": "1Gi"}}}
        metric = {
            "metadata": {"name": "n-1"},
            "status": {"updateTime": "2023-11-14T22:13:20Z", "nodeMetric": usage},
        }
        plugin.set_metric(None, from_builtins(metric, NodeMetric))
        after = await get("n-1")

    assert [each["pod"]["metadata"]["name"] for each in before["pods"]] == ["a", "b"]
    assert "nodeDelta" not in before
    assert after["pods"][0]["timestamp"] == "2023-11-14T22:13:20Z"
    assert after["nodeDelta"] == after["nodeEstimated"] == {"cpu": "3400m", "memory": "1503238554"}
    assert after["nodeDeltaPods"] == after["nodeEstimatedPods"] == ["default/a", "default/b"]


@pytest.mark.parametrize("settings", [default_plugins.shipped_config("a", "b"), config.SchedulerConfig()])
def test_the_effective_configuration_is_one_that_means_the_same(settings: config.SchedulerConfig) -> None:
    once = http.effective(settings, built_in.PLUGINS)
    again = http.effective(config.parse(http.as_yaml(settings, built_in.PLUGINS)), built_in.PLUGINS)
    assert again == json.loads(json.dumps(once))
    args = {entry["name"]: entry["args"] for entry in once["profiles"][0]["pluginConfig"]}
    assert args["NodeResourcesFit"]["kind"] == "NodeResourcesFitArgs"
    assert args["InterPodAffinity"]["hardPodAffinityWeight"] == 1


async def test_profiles_and_tasks_are_shown_when_profiling_is_on() -> None:
    scheduler = Scheduler(FakeCluster(FixedClock()))
    async with client_of(scheduler) as client:
        assert (await client.get("/debug/pprof/")).status == 404
    async with client_of(scheduler, HttpOptions(profiling=True)) as client:
        assert "profile?seconds=N" in await (await client.get("/debug/pprof/")).text()
        assert "function calls" in await (await client.get("/debug/pprof/profile?seconds=0.05")).text()
        assert (await client.get("/debug/pprof/profile?seconds=-1")).status == 400
        assert "tasks" in await (await client.get("/debug/pprof/goroutine")).text()
        assert (await client.get("/debug/pprof/heap")).status == 501


def test_metrics_tell_what_was_scheduled_and_what_waits() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="4")
        world.api.put("Pod", pod("fits"))
        world.api.put("Pod", pod("huge", cpu="64"))
        await world.settle(0.1)
        http.add_gauges(world.scheduler)
        text = world.scheduler.metrics.text()
        asked = "scheduler_plugin_evaluation_total"

        for line in (
            'scheduler_schedule_attempts_total{result="scheduled",profile="koord-scheduler"} 1',
            'scheduler_schedule_attempts_total{result="unschedulable",profile="koord-scheduler"} 1',
            'scheduler_pending_pods{queue="unschedulable"} 1',
            'scheduler_queue_incoming_pods_total{queue="active",event="PodAdd"} 2',
            'scheduler_queue_incoming_pods_total{queue="unschedulable",event="ScheduleAttemptFailure"} 1',
            'scheduler_unschedulable_pods{plugin="NodeResourcesFit",profile="koord-scheduler"} 1',
            'scheduler_pod_scheduling_sli_duration_seconds_count{attempts="1"} 1',
            'scheduler_cache_size{type="nodes"} 2',
            'scheduler_cache_size{type="assumed_pods"} 0',
            f'{asked}{{plugin="NodePorts",extension_point="PreFilter",profile="koord-scheduler"}} 2',
            f'{asked}{{plugin="NodeName",extension_point="Filter",profile="koord-scheduler"}} 2',
            'scheduler_pod_scheduling_feasible_nodes_bucket{le="2"} 2',
        ):
            assert line in text, line
        # Pods without host ports skip the filter.
        assert 'plugin_evaluation_total{plugin="NodePorts",extension_point="Filter"' not in text
        assert 'scheduler_plugin_execution_duration_seconds_count{plugin="NodeResourcesFit",' in text
        assert 'scheduler_framework_extension_point_duration_seconds_count{extension_point="Filter"' in text

    play(story)


def test_resource_metrics_tell_requests_and_limits_of_each_pod() -> None:
    body = pod("web", requests={"cpu": "500m", "memory": "1Gi"}, nodeName="n-1")
    body["spec"]["containers"][0]["resources"]["limits"] = {"cpu": "2"}
    ended = {**pod("ended"), "status": {"phase": "Succeeded"}}

    found = http.ResourceMetrics()
    for each in (body, ended):
        found.add(from_builtins(each, Pod))
    lines = found.text().splitlines()

    labels = 'namespace="default",pod="web",node="n-1",scheduler="koord-scheduler",priority="0"'
    assert f'kube_pod_resource_request{{{labels},resource="cpu",unit="cores"}} 0.5' in lines
    assert f'kube_pod_resource_request{{{labels},resource="memory",unit="bytes"}} 1073741824' in lines
    assert f'kube_pod_resource_limit{{{labels},resource="cpu",unit="cores"}} 2' in lines
    assert not any("ended" in line for line in lines)


def test_resource_metrics_count_as_upstream_does() -> None:
    """Overhead on limits, sidecars before init steps, exact amounts, no line for nothing, no unit for cards."""

    def container(limit: str, **requests: str) -> dict[str, object]:
        return {"name": "c", "resources": {"limits": {"cpu": limit}, "requests": requests}}

    body = pod("web")
    body["spec"]["containers"] = [container("1", **{"cpu": "100u", "x.io/card": "1", "memory": "0"})]
    body["spec"]["initContainers"] = [container("2") | {"restartPolicy": "Always"}, container("3")]
    body["spec"]["overhead"] = {"cpu": "500m", "memory": "1Gi"}
    found = http.ResourceMetrics()

    found.add(from_builtins(body, Pod))

    told = {line.split(',resource="')[1] for line in found.text().splitlines() if ',resource="' in line}
    assert told == {
        'cpu",unit="cores"} 0.5001',
        'memory",unit="bytes"} 1073741824',
        'x.io/card",unit=""} 1',
        'cpu",unit="cores"} 5.5',
    }
