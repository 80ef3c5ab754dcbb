"""Groups of resctrl: made for classes that are on, threads moved there and back, right after a kill at any step."""

import asyncio
import shutil
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from koordinator.api.slo import NodeSLOSpec
from koordinator.api.slo_qos import ResctrlQOS, ResourceQOS, ResourceQOSStrategy
from koordinator.host.files import FileFailure, FileProblem
from koordinator.host.resctrl import Schemata, parse_schemata
from koordinator.koordlet.qos.resctrl import ABSENT_S, CHECK_S, ResctrlStrategy
from koordinator.koordlet.states.node import with_defaults
from tests.cluster import virtual_loop
from tests.host import host_tree
from tests.koordlet.qos import killed
from tests.koordlet.qos.acting_node import ActingNode, make_pod
from tests.koordlet.qos.killed import Killed, MortalFiles

PODS = {"kubepods/besteffort/podbe": "7\n8\n", "kubepods/burstable/podls": "9\n"}
SANDBOX, MAIN = "sandbox", "main"
CPUINFO = "processor: 0\nvendor_id : GenuineIntel\nmodel name : X\nflags : fpu cat_l3 mba\n"


def on_virtual_time(scenario: Coroutine[Any, Any, None]) -> None:
    virtual_loop.run(scenario)


def policy(*, be: bool = True, ls: bool = False, end_percent: int = 30, mba: int = 50) -> NodeSLOSpec:
    def section(enable: bool) -> ResourceQOS:
        settings = ResctrlQOS(
            enable=enable, cat_range_start_percent=0, cat_range_end_percent=end_percent, mba_percent=mba
        )
        return ResourceQOS(resctrl_qos=settings)

    strategy = ResourceQOSStrategy(be_class=section(be), ls_class=section(ls))
    return with_defaults(NodeSLOSpec(resource_qos_strategy=strategy))


def make_tree(root: Path) -> None:
    for each in ("kubepods", "kubepods/besteffort", "kubepods/burstable"):
        host_tree.group(root, host_tree.V1, each)
    for pod, threads in PODS.items():
        host_tree.group(root, host_tree.V1, pod)
        host_tree.group(root, host_tree.V1, f"{pod}/{SANDBOX}", {"tasks": "60" + threads[0]})
        host_tree.group(root, host_tree.V1, f"{pod}/{pod[-2:]}-{MAIN}", {"tasks": threads})
    host_tree.resctrl(root)
    host_tree.write(root, {"proc/cpuinfo": CPUINFO, "sys/fs/resctrl/tasks": "1\n2\n7\n8\n9\n607\n609\n"})


def node_of(root: Path, at: int = 0, *, after: bool = False) -> ActingNode:
    if not (root / "sys").exists():
        make_tree(root)
    node = ActingNode(root, host=killed.mortal_host(root, at, after=after))
    node.set_pods([make_pod("be"), make_pod("ls", qos="LS")])
    return node


def says(node: ActingNode, group: str) -> Schemata:
    return parse_schemata(node.host.resctrl.schemata(group) or "")


def threads(node: ActingNode, group: str) -> list[int]:
    return sorted(node.host.resctrl.tasks(group) or [])


