"""Disk limits on this kernel: a real writer in a best-effort container is held back, and let go again."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordinator.host import storage
from koordinator.host.cgroup_knobs import V1, Knob
from koordinator.host.cgroups import Cgroups
from koordinator.host.errors import ContentError
from koordinator.host.storage import LocalStorage
from koordinator.koordlet.qos.blkio import BlkIO
from tests.kernel.conftest import ROOTS
from tests.kernel.strategy_node import BE, StrategyNode, pod_object

LIMIT_BPS = 2**20
WRITTEN_KIB = 512
BLOCK_KIB = 64
WAIT_S = 20
HARDLY_BPS = WRITTEN_KIB * 1024 // (4 * WAIT_S)
"""A limit under which a writer is not done in time."""
FILE_BYTES = 8 * 2**20
WEB, ONE, TWO = (
    pod_object("w", "LS"),
    pod_object("a", "BE", "BestEffort"),
    pod_object("b", "BE", "BestEffort"),
)


class Disk:
    """A disk and a file (or the device itself) on it that may be overwritten."""

    def __init__(self, name: str, number: str, target: Path) -> None:
        self.name, self.number, self.target = name, number, target


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """The disk of the temporary directory; where that is on none, a loop device over a file in memory."""
    number = os.stat(tmp_path).st_dev
    found = known_storage()
    text = f"{os.major(number)}:{os.minor(number)}"
    for name, each in found.numbers.items():
        if each == text:
            yield Disk(name, text, tmp_path / "written")
            return
    file = Path("/dev/shm") / f"koordinator-test-{os.getpid()}"
    file.write_bytes(bytes(FILE_BYTES))
    made = subprocess.run(["losetup", "--find", "--show", str(file)], capture_output=True, text=True)
    if made.returncode != 0:
        file.unlink()
        pytest.skip(f"{tmp_path} is on no disk, and there is no loop device: {made.stderr.strip()}")
    device = made.stdout.strip()
    try:
        numbers = Path(f"/sys/block/{os.path.basename(device)}/dev").read_text().strip()
        yield Disk(device, numbers, Path(device))
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)
        file.unlink()


def known_storage() -> LocalStorage:
    host_files = storage.Files(0)
    try:
        return storage.local_storage(host_files, ROOTS)
    except ContentError:
        return LocalStorage({}, {}, {}, {}, {})


@pytest.fixture
def node(real: Cgroups, group: str, tmp_path: Path, disk: Disk) -> Iterator[StrategyNode]:
    made = StrategyNode(group, tmp_path / "restore.jsonl", gates="BlkIOReconcile=true")
    made.make_classes()
    for pod in (WEB, ONE, TWO):
        made.make_pod(pod)
    made.know(WEB, ONE, TWO)
    made.view.storage = LocalStorage({disk.name: disk.number}, {}, {}, {}, {})
    knob = Knob.BLKIO_WRITE_BPS if real.version == V1 else Knob.IO_MAX
    if not made.host.files.exists(made.host.cgroups.path(knob, BE)):
        pytest.skip(f"this kernel has no {knob}")
    yield made
    made.host.close()


def limit(node: StrategyNode, disk: Disk, **limits: int) -> None:
    blocks = [{"name": disk.name, "type": "device", "ioCfg": limits}] if limits else []
    node.patch_slo(resourceQOSStrategy={"beClass": {"blkioQOS": {"enable": bool(limits), "blocks": blocks}}})


def write_s(node: StrategyNode, disk: Disk, group: str) -> float:
    """Seconds that a process in a group takes to write, past the page cache."""
    command = [
        "dd",
        "if=/dev/zero",
        f"of={disk.target}",
        f"bs={BLOCK_KIB}k",
        f"count={WRITTEN_KIB // BLOCK_KIB}",
    ]
    script = 'kill -STOP $$; exec "$@" oflag=direct conv=notrunc 2>/dev/null'
    process = subprocess.Popen(["sh", "-c", script, "sh", *command])
    try:
        problem = node.host.cgroups.move(process.pid, group)
        assert problem is None, problem
        begun_s = time.monotonic()
        deadline = begun_s + WAIT_S
        while process.poll() is None and time.monotonic() < deadline:
            process.send_signal(signal.SIGCONT)  # again, if it had not stopped yet
            time.sleep(0.01)
        assert process.returncode == 0
        return time.monotonic() - begun_s
    finally:
        process.kill()
        process.wait()


def lines(node: StrategyNode, group: str) -> str:
    """What limits the writing of a group."""
    found = node.host.cgroups
    knob = Knob.BLKIO_WRITE_BPS if found.version == V1 else Knob.IO_MAX
    return (found.read(knob, group) or "").strip()


async def test_a_writer_is_held_back_and_let_go_again(node: StrategyNode, disk: Disk) -> None:
    strategy = BlkIO(node.shared)
    limit(node, disk, writeBPS=LIMIT_BPS)
    await strategy.run()

    # Both containers share the limit on v1: half of it for each. On v2 a single writer has all of it.
    share = 2 if node.host.cgroups.version == V1 else 1
    held_s = write_s(node, disk, f"{BE}/poda/a-c0")
    assert held_s > 0.7 * share * WRITTEN_KIB * 1024 / LIMIT_BPS
    assert lines(node, "kubepods/burstable/podw/w-c0") == ""

    limit(node, disk, writeBPS=HARDLY_BPS)
    await strategy.run()
    limit(node, disk)
    await strategy.run()
    assert lines(node, BE) == lines(node, f"{BE}/poda/a-c0") == ""
    write_s(node, disk, f"{BE}/poda/a-c0")  # does not end in time if anything holds it
    assert node.shared.executor.changed_by(strategy.name) == []


async def test_a_limit_follows_the_pods_that_are_there(node: StrategyNode, disk: Disk) -> None:
    strategy = BlkIO(node.shared)
    limit(node, disk, writeBPS=LIMIT_BPS)
    node.know(WEB, ONE)
    await strategy.run()
    if node.host.cgroups.version == V1:
        assert lines(node, f"{BE}/poda/a-c0") == f"{disk.number} {LIMIT_BPS}"
        node.know(WEB, ONE, TWO)
        await strategy.run()
        assert lines(node, f"{BE}/poda/a-c0") == f"{disk.number} {LIMIT_BPS // 2}"
        assert lines(node, f"{BE}/podb/b-c0") == f"{disk.number} {LIMIT_BPS // 2}"
    else:
        assert f"wbps={LIMIT_BPS}" in lines(node, BE)
        assert lines(node, f"{BE}/poda/a-c0") == ""


async def test_after_a_restart_a_strategy_that_is_off_lets_go(
    node: StrategyNode, disk: Disk, tmp_path: Path
) -> None:
    limit(node, disk, writeBPS=LIMIT_BPS, readIOPS=100)
    await BlkIO(node.shared).run()
    assert lines(node, BE) != ""

    successor = StrategyNode(node.group, tmp_path / "restore.jsonl")
    try:
        BlkIO(successor.shared).disable()
    finally:
        successor.host.close()

    assert lines(node, BE) == lines(node, f"{BE}/poda/a-c0") == ""


def test_a_limit_on_a_class_reaches_containers_only_on_cgroup_v2(node: StrategyNode, disk: Disk) -> None:
    """Why limits are shared out on v1."""
    found = node.host.cgroups
    if found.version == V1:
        assert found.write(Knob.BLKIO_WRITE_BPS, BE, f"{disk.number} {HARDLY_BPS}") is None
        write_s(node, disk, f"{BE}/poda/a-c0")
    else:
        assert found.write(Knob.IO_MAX, BE, f"{disk.number} wbps={LIMIT_BPS // 4}") is None
        assert write_s(node, disk, f"{BE}/poda/a-c0") > 0.7 * 4 * WRITTEN_KIB * 1024 / LIMIT_BPS
