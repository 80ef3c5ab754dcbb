"""A HorizontalPodAutoscaler keeps the use of pods near its target, at the pace that it asks for, and says why."""

import asyncio
import contextlib
from typing import Any

from koordinator import clock
from koordinator.api import crd
from koordinator.api.apps import Deployment
from koordinator.api.core import Event, Pod
from koordinator.api.groups import HorizontalPodAutoscaler
from koordinator.api.node_metric import NodeMetric
from koordinator.cluster import errors
from koordinator.cluster.events import EventRecorder
from koordinator.local.controllers.pod_autoscaler import PodAutoscalerController
from tests.local.controllers import workload_world
from tests.local.controllers.workload_world import edit, fetch, make, template
from tests.local.controllers.world import Runs, World, run

CPU_50 = {
    "type": "Resource",
    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}},
}
NAME = "auto"
began_s: dict[World, float] = {}
"""When an autoscaler was first looked at; it is every 15 seconds from then on."""
REQUESTS = {"requests": {"cpu": "1", "memory": "1Gi"}}


def build(world: World) -> list[Runs]:
    events = EventRecorder(world.cluster, "horizontal-pod-autoscaler", rng=world.rng)
    autoscaler = PodAutoscalerController(world.cluster, world.factory, events, world.backend.resources)
    return [events, autoscaler, *workload_world.controllers()(world)]


async def reports(world: World) -> None:
    """Have NodeMetrics served."""
    definitions = world.backend.resolve("apiextensions.k8s.io", "v1", "customresourcedefinitions")
    for manifest in crd.manifests():
        if manifest["spec"]["names"]["kind"] == "NodeMetric":
            await world.backend.create(definitions, "", manifest)


async def begin(world: World, replicas: int = 2, resources: Any = None) -> None:
    """A Deployment whose pods are ready and past their first minute."""
    await reports(world)
    await deploy(world, replicas, resources)


async def deploy(world: World, replicas: int = 2, resources: Any = None) -> None:
    container = {"name": "c", "image": "x", "resources": REQUESTS if resources is None else resources}
    await make(world, Deployment, replicas=replicas, template=template(containers=[container]))
    await asyncio.sleep(80)


async def autoscale(world: World, **spec: Any) -> None:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    own = {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 10, "metrics": [CPU_50]}
    body = {"metadata": {"name": NAME}, "spec": own | spec}
    await world.cluster.create(HorizontalPodAutoscaler, body, "default")
    began_s[world] = world.cluster.clock.now()
    await asyncio.sleep(0.1)


async def use(world: World, milli: int, memory: str = "0", only: int | None = None) -> None:
    """Have the nodes report that every pod uses so much (`only`: so many of them), and wait for a look."""
    by_node: dict[str, list[Any]] = {}
    pods = [pod for pod in (await world.cluster.list(Pod, "default")).items if pod.spec.node_name]
    for pod in pods[:only]:
        used = {"resources": {"cpu": f"{milli}m", "memory": memory}}
        entry = {"namespace": "default", "name": pod.metadata.name, "podUsage": used}
        by_node.setdefault(pod.spec.node_name, []).append(entry)
    for node in ("n0", "n1", "n2"):
        status = {
            "updateTime": clock.rfc3339(world.cluster.clock.now()),
            "podsMetric": by_node.get(node, []),
        }
        with contextlib.suppress(errors.AlreadyExists):
            await world.cluster.create(NodeMetric, {"metadata": {"name": node}})
        await world.cluster.patch(NodeMetric, node, {"status": status}, subresource="status")
    await look(world)


async def look(world: World) -> None:
    """Until just after the next look."""
    await asyncio.sleep(15.5 - (world.cluster.clock.now() - began_s[world]) % 15)


async def replicas(world: World) -> int:
    return (await fetch(world, Deployment)).spec.replicas or 0


async def said(world: World) -> dict[str, tuple[str, str]]:
    found = (await fetch(world, HorizontalPodAutoscaler, NAME)).status.conditions
    return {one.type: (one.status, one.reason) for one in found}


async def events(world: World) -> list[tuple[str, str]]:
    found = (await world.cluster.list(Event, "default")).items
    return [(e.reason, e.message) for e in found if e.involved_object.kind == "HorizontalPodAutoscaler"]


