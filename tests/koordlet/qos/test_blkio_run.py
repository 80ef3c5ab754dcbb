"""Disk limits: on the right disk, shared out where the kernel has no hierarchy, taken back, right after any kill."""

import asyncio
import json
import shutil
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api.core import Pod
from koordinator.api.slo import NodeSLOSpec
from koordinator.api.slo_qos import BlkIOQOS, BlockConfig, IOConfig, ResourceQOS, ResourceQOSStrategy
from koordinator.api.volumes import InlineCSISource, PersistentVolumeClaimSource, Volume
from koordinator.host.cgroup_knobs import Knob
from koordinator.host.cgroup_layout import Driver
from koordinator.host.files import FileFailure, FileProblem
from koordinator.host.host import tree_host
from koordinator.host.storage import LocalStorage
from koordinator.koordlet import node_pods
from koordinator.koordlet.qos import blkio
from koordinator.koordlet.qos.blkio import BlkIO, DiskPlan
from koordinator.koordlet.states.node import with_defaults
from tests.cluster import virtual_loop
from tests.host import host_tree
from tests.koordlet.qos import killed
from tests.koordlet.qos.acting_node import ActingNode, make_pod
from tests.koordlet.qos.killed import Killed, MortalFiles

BE = "kubepods/besteffort"
KUBELET = "/kubelet"
STORAGE = LocalStorage(
    numbers={"/dev/vda": "254:0", "/dev/sdb": "8:16"},
    partitions={"/dev/vda1": "/dev/vda"},
    volume_groups={"vg": "/dev/sdb"},
    logical_volumes={"/dev/mapper/vg-data": "vg"},
    mounts={
        f"{KUBELET}/pods/a/volumes/kubernetes.io~csi/pv-1/mount": "/dev/mapper/vg-data",
        f"{KUBELET}/pods/a/volumes/kubernetes.io~csi/inline/mount": "/dev/vda1",
    },
)


def on_virtual_time(scenario: Coroutine[Any, Any, None]) -> None:
    virtual_loop.run(scenario)


def blocks(**limits: int) -> BlkIOQOS:
    return BlkIOQOS(
        enable=True, blocks=[BlockConfig(name="/dev/vda", type="device", io_cfg=IOConfig(**limits))]
    )


def slo_of(
    be: BlkIOQOS | None = None, root: BlkIOQOS | None = None, ls: BlkIOQOS | None = None
) -> NodeSLOSpec:
    strategy = ResourceQOSStrategy(
        be_class=ResourceQOS(blkio_qos=be) if be is not None else None,
        ls_class=ResourceQOS(blkio_qos=ls) if ls is not None else None,
        cgroup_root=ResourceQOS(blkio_qos=root) if root is not None else None,
    )
    return with_defaults(NodeSLOSpec(resource_qos_strategy=strategy))


def annotated(name: str, text: str, **more: Any) -> Pod:
    return make_pod(name, annotations={"koordinator.sh/blkioQOS": text}, **more)


def own_limits(write_bps: int) -> str:
    block = {"name": "/dev/vda", "type": "device", "ioCfg": {"writeBPS": write_bps}}
    return json.dumps({"blocks": [block]})


def plan_of(slo: NodeSLOSpec, pods: Sequence[Pod], *, is_flat: bool = True) -> DiskPlan:
    assert slo.resource_qos_strategy is not None
    return blkio.disk_plan(
        slo.resource_qos_strategy,
        [node_pods.record(pod, Driver.CGROUPFS) for pod in pods],
        STORAGE,
        {"n/claim": "pv-1"},
        best_effort=BE,
        kubelet=KUBELET,
        is_flat=is_flat,
    )


# What is planned


@pytest.mark.parametrize(
    ("block", "disk"),
    [
        (("device", "/dev/vda"), "254:0"),
        (("device", "/dev/vda1"), "254:0"),
        (("device", "/dev/none"), None),
        (("volumegroup", "vg"), "8:16"),
        (("volumegroup", "none"), None),
        (("podvolume", "bound"), "8:16"),
        (("podvolume", "inline"), "254:0"),
        (("podvolume", "none"), None),
        (("", "/dev/vda"), None),
    ],
)
def test_a_block_is_found_on_its_disk(block: tuple[str, str], disk: str | None) -> None:
    kind, name = block
    text = msgspec.json.encode({"blocks": [{"name": name, "type": kind, "ioCfg": {"readIOPS": 9}}]}).decode()
    volumes = [
        Volume(name="bound", persistent_volume_claim=PersistentVolumeClaimSource(claim_name="claim")),
        Volume(name="inline", csi=InlineCSISource(driver="d")),
    ]
    pod = annotated("a", text)
    pod = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, volumes=volumes))

    plan = plan_of(slo_of(), [pod])

    expected = {f"{BE}/poda": {disk: IOConfig(read_iops=9)}} if disk is not None else {}
    assert plan.groups == expected
    assert bool(plan.problems) == (disk is None)


