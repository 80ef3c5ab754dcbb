"""Memory groups beside the CPU groups of Hadoop 2: made, limited, filled, removed."""

import os
import shutil
import stat
from pathlib import Path

import pytest

from koordinator.host.files import FileProblem
from koordinator.host.host import Host, tree_host
from koordinator.yarn.copilot.memory_groups import SHARES_MIN, MemoryGroups
from koordinator.yarn.eviction import NMContainer
from tests.host import host_tree
from tests.yarn.copilot.node_manager_double import container_id

PATH = "kubepods/besteffort/hadoop-yarn"
MEBIBYTE = 1 << 20


class Node:
    """A tree of cgroup v1 with YARN's group for CPU only, as a NodeManager of Hadoop 2 leaves it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        host_tree.group(root, 1, "kubepods/besteffort")
        self.host: Host = tree_host(str(root))
        make = self.host.files.make_directory

        def make_group(path: str) -> FileProblem | None:
            """The kernel fills a new group with its files."""
            problem = make(path)
            subsystem = Path(path).relative_to(root / "sys/fs/cgroup").parts[0]
            texts = host_tree.GROUP_V1[subsystem] | {"memory.move_charge_at_immigrate": "0"}
            for name, text in texts.items():
                if not Path(path, name).exists():
                    Path(path, name).write_text(text + "\n" if text else "")
            return problem

        monkeypatch.setattr(self.host.files, "make_directory", make_group)
        self.groups = MemoryGroups(self.host, PATH, 10.0)
        self.listed: list[NMContainer] = []

    def path(self, subsystem: str, file: str = "", number: int | None = None) -> Path:
        below = PATH if number is None else f"{PATH}/{container_id(number)}"
        return Path(self.host.cgroups.absolute(f"{subsystem}/{below}/{file}"))

    def start(self, number: int, *pids: int, memory_mb: int = 100, is_known: bool = True) -> None:
        """The NodeManager starts a container."""
        path = self.path("cpu", number=number)
        for each in (self.path("cpu"), path):
            self.host.files.make_directory(str(each))
        (path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        if is_known:
            self.listed.append(
                NMContainer(
                    id=container_id(number),
                    state="RUNNING",
                    total_memory_needed_mb=memory_mb,
                    total_vcores_needed=2,
                )
            )

    def sync(self) -> None:
        assert self.groups.sync(self.listed) == 10.0

    def limited(self) -> dict[str, str]:
        """Limits of memory groups by name."""
        return {
            path.name: (path / "memory.limit_in_bytes").read_text().strip()
            for path in sorted(self.path("memory").iterdir())
            if path.is_dir()
        }


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


def test_yarns_own_groups_are_made_for_a_node_manager_that_is_not_root(node: Node) -> None:
    node.sync()
    modes = [stat.S_IMODE(os.stat(node.path(each)).st_mode) for each in ("cpu", "memory")]
    assert modes == [0o777, 0o777]


def test_a_container_gets_a_memory_group_that_ends_with_it(node: Node) -> None:
    node.start(1, 11, 12)
    node.sync()
    assert node.limited() == {container_id(1): str(100 * MEBIBYTE)}
    assert node.path("memory", "cgroup.procs", 1).read_text().split() == ["11", "12"]
    assert node.path("memory", "memory.move_charge_at_immigrate", 1).read_text().strip() == "3"
    assert node.path("cpu", "cpu.shares").read_text().strip() == "2048"

    shutil.rmtree(node.path("cpu", number=1))
    node.listed.clear()
    node.sync()
    assert node.limited() == {}
    assert node.path("cpu", "cpu.shares").read_text().strip() == str(SHARES_MIN)


def test_containers_whose_size_nobody_tells_keep_the_weight_of_their_group(node: Node) -> None:
    """An agent that starts while the NodeManager is away knows containers by their groups only."""
    node.start(1, 11)
    node.path("cpu", "cpu.shares").write_text("2048\n")
    node.listed = [NMContainer(id=container_id(1), state="RUNNING")]
    node.sync()
    assert node.path("cpu", "cpu.shares").read_text().strip() == "2048"


def test_a_group_that_is_left_behind_goes_after_two_rounds_and_one_in_use_stays(node: Node) -> None:
    node.start(1, is_known=False)
    node.start(2, 21, is_known=False)
    node.start(3)
    for is_there in (True, False, False):
        node.sync()
        assert node.path("cpu", number=1).exists() is is_there
    assert node.path("cpu", number=2).exists() and node.path("cpu", number=3).exists()
    assert container_id(1) not in node.limited()


def test_a_new_group_that_is_empty_for_a_moment_stays(node: Node) -> None:
    node.start(1, is_known=False)
    node.sync()
    node.path("cpu", "cgroup.procs", 1).write_text("11\n")
    node.sync()
    node.path("cpu", "cgroup.procs", 1).write_text("")
    node.sync()
    assert node.path("cpu", number=1).exists()