def test_use_above_the_target_adds_replicas_and_below_it_takes_them_after_five_minutes() -> None:
    async def scenario(world: World) -> None:
        await begin(world)
        await autoscale(world)
        await use(world, 900)
        assert await replicas(world) == 4
        status = (await fetch(world, HorizontalPodAutoscaler, NAME)).status
        assert (status.current_replicas, status.desired_replicas) == (2, 4)
        current = {"averageUtilization": 90, "averageValue": "900m"}
        assert status.current_metrics == [
            {"type": "Resource", "resource": {"name": "cpu", "current": current}}
        ]
        why = "New size: 4; reason: cpu resource utilization (percentage of request) above target"
        assert ("SuccessfulRescale", why) in await events(world)

        await asyncio.sleep(80)
        await use(world, 100)
        assert await replicas(world) == 4
        assert (await said(world))["AbleToScale"] == ("True", "ScaleDownStabilized")
        for _ in range(5):
            await asyncio.sleep(50)
            await use(world, 100)
        assert await replicas(world) == 1
        assert ("SuccessfulRescale", "New size: 1; reason: All metrics below target") in await events(world)
        await look(world)
        assert await said(world) == {
            "AbleToScale": ("True", "ReadyForNewScale"),
            "ScalingActive": ("True", "ValidMetricFound"),
            "ScalingLimited": ("False", "DesiredWithinRange"),
        }

    run(build, scenario)


def test_a_tenth_more_or_less_changes_nothing_unless_the_tolerance_says_so() -> None:
    async def scenario(world: World) -> None:
        await begin(world)
        await autoscale(world)
        await use(world, 550)
        assert (await replicas(world), (await said(world))["ScalingLimited"][0]) == (2, "False")

        rules = {
            "tolerance": "50m",
            "selectPolicy": "Max",
            "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}],
        }
        await edit(world, HorizontalPodAutoscaler, NAME, behavior={"scaleUp": rules})
        await use(world, 550)
        assert await replicas(world) == 3

    run(build, scenario)


def test_bounds_hold_and_growth_is_limited() -> None:
    async def scenario(world: World) -> None:
        await begin(world, replicas=3)
        await autoscale(world, minReplicas=3, maxReplicas=8)
        await use(world, 2_000)  # wants 12
        assert (await replicas(world), (await said(world))["ScalingLimited"]) == (6, ("True", "ScaleUpLimit"))

        await edit(world, HorizontalPodAutoscaler, NAME, maxReplicas=5)
        await asyncio.sleep(16)
        assert await replicas(world) == 5
        assert any("above Spec.MaxReplicas" in text for _, text in await events(world))

        await edit(world, HorizontalPodAutoscaler, NAME, minReplicas=7, maxReplicas=9)
        await asyncio.sleep(1)
        assert await replicas(world) == 7
        assert any("below Spec.MinReplicas" in text for _, text in await events(world))

    run(build, scenario)


def test_policies_of_behavior_set_the_pace() -> None:
    async def scenario(world: World) -> None:
        up = {"selectPolicy": "Max", "stabilizationWindowSeconds": 0,
              "policies": [{"type": "Pods", "value": 1, "periodSeconds": 40}]}  # fmt: skip
        down = {"selectPolicy": "Max", "stabilizationWindowSeconds": 0,
                "policies": [{"type": "Percent", "value": 50, "periodSeconds": 40}]}  # fmt: skip
        await begin(world)
        await autoscale(world, behavior={"scaleUp": up, "scaleDown": down})
        grown = []
        for _ in range(4):
            await use(world, 1_000)
            grown.append(await replicas(world))
            if len(grown) == 1:
                assert (await said(world))["ScalingLimited"] == ("True", "ScaleUpLimit")
        assert grown == [3, 3, 3, 4]

        await asyncio.sleep(60)
        size = await replicas(world)
        await edit(
            world,
            HorizontalPodAutoscaler,
            NAME,
            behavior={"scaleUp": up, "scaleDown": down | {"selectPolicy": "Disabled"}},
        )
        await use(world, 10)
        assert await replicas(world) == size
        await edit(world, HorizontalPodAutoscaler, NAME, behavior={"scaleUp": up, "scaleDown": down})
        await use(world, 10)
        assert (await replicas(world), (await said(world))["ScalingLimited"]) == (
            size // 2,
            ("True", "ScaleDownLimit"),
        )

    run(build, scenario)


def test_a_window_of_behavior_holds_growth_back_until_it_lasted() -> None:
    async def scenario(world: World) -> None:
        up = {"selectPolicy": "Max", "stabilizationWindowSeconds": 60,
              "policies": [{"type": "Pods", "value": 9, "periodSeconds": 15}]}  # fmt: skip
        await begin(world)
        await autoscale(world, behavior={"scaleUp": up})
        grown = []
        for _ in range(5):
            await use(world, 1_000)
            grown.append(await replicas(world))
            if grown[-1] == 2:
                assert (await said(world))["AbleToScale"] == ("True", "ScaleUpStabilized")
        assert grown == [2, 2, 2, 4, 4]

    run(build, scenario)


