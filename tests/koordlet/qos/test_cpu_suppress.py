"""Services are never suppressed, best-effort pods keep a floor, and limits stay within the machine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import cpuset
from koordinator.api.annotations.node import NodeReservation, SystemQOSResource
from koordinator.api.qos import KubeQoS, QoSClass
from koordinator.api.slo import ResourceThresholdStrategy
from koordinator.host.sysfs import Processor
from koordinator.koordlet.qos import cpu_suppress
from koordinator.koordlet.qos.cpu_suppress import (
    CPUHolder,
    CPUUsage,
    SuppressMode,
    SuppressNodeCPU,
    SuppressPodClass,
)

BE = SuppressPodClass(QoSClass.BE, KubeQoS.BEST_EFFORT)
LS = SuppressPodClass(QoSClass.LS, KubeQoS.BURSTABLE)
CORES = st.floats(0, 128)


def machine(cores: int, threads: int = 2, nodes: int = 2) -> list[Processor]:
    return [
        Processor(node=core % nodes, socket=core % nodes, core=core, cpu=core + thread * cores)
        for core in range(cores)
        for thread in range(threads)
    ]


MACHINES = st.builds(machine, st.integers(1, 16), st.sampled_from([1, 2]), st.sampled_from([1, 2, 4]))


@given(CORES, CORES, CORES, st.integers(0, 100))
def test_busier_services_never_lend_more(calm: float, more: float, batch: float, threshold: int) -> None:
    node = SuppressNodeCPU(capacity_milli=64_000, reserved_milli=0)

    def lent(service: float) -> int:
        usage = CPUUsage(service + batch, {"service": service, "batch": batch}, {})
        return cpu_suppress.suppress_amount(node, usage, {"service": LS, "batch": BE}, [], threshold).be_milli

    assert lent(calm + more) <= lent(calm)
    assert lent(calm) <= 64_000 * threshold // 100


@given(CORES, CORES)
def test_best_effort_usage_alone_changes_nothing(batch: float, more: float) -> None:
    node = SuppressNodeCPU(capacity_milli=64_000, reserved_milli=500)

    def lent(used: float) -> int:
        return cpu_suppress.suppress_amount(node, CPUUsage(used, {"b": used}, {}), {"b": BE}, [], 65).be_milli

    assert lent(batch) == lent(batch + more)


def test_a_pod_that_nobody_knows_counts_as_a_service() -> None:
    node = SuppressNodeCPU(capacity_milli=10_000, reserved_milli=0)
    amount = cpu_suppress.suppress_amount(node, CPUUsage(4.0, {"ghost": 4.0}, {}), {}, [], 100)

    assert (amount.be_milli, amount.non_be_milli) == (6_000, 4_000)


def test_a_host_application_that_nobody_names_any_more_is_part_of_the_system() -> None:
    node = SuppressNodeCPU(capacity_milli=10_000, reserved_milli=0)
    amount = cpu_suppress.suppress_amount(node, CPUUsage(5.0, {}, {"gone": 4.0}), {}, [], 100)

    assert (amount.be_milli, amount.system_milli) == (5_000, 5_000)


def test_the_larger_reservation_counts_and_a_broken_one_does_not() -> None:
    listed = NodeReservation(reserved_cpus="0-3", resources={"cpu": "1"})

    assert cpu_suppress.node_cpu(8_000, 7_000, listed).reserved_milli == 4_000
    assert cpu_suppress.node_cpu(8_000, 7_000, NodeReservation()).reserved_milli == 1_000
    assert cpu_suppress.node_cpu(8_000, 9_000, NodeReservation(reserved_cpus="x")).reserved_milli == 0


def test_a_cpu_that_is_listed_twice_ends_the_search() -> None:
    twice = [Processor(cpu=0, core=0, socket=0, node=0)] * 2 + [Processor(cpu=1, core=1, socket=0, node=0)]

    assert set(cpu_suppress.pick(3, twice)) == {0, 1}


@given(MACHINES, st.integers(0, 40))
def test_the_picker_gives_what_was_asked_for_or_nothing(processors: list[Processor], count: int) -> None:
    picked = cpu_suppress.pick(count, processors)

    assert len(picked) in (count, 0)
    assert len(picked) == (count if count <= len(processors) else 0)
    assert len(set(picked)) == len(picked)
    assert set(picked) <= {processor.cpu for processor in processors}


@given(st.integers(1, 16), st.integers(1, 16))
def test_the_picker_takes_whole_cores_first(cores: int, wanted: int) -> None:
    processors = machine(cores)
    picked = cpu_suppress.pick(min(wanted, cores) * 2, processors)
    core_of = {processor.cpu: processor.core for processor in processors}

    assert len({core_of[cpu] for cpu in picked}) == len(picked) // 2


@given(MACHINES, st.integers(-10_000, 64_000), st.data())
def test_best_effort_pods_stay_off_cpus_that_others_own(
    processors: list[Processor], be_milli: int, data: st.DataObject
) -> None:
    everything = sorted(processor.cpu for processor in processors)
    some = st.frozensets(st.sampled_from(everything))
    lse, lsr, reserved, old = (data.draw(some) for _ in range(4))
    holders = [CPUHolder(QoSClass.LSR, lsr), CPUHolder(QoSClass.LSE, lse)]
    usable = cpu_suppress.usable_cpus(processors, holders, reserved, SystemQOSResource(cpuset="0"))
    cpus = cpu_suppress.decide_cpuset(be_milli, old, len(processors), usable)

    owned = lse | reserved | {0}
    assert bool(cpus) == bool(usable.cpus)
    assert not cpus & owned
    assert len(cpus) <= max(len(old) + -(-len(processors) // 10), cpu_suppress.CPU_COUNT_MIN)
    assert not cpu_suppress.recovery_cpus(processors, holders, reserved, None) & (lse | reserved)


@pytest.mark.parametrize(
    ("old", "exclusive", "left"),
    [({0, 1, 2, 3}, {1, 2, 3}, {0}), ({0, 1}, {1, 2}, {0, 3}), ({0, 1}, {0, 1}, {2, 3}), ({0}, {3}, {0, 1})],
    ids=["all but one", "what is free comes for it", "everything they had", "no more than a step"],
)
def test_best_effort_pods_get_what_is_left_when_fewer_cpus_are_usable_than_wanted(
    old: set[int], exclusive: set[int], left: set[int]
) -> None:
    processors = machine(4, threads=1, nodes=1)
    holders = [CPUHolder(QoSClass.LSE, frozenset(exclusive))]
    usable = cpu_suppress.usable_cpus(processors, holders, frozenset(), None)

    assert cpu_suppress.decide_cpuset(4_000, frozenset(old), 4, usable) == left


def test_growth_is_stepped_and_shrinking_is_not() -> None:
    usable = cpu_suppress.usable_cpus(machine(10, threads=2), [], frozenset(), None)
    grown = cpu_suppress.decide_cpuset(20_000, cpuset.parse("0-3"), 20, usable)
    shrunk = cpu_suppress.decide_cpuset(1_000, cpuset.parse("0-19"), 20, usable)

    assert (len(grown), len(shrunk)) == (6, 2)


@given(st.integers(-(10**6), 10**6), st.integers(1_000, 256_000), st.just(-1) | st.integers(0, 10**8))
def test_a_quota_is_at_least_the_floor_and_grows_by_a_tenth_at_most(
    be_milli: int, capacity_milli: int, old_us: int
) -> None:
    decision = cpu_suppress.decide_quota(be_milli, capacity_milli, old_us)

    if decision.is_written:
        machine_us = -(-capacity_milli // 1000) * 100_000
        assert decision.quota_us >= cpu_suppress.QUOTA_US_MIN
        assert old_us == -1 or decision.quota_us - old_us <= machine_us * 0.1 + 1
    else:
        assert decision.quota_us == old_us


def test_services_that_take_everything_leave_only_the_floor() -> None:
    decision = cpu_suppress.decide_quota(-5_000, 8_000, 800_000)

    assert decision.quota_us == 2_000


@pytest.mark.parametrize(
    ("strategy", "mode"),
    [
        pytest.param(None, SuppressMode.UNKNOWN, id="no NodeSLO touches nothing"),
        pytest.param(
            ResourceThresholdStrategy(), SuppressMode.UNKNOWN, id="neither on nor off touches nothing"
        ),
        pytest.param(ResourceThresholdStrategy(enable=False), SuppressMode.OFF, id="off undoes"),
        pytest.param(
            ResourceThresholdStrategy(enable=True), SuppressMode.CPUSET, id="CPUs unless said otherwise"
        ),
        pytest.param(
            ResourceThresholdStrategy(enable=True, cpu_suppress_policy="cfsQuota"),
            SuppressMode.QUOTA,
            id="quota",
        ),
    ],
)
def test_the_mode_follows_nodeslo(strategy: ResourceThresholdStrategy | None, mode: SuppressMode) -> None:
    assert cpu_suppress.mode_of(strategy, has_be_manager=False) is mode


def test_the_cpu_manager_for_best_effort_pods_excludes_suppression() -> None:
    on = ResourceThresholdStrategy(enable=True)

    assert cpu_suppress.mode_of(on, has_be_manager=True) is SuppressMode.MANAGER
    assert cpu_suppress.mode_of(None, has_be_manager=True) is SuppressMode.UNKNOWN


@pytest.mark.parametrize(
    ("old_count", "usable_count", "count"),
    [
        pytest.param(2, 4, 4, id="just as many as wanted"),
        pytest.param(2, 3, 3, id="all that are usable, if these are fewer"),
        pytest.param(3, 2, 2, id="also fewer than were there"),
        pytest.param(0, 3, 3, id="none was there"),
    ],
)
def test_best_effort_pods_have_the_cpus_they_want_if_so_many_are_usable(
    old_count: int, usable_count: int, count: int
) -> None:
    assert cpu_suppress.cpu_counts(4_000, old_count, 64, usable_count) == count
