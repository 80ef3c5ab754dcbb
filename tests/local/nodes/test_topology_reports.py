"""Hollow nodes report their CPUs, NUMA nodes and cards as the node agent does."""

import asyncio
import json

import pytest

from koordinator.api.core import Node, Pod
from koordinator.api.device import Device
from koordinator.api.node_metric import NodeMetric
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.clock import Clock
from koordinator.cluster import errors
from koordinator.local.nodes import devices, topology_reports
from koordinator.local.nodes.fleet import NodeShape
from koordinator.local.nodes.hollow import HollowConfig
from koordinator.local.nodes.pod_shape import CardUse
from koordinator.simulate.virtual_time import run_virtual
from tests.local.nodes.world import World, world

ON = HollowConfig(topology=True)


async def topology(w: World, name: str = "node-0") -> NodeResourceTopology:
    await asyncio.sleep(3)
    return await w.cluster.get(NodeResourceTopology, name)


def annotation(found: NodeResourceTopology, name: str) -> object:
    return json.loads(found.metadata.annotations[f"node.koordinator.sh/{name}"])


def test_a_node_has_two_numa_nodes_with_half_of_its_cpus_and_memory() -> None:
    async def main(clock: Clock) -> None:
        async with world(clock, nodes=2, config=ON, cpu_milli=8_000, memory_bytes=2**34) as w:
            found = await topology(w, "node-1")
            node = await w.cluster.get(Node, "node-1")
            assert [owner.uid for owner in found.metadata.owner_references] == [node.metadata.uid]
            assert [zone.name for zone in found.zones] == ["node-0", "node-1"]
            by_name = {one.name: one.allocatable for one in found.zones[1].resources}
            assert (by_name["cpu"], by_name["memory"]) == ("4", "8Gi")
            detail = annotation(found, "cpu-topology")["detail"]  # type: ignore[index]
            assert [(one["id"], one["core"], one["node"]) for one in detail][3:5] == [(3, 1, 0), (4, 2, 1)]
            assert found.topology_policies == ["None"]

    run_virtual(main)


@pytest.mark.parametrize(("cores", "nodes"), [(1, 1), (2, 1), (6, 1), (8, 2), (64, 2)])
def test_small_machines_have_one_numa_node(cores: int, nodes: int) -> None:
    shape = NodeShape(name="n", cpu_milli=cores * 1000)

    assert len(topology_reports.cpus(shape).by("node")) == devices.numa_nodes(shape) == nodes
    assert len(topology_reports.cpus(shape).cpus) == cores


def test_bound_cpus_leave_the_shared_pool_and_come_back() -> None:
    async def main(clock: Clock) -> None:
        async with world(clock, config=ON, cpu_milli=8_000) as w:
            status = {"scheduling.koordinator.sh/resource-status": '{"cpuset":"0-1"}'}
            body = {
                "metadata": {
                    "name": "web",
                    "annotations": status,
                    "labels": {"koordinator.sh/qosClass": "LSR"},
                },
                "spec": {"nodeName": "node-0", "containers": [{"name": "c", "image": "x"}]},
            }
            await w.cluster.create(Pod, body, "default")
            found = await topology(w)
            pools = annotation(found, "cpu-shared-pools")
            assert [pool["cpuset"] for pool in pools] == ["2-3", "4-7"]  # type: ignore[attr-defined]

            await w.cluster.delete(Pod, "web", "default", grace_period_s=0)
            pools = annotation(await topology(w), "cpu-shared-pools")
            assert [pool["cpuset"] for pool in pools] == ["0-3", "4-7"]  # type: ignore[attr-defined]

    run_virtual(main)


def test_a_reservation_of_the_node_is_reported_and_a_lost_report_comes_back_with_what_others_wrote_kept() -> (
    None
):
    async def main(clock: Clock) -> None:
        async with world(clock, config=ON, cpu_milli=8_000) as w:
            await topology(w)
            foreign = {
                "name": "node-0",
                "type": "Node",
                "resources": [
                    {"name": "kubernetes.io/batch-cpu", "capacity": "1", "allocatable": "1", "available": "1"}
                ],
            }
            await w.cluster.patch(NodeResourceTopology, "node-0", {"zones": [foreign]})
            reservation = {"node.koordinator.sh/reservation": '{"reservedCPUs":"0-1"}'}
            await w.cluster.patch(Node, "node-0", {"metadata": {"annotations": reservation}})
            found = await topology(w)
            assert annotation(found, "reservation") == {"reservedCPUs": "0-1"}
            assert {one.name for one in found.zones[0].resources} >= {"cpu", "kubernetes.io/batch-cpu"}

            await w.cluster.delete(NodeResourceTopology, "node-0")
            assert annotation(await topology(w), "reservation") == {"reservedCPUs": "0-1"}

    run_virtual(main)


def test_cards_are_shared_out_to_numa_nodes_and_named_once() -> None:
    shape = NodeShape(name="n", gpus=8, gpu_model="H100", rdma_cards=3)
    device = devices.report(shape, Node())
    assert device is not None

    gpus = [one for one in device.spec.devices if one.type == "gpu"]
    assert [one.topology.node_id for one in gpus if one.topology] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert len({one.topology.pcie_id for one in gpus if one.topology}) == 4
    assert len({one.topology.bus_id for one in device.spec.devices if one.topology}) == 11
    assert device.metadata.labels["node.koordinator.sh/gpu-model"] == "H100"
    rdma = [one for one in device.spec.devices if one.type == "rdma"]
    assert [(one.minor, one.resources) for one in rdma] == [
        (n, {"koordinator.sh/rdma": "100"}) for n in range(3)
    ]
    assert devices.report(NodeShape(name="n"), Node()) is None