def test_a_class_gets_its_share_and_its_threads(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = node_of(tmp_path)
        node.view.slo = policy()
        strategy = ResctrlStrategy(node.shared)

        await strategy.run()

        assert node.host.resctrl.groups() == ["BE"]
        assert says(node, "BE") == Schemata({0: 0x3F, 1: 0x3F}, {0: 50, 1: 50})
        assert threads(node, "BE") == [7, 8, 607]
        assert threads(node, "") == [1, 2, 9, 609]

    on_virtual_time(scenario())


def test_a_class_gets_no_fewer_ways_than_the_kernel_allows(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = node_of(tmp_path)
        host_tree.write(tmp_path, {"sys/fs/resctrl/info/L3/min_cbm_bits": "4\n"})
        node.view.slo = policy(end_percent=5)

        await ResctrlStrategy(node.shared).run()

        assert says(node, "BE").l3 == {0: 0xF, 1: 0xF}

    on_virtual_time(scenario())


def test_nothing_is_written_again_and_little_is_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = node_of(tmp_path)
        node.view.slo = policy(ls=True)
        strategy = ResctrlStrategy(node.shared)
        await strategy.run()
        written = len(node.files.written)
        for _ in range(30):
            await strategy.run()
            await asyncio.sleep(1)

        assert len(node.files.written) == written

    on_virtual_time(scenario())


def test_threads_that_enter_from_outside_are_found_in_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = node_of(tmp_path)
        node.view.slo = policy()
        strategy = ResctrlStrategy(node.shared)
        for _ in range(5):
            await strategy.run()
            await asyncio.sleep(1)
        host_tree.write(tmp_path, {"sys/fs/cgroup/cpu/kubepods/besteffort/podbe/be-main/tasks": "7\n8\n77\n"})
        await asyncio.sleep(CHECK_S)
        await strategy.run()

        assert 77 in threads(node, "BE")

    on_virtual_time(scenario())


def test_switching_a_class_off_returns_its_threads_and_neutral_values(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = node_of(tmp_path)
        strategy = ResctrlStrategy(node.shared)
        node.view.slo = policy(ls=True)
        await strategy.run()
        node.view.slo = policy(ls=False)
        await strategy.run()

        assert threads(node, "LS") == []
        assert 9 in threads(node, "")
        assert says(node, "LS") == Schemata({0: 0xFFFFF, 1: 0xFFFFF}, {0: 100, 1: 100})
        assert threads(node, "BE") == [7, 8, 607]

    on_virtual_time(scenario())


def test_a_pod_with_a_group_of_its_own_is_left_to_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = node_of(tmp_path)
        node.set_pods([make_pod("be", annotations={"node.koordinator.sh/resctrl": "{}"})])
        node.view.slo = policy()

        await ResctrlStrategy(node.shared).run()

        assert threads(node, "BE") == []

    on_virtual_time(scenario())


def test_classes_that_are_off_make_no_groups(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = node_of(tmp_path)
        before = killed.snapshot(tmp_path, "sys/fs/resctrl")
        node.view.slo = policy(be=False)

        await ResctrlStrategy(node.shared).run()

        assert killed.snapshot(tmp_path, "sys/fs/resctrl") == before

    on_virtual_time(scenario())


def test_a_machine_without_it_is_asked_once_a_minute(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = node_of(tmp_path)
        shutil.rmtree(tmp_path / "sys/fs/resctrl")
        host_tree.write(tmp_path, {"proc/cpuinfo": "flags: fpu\n", "proc/self/mountinfo": ""})
        node.view.slo = policy()
        strategy = ResctrlStrategy(node.shared)
        await strategy.run()
        make_tree(tmp_path)
        await asyncio.sleep(ABSENT_S / 2)
        await strategy.run()
        assert node.host.resctrl.groups() == []
        await asyncio.sleep(ABSENT_S)
        await strategy.run()
        assert node.host.resctrl.groups() == ["BE"]

    on_virtual_time(scenario())


def test_bandwidth_in_mb_per_second_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        node = node_of(tmp_path)
        table = tmp_path / "proc/self/mountinfo"
        table.write_text(table.read_text().replace("resctrl rw", "resctrl rw,mba_MBps"))
        node.view.slo = policy()
        strategy = ResctrlStrategy(node.shared)

        for _ in range(2):
            await strategy.run()

        assert says(node, "BE") == Schemata({0: 0x3F, 1: 0x3F}, {0: 100, 1: 100})
        assert caplog.text.count("resctrl not applied") == 1

    on_virtual_time(scenario())


def test_a_cpu_without_bandwidth_control_gets_its_share_of_the_cache(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        node = node_of(tmp_path)
        (tmp_path / "sys/fs/resctrl/schemata").write_text("    L3:0=fffff;1=fffff\n")
        node.view.slo = policy()

        await ResctrlStrategy(node.shared).run()

        assert says(node, "BE") == Schemata({0: 0x3F, 1: 0x3F}, {})
        assert "resctrl not applied" not in caplog.text

    on_virtual_time(scenario())


def test_without_caches_to_divide_no_groups_are_made(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = node_of(tmp_path)
        host_tree.write(tmp_path / "sys/fs/resctrl", {"schemata": "MB:0=100\n"})
        node.view.slo = policy()
        await ResctrlStrategy(node.shared).run()

        assert node.host.resctrl.groups() == []

    on_virtual_time(scenario())


@pytest.mark.parametrize("failure", [FileFailure.FULL, FileFailure.BUSY])
def test_a_refusal_of_the_kernel_is_met_again_and_harms_nothing_else(
    tmp_path: Path, failure: FileFailure, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        node = node_of(tmp_path)
        path = str(tmp_path / "sys/fs/resctrl/BE/schemata")
        node.files.refusals[path] = [FileProblem(path, failure)] * 2
        host_tree.write(tmp_path, {"sys/fs/resctrl/info/last_cmd_status": "mask is in use\n"})
        node.view.slo = policy()
        strategy = ResctrlStrategy(node.shared)
        for _ in range(4):
            await strategy.run()
            await asyncio.sleep(1)

        assert says(node, "BE") == Schemata({0: 0x3F, 1: 0x3F}, {0: 50, 1: 50})
        assert threads(node, "BE") == [7, 8, 607]
        problems = [vars(each)["problem"] for each in caplog.records if each.message == "resctrl not applied"]
        assert problems, "people are told"
        assert all(each.endswith("mask is in use") for each in problems), "in the words of the kernel"

    on_virtual_time(scenario())


def test_disabling_removes_what_was_made_and_puts_back_what_was_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        make_tree(tmp_path)
        host_tree.resctrl_group(tmp_path, "LS", mask="ff")
        before = killed.snapshot(tmp_path, "sys/fs/resctrl")
        node = node_of(tmp_path)
        node.view.slo = policy(ls=True)
        strategy = ResctrlStrategy(node.shared)
        await strategy.run()
        strategy.disable()

        assert_same(killed.snapshot(tmp_path, "sys/fs/resctrl"), before)
        assert node.shared.executor.owners() == []

    on_virtual_time(scenario())


def test_groups_that_others_made_are_not_touched_by_disabling(tmp_path: Path) -> None:
    async def scenario() -> None:
        make_tree(tmp_path)
        host_tree.resctrl_group(tmp_path, "BE", mask="ff")
        host_tree.write(tmp_path, {"sys/fs/resctrl/BE/tasks": "5\n"})
        before = killed.snapshot(tmp_path, "sys/fs/resctrl")

        ResctrlStrategy(node_of(tmp_path).shared).disable()

        assert killed.snapshot(tmp_path, "sys/fs/resctrl") == before

    on_virtual_time(scenario())


def normal(found: dict[str, str]) -> dict[str, object]:
    """Contents whose order and spelling do not matter compared as what they mean."""
    meanings: dict[str, object] = {}
    for path, text in found.items():
        name = path.rpartition("/")[2]
        if name == "tasks":
            meanings[path] = sorted(text.split())
        else:
            meanings[path] = parse_schemata(text) if name == "schemata" else text
    return meanings


def assert_same(found: dict[str, str], expected: dict[str, str]) -> None:
    assert normal(found) == normal(expected)


def test_a_kill_at_any_step_of_a_change_is_made_up_for_by_the_next_process(tmp_path: Path) -> None:
    async def change(root: Path, at: int = 0, after: bool = False) -> ActingNode:
        """Both classes on; then best effort gets less and the services' class goes off."""
        node = node_of(root, at, after=after)
        strategy = ResctrlStrategy(node.shared)
        node.view.slo = policy(ls=True)
        await strategy.run()
        node.view.slo = policy(ls=False, end_percent=10, mba=20)
        await strategy.run()
        return node

    async def scenario() -> None:
        clean = await change(tmp_path / "clean")
        assert isinstance(clean.files, MortalFiles)
        wanted = killed.snapshot(tmp_path / "clean", "sys/fs/resctrl")
        make_tree(tmp_path / "before")
        before = killed.snapshot(tmp_path / "before", "sys/fs/resctrl")
        assert clean.files.changes > 12
        for at, after in killed.deaths(clean.files.changes):
            redone, undone = tmp_path / f"{at}{after}-redone", tmp_path / f"{at}{after}-undone"
            for root in (redone, undone):
                with pytest.raises(Killed):
                    await change(root, at, after)

            node = node_of(redone)
            node.view.slo = policy(ls=False, end_percent=10, mba=20)
            await ResctrlStrategy(node.shared).run()
            found = killed.snapshot(redone, "sys/fs/resctrl")
            if not (redone / "sys/fs/resctrl/LS").exists():  # not made yet, and not needed any more
                found |= {path: text for path, text in wanted.items() if "resctrl/LS" in path}
            assert_same(found, wanted)

            ResctrlStrategy(node_of(undone).shared).disable()
            assert_same(killed.snapshot(undone, "sys/fs/resctrl"), before)

    on_virtual_time(scenario())
