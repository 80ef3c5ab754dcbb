"""New pods and containers are noticed by their directories (plain directories: inotify needs no root)."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordinator.host.cgroup_layout import Driver
from koordinator.host.cgroups import Cgroups
from koordinator.host.files import Files
from koordinator.host.inotify import DirectoryEvent, GroupChange, Inotify
from koordinator.host.mounts import CgroupMounts
from koordinator.host.syscalls import LinuxSyscalls
from koordinator.koordlet.states.pods import PodGroups

ROOT, BURSTABLE, BEST_EFFORT = "kubepods", "kubepods/burstable", "kubepods/besteffort"


class Node:
    def __init__(self, root: Path, inotify: Inotify, driver: Driver = Driver.CGROUPFS) -> None:
        self.base = root / "cpu"
        self.base.mkdir(exist_ok=True)
        self.inotify = inotify
        self.groups = PodGroups(Cgroups(Files(), CgroupMounts(1, str(root))), driver, inotify)

    def make(self, *groups: str) -> None:
        for group in groups:
            (self.base / group).mkdir(parents=True, exist_ok=True)

    def remove(self, *groups: str) -> None:
        for group in groups:
            (self.base / group).rmdir()

    async def is_new(self) -> bool:
        return await asyncio.wait_for(self.groups.next(), 5)


@pytest.fixture
async def node(tmp_path: Path) -> Iterator[Node]:  # type: ignore[misc]
    with Inotify(LinuxSyscalls()) as inotify:
        made = Node(tmp_path, inotify)
        made.make(BURSTABLE, BEST_EFFORT)
        yield made


async def test_a_pod_and_its_container_are_noticed_when_they_come_but_not_when_they_go(node: Node) -> None:
    assert not node.groups.rescan()

    pod = f"{BURSTABLE}/poduid-1"
    node.make(pod)
    assert await node.is_new()
    node.make(f"{pod}/abc")
    assert await node.is_new()
    node.remove(f"{pod}/abc", pod)
    while len(node.inotify.directories) > 3:
        assert not await node.is_new()

    node.make(pod)
    assert await node.is_new(), "another pod of the same name"


async def test_a_container_that_comes_again_is_new(node: Node) -> None:
    pod = f"{BURSTABLE}/poda"
    node.make(f"{pod}/x")
    assert node.groups.rescan()

    node.remove(f"{pod}/x")
    assert not await node.is_new()
    node.make(f"{pod}/x")

    assert await node.is_new()
    assert not node.groups.rescan()


async def test_guaranteed_pods_are_beside_the_classes(node: Node) -> None:
    node.groups.rescan()

    node.make(f"{ROOT}/not-a-pod")
    assert not await node.is_new()
    node.make(f"{ROOT}/podg")

    assert await node.is_new()


async def test_pods_that_were_there_before_are_watched_inside(node: Node) -> None:
    node.make(f"{BEST_EFFORT}/podold/one")

    assert node.groups.rescan()
    node.make(f"{BEST_EFFORT}/podold/two")
    assert await node.is_new()


async def test_a_fresh_node_without_class_directories_is_watched_once_they_come(tmp_path: Path) -> None:
    with Inotify(LinuxSyscalls()) as inotify:
        node = Node(tmp_path, inotify)
        assert not node.groups.rescan()

        node.make(f"{BURSTABLE}/poda")

        assert node.groups.rescan()
        node.make(f"{BEST_EFFORT}/podb")
        assert await node.is_new()


@pytest.mark.parametrize("new", [f"{BURSTABLE}/poda/y", f"{BURSTABLE}/podc"])
async def test_lost_events_are_made_up_for_by_looking(
    node: Node, monkeypatch: pytest.MonkeyPatch, new: str
) -> None:
    async def lost() -> list[DirectoryEvent]:
        return [DirectoryEvent(GroupChange.OVERFLOW)]

    node.make(f"{BURSTABLE}/poda/x", f"{BURSTABLE}/podb")
    node.groups.rescan()
    monkeypatch.setattr(node.inotify, "next", lost)
    node.remove(f"{BURSTABLE}/poda/x", f"{BURSTABLE}/podb")
    assert not await node.groups.next()

    node.make(new)

    assert await node.groups.next()
    assert not node.groups.rescan()


async def test_systemd_names_are_read(tmp_path: Path) -> None:
    with Inotify(LinuxSyscalls()) as inotify:
        node = Node(tmp_path, inotify, Driver.SYSTEMD)
        pod = "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podu_1.slice"
        node.make(f"{pod}/other.scope")
        assert node.groups.rescan()

        node.make(f"{pod}/another.scope")
        assert not node.groups.rescan()
        node.make(f"{pod}/cri-containerd-abc.scope")

        assert node.groups.rescan()