def test_only_running_pods_with_a_class_have_limits_of_their_own() -> None:
    pods = [
        annotated("pending", own_limits(5), phase="Pending"),
        annotated("classless", own_limits(5), qos=""),
        annotated("broken", "{"),
        annotated("fine", own_limits(5), qos="LS"),
    ]

    plan = plan_of(slo_of(), pods)

    assert list(plan.groups) == ["kubepods/burstable/podfine"]
    assert len(plan.problems) == 1 and "broken" in plan.problems[0]


def test_services_classes_are_refused() -> None:
    plan = plan_of(slo_of(ls=blocks(read_bps=5)), [])

    assert plan.groups == {}
    assert plan.problems == (
        "lsClass.blkioQOS is not supported: only beClass, cgroupRoot and pods have limits",
    )


RATE = st.integers(0, 10**9)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["BE", "LS"]), st.integers(0, 4), st.none() | RATE), max_size=6), RATE
)
def test_shares_add_up_to_no_more_than_the_whole_and_services_get_none(
    drawn: list[tuple[str, int, int | None]], whole: int
) -> None:
    pods = []
    for index, (qos, count, own) in enumerate(drawn):
        containers = [(f"c{number}", True) for number in range(count)]
        text = own_limits(own) if own is not None else ""
        annotations = {"koordinator.sh/blkioQOS": text} if text else {}
        pods.append(make_pod(f"p{index}", qos=qos, containers=containers, annotations=annotations))

    plan = plan_of(slo_of(blocks(write_bps=whole)), pods)

    rates = {group: disks["254:0"].write_bps for group, disks in plan.shares.items()}
    assert all(rate is None or rate >= 1 for rate in rates.values())
    best_effort = [rate for group, rate in rates.items() if group.startswith(BE)]
    if whole:
        assert None not in best_effort
        assert sum(rate or 0 for rate in best_effort) <= max(whole, len(best_effort))
    for index, (qos, count, own) in enumerate(drawn):
        of_pod = [rate for group, rate in rates.items() if f"/podp{index}/" in group]
        if qos == "LS" and own is None:
            assert of_pod == []
        if own:
            assert sum(rate or 0 for rate in of_pod) <= max(own, count)


def test_costs_of_which_a_part_is_missing_are_told() -> None:
    plan = plan_of(slo_of(root=blocks(enable_user_model=True, model_read_bps=5)), [])

    assert plan.root.keys() == {"254:0"}
    assert len(plan.problems) == 1 and "254:0" in plan.problems[0]


def test_where_limits_reach_down_nothing_is_shared_out() -> None:
    plan = plan_of(slo_of(blocks(write_bps=100)), [make_pod("a")], is_flat=False)

    assert plan.shares == {}


# What is written


def node_of(root: Path, version: int = 1, at: int = 0, *, after: bool = False) -> ActingNode:
    if not (root / "sys").exists():
        if version == host_tree.V2:
            unified = {"io.max": "", "io.weight": "default 100"}
            for each in ("", "kubepods", BE, f"{BE}/poda", f"{BE}/poda/a-main"):
                host_tree.group(root, version, each, {})
                host_tree.write(
                    root / "sys/fs/cgroup" / each,
                    unified if each else {"io.cost.qos": "", "io.cost.model": ""},
                )
        else:
            for each in (
                "kubepods",
                BE,
                f"{BE}/poda",
                f"{BE}/poda/a-main",
                f"{BE}/podb",
                f"{BE}/podb/b-main",
            ):
                host_tree.group(root, version, each, vendor=True)
            host_tree.write(
                root, {"sys/fs/cgroup/blkio/blkio.cost.qos": "", "sys/fs/cgroup/blkio/blkio.cost.model": ""}
            )
    node = ActingNode(root, version=version, host=killed.mortal_host(root, at, after=after))
    node.view.storage = STORAGE
    node.set_pods([make_pod("a"), make_pod("b")])
    return node


def says(node: ActingNode, knob: Knob, group: str = BE) -> str:
    return (node.host.cgroups.read(knob, group) or "").strip()


