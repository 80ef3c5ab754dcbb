"""How: machines, free CPUs and requests are drawn; each promise is checked on what was taken."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import (
    CPU_ID_MAX,
    CPUTopologyError,
    NodeCPUTopology,
    cpus_of,
    mask_of,
    topology_of,
)
from koordinator.scheduler.plugins.node_numa_resource.node_allocation import (
    NOT_ENOUGH,
    CPUHold,
    CPURequest,
    FreeCPUs,
    take,
    take_preferred,
)
from tests.scheduler.node_numa_resource.machines import machine

machines = st.builds(
    machine, st.integers(1, 4), st.integers(1, 2), st.integers(1, 4), st.sampled_from((1, 2, 4))
)
policies = st.sampled_from(("FullPCPUs", "SpreadByPCPUs"))
exclusives = st.sampled_from(("", "None", "PCPULevel", "NUMANodeLevel"))
strategies = st.sampled_from(("MostAllocated", "LeastAllocated"))


@st.composite
def cases(draw: st.DrawFn) -> tuple[NodeCPUTopology, FreeCPUs, CPURequest]:
    topology = draw(machines)
    free = draw(st.integers(0, topology.all))
    holds = {cpu: CPUHold(1, draw(exclusives)) for cpu in cpus_of(topology.all & ~free)}
    count = draw(st.integers(0, topology.cpu_count + 1))
    request = CPURequest(count, draw(policies), draw(exclusives), draw(strategies))
    return topology, FreeCPUs(free, holds), request


@given(cases())
@settings(max_examples=200)
def test_exactly_the_wanted_number_of_free_cpus_is_taken_or_none(
    case: tuple[NodeCPUTopology, FreeCPUs, CPURequest],
) -> None:
    topology, free, request = case

    decision = take(topology, free, request)

    if request.count > free.cpus.bit_count():
        assert (decision.cpus, decision.status) == (0, NOT_ENOUGH)
    else:
        assert decision.status.is_success
        assert decision.cpus.bit_count() == request.count
        assert not decision.cpus & ~free.cpus


@given(cases(), st.data())
@settings(max_examples=200)
def test_preferred_cpus_are_used_up_before_others(
    case: tuple[NodeCPUTopology, FreeCPUs, CPURequest], data: st.DataObject
) -> None:
    topology, free, request = case
    preferred = data.draw(st.integers(0, topology.all))

    decision = take_preferred(topology, free, preferred, request)

    if decision.status.is_success:
        wanted = min(request.count, (preferred & free.cpus).bit_count())
        assert decision.cpus.bit_count() == request.count
        assert (decision.cpus & preferred).bit_count() == wanted
        assert not decision.cpus & ~free.cpus


@given(cases())
@settings(max_examples=200)
def test_whole_cores_are_taken_when_enough_are_free(
    case: tuple[NodeCPUTopology, FreeCPUs, CPURequest],
) -> None:
    topology, free, request = case
    request = msgspec.structs.replace(request, bind_policy="FullPCPUs")
    request = msgspec.structs.replace(
        request, count=request.count // topology.cpus_per_core * topology.cpus_per_core
    )

    decision = take(topology, free, request)

    if topology.whole_cores(free.cpus).bit_count() >= request.count:
        assert topology.core_count_of(decision.cpus) * topology.cpus_per_core == request.count


@given(cases())
@settings(max_examples=200)
def test_a_pod_alone_on_its_cores_keeps_off_those_of_its_kind_while_one_numa_node_has_room(
    case: tuple[NodeCPUTopology, FreeCPUs, CPURequest],
) -> None:
    topology, free, request = case
    request = msgspec.structs.replace(request, bind_policy="SpreadByPCPUs", exclusive="PCPULevel")
    held = topology.mask_of(cpu for cpu, hold in free.holds.items() if hold.exclusive == "PCPULevel")
    cores = [core for core in topology.cores.values() if core & held]
    taken_cores = mask_of(cpu for core in cores for cpu in cpus_of(core))
    clean = topology.one_per_core(free.cpus & ~taken_cores)
    roomy = any((clean & numa).bit_count() >= request.count for numa in topology.numa_nodes.values())

    decision = take(topology, free, request)

    if roomy and topology.cpus_per_core > 1 and 0 < request.count <= topology.cpus_per_numa_node:
        assert not decision.cpus & taken_cores
        assert topology.core_count_of(decision.cpus) == request.count


@pytest.mark.parametrize(
    ("strategy", "numa"),
    [
        pytest.param("MostAllocated", 1, id="most allocated fills the fullest NUMA node"),
        pytest.param("LeastAllocated", 0, id="least allocated takes the emptiest"),
    ],
)
def test_the_strategy_orders_numa_nodes(strategy: str, numa: int) -> None:
    topology = machine()
    free = FreeCPUs(topology.all & ~(0b11 << 8))

    decision = take(topology, free, CPURequest(2, strategy=strategy))

    assert not decision.cpus & ~topology.numa_nodes[numa]


def test_a_spread_pod_shares_a_held_cpu_only_after_the_free_siblings() -> None:
    topology = machine(sockets=1, cores=2)
    free = FreeCPUs(topology.all, {0: CPUHold(1)}, ref_count_max=2)

    decision = take(topology, free, CPURequest(3, bind_policy="SpreadByPCPUs"))

    assert list(cpus_of(decision.cpus)) == [1, 2, 3]


def test_a_cpu_id_that_no_mask_can_hold_is_refused() -> None:
    with pytest.raises(CPUTopologyError, match=r"detail\.id"):
        topology_of([(0, 0, 0, CPU_ID_MAX + 1)])


@given(
    cpus=st.integers(0, 2**32 - 1),
    threads=st.integers(1, 2),
    numbering=st.sampled_from(["thread by thread", "core by core"]),
)
def test_cores_are_reported_by_arithmetic_as_one_by_one(cpus: int, threads: int, numbering: str) -> None:
    cores = 8
    rows = [
        (core // 4, core // 4, core, core * threads + thread)
        if numbering == "thread by thread"
        else (core // 4, core // 4, core, thread * cores + core)
        for core in range(cores)
        for thread in range(threads)
    ]
    quick = topology_of(rows)
    assert quick.thread_distance > 0
    slow = msgspec.structs.replace(quick, thread_distance=0)
    cpus &= quick.all
    assert quick.whole_cores(cpus) == slow.whole_cores(cpus)
    assert quick.one_per_core(cpus) == slow.one_per_core(cpus)
    assert quick.core_count_of(cpus) == slow.core_count_of(cpus)


def test_cores_of_two_numa_nodes_that_share_a_number_are_told_one_by_one() -> None:
    topology = topology_of([(0, 0, 0, 0), (0, 1, 0, 1), (0, 0, 1, 2), (0, 1, 1, 3)])
    assert (topology.thread_distance, topology.core_count) == (0, 4)
