"""The closed loop on this kernel: a service beside real hogs gets its latency back, and batch grows back afterwards."""

import asyncio
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordinator.host.cgroup_knobs import V1, Knob
from koordinator.host.cgroups import Cgroups
from koordinator.host.host import Host
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.degradation import Degradation, Indicator, Interference
from koordinator.koordlet.interference import latency
from koordinator.koordlet.interference.act import InterferenceControl
from koordinator.koordlet.qos.evictor import Evictor
from koordinator.simulate import virtual_time
from tests.kernel.conftest import Spawn
from tests.kernel.strategy_node import BE, LS, StrategyNode, pod_object

HOG = "while True: pass"
REQUESTS = """
import time
with open({path!r}, "w", buffering=1) as log:
    while True:
        began, used = time.monotonic(), time.process_time()
        while time.process_time() - used < 0.01:
            pass
        log.write(f"{{time.monotonic() - began}}\\n")
        time.sleep(0.015)
"""
"""Each request needs 10 ms of CPU."""
HOGS = 6
ROUND_S = 0.3
RECENT = 12
"""Requests that a round looks at."""
WEB, BATCH = pod_object("w", "LS"), pod_object("b", "BE", "BestEffort")
GATES = "Interference=true,InterferenceControl=true"


class Served(StrategyNode):
    """A service that tells how long its requests take, and hogs that the kernel prefers to it."""

    def __init__(self, group: str, journal: Path, host: Host | None = None) -> None:
        super().__init__(group, journal, gates=GATES, host=host)
        self.make_classes()
        self.web, self.batch = self.make_pod(WEB), self.make_pod(BATCH)
        self.know(WEB, BATCH)
        self.target_s = 0.0
        self.suppression = self.suppress()
        self.control = InterferenceControl(self.shared, Evictor(self.shared))
        self.follow_services(is_on=True)
        many = "8192" if self.host.cgroups.version == V1 else "800"
        assert self.host.cgroups.write(Knob.CPU_SHARES, BE, many) is None
        self._used_ns = {each: self._count(each) for each in (LS, BE)}
        self._at_s = time.monotonic()

    def follow_services(self, *, is_on: bool, percent: int = 65) -> None:
        """What the NodeSLO says of the closed loop, and of batch without it."""
        self.patch_slo(
            resourceUsedThresholdWithBE={
                "enable": True,
                "cpuSuppressPolicy": "cfsQuota",
                "cpuSuppressThresholdPercent": percent,
            },
            extensions={"interference": {"enable": is_on, "cpuThresholdMaxPercent": 100}},
        )

    def _count(self, group: str) -> int:
        return self.host.cgroups.cpu_usage_ns(group) or 0

    def _cores(self) -> dict[str, float]:
        """Cores in use since the round before."""
        now = {each: self._count(each) for each in (LS, BE)}
        seconds, self._at_s = time.monotonic() - self._at_s, time.monotonic()
        found = {each: (now[each] - self._used_ns[each]) / 1e9 / seconds for each in now}
        self._used_ns = now
        return found

    async def measure(self) -> None:
        """A moment of the kernel counts as a second of the agent."""
        _moment()
        await asyncio.sleep(1)
        cores = self._cores()
        self.second(cores[LS] + cores[BE], w=cores[LS], b=cores[BE])
        be = {kinds.BE_RESOURCE: "cpu", kinds.BE_ALLOCATION: kinds.BE_USAGE}
        self.store.ring(kinds.NODE_BE, be).append(int(self.clock.now_s * 1000), cores[BE] * 1000)

    async def round(self, log: Path) -> float:
        """A second; the slack that the service had."""
        await self.measure()
        now_s = asyncio.get_running_loop().time()
        slack = latency.slack(recent(log), self.target_s)
        found = Degradation(uid="w", indicators={Indicator.LATENCY: 1 - slack}, slack=slack, at_s=now_s)
        self.view.interference = Interference(at_s=now_s, services={"w": found})
        await self.control.run()
        self.suppression.run()
        return slack


def _moment() -> None:
    time.sleep(ROUND_S)


def recent(log: Path) -> float:
    return statistics.median(float(line) for line in log.read_text().split()[-RECENT:])


@pytest.fixture
def node(real: Cgroups, group: str, tmp_path: Path) -> Iterator[Served]:
    made = Served(group, tmp_path / "restore.jsonl")
    yield made
    made.host.close()


def test_a_service_gets_its_latency_back_and_batch_grows_back(
    node: Served, spawn: Spawn, tmp_path: Path
) -> None:
    log = tmp_path / "requests"
    log.touch()
    spawn(f"{node.group}/{node.web}", REQUESTS.format(path=str(log)))
    while log.read_text().count("\n") < 3 * RECENT:
        time.sleep(ROUND_S)
    node.target_s = 2 * recent(log)

    async def rounds(until: str, most: int) -> list[tuple[float, int]]:
        found = []
        for _ in range(most):
            slack = await node.round(log)
            quota_us = node.host.cgroups.quota_us(BE) or 0
            found.append((slack, quota_us))
            least_us = min(each for _, each in found)
            if {"suffers": slack < 0, "calm": slack > 0.2, "grown": quota_us > 4 * least_us}[until]:
                return found
        pytest.fail(f"not {until}: {found}")

    async def story() -> None:
        for _ in range(HOGS):
            spawn(f"{node.group}/{node.batch}", HOG)
        await rounds("suffers", 40)
        calm = await rounds("calm", 40)
        whole_us = node.cpu_count * 100_000
        assert calm[-1][1] <= 0.2 * whole_us, "batch gave way"
        await rounds("grown", 120)
        untouched = node.host.cgroups.quota_us(LS)
        assert untouched in (None, -1), "services are never touched"
        node.control.disable()
        node.suppression.disable()
        assert node.host.cgroups.quota_us(BE) == -1

    virtual_time.run_virtual(lambda _: story())


def test_batch_gets_back_what_a_service_does_not_miss(node: Served, spawn: Spawn, tmp_path: Path) -> None:
    """An objective that the service cannot keep by itself, and batch that waits for whatever it leaves."""
    log = tmp_path / "requests"
    log.touch()
    assert node.host.cgroups.write(Knob.CPU_SHARES, BE, "2") is None
    spawn(f"{node.group}/{node.web}", REQUESTS.format(path=str(log)))
    while log.read_text().count("\n") < 3 * RECENT:
        time.sleep(ROUND_S)
    node.target_s = recent(log) / 2
    whole_us = node.cpu_count * 100_000

    async def story() -> None:
        spawn(f"{node.group}/{node.batch}", HOG)
        quotas: list[int] = []
        while len(quotas) < 120 and (len(quotas) < 10 or quotas[-1] < 0.4 * whole_us):
            assert await node.round(log) < 0
            quotas.append(node.host.cgroups.quota_us(BE) or -1)
        assert 0 < min(quotas[:10]) <= 0.2 * whole_us, "taking it away is tried"
        assert quotas[-1] >= 0.4 * whole_us, f"and undone: {quotas}"
        node.control.disable()
        node.suppression.disable()

    virtual_time.run_virtual(lambda _: story())
