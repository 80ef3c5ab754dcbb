"""Memory eviction on this kernel: who holds most goes, through the API or the runtime, and nobody else."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from koordinator.api.core import Node
from koordinator.api.decode import from_builtins
from koordinator.host.cgroups import Cgroups
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.config import QoSConfig
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.qos.evictor import Evictor
from koordinator.koordlet.qos.memory_evict import MemoryEvict
from tests.host.test_cri import FakeRuntime
from tests.kernel.conftest import Spawn
from tests.kernel.strategy_node import BE, LS, StrategyNode, pod_object
from tests.koordlet.qos.acting_node import FakeApi

MIB = 2**20
CAPACITY_MIB = 220
"""Services and batch together hold 180 MiB of it: 81 %, where eviction starts at 70 %."""
HELD_MIB = {"service": 60, "big": 80, "small": 40}
HOLD = """
import time
while not any("kubepods" in line for line in open("/proc/self/cgroup") if ":memory:" in line or line[:3] == "0::"):
    time.sleep(0.01)  # memory is charged to where it was first touched
held = bytearray({mib} * 2**20)
for page in range(0, len(held), 4096):
    held[page] = 1
time.sleep(300)
"""
PODS = (
    pod_object("service", "LS"),
    pod_object("big", "BE", "BestEffort"),
    pod_object("small", "BE", "BestEffort"),
)


class MemoryNode(StrategyNode):
    """Pods that really hold memory; `kill` ends all processes of one, as a kubelet or a runtime would."""

    def __init__(self, group: str, journal: Path, spawn: Spawn) -> None:
        super().__init__(group, journal, gates="BEMemoryEvict=true")
        amounts = {"cpu": str(self.cpu_count), "memory": f"{CAPACITY_MIB}Mi"}
        status = {"capacity": amounts, "allocatable": amounts}
        self.view.node = from_builtins({"metadata": {"name": "n"}, "status": status}, Node)
        self.make_classes()
        self.groups = {pod.metadata.uid: self.make_pod(pod) for pod in PODS}
        self.know(*PODS)
        self.pids = {
            uid: spawn(f"{group}/{self.groups[uid]}", HOLD.format(mib=mib)) for uid, mib in HELD_MIB.items()
        }
        self.patch_slo(resourceUsedThresholdWithBE={"enable": True})

    def kill(self, uid: str) -> None:
        for pid in self.host.cgroups.procs(self.groups[uid]) or ():
            os.kill(pid, signal.SIGKILL)
        os.waitpid(self.pids.pop(uid), 0)

    def used(self) -> dict[str, int]:
        found = {}
        for uid, group in self.groups.items():
            stat = self.host.cgroups.memory_stat(group)
            found[uid] = stat.usage_bytes if stat is not None else 0
        return found

    def settle(self) -> None:
        """Until all pods hold what they should."""
        deadline = time.monotonic() + 60  # emulated machines are slow
        while time.monotonic() < deadline:
            used = self.used()
            if all(used[uid] >= HELD_MIB[uid] * MIB for uid in self.pids):
                return
            time.sleep(0.05)
        raise AssertionError(self.used())

    def measure(self) -> None:
        """What the kernel counts, as samples; the pods are all that this node has."""
        used = self.used()
        self.clock.now_s += 1
        at_ms = int(self.clock.now_s * 1000)
        self.store.ring(kinds.NODE_MEMORY).append(at_ms, sum(used.values()))
        for uid, value in used.items():
            self.store.ring(kinds.POD_MEMORY, {kinds.POD_UID: uid}).append(at_ms, value)

    def with_parts(self, **changes: Any) -> Shared:
        shared: Shared = msgspec.structs.replace(self.shared, **changes)
        return shared


@pytest.fixture
def node(real: Cgroups, group: str, tmp_path: Path, spawn: Spawn) -> Iterator[MemoryNode]:
    made = MemoryNode(group, tmp_path / "restore.jsonl", spawn)
    made.settle()
    yield made
    made.host.close()


def is_alive(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] != "Z"


async def test_the_largest_goes_through_the_api_and_frees_its_memory(node: MemoryNode) -> None:
    class KillingApi(FakeApi):
        async def evict(
            self, namespace: str, pod: str, *, uid: str = "", grace_period_s: int | None = None
        ) -> None:
            await super().evict(namespace, pod, uid=uid)
            node.kill(uid)

    api = KillingApi()
    config = msgspec.structs.replace(node.shared.config, qos=QoSConfig(only_evict_by_api=True))
    shared = node.with_parts(cluster=api, config=config)
    strategy = MemoryEvict(shared, Evictor(shared))
    for _ in range(3):
        node.measure()
        await strategy.run()

    assert api.names == ["big"]
    assert node.used()["big"] < 5 * MIB
    assert all(is_alive(node.pids[uid]) for uid in ("service", "small"))


async def test_the_largest_goes_through_the_runtime_and_frees_its_memory(
    node: MemoryNode, tmp_path: Path
) -> None:
    runtime = FakeRuntime(tmp_path)
    runtime.on_stop = lambda container: node.kill(container.rpartition("-")[0])
    await runtime.start()
    try:
        config = msgspec.structs.replace(
            node.shared.config, qos=QoSConfig(containerd_endpoint=f"unix://{runtime.path}")
        )
        shared = node.with_parts(config=config)
        strategy = MemoryEvict(shared, Evictor(shared))
        for _ in range(3):
            node.measure()
            await strategy.run()
    finally:
        await runtime.stop()

    assert len(runtime.asked) == 1
    assert node.used()["big"] < 5 * MIB
    assert all(is_alive(node.pids[uid]) for uid in ("service", "small"))


async def test_services_stay_when_there_is_nobody_else_to_go(node: MemoryNode) -> None:
    node.kill("big")
    node.kill("small")
    node.know(PODS[0])
    api = FakeApi()
    config = msgspec.structs.replace(node.shared.config, qos=QoSConfig(only_evict_by_api=True))
    shared = node.with_parts(cluster=api, config=config)
    node.patch_slo(resourceUsedThresholdWithBE={"enable": True, "memoryEvictThresholdPercent": 10})
    node.measure()
    await MemoryEvict(shared, Evictor(shared)).run()

    assert api.asked == []
    assert is_alive(node.pids["service"])
    assert node.groups["service"].startswith(LS)
    assert node.groups["big"].startswith(BE)
