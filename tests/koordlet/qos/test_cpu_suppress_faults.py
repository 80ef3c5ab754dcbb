"""Suppression when facts are missing, between rounds, killed at any write, and with random measurements."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koordinator.api import cpuset
from koordinator.koordlet.parts import Strategy
from koordinator.koordlet.qos.cpu_suppress_run import CPUSuppress
from tests.koordlet.qos.pods import BE
from tests.koordlet.qos.qos_node import QoSNode, killed_everywhere
from tests.koordlet.qos.suppressed import BATCH, BATCH_CONTAINER, busy_node, round_with, say

# What is not known


def _no_node(node: QoSNode) -> None:
    node.view.node = None


def _no_capacity(node: QoSNode) -> None:
    node.cpu_count = 0
    node.see()


def _no_pods(node: QoSNode) -> None:
    node.pods = []
    node.list_pods()


def _no_slo(node: QoSNode) -> None:
    node.view.slo = None


def _no_switch(node: QoSNode) -> None:
    node.say(resourceUsedThresholdWithBE={"cpuSuppressPolicy": "cpuset"})
    assert node.view.slo is not None
    assert node.view.slo.resource_used_threshold_with_be is not None
    object.__setattr__(node.view.slo.resource_used_threshold_with_be, "enable", None)


def _stale(node: QoSNode) -> None:
    node.clock.now_s += 10


def _no_cpus(node: QoSNode) -> None:
    node.view.cpu = None


def _no_topology(node: QoSNode) -> None:
    node.view.topology = None


def _broken_topology(node: QoSNode) -> None:
    node.topology_annotations["kubelet.koordinator.sh/cpu-manager-policy"] = "{"
    node.see()


@pytest.mark.parametrize("policy", ["cpuset", "cfsQuota"])
@pytest.mark.parametrize(
    "lacking",
    [_no_node, _no_capacity, _no_pods, _no_slo, _stale, _no_cpus],
    ids=lambda each: each.__name__.strip("_"),
)
def test_without_the_facts_nothing_is_written(
    tmp_path: Path, policy: str, lacking: Callable[[QoSNode], None]
) -> None:
    node = busy_node(tmp_path, policy=policy)
    node.use(6.0, w=5.0, b=1.0)
    lacking(node)

    node.suppress().run()

    assert node.files.written == []


@pytest.mark.parametrize(
    "lacking", [_no_topology, _broken_topology], ids=lambda each: each.__name__.strip("_")
)
def test_without_a_topology_no_cpus_are_written(tmp_path: Path, lacking: Callable[[QoSNode], None]) -> None:
    node = busy_node(tmp_path)
    node.use(6.0, w=5.0, b=1.0)
    lacking(node)

    node.suppress().run()

    assert node.files.written == []


# Surges


def surge_node(root: Path, policy: str) -> tuple[QoSNode, CPUSuppress]:
    node = busy_node(root, policy=policy)
    suppress = node.suppress()
    counters(node, services_s=0.0, batch_s=0.0)
    round_with(node, suppress, 1.0)
    counters(node, services_s=1.0, batch_s=0.0)
    round_with(node, suppress, 1.0)
    return node, suppress


def counters(node: QoSNode, services_s: float, batch_s: float) -> None:
    for group, seconds in (("kubepods", services_s + batch_s), (BE, batch_s)):
        path = node.root / "sys/fs/cgroup/cpuacct" / group / "cpuacct.usage"
        path.write_text(f"{int(seconds * 1e9)}\n")


def test_cpu_is_taken_back_between_rounds(tmp_path: Path) -> None:
    node, suppress = surge_node(tmp_path, "cfsQuota")
    assert node.quota_us() == 300_000

    assert suppress.surged(2.5)
    assert node.quota_us() == 150_000
    assert not suppress.surged(1.2)  # never gives
    assert node.quota_us() == 150_000

    round_with(node, suppress, 1.4)  # a mean of before and after
    assert node.quota_us() == 150_000
    node.clock.now_s += 1
    round_with(node, suppress, 1.4)
    assert node.quota_us() == 230_000


def test_a_surge_takes_cpus_too(tmp_path: Path) -> None:
    node, suppress = surge_node(tmp_path, "cpuset")
    assert node.cpus() == "0-2"

    assert suppress.surged(2.5)

    assert {node.cpus(group) for group in (BE, BATCH, BATCH_CONTAINER)} == {"0-1"}


def test_small_changes_wait_for_the_next_round_and_old_ground_for_a_new_one(tmp_path: Path) -> None:
    node, suppress = surge_node(tmp_path, "cfsQuota")
    assert not suppress.surged(1.7)
    node.clock.now_s += 5
    assert not suppress.surged(6.0)
    assert node.quota_us() == 300_000


# Kills


@pytest.mark.parametrize("after", [False, True], ids=["before it", "after it"])
@pytest.mark.parametrize("policy", ["cpuset", "cfsQuota"])
def test_killed_at_any_write_the_next_process_brings_the_same_result(
    tmp_path: Path, policy: str, after: bool
) -> None:
    def live(node: QoSNode, suppress: Strategy) -> None:
        assert isinstance(suppress, CPUSuppress)
        for cores in (0.0, 3.0, 2.0, 1.0, 1.0, 1.0):
            round_with(node, suppress, cores)

    killed, whole = killed_everywhere(
        lambda root: busy_node(root, policy=policy), QoSNode.suppress, live, tmp_path, after=after
    )

    assert len(killed) >= 4
    for number, (node, original) in enumerate(killed):
        suppress = node.suppress()
        if number % 2:
            for _ in range(5):
                round_with(node, suppress, 1.0)
            assert node.tree() == whole.tree(), number
        suppress.disable()
        assert node.tree() == original, number


# Random measurements


def limit(node: QoSNode) -> tuple[float, int]:
    """Quota and number of CPUs of best-effort pods."""
    quota_us = node.quota_us()
    assert quota_us is not None
    return float("inf") if quota_us < 0 else quota_us, len(cpuset.parse(node.cpus()))


CORES = st.floats(-1e3, 1e6) | st.floats(0, 10)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    policy=st.sampled_from(["cpuset", "cfsQuota"]),
    threshold=st.integers(0, 100),
    rounds=st.lists(st.tuples(CORES, CORES, CORES), min_size=1, max_size=6),
)
def test_random_measurements_never_move_limits_out_of_bounds(
    tmp_path_factory: pytest.TempPathFactory,
    policy: str,
    threshold: int,
    rounds: list[tuple[float, float, float]],
) -> None:
    node = busy_node(tmp_path_factory.mktemp("node"), policy=policy)
    say(node, policy, cpuSuppressThresholdPercent=threshold)
    suppress = node.suppress()
    cpus_before, quota_before = 8, None

    for total, service, batch in rounds:
        node.clock.now_s += 1
        node.use(total, w=service, b=batch)
        suppress.run()
        given = limit(node)
        suppress.surged(service)
        assert limit(node) <= given

        cpus, quota_us = cpuset.parse(node.cpus()), node.quota_us()
        assert 2 <= len(cpus) <= 8
        assert len(cpus) <= cpus_before + 1
        assert quota_us is not None
        assert quota_us == -1 or 2_000 <= quota_us <= max(8_000 * threshold, 2_000)
        if quota_before not in (None, -1):
            assert quota_us <= quota_before + 80_000
        cpus_before, quota_before = len(cpus), quota_us if policy == "cfsQuota" else None

    assert all(BE in path for path, _ in node.files.written)
