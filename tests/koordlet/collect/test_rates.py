"""Rates never invent usage out of counters that went backwards, clocks that stepped or stale inputs."""

from hypothesis import given
from hypothesis import strategies as st

from koordinator.host import perf_events
from koordinator.host.cgroup_values import Throttling
from koordinator.koordlet.collect import gpu_usage, rates
from koordinator.koordlet.collect.gpu_usage import GPUUsage
from koordinator.koordlet.collect.rates import Aged, MeasuredUsage

COUNTERS = st.integers(0, 2**63)
USAGES = st.builds(MeasuredUsage, st.floats(0, 1e3), st.integers(0, 2**50), st.integers(0, 20_000))


@given(COUNTERS, COUNTERS, st.integers(-5_000, 5_000))
def test_cgroup_usage_is_unknown_or_not_negative(last: int, now: int, elapsed_ns: int) -> None:
    cores = rates.cgroup_cores(last, now, elapsed_ns)

    assert (cores is None) == (now < last or elapsed_ns <= 0)
    assert cores is None or cores >= 0


def test_a_counter_that_went_backwards_gives_no_node_usage() -> None:
    assert rates.node_cores(100, 50, 1000, 100) is None
    assert rates.node_cores(50, 100, 0, 100) is None
    assert rates.be_usage_milli(100, 50, 1000) == 0


@given(USAGES, st.lists(USAGES, max_size=5), USAGES)
def test_system_usage_is_known_and_fresh_or_unknown_and_never_negative(
    node: MeasuredUsage, pods: list[MeasuredUsage], applications: MeasuredUsage
) -> None:
    system = rates.system_usage(node, pods, applications)

    is_stale = any(usage.age_ms > rates.OUTDATED_MS for usage in (node, *pods, applications))
    assert (system is None) == (is_stale or not pods)
    assert system is None or (system.cores >= 0 and system.memory_bytes >= 0)
    assert system is None or system.cores <= node.cores


@given(st.floats(0, 100), st.dictionaries(st.integers(0, 8), st.floats(0.001, 64), min_size=1))
def test_numa_nodes_share_out_all_of_the_system_cpu(system_cores: float, by_numa: dict[int, float]) -> None:
    aged = {numa: Aged(cores, 0) for numa, cores in by_numa.items()}
    found = rates.system_numa_usage(system_cores, aged, {}, None)

    assert abs(sum(found.cores.values()) - system_cores) <= 1e-6 * (1 + system_cores)
    assert found.memory_bytes == {}


def test_an_idle_numa_machine_gets_zeros() -> None:
    assert rates.system_numa_usage(1.0, {0: Aged(0.0, 0)}, {}, {}).cores == {0: 0.0}


def test_throttling_needs_a_period() -> None:
    assert rates.throttled_ratio(Throttling(5, 1, 0), Throttling(5, 3, 0)) == 0.0
    assert rates.throttled_ratio(Throttling(5, 1, 0), Throttling(9, 3, 0)) == 0.5


def test_a_counter_that_never_ran_is_taken_as_it_is() -> None:
    assert perf_events.scaled(7, 0, 0) == 7
    assert perf_events.scaled(10, 100, 50) == 20


def test_a_scaled_counter_is_not_rounded() -> None:
    assert perf_events.scaled(3, 5, 2) == 7.5


def test_idle_cards_count_for_the_node_but_not_for_a_pod() -> None:
    processes = {7: {0: GPUUsage(30, 100)}}

    assert gpu_usage.node_usage([0, 1], processes) == {0: GPUUsage(30, 100), 1: GPUUsage()}
    assert gpu_usage.group_usage(processes, [7, 8]) == {0: GPUUsage(30, 100)}
