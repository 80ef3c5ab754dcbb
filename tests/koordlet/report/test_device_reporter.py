"""Devices: told to the scheduler when something really changed, and a bad file or card costs nothing but itself."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from koordinator.api import labels
from koordinator.api.device import Device
from koordinator.clock import FixedClock
from koordinator.cluster import errors
from koordinator.host.gpu import GPUs, XidEvent
from koordinator.koordlet.config import CollectConfig
from koordinator.koordlet.predict.trainer import Trainer
from koordinator.koordlet.qos.shadow import ShadowMode
from koordinator.koordlet.report import all as reports
from koordinator.koordlet.report.device_reporter import QUIET_S, DeviceReporter, GPUHealth
from tests.host import host_tree
from tests.koordlet.report.agent_node import (
    NAME,
    NOW_S,
    AgentNode,
    Reporting,
    api,
    cards,
    node_object,
    running,
)
from tests.koordlet.report.faulty_cluster import FaultyCluster

ACCELERATORS, RDMA = "Accelerators=true", "RDMADevices=true"


class DeviceReporting(Reporting):
    def __init__(self, node: AgentNode, cluster: FaultyCluster) -> None:
        super().__init__(node, cluster, DeviceReporter(node.shared))

    async def stored(self) -> Device:
        return await self.cluster.get(Device, NAME)

    async def devices(self) -> dict[tuple[str, int | None], bool]:
        """Kind and minor → health."""
        return {(each.type, each.minor): each.health for each in (await self.stored()).spec.devices}

    def xpu_file(self, name: str, text: str) -> None:
        directory = self.node.root / "xpu"
        directory.mkdir(exist_ok=True)
        (directory / name).write_text(text)


@asynccontextmanager
async def reporting(root: Path, gates: str, gpus: GPUs | None = None) -> AsyncIterator[DeviceReporting]:
    cluster = await api(FixedClock(NOW_S))
    node = AgentNode(
        root, cluster, gates=gates, gpus=gpus, collect=CollectConfig(xpu_directory=f"{root}/xpu/")
    )
    node.view.node = node_object()
    async with running(DeviceReporting(node, cluster)) as found:
        yield found


def npu(minor: int, *, is_healthy: bool = True, peers: str = "") -> dict[str, Any]:
    return {
        "vendor": "huawei",
        "model": "Ascend-910B",
        "uuid": f"U-{minor}",
        "minor": str(minor),
        "resources": {"huawei.com/npu-core": "32", "gpu-memory": "32Gi"},
        "topology": {
            "p2pLinks": [{"peerMinor": peers, "type": "HCCS"}] if peers else [],
            "mustHonorPartition": True,
            "nodeID": "0",
            "pcieID": "pci0",
            "busID": f"0000:0{minor}:00.0",
        },
        "status": {"healthy": is_healthy, "errCode": "" if is_healthy else "E1"},
    }


async def test_gpus_are_created_with_their_labels_and_owner(tmp_path: Path) -> None:
    async with reporting(tmp_path, ACCELERATORS, cards()) as found:
        await found.round()

        made = await found.stored()
        assert found.cluster.writes == ["create Device"]
        assert await found.devices() == {("gpu", 0): True, ("gpu", 1): True}
        assert made.spec.devices[0].resources["koordinator.sh/gpu-memory"] == "80Gi"
        assert made.metadata.labels == {
            labels.GPU_VENDOR: "nvidia",
            labels.GPU_MODEL: "A100-80GB",
            labels.GPU_DRIVER_VERSION: "550.54",
        }
        assert [(owner.kind, owner.uid) for owner in made.metadata.owner_references] == [("Node", "node-uid")]


async def test_a_critical_error_makes_a_card_unhealthy_for_good_and_an_application_error_does_not(
    tmp_path: Path,
) -> None:
    gpus = cards()
    async with reporting(tmp_path, ACCELERATORS, gpus) as found:
        await found.round()
        gpus.pending = [XidEvent("GPU-0", 31), XidEvent("GPU-1", 79)]
        await found.round()

        assert await found.devices() == {("gpu", 0): True, ("gpu", 1): False}
        (condition,) = (await found.stored()).spec.devices[1].conditions
        assert (condition.status, condition.reason) == ("False", "Xid79")
        assert condition.message == "Xid error detected on device, error code: 79"

        for _ in range(30):
            await found.round(seconds=600)

        assert (await found.stored()).spec.devices[1].conditions == [condition]
        assert found.cluster.writes == ["create Device", "patch Device"]


async def test_a_contained_error_passes_when_the_card_has_been_quiet(tmp_path: Path) -> None:
    gpus = cards()
    async with reporting(tmp_path, ACCELERATORS, gpus) as found:
        gpus.pending = [XidEvent("GPU-0", 94)]
        await found.round()
        assert await found.devices() == {("gpu", 0): False, ("gpu", 1): True}

        await found.round(seconds=QUIET_S)

        assert await found.devices() == {("gpu", 0): True, ("gpu", 1): True}


def test_an_error_without_a_card_is_of_all_and_a_passing_one_does_not_hide_it() -> None:
    health = GPUHealth(["a", "b"], ["c"])
    health.on_xid_events([XidEvent("", 48), XidEvent("a", 94)], 0.0)

    assert [fault and fault.code for fault in (health.fault("a", 1e9), health.fault("b", 1e9))] == [
        "Xid48"
    ] * 2
    silent = health.fault("c", 0.0)
    assert silent is not None
    assert silent.code == "DeviceHealthCheckNotSupported"


async def test_accelerators_of_files_go_before_the_drivers(tmp_path: Path) -> None:
    async with reporting(tmp_path, ACCELERATORS, cards()) as found:
        found.xpu_file("npu", json.dumps([npu(0, peers="1"), npu(1, peers="0")]))

        await found.round()

        made = await found.stored()
        assert [each.id for each in made.spec.devices] == ["U-0", "U-1"]
        assert made.metadata.labels[labels.GPU_VENDOR] == "huawei"
        assert made.metadata.labels[labels.GPU_PARTITION_POLICY] == "Honor"
        assert json.loads(made.metadata.annotations[labels.GPU_PARTITIONS]) == {
            "2": [{"minors": [0, 1], "gpuLinkType": "HCCS", "allocationScore": 1}]
        }


async def test_rounds_without_a_change_write_nothing_though_conditions_have_times(tmp_path: Path) -> None:
    async with reporting(tmp_path, ACCELERATORS) as found:
        found.xpu_file("npu", json.dumps([npu(0), npu(1, is_healthy=False)]))
        await found.round()
        before = await found.stored()

        for _ in range(20):
            await found.round(seconds=60)
        assert found.cluster.writes == ["create Device"]

        found.xpu_file("npu", json.dumps([npu(0, is_healthy=False), npu(1, is_healthy=False)]))
        await found.round()

        after = await found.stored()
        assert after.spec.devices[1].conditions == before.spec.devices[1].conditions
        assert (
            after.spec.devices[0].conditions[0].last_transition_time
            > before.spec.devices[0].conditions[0].last_transition_time
        )


async def test_a_bad_file_keeps_what_it_told_and_hides_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with reporting(tmp_path, ACCELERATORS) as found:
        found.xpu_file("a", json.dumps([npu(0)]))
        found.xpu_file("b", "[{")
        found.xpu_file(".c.tmp", "[{")
        (tmp_path / "xpu/d").mkdir()
        await found.round()
        assert await found.devices() == {("gpu", 0): True}

        found.xpu_file("a", "[")
        found.xpu_file("b", json.dumps([npu(1)]))
        for _ in range(3):
            await found.round()
        assert await found.devices() == {("gpu", 0): True, ("gpu", 1): True}
        assert caplog.text.count("keep their last values") == 2

        (tmp_path / "xpu/a").unlink()
        await found.round()
        assert await found.devices() == {("gpu", 1): True}


async def test_labels_and_annotations_of_others_stay_and_ours_go_with_the_cards(tmp_path: Path) -> None:
    async with reporting(tmp_path, ACCELERATORS) as found:
        found.xpu_file("npu", json.dumps([npu(0, peers="1")]))
        await found.round()
        foreign = {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}}
        await found.cluster.patch(Device, NAME, foreign)
        await found.round()
        assert len(found.cluster.writes) == 2  # the create and that of the others

        (tmp_path / "xpu/npu").unlink()
        await found.round()

        made = await found.stored()
        assert made.spec.devices == []
        assert made.metadata.labels == {"a": "b"}
        assert made.metadata.annotations == {"c": "d"}


async def test_rdma_cards_are_reported_with_their_virtual_functions(tmp_path: Path) -> None:
    base = tmp_path / "sys/devices/pci0000:3a/0000:3a:00.0"
    host_tree.write(
        base,
        {
            "class": "0x020000",
            "numa_node": "1",
            "sriov_numvfs": "1",
            "infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
        },
    )
    function = tmp_path / "sys/devices/pci0000:3a/0000:3a:00.2"
    function.mkdir()
    os.symlink(function, base / "virtfn0")
    device = base / "infiniband/mlx5_0"
    os.symlink(base, device / "device")
    (tmp_path / "sys/class/infiniband").mkdir(parents=True)
    os.symlink(device, tmp_path / "sys/class/infiniband/mlx5_0")
    async with reporting(tmp_path, RDMA) as found:
        await found.round()

        (card,) = (await found.stored()).spec.devices
        assert (card.type, card.id, card.minor, card.health) == ("rdma", "0000:3a:00.0", 0, True)
        assert card.topology is not None
        assert (card.topology.node_id, card.topology.pcie_id) == (1, "pci0000:3a")
        assert [each.bus_id for each in card.vf_groups[0].vfs] == ["0000:3a:00.2"]

        host_tree.write(base, {"infiniband/mlx5_0/ports/1/state": "1: DOWN"})
        await found.round()

        assert await found.devices() == {("rdma", 0): False}


async def test_an_object_that_was_deleted_comes_back(tmp_path: Path) -> None:
    async with reporting(tmp_path, ACCELERATORS, cards()) as found:
        await found.round()
        await found.cluster.delete(Device, NAME)
        await found.round()

        assert len(await found.devices()) == 2


async def test_errors_of_cards_are_heard_while_the_api_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gpus = cards()
    async with reporting(tmp_path, ACCELERATORS, gpus) as found:
        found.cluster.faults = [errors.ServiceUnavailable("away")] * 100
        for _ in range(40):
            await found.round()
        gpus.pending = [XidEvent("GPU-0", 79)]
        await found.round()
        assert gpus.pending == []
        assert len(found.cluster.faults) > 80
        assert caplog.text.count("report of Device") == 1

        found.cluster.faults = []
        for _ in range(21):
            await found.round()

        assert await found.devices() == {("gpu", 0): False, ("gpu", 1): True}


async def test_devices_are_reported_only_where_a_gate_asks_for_them(tmp_path: Path) -> None:
    cluster = await api(FixedClock(NOW_S))
    names = []
    for gates in ("", ACCELERATORS, RDMA):
        node = AgentNode(tmp_path, cluster, gates=gates)
        names.append(
            [
                each.name
                for each in reports.reporters(node.shared, ShadowMode(node.shared), Trainer(node.shared))
            ]
        )

    assert names[0] == ["nodetopology", "nodemetric", "images", "isolation"]
    assert names[1] == names[2] == ["nodetopology", "nodemetric", "device", "images", "isolation"]


async def test_what_was_just_written_is_reported_from_before_the_cache_tells(tmp_path: Path) -> None:
    gpus = cards()
    async with reporting(tmp_path, ACCELERATORS, gpus) as found:
        found.cluster.tells.clear()
        await found.round()
        await found.round()
        assert found.cluster.writes == ["create Device"]

        gpus.pending = [XidEvent("GPU-1", 79)]
        await found.round()
        assert found.cluster.writes == ["create Device", "patch Device"]
        assert await found.devices() == {("gpu", 0): True, ("gpu", 1): False}
