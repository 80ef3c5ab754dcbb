"""The daemon: what vendors' tools print becomes the file that the agent reads; a broken one hides nobody else."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from koordinator.host.files import Files
from koordinator.koordlet.device_daemon import daemon
from koordinator.koordlet.device_daemon.daemon import DaemonConfig, DeviceDaemon
from koordinator.koordlet.report.xpu import XPUFiles
from tests.koordlet.device_daemon import fake_tools

HUAWEI, CAMBRICON, KUNLUN, METAX = "0x19e5", "0xcabc", "0x1d22", "0x9999"


class Machine:
    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.tools = root, root / "tools"
        self.output = root / "out/ic-device"
        for name, script in fake_tools.TOOLS.items():
            fake_tools.tool(self.tools, name, script)
        monkeypatch.setenv("PATH", f"{self.tools}:/usr/bin:/bin")
        monkeypatch.setenv("TOOLS", str(self.tools))
        self.config = DaemonConfig(output=str(self.output), host_root=str(root))
        self.daemon = DeviceDaemon(lambda: self.config)

    def reported(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.output.read_text())
        return found

    async def until(self, is_so: Any) -> None:
        async with asyncio.timeout(20):
            while not is_so():  # noqa: ASYNC110 - files and processes tell nobody
                await asyncio.sleep(0.01)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


async def test_huawei_chips_are_reported_with_their_cores_and_health(machine: Machine) -> None:
    fake_tools.bus(machine.root, HUAWEI)

    await machine.daemon.cycle()

    first, second = machine.reported()
    assert first == {
        "vendor": "huawei",
        "model": "Ascend-910B3",
        "uuid": "102410SN-0",
        "minor": "0",
        "resources": {
            "koordinator.sh/gpu-memory": "64Gi",
            "huawei.com/npu-dvpp": "100",
            "huawei.com/npu-core": "20",
            "huawei.com/npu-cpu": "7",
        },
        "topology": {"socketID": "-1", "nodeID": "1", "pcieID": "pci0000:80", "busID": "0000:c1:00.0"},
        "status": {"healthy": True},
    }
    assert (second["model"], second["uuid"], second["minor"]) == ("Ascend-310P3", "npu-2-1", "1")
    assert second["resources"]["huawei.com/npu-core"] == "8"
    assert second["resources"]["huawei.com/npu-cpu"] == "7"
    assert second["resources"]["koordinator.sh/gpu-memory"] == "21527Mi"
    assert second["status"] == {"errCode": "80E01801", "errMessage": "node type=SOC"}


async def test_cambricon_kunlun_and_metax_cards_are_reported(machine: Machine) -> None:
    fake_tools.bus(machine.root, CAMBRICON, KUNLUN, METAX)

    await machine.daemon.cycle()

    mlu, xpu, fit, unfit = machine.reported()
    whole = {"koordinator.sh/gpu-core": "100"}
    assert (mlu["vendor"], mlu["model"], mlu["uuid"], mlu["minor"]) == (
        "cambricon",
        "MLU370-X8",
        "20221210-1111-0000",
        "0",
    )
    assert mlu["resources"] == {**whole, "koordinator.sh/gpu-memory": "24Gi"}
    assert mlu["topology"]["busID"] == "0000:1a:00.0"
    assert (xpu["vendor"], xpu["model"], xpu["uuid"]) == ("kunlun", "P800-OAM", "02K15K624CV00304-0")
    assert xpu["resources"] == {**whole, "koordinator.sh/gpu-memory": "96Gi"}
    assert xpu["topology"]["busID"] == "0000:03:00.0"
    assert "status" not in xpu
    assert (fit["vendor"], fit["uuid"], fit["status"]) == ("metax", "GPU-aaaa", {"healthy": True})
    assert unfit["status"] == {"errCode": "NotAvailable"}
    assert unfit["resources"]["koordinator.sh/gpu-memory"] == "64Gi"


async def test_the_agent_reads_what_the_daemon_wrote(machine: Machine) -> None:
    fake_tools.bus(machine.root, HUAWEI, METAX)

    await machine.daemon.cycle()

    found = XPUFiles(Files(0), str(machine.output.parent)).read()
    assert [(each.vendor, each.minor) for each in found] == [
        ("huawei", "0"),
        ("huawei", "1"),
        ("metax", "0"),
        ("metax", "1"),
    ]
    assert [each.name for each in machine.output.parent.iterdir()] == ["ic-device"]


async def test_only_tools_of_vendors_on_the_bus_are_run_and_in_the_hosts_root(machine: Machine) -> None:
    fake_tools.bus(machine.root, KUNLUN)
    for name in ("npu-smi", "cnmon", "mx-smi"):
        fake_tools.tool(machine.tools, name, f"touch $TOOLS/ran-{name}")

    await machine.daemon.cycle()

    assert not list(machine.tools.glob("ran-*"))
    assert (machine.tools / "roots").read_text().split() == [str(machine.root)]


async def test_a_machine_without_a_bus_has_no_cards(machine: Machine) -> None:
    await machine.daemon.cycle()

    assert machine.reported() == []


async def test_a_management_controller_is_no_accelerator(machine: Machine) -> None:
    fake_tools.bus(machine.root, HUAWEI)
    for address in ("0000:c1:00.0", "0000:c2:00.0"):
        (machine.root / f"sys/bus/pci/devices/{address}").unlink()

    await machine.daemon.cycle()

    assert machine.reported() == []


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param("echo driver is busy; exit 3", id="fails"),
        pytest.param("echo 'GPU#0 MXC500 0000:0f:00.0 Available (UUID: GPU-aaaa)'", id="tells no memory"),
        pytest.param(
            "printf 'GPU#0 MXC500 0000:0f:00.0 Available (UUID: x)\\nvram total : much\\n'",
            id="tells nonsense",
        ),
        pytest.param("head -c 300000 /dev/urandom; exit 1", id="prints noise"),
    ],
)
async def test_a_tool_that_fails_leaves_what_it_told_and_hides_nobody_else(
    machine: Machine, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    fake_tools.bus(machine.root, CAMBRICON, METAX)
    await machine.daemon.cycle()
    before = machine.reported()
    fake_tools.tool(machine.tools, "mx-smi", broken)
    fake_tools.tool(machine.tools, "cnmon", fake_tools.CNMON.replace("24576", "12288"))

    await machine.daemon.cycle()

    after = machine.reported()
    assert after[1:] == before[1:]
    assert after[0]["resources"]["koordinator.sh/gpu-memory"] == "12Gi"
    assert "MetaX cards keep their last values" in caplog.text


async def test_a_tool_that_hangs_is_killed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "TOOL_S_MAX", 0.2)
    fake_tools.bus(machine.root, KUNLUN)
    fake_tools.tool(machine.tools, "xpu_smi", "echo $$ > $TOOLS/pid; exec sleep 600")

    await machine.daemon.cycle()

    assert machine.reported() == []
    pid = (machine.tools / "pid").read_text().strip()
    await machine.until(
        lambda: not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text()
    )


async def test_a_missing_tool_is_reported(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    fake_tools.bus(machine.root, KUNLUN)
    fake_tools.tool(machine.tools, "chroot", 'echo "chroot: failed to run command"; exit 127')

    await machine.daemon.cycle()

    assert machine.reported() == []
    [warning] = [record for record in caplog.records if record.name.startswith("koordinator.")]
    assert "exit status 127" in warning.problem  # type: ignore[attr-defined]


async def test_one_shot_writes_once_and_leaves_the_file(machine: Machine) -> None:
    fake_tools.bus(machine.root, KUNLUN)
    machine.config = DaemonConfig(output=str(machine.output), host_root=str(machine.root), oneshot=True)

    await DeviceDaemon(lambda: machine.config).run()

    assert len(machine.reported()) == 1


async def test_a_reload_moves_the_file_and_asks_again_and_the_end_removes_it(machine: Machine) -> None:
    fake_tools.bus(machine.root, KUNLUN)
    running = asyncio.create_task(machine.daemon.run())
    await machine.until(machine.output.exists)
    moved = machine.root / "out/other"
    machine.config = DaemonConfig(output=str(moved), host_root=str(machine.root))

    machine.daemon.reload()
    await machine.until(moved.exists)

    assert not machine.output.exists()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert not moved.exists()
