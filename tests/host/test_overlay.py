"""What is written over a host reads back as its kernel would show it, and nothing of the host itself changes."""

from pathlib import Path

from koordinator.host.host import tree_host
from koordinator.host.overlay import overlay_host
from tests.host import host_tree


def test_a_group_that_becomes_idle_has_the_weight_of_idle_groups(tmp_path: Path) -> None:
    texts = {"cpu.idle": "0\n", "cpu.shares": "2048\n"}
    host_tree.write(tmp_path / "sys/fs/cgroup/cpu/a", texts)
    real = tree_host(str(tmp_path))
    files, base = overlay_host(real).files, real.cgroups.directory("a")

    assert files.write(f"{base}/cpu.idle", "1") is None

    assert files.read(f"{base}/cpu.shares") == "3\n"
    assert files.write(f"{base}/cpu.shares", "4096") is not None, "the kernel refuses shares of idle groups"
    assert {name: real.files.read(f"{base}/{name}") for name in texts} == texts


def test_a_thread_is_in_one_group_of_resctrl_only(tmp_path: Path) -> None:
    texts = {"info/x": "", "schemata": "L3:0=f", "tasks": "1\n2", "BE/schemata": "L3:0=f", "BE/tasks": ""}
    host_tree.write(tmp_path / "sys/fs/resctrl", texts)
    real = tree_host(str(tmp_path))
    files, base = overlay_host(real).files, real.resctrl.root

    assert files.write(f"{base}/BE/tasks", "2") is None
    assert files.make_directory(f"{base}/LS") is None
    assert files.write(f"{base}/LS/tasks", "1") is None

    assert [files.read(f"{base}/{name}tasks") for name in ("", "BE/", "LS/")] == ["", "2\n", "1\n"]
    assert real.files.read(f"{base}/tasks") == "1\n2\n"