def test_a_card_has_the_memory_of_its_model() -> None:
    device = devices.report(NodeShape(name="n", gpus=1, gpu_model="T4"), Node())
    assert device is not None
    assert device.spec.devices[0].resources["koordinator.sh/gpu-memory"] == "16Gi"


@pytest.mark.parametrize(
    ("model", "gib"), [("A100-SXM4-80GB", 80), ("NVIDIA-T4", 16), ("H200", 141), ("", 80), ("Mystery", 80)]
)
def test_the_memory_of_a_gpu_follows_from_its_model(model: str, gib: int) -> None:
    assert devices.gpu_memory_bytes(model) == gib * 2**30


def test_devices_are_written_with_the_topology() -> None:
    async def main(clock: Clock) -> None:
        async with world(clock, config=ON, gpus=2) as w:
            await topology(w)
            device = await w.cluster.get(Device, "node-0")
            assert [one.health for one in device.spec.devices] == [True, True]
            node = await w.cluster.get(Node, "node-0")
            assert [owner.uid for owner in device.metadata.owner_references] == [node.metadata.uid]

    run_virtual(main)


def test_broken_cards_and_missing_reports_are_what_the_annotations_of_a_node_say() -> None:
    async def health(w: World) -> list[bool]:
        await asyncio.sleep(3)
        return [one.health for one in (await w.cluster.get(Device, "node-0")).spec.devices]

    async def annotate(w: World, **values: str | None) -> None:
        names = {f"simulation.koordinator.sh/{key.replace('_', '-')}": text for key, text in values.items()}
        await w.cluster.patch(Node, "node-0", {"metadata": {"annotations": names}})

    async def main(clock: Clock) -> None:
        async with world(clock, config=ON, gpus=2, rdma_cards=1) as w:
            await annotate(w, unhealthy_devices="gpu/1, rdma/0")
            assert await health(w) == [True, False, False]
            device = await w.cluster.get(Device, "node-0")
            (condition,) = device.spec.devices[1].conditions
            assert (condition.reason, condition.last_transition_time[:2]) == ("Xid79", "20")

            await asyncio.sleep(60)
            await annotate(w, unhealthy_devices="gpu/1")
            await health(w)
            device = await w.cluster.get(Device, "node-0")
            assert device.spec.devices[1].conditions == [condition], "it broke when it broke"

            await annotate(w, unhealthy_devices=None)
            await w.cluster.delete(Device, "node-0")
            assert await health(w) == [True, True, True], "the agent reports again"

            await annotate(w, device_reports="off")
            await w.cluster.delete(Device, "node-0")
            with pytest.raises(errors.NotFound):
                await health(w)
            await annotate(w, device_reports=None)
            assert await health(w) == [True, True, True]

    run_virtual(main)


def test_joined_gpus_are_reported_in_partitions() -> None:
    device = devices.report(NodeShape(name="n", gpus=4, has_partitions=True), Node())
    assert device is not None
    assert device.metadata.labels["node.koordinator.sh/gpu-partition-policy"] == "Honor"
    table = json.loads(device.metadata.annotations["scheduling.koordinator.sh/gpu-partitions"])
    minors = {size: [one["minors"] for one in of_size] for size, of_size in table.items()}
    assert minors == {"1": [[0], [1], [2], [3]], "2": [[0, 1], [2, 3]], "4": [[0, 1, 2, 3]]}


def test_what_pods_use_of_their_gpus_is_reported_and_takes_turns_where_it_is_too_much() -> None:
    shape = NodeShape(name="n", gpus=2)
    pods = {7: {0: CardUse(90.0, 2.0**30)}, 8: {0: CardUse(60.0, 2.0**31), 1: CardUse(50.0, 0.0)}}
    use = devices.use_of(shape, devices.taking_turns(2, pods))
    core, memory = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory"
    assert [one.resources[core] for one in use.node] == ["100", "50"]
    assert [one.resources[memory] for one in use.node] == ["3Gi", "0"]
    assert [one.resources[core] for slot in (7, 8) for one in use.pods[slot]] == ["60", "40", "50"]
    assert [one.minor for one in use.pods[8]] == [0, 1]


def test_node_metrics_tell_the_gpu_use_of_pods_as_their_behaviour_says() -> None:
    async def main(clock: Clock) -> None:
        async with world(clock, gpus=1) as w:
            given = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "40Gi"}
            body = {
                "metadata": {
                    "name": "infer",
                    "annotations": {
                        "scheduling.koordinator.sh/device-allocated": json.dumps(
                            {"gpu": [{"minor": 0, "resources": given}]}
                        ),
                        "simulation.koordinator.sh/behaviour": '{"gpuCoreRatio":0.4,"gpuMemoryRatio":0.5}',
                    },
                },
                "spec": {"nodeName": "node-0", "containers": [{"name": "c", "image": "x"}]},
            }
            await w.cluster.create(NodeMetric, {"metadata": {"name": "node-0"}})
            await w.cluster.create(Pod, body, "default")
            await asyncio.sleep(200)
            status = (await w.cluster.get(NodeMetric, "node-0")).status
            (pod,) = status.pods_metric
            assert pod.pod_usage.devices[0].resources["koordinator.sh/gpu-core"] == "20"
            assert pod.pod_usage.devices[0].resources["koordinator.sh/gpu-memory"] == "20Gi"
            assert status.node_metric is not None
            assert status.node_metric.node_usage.devices == pod.pod_usage.devices

    run_virtual(main)