def test_memory_may_have_a_target_per_pod_and_the_most_of_several_metrics_counts() -> None:
    async def scenario(world: World) -> None:
        memory = {
            "type": "Resource",
            "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "256Mi"}},
        }
        await begin(world)
        await autoscale(world, metrics=[CPU_50, memory])
        await use(world, 500, "512Mi")
        assert await replicas(world) == 4
        status = (await fetch(world, HorizontalPodAutoscaler, NAME)).status
        assert (status.current_metrics or [])[1]["resource"]["current"] == {"averageValue": "512Mi"}
        assert any("memory resource above target" in text for _, text in await events(world))

    run(build, scenario)


def test_pods_that_report_nothing_count_against_the_change() -> None:
    async def scenario(world: World) -> None:
        await begin(world, replicas=4)
        await autoscale(world)
        await use(world, 10, only=3)  # the fourth may use all that it requests
        await asyncio.sleep(400)
        await use(world, 10, only=3)
        assert await replicas(world) == 2  # (10 + 10 + 10 + 1000) / 4000 is 25 percent: half of four, not one

    run(build, scenario)


def test_what_cannot_be_measured_is_said_and_nothing_is_scaled() -> None:
    async def scenario(world: World) -> None:
        pods = {
            "type": "Pods",
            "pods": {"metric": {"name": "requests"}, "target": {"type": "AverageValue", "averageValue": "5"}},
        }
        await begin(world)
        await autoscale(world, metrics=[pods])
        await use(world, 900)
        [scaling] = [
            c
            for c in (await fetch(world, HorizontalPodAutoscaler, NAME)).status.conditions
            if c.type == "ScalingActive"
        ]
        assert (scaling.status, scaling.reason) == ("False", "FailedGetPodsMetric")
        assert "no custom metrics API (custom.metrics.k8s.io) registered" in scaling.message
        first = "invalid metrics (1 invalid out of 1), first error is: failed to get pods metric value: unable to get"
        assert any(
            r == "FailedComputeMetricsReplicas" and t.startswith(first) for r, t in await events(world)
        )

        await edit(world, HorizontalPodAutoscaler, NAME, metrics=[CPU_50, pods])
        await use(world, 900)
        assert await replicas(world) == 4  # more is fine, fewer would not be

        assert (await said(world))["ScalingActive"] == ("True", "ValidMetricFound")

    run(build, scenario)


def test_an_external_metric_that_nobody_serves_is_named() -> None:
    async def scenario(world: World) -> None:
        metric = {"name": "queue", "selector": {"matchLabels": {"a": "b"}}}
        external = {"metric": metric, "target": {"type": "AverageValue", "averageValue": "5"}}
        await begin(world)
        await autoscale(world, metrics=[{"type": "External", "external": external}])
        await asyncio.sleep(1)
        why = (
            "failed to get queue external metric value: failed to get queue external metric: "
            "unable to get external metric default/queue/a=b: unable to fetch metrics from external metrics "
            "API: the server could not find the requested resource (get queue.external.metrics.k8s.io)"
        )
        text = f"invalid metrics (1 invalid out of 1), first error is: {why}"
        assert ("FailedComputeMetricsReplicas", text) in await events(world)

    run(build, scenario)


def test_pods_without_requests_have_no_utilization() -> None:
    async def scenario(world: World) -> None:
        await begin(world, resources={})
        await autoscale(world)
        await use(world, 900)
        [scaling] = [
            c
            for c in (await fetch(world, HorizontalPodAutoscaler, NAME)).status.conditions
            if c.type == "ScalingActive"
        ]
        assert "missing request for cpu in container c of Pod web-" in scaling.message

    run(build, scenario)


def test_a_target_that_is_not_there_two_autoscalers_and_none_wanted_are_told_apart() -> None:
    async def scenario(world: World) -> None:
        await reports(world)
        await autoscale(world)
        await asyncio.sleep(1)
        assert (await said(world))["AbleToScale"] == ("False", "FailedGetScale")

        await deploy(world)
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
        body = {
            "metadata": {"name": "rival"},
            "spec": {"scaleTargetRef": target, "maxReplicas": 3, "metrics": [CPU_50]},
        }
        await world.cluster.create(HorizontalPodAutoscaler, body, "default")
        await use(world, 900)
        await asyncio.sleep(16)
        assert ((await said(world))["ScalingActive"], await replicas(world)) == (
            ("False", "AmbiguousSelector"),
            2,
        )

        await world.cluster.delete(HorizontalPodAutoscaler, "rival", "default")
        await edit(world, Deployment, replicas=0)
        await asyncio.sleep(16)
        assert ((await said(world))["ScalingActive"], await replicas(world)) == (
            ("False", "ScalingDisabled"),
            0,
        )

    run(build, scenario)
