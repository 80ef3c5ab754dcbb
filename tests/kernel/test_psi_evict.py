"""Eviction by pressure on this kernel: a pod that thrashes makes all pods stall, goes, and the pressure ends."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from koordinator.api.core import Node
from koordinator.api.decode import from_builtins
from koordinator.host.cgroup_knobs import V1, Knob
from koordinator.host.cgroups import Cgroups
from koordinator.host.files import HostRoots
from koordinator.host.host import open_host
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.config import QoSConfig
from koordinator.koordlet.qos.evictor import Evictor
from koordinator.koordlet.qos.psi_evict import PSIEvict
from tests.kernel.conftest import Spawn, remove
from tests.kernel.strategy_node import BE, PODS, StrategyNode, pod_object
from tests.koordlet.qos.acting_node import FakeApi

MIB = 2**20
LIMIT_MIB, FILE_MIB = 40, 120
"""Together the pods may hold a third of the file that one of them goes through again and again."""
PRESSED_S = 90
"""By then the mean of ten seconds is above its threshold, also on an emulated machine."""
CALM_S = 3
THRASH = """
import mmap, os, time
while "podbatch" not in open("/proc/self/cgroup").read():
    time.sleep(0.01)  # pages are charged to where they were first read
with open({path!r}, "wb") as file:
    for _ in range({mib}):
        file.write(os.urandom(2**20))
    file.flush()
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
pages = mmap.mmap(os.open({path!r}, os.O_RDONLY), 0, prot=mmap.PROT_READ)
while True:
    for at in range(0, len(pages), 4096):
        pages[at]
"""
SERVICE, BATCH = pod_object("web", "LS"), pod_object("batch", "BE", "BestEffort")


class PressedNode(StrategyNode):
    """Pods in a group of ours that is short of memory. Where v2 has no controllers, v1 sets the limit beside it."""

    def __init__(self, real: Cgroups, group: str, journal: Path, spawn: Spawn, file: Path) -> None:
        mount = real.where.unified
        roots = msgspec.structs.replace(HostRoots.below(""), kubepods_below=group, cgroup=mount)
        super().__init__(group, journal, gates="PSIEvict=true", host=open_host(roots, hot_files_max=64))
        self.real = real
        amounts = {"cpu": "1", "memory": f"{LIMIT_MIB}Mi"}
        status = {"capacity": amounts, "allocatable": amounts}
        self.view.node = from_builtins({"metadata": {"name": "n"}, "status": status}, Node)
        self.make_classes()
        self.groups = {pod.metadata.uid: self.make_pod(pod) for pod in (SERVICE, BATCH)}
        self.know(SERVICE, BATCH)
        self.limited = group if real.version == V1 else f"{group}/{PODS}"
        assert real.write(Knob.MEMORY_LIMIT, self.limited, str(LIMIT_MIB * MIB)) is None
        self.pids = {}
        for uid, code in (("web", ""), ("batch", THRASH.format(path=str(file), mib=FILE_MIB))):
            self.pids[uid] = spawn(
                self.limited if real.version == V1 else f"{group}/{self.groups[uid]}", code
            )
            assert self.host.cgroups.move(self.pids[uid], self.groups[uid]) is None
        self.view.slo = None

    def ask(self, **settings: int) -> None:
        said = {"enable": True, "memoryFullAvg10Percent": 5, "memoryFullAvg60Percent": 1, **settings}
        self.patch_slo(extensions={"eviction": {"PSIEvict": said}})

    def kill(self, uid: str) -> None:
        os.kill(self.pids[uid], signal.SIGKILL)
        os.waitpid(self.pids.pop(uid), 0)

    def measure(self) -> None:
        """What the limited group holds; only the thrashing pod reads anything."""
        self.clock.now_s += 1
        at_ms = int(self.clock.now_s * 1000)
        used = self.real.number(Knob.MEMORY_USAGE, self.limited) or 0
        self.store.ring(kinds.NODE_MEMORY).append(at_ms, used)
        for uid, value in (("web", 0), ("batch", used)):
            self.store.ring(kinds.POD_MEMORY, {kinds.POD_UID: uid}).append(at_ms, value)

    def stalled_us(self) -> int:
        stall = self.host.cgroups.pressure(Knob.MEMORY_PRESSURE, PODS)
        assert stall is not None
        return stall.full.total_us


@pytest.fixture
def node(real: Cgroups, group: str, tmp_path: Path, spawn: Spawn) -> Iterator[PressedNode]:
    if not real.where.unified or not os.path.exists(f"{real.where.unified}/cgroup.pressure"):
        pytest.skip("no cgroup2 file system tells pressure")
    file = Path(os.environ.get("TMPDIR", "/var/tmp")) / f"koordinator-psi-{os.getpid()}"
    unified = Cgroups(real.files, msgspec.structs.replace(real.where, version=2, root=real.where.unified))
    if real.version == V1:
        assert unified.create(group) is None
    made = PressedNode(real, group, tmp_path / "restore.jsonl", spawn, file)
    try:
        yield made
    finally:
        if real.version == V1:
            remove(unified, group)
        made.host.close()
        file.unlink(missing_ok=True)


async def test_the_pod_that_thrashes_goes_and_the_pressure_ends(node: PressedNode) -> None:
    class KillingApi(FakeApi):
        async def evict(
            self, namespace: str, pod: str, *, uid: str = "", grace_period_s: int | None = None
        ) -> None:
            await super().evict(namespace, pod, uid=uid)
            node.kill(uid)

    api = KillingApi()
    config = msgspec.structs.replace(node.shared.config, qos=QoSConfig(only_evict_by_api=True))
    shared = msgspec.structs.replace(node.shared, cluster=api, config=config)
    strategy = PSIEvict(shared, Evictor(shared))
    node.measure()
    await strategy.run()
    assert api.asked == []  # nobody asked for it
    node.ask()
    deadline = time.monotonic() + PRESSED_S
    while not api.asked and time.monotonic() < deadline:
        await asyncio.sleep(0.5)
        node.measure()
        await strategy.run()

    assert api.names == ["batch"]
    assert os.path.exists(f"/proc/{node.pids['web']}")
    assert node.groups["batch"].startswith(BE)
    stalled_us = node.stalled_us()
    assert stalled_us > 100_000
    await asyncio.sleep(CALM_S)
    assert node.stalled_us() - stalled_us < 10_000
