"""Pods and containers are told as their directories come and go (plain directories: inotify needs no root)."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordinator.host.cgroup_layout import Driver
from koordinator.host.cgroups import Cgroups
from koordinator.host.files import Files
from koordinator.host.inotify import DirectoryEvent, GroupChange, Inotify
from koordinator.host.mounts import CgroupMounts
from koordinator.host.syscalls import LinuxSyscalls
from koordinator.koordlet.states.pods import LifecycleEventType, PodEvent, PodLifecycle

ROOT, BURSTABLE, BEST_EFFORT = "kubepods", "kubepods/burstable", "kubepods/besteffort"


class Node:
    def __init__(self, root: Path, inotify: Inotify, driver: Driver = Driver.CGROUPFS) -> None:
        self.base = root / "cpu"
        self.base.mkdir(exist_ok=True)
        self.inotify = inotify
        self.cgroups = Cgroups(Files(), CgroupMounts(1, str(root)))
        self.lifecycle = PodLifecycle(self.cgroups, driver, inotify)

    def make(self, *groups: str) -> None:
        for group in groups:
            (self.base / group).mkdir(parents=True, exist_ok=True)

    def remove(self, *groups: str) -> None:
        for group in groups:
            (self.base / group).rmdir()

    async def events(self, count: int) -> list[tuple[LifecycleEventType, str]]:
        found: list[PodEvent] = []
        while len(found) < count:
            found += await asyncio.wait_for(self.lifecycle.next(), 5)
        return [(each.what, each.container or each.pod_uid) for each in found]


@pytest.fixture
async def node(tmp_path: Path) -> Iterator[Node]:  # type: ignore[misc]
    with Inotify(LinuxSyscalls()) as inotify:
        made = Node(tmp_path, inotify)
        made.make(BURSTABLE, BEST_EFFORT)
        yield made


async def test_a_pod_and_its_container_are_told_from_start_to_end(node: Node) -> None:
    assert node.lifecycle.rescan() == []

    pod = f"{BURSTABLE}/poduid-1"
    node.make(pod)
    assert await node.events(1) == [(LifecycleEventType.POD_ADDED, "uid-1")]
    node.make(f"{pod}/abc")
    assert await node.events(1) == [(LifecycleEventType.CONTAINER_ADDED, "abc")]
    node.remove(f"{pod}/abc", pod)

    assert await node.events(2) == [
        (LifecycleEventType.CONTAINER_REMOVED, "abc"),
        (LifecycleEventType.POD_REMOVED, "uid-1"),
    ]
    assert len(node.inotify.directories) == 3, "only the classes are watched again"


async def test_guaranteed_pods_are_beside_the_classes(node: Node) -> None:
    node.lifecycle.rescan()

    node.make(f"{ROOT}/podg", f"{ROOT}/not-a-pod")

    assert await node.events(1) == [(LifecycleEventType.POD_ADDED, "g")]


async def test_pods_that_were_there_before_are_watched_inside(node: Node) -> None:
    node.make(f"{BEST_EFFORT}/podold/one")

    assert [(each.what, each.container or each.pod_uid) for each in node.lifecycle.rescan()] == [
        (LifecycleEventType.POD_ADDED, "old"),
        (LifecycleEventType.CONTAINER_ADDED, "one"),
    ]
    node.make(f"{BEST_EFFORT}/podold/two")
    assert await node.events(1) == [(LifecycleEventType.CONTAINER_ADDED, "two")]


async def test_a_fresh_node_without_class_directories_is_watched_once_they_come(tmp_path: Path) -> None:
    with Inotify(LinuxSyscalls()) as inotify:
        node = Node(tmp_path, inotify)
        assert node.lifecycle.rescan() == []

        node.make(f"{BURSTABLE}/poda")

        assert [each.pod_uid for each in node.lifecycle.rescan()] == ["a"]
        node.make(f"{BEST_EFFORT}/podb")
        assert (LifecycleEventType.POD_ADDED, "b") in await node.events(1)


async def test_lost_events_are_made_up_for_by_looking(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.make(f"{BURSTABLE}/poda/x", f"{BURSTABLE}/podb")
    node.lifecycle.rescan()
    node.remove(f"{BURSTABLE}/poda/x", f"{BURSTABLE}/podb")
    node.make(f"{BURSTABLE}/poda/y", f"{BURSTABLE}/podc")

    async def lost() -> list[DirectoryEvent]:
        return [DirectoryEvent(GroupChange.OVERFLOW)]

    monkeypatch.setattr(node.inotify, "next", lost)

    assert sorted(
        (each.what.value, each.container or each.pod_uid) for each in await node.lifecycle.next()
    ) == [
        ("container added", "y"),
        ("container removed", "x"),
        ("pod added", "c"),
        ("pod removed", "b"),
    ]
    assert node.lifecycle.rescan() == []


async def test_systemd_names_are_read(tmp_path: Path) -> None:
    with Inotify(LinuxSyscalls()) as inotify:
        node = Node(tmp_path, inotify, Driver.SYSTEMD)
        slice_ = "kubepods.slice/kubepods-besteffort.slice"
        node.make(f"{slice_}/kubepods-besteffort-podu_1.slice/cri-containerd-abc.scope")

        assert [(each.pod_uid, each.container) for each in node.lifecycle.rescan()] == [
            ("u-1", ""),
            ("u-1", "abc"),
        ]
        assert os.path.exists(node.base / slice_)
