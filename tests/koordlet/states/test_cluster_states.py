"""What the API server says of this node: its policies, its Node, what to report."""

import asyncio
from pathlib import Path
from typing import Any

from koordinator.api.core import Event, Node
from koordinator.api.node_metric import NodeMetric
from koordinator.api.slo import NodeSLO
from koordinator.api.storage import PersistentVolumeClaim
from koordinator.koordlet.states.node import DELETED_S, UNITS, AnyNodeSLO
from koordinator.koordlet.view import Topic
from tests.koordlet.agent_world import NODE, World, live

ON: dict[str, Any] = {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressThresholdPercent": 40}}


def threshold(world: World) -> tuple[bool | None, int | None]:
    slo = world.agent.shared.view.slo
    assert slo is not None and slo.resource_used_threshold_with_be is not None
    strategy = slo.resource_used_threshold_with_be
    return strategy.enable, strategy.cpu_suppress_threshold_percent


def counted(world: World, topic: Topic) -> list[Topic]:
    seen: list[Topic] = []
    world.agent.shared.view.listen(topic, "test", lambda: seen.append(topic))
    return seen


def test_policies_are_those_of_the_object_over_the_defaults(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        seen = counted(world, Topic.NODE_SLO)
        await world.create_objects(ON)
        await asyncio.sleep(1)
        assert threshold(world) == (True, 40)

        await world.say(resourceUsedThresholdWithBE={"cpuSuppressThresholdPercent": None})
        await asyncio.sleep(1)
        assert threshold(world) == (True, 65)
        await world.api.patch(AnyNodeSLO, NODE, {"metadata": {"labels": {"a": "b"}}})
        await asyncio.sleep(1)
        assert len(seen) == 2, "a label is no policy"

    live(tmp_path, scenario)


def test_a_malformed_policy_keeps_the_last_good_one_and_is_reported_on_the_node(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.create_objects(ON)
        await asyncio.sleep(1)

        await world.say(resourceUsedThresholdWithBE={"cpuSuppressThresholdPercent": "much"})
        await asyncio.sleep(1)

        assert threshold(world) == (True, 40)
        (event,) = [each for each in (await world.api.list(Event)).items if each.reason == "InvalidNodeSLO"]
        assert event.type == "Warning" and event.involved_object.kind == "Node"
        assert event.message == (
            "NodeSLO n1: spec.resourceUsedThresholdWithBE.cpuSuppressThresholdPercent: "
            "Expected `int | null`, got `str`; the last good one stays in force"
        )
        await world.say(resourceUsedThresholdWithBE={"cpuSuppressThresholdPercent": 41})
        await asyncio.sleep(1)
        assert threshold(world) == (True, 41)

    live(tmp_path, scenario)


def test_the_first_policy_may_be_malformed(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.create_objects({"resourceUsedThresholdWithBE": ["on"]})
        await asyncio.sleep(60)
        assert world.agent.shared.view.slo is None
        assert world.agent.is_started.is_set()

    live(tmp_path, scenario)


def test_a_deleted_policy_stays_for_a_while_and_then_everything_is_off(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.create_objects(ON)
        await asyncio.sleep(1)

        await world.api.delete(NodeSLO, NODE)
        await asyncio.sleep(DELETED_S - 5)
        assert threshold(world) == (True, 40)
        await world.api.create(NodeSLO, {"metadata": {"name": NODE}, "spec": ON})
        await asyncio.sleep(DELETED_S)
        assert threshold(world) == (True, 40), "the manager made it anew"

        await world.api.delete(NodeSLO, NODE)
        await asyncio.sleep(DELETED_S + 1)
        assert threshold(world) == (False, 65)

    live(tmp_path, scenario)


def test_the_node_is_reported_when_its_labels_change_not_when_its_status_does(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        seen = counted(world, Topic.NODE)
        await world.create_objects(ON)
        await asyncio.sleep(1)
        view, gauge = world.agent.shared.view, world.agent.shared.metrics.allocatable
        assert len(seen) == 1
        own = {(NODE, "cpu", "core"): 4.0, (NODE, "memory", "byte"): 2**33}
        lent = dict.fromkeys(((NODE, name, unit) for name, unit in UNITS.items()), 0)
        assert gauge.values == lent | {(NODE, "kubernetes.io/batch-cpu", "integer"): 1500} | own

        images = [{"names": ["big"], "sizeBytes": 1}]
        amounts = {"kubernetes.io/batch-cpu": None, "kubernetes.io/mid-memory": "1Ki", "cpu": "3500m"}
        status: dict[str, Any] = {"allocatable": amounts}
        await world.api.patch(Node, NODE, {"status": {**status, "images": images}}, subresource="status")
        await asyncio.sleep(1)
        assert len(seen) == 1
        changed = {(NODE, "kubernetes.io/mid-memory", "byte"): 1024, (NODE, "cpu", "core"): 3.5}
        assert gauge.values == lent | own | changed
        assert view.node is not None and view.node.status.images == []

        await world.api.patch(Node, NODE, {"metadata": {"annotations": {"x": "y"}}})
        await asyncio.sleep(1)
        assert len(seen) == 2

        await world.api.delete(Node, NODE)
        await asyncio.sleep(1)
        assert view.node is not None, "what is known of the node stays"

    live(tmp_path, scenario)


def test_without_a_node_of_the_name_the_agent_waits_and_says_so(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await asyncio.sleep(30)
        assert world.agent.troubles()["node"] == "there is no Node n1 (NODE_NAME says which is ours)"
        assert not world.agent.is_started.is_set() and world.kubelet.asked == 0
        await world.create_objects(ON)
        await asyncio.sleep(30)
        assert world.agent.is_started.is_set()

    live(tmp_path, scenario)


def test_what_to_report_goes_with_its_object(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.create_objects(ON)
        await asyncio.sleep(1)
        view = world.agent.shared.view
        assert view.metric_spec is not None
        policy = {"metricCollectPolicy": {"reportIntervalSeconds": 77}}
        await world.api.patch(NodeMetric, NODE, {"spec": policy})
        await asyncio.sleep(1)
        assert view.metric_spec.metric_collect_policy is not None
        assert view.metric_spec.metric_collect_policy.report_interval_seconds == 77
        await world.api.delete(NodeMetric, NODE)
        await asyncio.sleep(1)
        assert view.metric_spec is None

    live(tmp_path, scenario)


def test_bound_claims_are_known_with_block_io_only(tmp_path: Path) -> None:
    def claim(name: str, volume: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "namespace": "default"}, "spec": {"volumeName": volume}}

    async def scenario(world: World) -> None:
        await world.create_objects(ON)
        for name, volume in (("a", "pv-a"), ("b", "")):
            await world.api.create(PersistentVolumeClaim, claim(name, volume), "default")
        await asyncio.sleep(1)
        volumes = world.agent.shared.view.volumes
        assert dict(volumes) == ({"default/a": "pv-a"} if is_on else {})
        if is_on:
            await world.api.patch(PersistentVolumeClaim, "b", {"spec": {"volumeName": "pv-b"}}, "default")
            await world.api.delete(PersistentVolumeClaim, "a", "default")
            await asyncio.sleep(1)
            assert dict(volumes) == {"default/b": "pv-b"}

    for is_on in (False, True):
        live(tmp_path / str(is_on), scenario, gates=f"BlkIOReconcile={str(is_on).lower()}")