def test_best_effort_is_limited_as_a_whole_and_by_container(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = node_of(tmp_path)
        node.view.slo = slo_of(blocks(write_bps=1000, read_iops=50, io_weight_percent=40))

        await BlkIO(node.shared).run()

        assert says(node, Knob.BLKIO_WRITE_BPS) == "254:0 1000"
        assert says(node, Knob.BLKIO_READ_IOPS) == "254:0 50"
        assert says(node, Knob.BLKIO_READ_BPS) == ""
        assert says(node, Knob.BLKIO_WEIGHT) == "254:0 40"
        for leaf in (f"{BE}/poda/a-main", f"{BE}/podb/b-main"):
            assert says(node, Knob.BLKIO_WRITE_BPS, leaf) == "254:0 500"
            assert says(node, Knob.BLKIO_READ_IOPS, leaf) == "254:0 25"
            assert says(node, Knob.BLKIO_WEIGHT, leaf) == ""

    on_virtual_time(scenario())


def test_a_second_pod_halves_the_shares_and_its_end_gives_them_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = node_of(tmp_path)
        strategy = BlkIO(node.shared)
        node.view.slo = slo_of(blocks(write_bps=1000))
        found = []
        for names in ("a", "ab", "a"):
            node.set_pods([make_pod(name) for name in names])
            await strategy.run()
            found.append([says(node, Knob.BLKIO_WRITE_BPS, f"{BE}/pod{each}/{each}-main") for each in "ab"])

        assert found == [["254:0 1000", ""], ["254:0 500", "254:0 500"], ["254:0 1000", ""]]

    on_virtual_time(scenario())


def test_on_cgroup_v2_one_line_limits_the_class(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = node_of(tmp_path, host_tree.V2)
        strategy = BlkIO(node.shared)
        node.view.slo = slo_of(
            blocks(write_bps=1000, read_iops=50, io_weight_percent=40), root=blocks(read_latency=500)
        )
        await strategy.run()

        assert says(node, Knob.IO_MAX) == "254:0 rbps=max wbps=1000 riops=50 wiops=max"
        assert says(node, Knob.IO_WEIGHT) == "default 100\n254:0 40"
        assert says(node, Knob.IO_MAX, f"{BE}/poda/a-main") == ""
        qos = (tmp_path / "sys/fs/cgroup/io.cost.qos").read_text().strip()
        assert qos == "254:0 enable=1 ctrl=user rpct=95 rlat=500 wpct=95 wlat=3000"

        node.view.slo = slo_of()
        await strategy.run()
        assert says(node, Knob.IO_MAX) == ""
        assert says(node, Knob.IO_WEIGHT) == "default 100"
        assert (tmp_path / "sys/fs/cgroup/io.cost.qos").read_text().strip() == "254:0 enable=0"

    on_virtual_time(scenario())


def test_a_disk_that_is_refused_is_tried_again_although_another_one_is_limited(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = node_of(tmp_path)
        write, is_refused = node.files.write, [True]
        node.files.write = lambda path, text: (  # type: ignore[method-assign]
            FileProblem(path, FileFailure.DENIED)
            if is_refused[0] and text.startswith("254:0 ")
            else write(path, text)
        )
        limited = blocks(write_bps=1000)
        other = BlockConfig(name="/dev/sdb", type="device", io_cfg=IOConfig(write_bps=2000))
        node.view.slo = slo_of(msgspec.structs.replace(limited, blocks=[*limited.blocks, other]))
        strategy = BlkIO(node.shared)
        await strategy.run()
        assert says(node, Knob.BLKIO_WRITE_BPS) == "8:16 2000"

        is_refused[0] = False
        await asyncio.sleep(blkio.RETRY_S)
        await strategy.run()

        assert says(node, Knob.BLKIO_WRITE_BPS) == "8:16 2000\n254:0 1000"

    on_virtual_time(scenario())


def test_a_disk_that_is_configured_no_more_is_freed_and_others_stay(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = node_of(tmp_path)
        host_tree.write(
            tmp_path, {"sys/fs/cgroup/blkio/kubepods/besteffort/blkio.throttle.write_bps_device": "8:16 7\n"}
        )
        strategy = BlkIO(node.shared)
        node.view.slo = slo_of()
        await strategy.run()
        assert says(node, Knob.BLKIO_WRITE_BPS) == "8:16 7"  # nothing is configured: it is not ours

        node.view.slo = slo_of(blocks(write_bps=1000))
        await strategy.run()
        assert says(node, Knob.BLKIO_WRITE_BPS) == "254:0 1000"

    on_virtual_time(scenario())


def test_a_pods_limits_go_with_its_annotation(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = node_of(tmp_path)
        strategy = BlkIO(node.shared)
        node.view.slo = slo_of()
        node.set_pods([annotated("a", own_limits(300)), make_pod("b")])
        await strategy.run()
        assert says(node, Knob.BLKIO_WRITE_BPS, f"{BE}/poda") == "254:0 300"
        assert says(node, Knob.BLKIO_WRITE_BPS, f"{BE}/poda/a-main") == "254:0 300"

        node.set_pods([make_pod("a"), make_pod("b")])
        await strategy.run()
        assert says(node, Knob.BLKIO_WRITE_BPS, f"{BE}/poda") == ""
        assert says(node, Knob.BLKIO_WRITE_BPS, f"{BE}/poda/a-main") == ""
        assert node.shared.executor.changed_by(strategy.name) == []

    on_virtual_time(scenario())


def test_without_changes_nothing_is_read_until_the_check_is_due(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = node_of(tmp_path)
        strategy = BlkIO(node.shared)
        node.view.slo = slo_of(blocks(write_bps=1000))
        await strategy.run()
        path = tmp_path / "sys/fs/cgroup/blkio/kubepods/besteffort/blkio.throttle.write_bps_device"
        path.write_text("254:0 5\n")
        await asyncio.sleep(30)
        await strategy.run()
        assert path.read_text() == "254:0 5\n"
        await asyncio.sleep(30)
        await strategy.run()
        assert path.read_text() == "254:0 1000\n"

    on_virtual_time(scenario())


def test_a_vanished_group_and_a_kernel_without_weights_harm_nobody_else(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = node_of(tmp_path)
        shutil.rmtree(tmp_path / "sys/fs/cgroup/blkio/kubepods/besteffort/podb")
        for path in (tmp_path / "sys/fs/cgroup/blkio").rglob("blkio.cost.*"):
            path.unlink()
        node.view.slo = slo_of(blocks(write_bps=1000, io_weight_percent=5), root=blocks(read_latency=5))

        await BlkIO(node.shared).run()

        assert says(node, Knob.BLKIO_WRITE_BPS) == "254:0 1000"
        assert says(node, Knob.BLKIO_WRITE_BPS, f"{BE}/poda/a-main") == "254:0 500"

    on_virtual_time(scenario())


@pytest.mark.parametrize("version", host_tree.VERSIONS)
def test_a_kill_at_any_step_is_made_up_for_by_the_next_process(tmp_path: Path, version: int) -> None:
    first = slo_of(blocks(write_bps=1000, read_iops=50), root=blocks(read_latency=500))
    second = slo_of(blocks(write_bps=400, io_weight_percent=7))

    async def change(root: Path, at: int = 0, after: bool = False) -> ActingNode:
        node = node_of(root, version, at, after=after)
        strategy = BlkIO(node.shared)
        for slo in (first, second):
            node.view.slo = slo
            await strategy.run()
        return node

    def states(root: Path) -> dict[str, list[str]]:
        found = killed.snapshot(root, "sys/fs/cgroup")
        return {
            path: sorted(line for line in text.splitlines() if line and not is_neutral(path, line))
            for path, text in found.items()
            if "blkio" in path or "/io." in path
        }

    async def scenario() -> None:
        clean = await change(tmp_path / "clean")
        assert isinstance(clean.files, MortalFiles)
        wanted = states(tmp_path / "clean")
        node_of(tmp_path / "before", version)
        before = states(tmp_path / "before")
        assert clean.files.changes >= 6
        for at, after in killed.deaths(clean.files.changes):
            redone, undone = tmp_path / f"{at}{after}-redone", tmp_path / f"{at}{after}-undone"
            for root in (redone, undone):
                with pytest.raises(Killed):
                    await change(root, at, after)

            node = node_of(redone, version)
            node.view.slo = second
            await BlkIO(node.shared).run()
            assert states(redone) == wanted

            BlkIO(node_of(undone, version).shared).disable()
            assert states(undone) == before

    on_virtual_time(scenario())


def is_neutral(path: str, line: str) -> bool:
    """Lines that mean the same as none; the cost model is never taken back."""
    return (line.endswith((" enable=0", " 100")) and "default" not in line) or "model" in path


def test_disabling_after_a_restart_frees_what_was_limited(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = node_of(tmp_path)
        node.view.slo = slo_of(blocks(write_bps=1000))
        await BlkIO(node.shared).run()

        BlkIO(ActingNode(tmp_path, host=tree_host(str(tmp_path))).shared).disable()

        assert says(node, Knob.BLKIO_WRITE_BPS) == ""
        assert says(node, Knob.BLKIO_WRITE_BPS, f"{BE}/poda/a-main") == ""

    on_virtual_time(scenario())
