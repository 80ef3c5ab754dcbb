"""CPU burst on this kernel: a throttled process gets more, up to its ceiling, and loses it again."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordinator.host.cgroup_knobs import Knob
from koordinator.host.cgroups import Cgroups
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.qos.cpu_burst_run import CPUBurst
from tests.kernel.conftest import Spawn, has
from tests.kernel.strategy_node import LS, StrategyNode, kill_soon, pod_object

HOG = "while True: pass"
LIMIT_US = 20_000
POD, CONTAINER = f"{LS}/podw", f"{LS}/podw/w-c0"
WEB = pod_object("w", "LS", limits={"cpu": "200m"})
KILLS = 8


@pytest.fixture
def node(real: Cgroups, group: str, tmp_path: Path) -> Iterator[StrategyNode]:
    made = StrategyNode(group, tmp_path / "restore.jsonl")
    made.make_classes()
    made.make_pod(WEB)
    for each in (POD, CONTAINER):
        assert made.host.cgroups.write(Knob.CPU_QUOTA, each, str(LIMIT_US)) is None
    made.know(WEB)
    yield made
    made.host.close()


def knobs(node: StrategyNode) -> tuple[Knob, ...]:
    has_buffer = node.host.files.exists(node.host.cgroups.path(Knob.CPU_BURST, POD))
    return (Knob.CPU_QUOTA, Knob.CPU_BURST) if has_buffer else (Knob.CPU_QUOTA,)


def patch_slo(node: StrategyNode, policy: str) -> None:
    node.patch_slo(
        cpuBurstStrategy={
            "policy": policy,
            "cpuBurstPercent": 1000,
            "cfsQuotaBurstPercent": 300,
            "sharePoolThresholdPercent": 90,
        }
    )


def throttled(node: StrategyNode, burst: CPUBurst, ratio: float, rounds: int = 1) -> None:
    for _ in range(rounds):
        node.second(0.2, w=0.2)
        properties = {kinds.CONTAINER_ID: "containerd://w-c0"}
        node.store.ring(kinds.CONTAINER_THROTTLED, properties).append(int(node.clock.now_s * 1000), ratio)
        burst.run()


def test_a_throttled_process_gets_up_to_its_ceiling_and_loses_it(node: StrategyNode, spawn: Spawn) -> None:
    before = node.values(*knobs(node))
    spawn(f"{node.group}/{CONTAINER}", HOG)
    patch_slo(node, "auto")
    burst = CPUBurst(node.shared)

    throttled(node, burst, 0.9, rounds=9)

    assert node.host.cgroups.quota_us(CONTAINER) == node.host.cgroups.quota_us(POD) == 3 * LIMIT_US
    patch_slo(node, "none")
    throttled(node, burst, 0.9)
    assert node.host.cgroups.quota_us(CONTAINER) == node.host.cgroups.quota_us(POD) == LIMIT_US
    burst.disable()
    assert node.values(*knobs(node)) == before


def test_the_burst_buffer_is_as_large_as_this_kernel_allows(node: StrategyNode, group: str) -> None:
    if not has(node.host.cgroups, Knob.CPU_BURST, POD):
        pytest.skip(f"this kernel has no {Knob.CPU_BURST}")
    before = node.values(*knobs(node))
    patch_slo(node, "cpuBurstOnly")
    burst = CPUBurst(node.shared)

    throttled(node, burst, 0.0)

    buffer_us = node.host.cgroups.number(Knob.CPU_BURST, CONTAINER)
    assert buffer_us in (LIMIT_US, 10 * LIMIT_US)
    assert node.host.cgroups.number(Knob.CPU_BURST, POD) == buffer_us
    burst.disable()
    assert node.values(*knobs(node)) == before


def test_killed_at_random_times_the_host_ends_in_the_right_state(node: StrategyNode, tmp_path: Path) -> None:
    """A process that raises and resets quotas as fast as it can is killed by SIGKILL again and again."""
    before = node.values(*knobs(node))
    journal = tmp_path / "killed.jsonl"
    rng = random.Random(3)
    for _ in range(KILLS):
        kill_soon("tests.kernel.burst_worker", node.group, str(journal), rng=rng)
        quotas = [node.host.cgroups.quota_us(each) or 0 for each in (POD, CONTAINER)]
        assert all(LIMIT_US <= each <= 3 * LIMIT_US for each in quotas)

    again = StrategyNode(node.group, journal)
    again.know(WEB)
    patch_slo(again, "none")
    burst = CPUBurst(again.shared)
    throttled(again, burst, 0.9, rounds=2)
    assert [again.host.cgroups.quota_us(each) for each in (POD, CONTAINER)] == [LIMIT_US, LIMIT_US]
    burst.disable()
    assert again.values(*knobs(again)) == before
    again.host.close()
