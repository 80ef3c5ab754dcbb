"""What the six plugins keep on a node, seen through the API."""

import asyncio
import json
from typing import Any

import pytest

from koordinator.api import labels
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.device import Device
from koordinator.api.meta import ObjectMeta
from koordinator.api.node_metric import NodeMetric
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.manager import caches
from koordinator.manager.noderesource import account
from koordinator.manager.noderesource import target as targets
from koordinator.manager.options import ManagerOptions
from tests.manager.noderesource.world import (
    BATCH_CPU,
    BATCH_MEMORY,
    MID_CPU,
    MID_MEMORY,
    World,
    create_pod,
    node_body,
    pod_usage,
    run,
    topology_body,
)

NORMALIZATION = labels.NODE_CPU_NORMALIZATION_RATIO
AMPLIFICATION = labels.NODE_RESOURCE_AMPLIFICATION_RATIO
ORIGIN = labels.NODE_ORIGIN_EXTENDED_ALLOCATABLE
RATIOS = '{"enable": true, "ratioModel": {"Xeon A": {"hyperThreadTurboEnabledRatio": 1.5}}}'
GPU = {"type": "gpu", "minor": 0, "health": True, "resources": {"koordinator.sh/gpu-core": "100"}}


def zone_amounts(topology: NodeResourceTopology) -> list[dict[str, Any]]:
    return [{row.name: row.allocatable for row in zone.resources} for zone in topology.zones]


def test_batch_and_mid_resources_come_with_a_report() -> None:
    async def scenario(world: World) -> None:
        await create_pod(world, "web")
        prediction = {"resource": {"resources": {"cpu": "9", "memory": "9G"}}}
        await world.report(podsMetric=[pod_usage("web", "11", "11G")], prodReclaimableMetric=prediction)

        found = (await world.node()).status
        # 100 cores less 40 of margin, 7 of the system and 11 in use.
        assert found.allocatable[BATCH_CPU] == found.capacity[BATCH_CPU] == "42k"
        assert found.allocatable[BATCH_MEMORY] == "55G"
        assert (found.allocatable[MID_CPU], found.capacity[MID_MEMORY]) == ("9k", "9G")

    run(scenario)


def test_a_plugin_that_is_not_chosen_leaves_its_resources_alone() -> None:
    async def scenario(world: World) -> None:
        await world.user.patch(Node, "n1", {"status": {"allocatable": {MID_CPU: "5"}}}, subresource="status")
        await world.report()

        found = (await world.node()).status.allocatable
        assert found[BATCH_CPU] == "53k"
        assert (found[MID_CPU], MID_MEMORY in found) == ("5", False)

    run(scenario, options=ManagerOptions(node_resource_plugins=("*", "-MidResource")))


def test_a_cpu_model_counts_for_batch_and_amplification_in_one_write() -> None:
    async def scenario(world: World) -> None:
        await world.user.create(NodeResourceTopology, topology_body())
        await world.configure(
            resource_amplification_config='{"enable": true, "resourceAmplificationRatio": {"cpu": 2}}'
        )
        await world.report()
        assert (await world.node()).metadata.annotations[NORMALIZATION] == "1.00"
        before = len(world.cluster.writes)

        await world.configure(cpu_normalization_config=RATIOS)

        found = await world.node()
        assert found.metadata.annotations[NORMALIZATION] == "1.50"
        assert found.metadata.annotations[AMPLIFICATION] == '{"cpu":3.00}'
        assert found.status.allocatable[BATCH_CPU] == "79500"
        assert found.status.allocatable[BATCH_MEMORY] == "66G"
        assert [name for name, patch in world.cluster.writes[before:] if "zones" not in patch] == ["n1"]

    run(scenario)


def test_a_label_switches_normalization_off_for_one_node() -> None:
    async def scenario(world: World) -> None:
        await world.user.create(NodeResourceTopology, topology_body())
        await world.configure(cpu_normalization_config=RATIOS)
        await world.report()
        assert (await world.node()).metadata.annotations[NORMALIZATION] == "1.50"

        off = {labels.NODE_CPU_NORMALIZATION_ENABLED: "false"}
        await world.user.patch(Node, "n1", {"metadata": {"labels": off}})
        await asyncio.sleep(1)

        assert (await world.node()).metadata.annotations[NORMALIZATION] == "1.00"

    run(scenario)


