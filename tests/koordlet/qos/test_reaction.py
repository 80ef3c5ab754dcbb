"""How soon batch loses CPU when a service jumps: the whole agent on virtual time, jumps at any phase of its rounds."""

import asyncio
from pathlib import Path

import pytest

from koordinator.api import cpuset
from tests.koordlet.agent_world import BE, CPUS, World, live

ALLOWED_S = 1.2
"""What was promised."""
LOOK_S = 0.01
CALM_S = 5.0
SERVICE_CORES = 2.0


def left_cores(world: World, policy: str) -> float:
    """What batch may use."""
    if policy == "cfsQuota":
        text = world.quota()
        return float(CPUS) if text in ("-1", "max") else int(text) / 100_000
    path = world.root / "sys/fs/cgroup/cpuset" / BE / "cpuset.cpus"
    return float(len(cpuset.parse(path.read_text().strip())))


@pytest.mark.parametrize("policy", ["cpuset", "cfsQuota"])
def test_all_cpu_is_taken_back_in_time_whenever_a_service_jumps(tmp_path: Path, policy: str) -> None:
    took_s: list[float] = []

    async def scenario(world: World) -> None:
        threshold = {"enable": True, "cpuSuppressPolicy": policy, "cpuSuppressThresholdPercent": 100}
        await world.create_objects({"resourceUsedThresholdWithBE": threshold})
        world.run_pod("web", batch=False, cores=0.0)
        world.run_pod("batch", batch=True, cores=1.0)
        await asyncio.wait_for(world.agent.is_started.wait(), 60)
        loop = asyncio.get_running_loop()
        for phase in range(10):
            world.use["web"] = 0.0
            await asyncio.sleep(CALM_S + phase * 0.1037)
            assert left_cores(world, policy) > CPUS - 0.5
            world.use["web"] = SERVICE_CORES
            jumped_s = loop.time()
            while left_cores(world, policy) > CPUS - SERVICE_CORES + 0.05:
                assert loop.time() - jumped_s < 10, "batch keeps its CPU"
                await asyncio.sleep(LOOK_S)
            took_s.append(loop.time() - jumped_s)

    live(tmp_path, scenario)

    assert len(took_s) == 10
    assert max(took_s) < ALLOWED_S, took_s
