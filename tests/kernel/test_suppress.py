"""CPU suppression on this kernel: real best-effort processes lose CPU and get it back, whoever is killed when."""

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordinator.host.cgroup_knobs import V1, Knob
from koordinator.host.cgroups import Cgroups
from tests.kernel.conftest import Spawn
from tests.kernel.strategy_node import BE, StrategyNode, kill_soon, pod_object

HOG = "while True: pass"
KNOBS = (Knob.CPU_QUOTA, Knob.CPUSET)
KILLS = 8
WEB, BATCH = pod_object("w", "LS"), pod_object("b", "BE", "BestEffort")


@pytest.fixture
def node(real: Cgroups, group: str, tmp_path: Path) -> Iterator[StrategyNode]:
    made = StrategyNode(group, tmp_path / "restore.jsonl")
    made.make_classes()
    made.make_pod(WEB)
    made.make_pod(BATCH)
    made.know(WEB, BATCH)
    yield made
    made.host.close()


def below(node: StrategyNode, group: str) -> str:
    return f"{node.group}/{group}"


def test_a_quota_holds_real_hogs_back_and_is_taken_away(node: StrategyNode, spawn: Spawn) -> None:
    before = node.values(*KNOBS)
    container = f"{BE}/podb/b-c0"
    spawn(below(node, container), HOG)
    node.suppress_by("cfsQuota", percent=50)
    suppress = node.suppress()

    node.second(node.cpu_count / 2, w=node.cpu_count / 2 - 0.2, b=0.2)
    suppress.run()

    assert node.host.cgroups.quota_us(BE) == 20_000
    time.sleep(0.2)  # the period under way
    assert node.used_cores(BE, 0.5) < 0.3
    suppress.disable()
    assert node.values(*KNOBS) == before


def test_two_cpus_are_left_whatever_services_use(node: StrategyNode, spawn: Spawn) -> None:
    spawn(below(node, f"{BE}/podb/b-c0"))
    node.suppress_by("cpuset")
    suppress = node.suppress()

    for cores in (0.0, node.cpu_count, 0.5):
        node.second(cores, w=cores, b=0.0)
        suppress.run()
        assert len(node.cpus()) >= min(node.cpu_count, 2)


def test_cpus_are_taken_from_running_processes_and_given_back(node: StrategyNode, spawn: Spawn) -> None:
    if node.cpu_count < 3:
        pytest.skip(f"two CPUs are always left, and this machine has {node.cpu_count}")
    before = node.values(*KNOBS)
    pid = spawn(below(node, f"{BE}/podb/b-c0"))
    node.suppress_by("cpuset")
    suppress = node.suppress()

    node.second(node.cpu_count, w=node.cpu_count, b=0.0)
    suppress.run()
    assert len(os.sched_getaffinity(pid)) == len(node.cpus()) == 2
    late = pod_object("late", "BE", "BestEffort")
    container = node.make_pod(late)  # takes over what its parent has now
    late_pid = spawn(below(node, container))
    node.know(WEB, BATCH, late)

    for _ in range(node.cpu_count):
        node.second(0.0, w=0.0, b=0.0, late=0.0)
        suppress.run()
    assert len(os.sched_getaffinity(pid)) == len(os.sched_getaffinity(late_pid)) == node.cpu_count

    node.second(node.cpu_count, w=node.cpu_count, b=0.0, late=0.0)
    suppress.run()
    assert len(os.sched_getaffinity(late_pid)) == 2
    suppress.disable()
    assert len(os.sched_getaffinity(late_pid)) == len(os.sched_getaffinity(pid)) == node.cpu_count
    if node.host.cgroups.version == V1:
        after = node.values(*KNOBS)
        assert {key: after[key] for key in before} == before


def test_services_keep_their_files(node: StrategyNode, spawn: Spawn) -> None:
    def services() -> dict[tuple[str, str], str | None]:
        return {key: value for key, value in node.values(*KNOBS).items() if not key[0].startswith(BE)}

    before = services()
    for policy in ("cfsQuota", "cpuset"):
        node.suppress_by(policy, percent=60)
        suppress = node.suppress()
        for cores in (0.0, node.cpu_count, 0.3):
            node.second(cores, w=cores, b=0.0)
            suppress.run()
    assert services() == before


@pytest.mark.parametrize("policy", ["cfsQuota", "cpuset"])
def test_killed_at_random_times_the_host_ends_in_the_right_state(
    node: StrategyNode, spawn: Spawn, tmp_path: Path, policy: str
) -> None:
    """A process that suppresses more and less as fast as it can is killed by SIGKILL again and again."""
    before = node.values(*KNOBS)
    spawn(below(node, f"{BE}/podb/b-c0"))
    rng = random.Random(7)
    journal = tmp_path / "killed.jsonl"
    wrote = 0
    for _ in range(KILLS):
        kill_soon("tests.kernel.suppress_worker", node.group, str(journal), policy, rng=rng)
        wrote += node.values(*KNOBS) != before

    assert policy == "cpuset" or wrote > 0
    again = StrategyNode(node.group, journal)
    again.know(WEB, BATCH)
    again.suppress_by(policy)
    suppress = again.suppress()
    for _ in range(2 + 10 * (policy == "cfsQuota")):
        again.second(1.0, w=0.5, b=0.0)
        suppress.run()
    if policy == "cfsQuota":
        assert again.host.cgroups.quota_us(BE) == (again.cpu_count - 1) * 100_000
    suppress.disable()
    assert again.values(*KNOBS) == before
    assert again.shared.executor.owners() == []
    again.host.close()