def test_an_unknown_cpu_model_keeps_the_old_ratio_and_says_so() -> None:
    async def scenario(world: World) -> None:
        await world.user.create(NodeResourceTopology, topology_body(model="Xeon Z"))
        await world.user.patch(Node, "n1", {"metadata": {"annotations": {NORMALIZATION: "1.20"}}})
        await world.configure(cpu_normalization_config=RATIOS)
        await world.report()

        found = await world.node()
        assert found.metadata.annotations[NORMALIZATION] == "1.20"
        assert found.status.allocatable[BATCH_CPU] == "53k"  # nothing was calculated, so nothing multiplied
        ((reason, message),) = await world.events()
        assert reason == "CPUNormalizationFailed"
        assert "'Xeon Z'" in message and "defaultRatio" in message

    run(scenario)


def test_what_the_kubelet_reserves_counts_under_amplified_allocatable() -> None:
    raw = {labels.NODE_RAW_ALLOCATABLE: '{"cpu": "80", "memory": "120G"}', AMPLIFICATION: '{"cpu":1.50}'}
    body = node_body(annotations=raw)
    body["status"]["allocatable"]["cpu"] = "120"

    async def scenario(world: World) -> None:
        await world.configure(
            resource_amplification_config='{"enable": true, "resourceAmplificationRatio": {"cpu": 1.5}}'
        )
        await world.report()

        # 100 less 40 of margin and 20 that the kubelet keeps, which is more than the 7 in use.
        assert (await world.node()).status.allocatable[BATCH_CPU] == "40k"

    run(scenario, nodes=[body])


def test_amplification_ends_with_colocation() -> None:
    async def scenario(world: World) -> None:
        await world.configure(
            resource_amplification_config='{"enable": true, "resourceAmplificationRatio": {"cpu": 2}}'
        )
        await world.report()
        assert (await world.node()).metadata.annotations[AMPLIFICATION] == '{"cpu":2.00}'

        await world.configure(colocation_config='{"enable": false}')

        annotations = (await world.node()).metadata.annotations
        assert AMPLIFICATION not in annotations and annotations[NORMALIZATION] == "1.00"

    run(scenario)


def test_a_node_that_is_no_longer_amplified_has_its_own_allocatable_back_at_once() -> None:
    raw = {labels.NODE_RAW_ALLOCATABLE: '{"cpu": "90", "memory": "120G"}', AMPLIFICATION: '{"cpu":1.50}'}
    body = node_body(annotations=raw)
    body["status"]["allocatable"]["cpu"] = "135"

    async def scenario(world: World) -> None:
        await world.report()  # with colocation, but without a ratio

        found = await world.node()
        assert not {AMPLIFICATION, labels.NODE_RAW_ALLOCATABLE} & found.metadata.annotations.keys()
        assert (found.status.allocatable["cpu"], found.status.capacity["cpu"]) == ("90", "100")

    run(scenario, nodes=[body])


def test_an_amount_of_the_kubelet_that_is_written_otherwise_is_not_written_again() -> None:
    node = from_builtins(node_body(), Node)  # 100 cores
    target = targets.NodeTarget(native={"cpu": "100000m", "memory": "120000M"})

    assert targets.node_patch(node, target, with_status=True) == {}
    target.native["cpu"] = "100001m"
    assert targets.node_patch(node, target, with_status=True) == {
        "status": {"allocatable": {"cpu": "100001m"}}
    }


def test_cards_are_on_the_node_whether_colocation_is_on_or_not() -> None:
    async def scenario(world: World) -> None:
        await world.configure(colocation_config='{"enable": false}')
        nic = {"type": "rdma", "minor": 0, "health": True}
        await world.user.create(Device, {"metadata": {"name": "n1"}, "spec": {"devices": [GPU, GPU, nic]}})
        await asyncio.sleep(1)
        found = (await world.node()).status.allocatable
        assert found["koordinator.sh/gpu"] == found["koordinator.sh/gpu-core"] == "200"
        assert found["koordinator.sh/rdma"] == "100"
        assert "koordinator.sh/gpu.shared" not in found

        patch = {"metadata": {"labels": {labels.GPU_MODEL: "H800"}}}
        await world.user.patch(Device, "n1", patch)
        await asyncio.sleep(1)
        assert (await world.node()).metadata.labels[labels.GPU_MODEL] == "H800"

        sick = {**GPU, "health": False}
        await world.user.patch(Device, "n1", {"spec": {"devices": [GPU, sick]}})
        await asyncio.sleep(1)
        found = (await world.node()).status.allocatable
        assert found["koordinator.sh/gpu-core"] == "100" and "koordinator.sh/rdma" not in found

        await world.user.delete(Device, "n1")
        await asyncio.sleep(1)
        assert not any(name.startswith("koordinator.sh/") for name in (await world.node()).status.capacity)

    run(scenario)


