"""Files of a host vanish at any time: whoever reads them answers without, or says which content does not fit."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from koordinator.host import network, storage
from koordinator.host.cgroup_knobs import V1, V2
from koordinator.host.errors import ContentError, UnsupportedError
from koordinator.host.host import Host, tree_host
from tests.host import host_tree

GROUP = "kubepods"
NOT_READING = {"create", "remove", "close", "mount", "forget"}
PROCESS = {
    "stat": "7 (sh) S 1 7 7 0 -1 4194304 0 0 0 0 1 2 0 0 20 0 1 0 100 0 0\n",
    "cmdline": "sh\0-c\0",
    "comm": "sh",
    "cgroup": "0::/kubepods\n",
    "oom_score_adj": "0",
}


@pytest.fixture(scope="module", params=[V1, V2], ids=["v1", "v2"])
def tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A host that has everything; on v2 its groups only, since the rest is the same."""
    root = tmp_path_factory.mktemp("host")
    host_tree.group(root, request.param, GROUP, vendor=True)
    if request.param == V2:
        return root
    host_tree.cpus(root, [(0, 0, 0), (1, 1, 0)])
    host_tree.resctrl(root, caches=1)
    host_tree.resctrl_group(root, "BE", caches=1)
    host_tree.kidled(root)
    host_tree.disks(root)
    host_tree.rdma_cards(root)
    host_tree.write(root / "proc/7", PROCESS)
    host_tree.write(
        root,
        {
            "sys/class/net/eth0/address": "02:00:00:00:00:01",
            "sys/class/net/eth0/speed": "25000",
            "sys/class/net/eth0/mtu": "9000",
            "sys/devices/system/cpu/smt/active": "1",
            "proc/stat": "cpu  1 2 3 4 5 6 7 8 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n",
            "proc/loadavg": "0.1 0.2 0.3 1/200 999",
            "proc/meminfo": "MemTotal: 100 kB\nMemFree: 50 kB\nMemAvailable: 60 kB\n",
            "proc/cpuinfo": "processor : 0\nmodel name : any\n",
            "proc/net/route": "Iface Destination Gateway …\neth0 00000000 0 3 0 0 0 00000000\n",
            "proc/sys/kernel/random/boot_id": "abc",
        },
    )
    return root


def readers(host: Host) -> Iterator[Callable[[], Any]]:
    """All that can be asked of a host with nothing but a group or a process to name."""
    yield lambda: network.rdma_devices(host.files, host.roots)
    yield lambda: network.verbs_device(host.files, host.roots, "0000:3b:00.0")
    yield lambda: storage.local_storage(host.files, host.roots)
    yield lambda: storage.signature(host.files, host.roots)
    values: dict[str, Any] = {"group": GROUP, "pid": 7, "numa_node": 0}
    for part in (host.machine, host.processes, host.cgroups, host.resctrl, host.kidled):
        for name, method in inspect.getmembers(part, inspect.ismethod):
            asked = [
                each.name
                for each in inspect.signature(method).parameters.values()
                if each.default is each.empty
            ]
            if not name.startswith("_") and name not in NOT_READING and values.keys() >= set(asked):
                yield lambda method=method, asked=asked: method(*(values[each] for each in asked))


def answers(root: Path) -> int:
    """How many readers answer; whoever does not has said which content does not fit, or which knob there is not."""
    count = 0
    host = tree_host(str(root))
    for reader in readers(host):
        try:
            reader()
            count += 1
        except (ContentError, UnsupportedError):
            pass
    host.close()
    return count


def files_of(root: Path) -> list[Path]:
    return [path for path in sorted(root.rglob("*")) if path.is_file() and not path.is_symlink()]


def test_any_file_that_is_gone_or_empty_is_an_answer_or_bad_content(tree: Path) -> None:
    whole = answers(tree)
    assert whole > 50

    for path in files_of(tree):
        text = path.read_text()
        for change in (path.unlink, lambda path=path: path.write_text("")):
            change()
            assert answers(tree) > 0.8 * whole, f"one file, {path.relative_to(tree)}, silences the host"
            path.write_text(text)