def test_a_node_that_registers_anew_still_has_its_cards() -> None:
    async def scenario(world: World) -> None:
        await world.user.create(Device, {"metadata": {"name": "n1"}, "spec": {"devices": [GPU]}})
        await asyncio.sleep(1)
        await world.user.delete(Node, "n1")
        await asyncio.sleep(5)
        await world.user.create(Node, node_body("n1"))
        await asyncio.sleep(2)
        assert (await world.node()).status.allocatable["koordinator.sh/gpu-core"] == "100"

    run(scenario)


def test_shared_cards_are_published_with_their_gate() -> None:
    async def scenario(world: World) -> None:
        await world.user.create(Device, {"metadata": {"name": "n1"}, "spec": {"devices": [GPU]}})
        await asyncio.sleep(1)
        assert (await world.node()).status.allocatable["koordinator.sh/gpu.shared"] == "100"

    run(scenario, gates="EnableSyncGPUSharedResource=true")


def test_zones_have_their_share_and_lose_it_with_batch() -> None:
    async def scenario(world: World) -> None:
        await world.user.create(NodeResourceTopology, topology_body())
        await world.report()
        first, second = zone_amounts(await world.user.get(NodeResourceTopology, "n1"))
        # 50 cores less 20 of margin and half of 7.
        assert first[BATCH_CPU] == second[BATCH_CPU] == "26500"
        before = len(world.cluster.writes)
        await world.report()
        assert len(world.cluster.writes) == before

        await world.configure(colocation_config='{"enable": false}')

        for zone in zone_amounts(await world.user.get(NodeResourceTopology, "n1")):
            assert zone == {"cpu": "50", "memory": "60G"}

    run(scenario)


def test_third_parties_see_everything_and_kubernetes_what_they_left() -> None:
    taken = {"allocations": [{"name": "yarn", "priority": "koord-batch", "resources": {BATCH_CPU: "3000"}}]}

    async def scenario(world: World) -> None:
        await world.report()
        annotations = {labels.NODE_THIRD_PARTY_ALLOCATIONS: json.dumps(taken)}
        await world.user.patch(Node, "n1", {"metadata": {"annotations": annotations}})
        await asyncio.sleep(301)
        await world.report()

        found = await world.node()
        assert found.status.allocatable[BATCH_CPU] == "50k"
        assert json.loads(found.metadata.annotations[ORIGIN])["resources"][BATCH_CPU] == "53k"

    run(scenario)


def test_what_third_parties_took_is_not_given_back_by_a_text_that_nobody_can_read() -> None:
    taken = {"allocations": [{"name": "yarn", "priority": "koord-batch", "resources": {BATCH_CPU: "3000"}}]}

    async def says(world: World, text: str) -> str:
        annotations = {labels.NODE_THIRD_PARTY_ALLOCATIONS: text}
        await world.user.patch(Node, "n1", {"metadata": {"annotations": annotations}})
        await asyncio.sleep(301)
        await world.report()
        return str((await world.node()).status.allocatable[BATCH_CPU])

    async def scenario(world: World) -> None:
        await world.report()
        assert await says(world, "{") == "53k"  # nothing is known yet
        assert await says(world, json.dumps(taken)) == "50k"
        assert await says(world, "{") == "50k"
        assert await says(world, json.dumps(taken).replace("3000", "3 cores")) == "50k"
        assert [reason for reason, _ in await world.events()].count("ThirdPartyAllocationsIgnored") == 2
        assert await says(world, '{"allocations": []}') == "53k"

        await says(world, json.dumps(taken))
        await world.user.delete(Node, "n1")
        annotations = {labels.NODE_THIRD_PARTY_ALLOCATIONS: "{"}
        await world.user.create(Node, node_body(annotations=annotations))
        await asyncio.sleep(5)
        await world.report()
        assert (await world.node()).status.allocatable[BATCH_CPU] == "53k"  # another node of that name

    run(scenario)


@pytest.mark.parametrize(("priority", "lent"), [("koord-prod", "50k"), ("koord-batch", "53k"), ("", "53k")])
def test_batch_yields_to_host_applications_by_priority(priority: str, lent: str) -> None:
    async def scenario(world: World) -> None:
        usage = {"resources": {"cpu": "3", "memory": "1G"}}
        await world.report(hostApplicationMetric=[{"name": "nginx", "priority": priority, "usage": usage}])
        assert (await world.node()).status.allocatable[BATCH_CPU] == lent

    run(scenario)


def test_a_pod_that_is_gone_counts_while_its_usage_is_reported() -> None:
    async def scenario(world: World) -> None:
        gone = [pod_usage("gone", "5", "1G"), pod_usage("batch", "5", "1G", "koord-batch")]
        await world.report(podsMetric=gone)
        assert (await world.node()).status.allocatable[BATCH_CPU] == "48k"

    run(scenario)


def test_a_node_that_never_had_colocation_is_not_told_that_it_lends_nothing() -> None:
    async def scenario(world: World) -> None:
        await world.configure(colocation_config='{"enable": false}')
        await world.user.create(Node, node_body("n2"))
        await asyncio.sleep(60)
        assert (await world.node("n2")).metadata.annotations == {}

    run(scenario)


def test_a_node_that_goes_while_its_zones_are_written_ends_no_writer() -> None:
    async def scenario(world: World) -> None:
        await world.user.create(NodeResourceTopology, topology_body())
        world.cluster.write_s = 5.0
        await world.report()
        assert world.cluster.under_way == 1, "its zones are being written"

        await world.user.delete(Node, "n1")
        await asyncio.sleep(10)
        world.cluster.write_s = 0.0
        await world.user.create(Node, node_body("n1"))
        await asyncio.sleep(2)
        await world.report()

        assert (await world.node()).status.allocatable[BATCH_CPU]

    run(scenario)


def test_nothing_is_kept_of_a_node_that_is_gone() -> None:
    async def scenario(world: World) -> None:
        await create_pod(world, "web")
        await world.report()
        assert list(world.controller.fleet.rows) == ["n1"]

        await world.user.delete(Node, "n1")
        await world.user.delete(Pod, "web", "default", grace_period_s=0)
        await asyncio.sleep(2)

        assert (await world.user.list(NodeMetric)).items == []
        assert world.controller.fleet.rows == {}
        assert world.controller.writer.pending_count == 0

    run(scenario)


def test_a_pod_whose_end_tells_its_name_only_is_forgotten() -> None:
    async def scenario(world: World) -> None:
        await create_pod(world, "web")
        await asyncio.sleep(1)
        assert list(world.controller.fleet.rows["n1"].pods) == ["default/web"]
        pods = world.manager.shared.factory.informer(Pod)

        pods._remove(("default", "web"), Pod(metadata=ObjectMeta(name="web", namespace="default")))

        assert world.controller.fleet.rows["n1"].pods == {}

    run(scenario)


def test_caches_keep_what_is_read_and_nothing_else() -> None:
    container = {
        "name": "main",
        "image": "registry.example/app",
        "env": [{"name": "A", "value": "B"}],
        "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}},
    }
    body = {
        "metadata": {"name": "p", "namespace": "d", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"}},
        "spec": {
            "nodeName": "n1",
            "priority": 9000,
            "containers": [container],
            "initContainers": [container],
        },
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    whole = from_builtins(body, Pod)

    kept = caches.pod(whole)

    assert account.pod_facts(kept) == account.pod_facts(whole)
    assert (kept.key, kept.metadata.uid, kept.metadata.resource_version) == ("d/p", "u", "7")
    assert kept.metadata.labels == {"a": "b"} and kept.spec.priority == 9000
    assert kept.spec.containers[0].env == [] and kept.status.conditions == []
