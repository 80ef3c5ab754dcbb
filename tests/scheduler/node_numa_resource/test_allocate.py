"""How: pods come and go on drawn machines through the ledger; what is given out is added up from outside."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api.annotations.placement import NUMATopologyPolicy
from koordinator.scheduler.plugins.node_numa_resource.admission import choose, hints_of
from koordinator.scheduler.plugins.node_numa_resource.allocate import (
    AllocationRequest,
    GivenBack,
    allocate,
    allocate_in,
    fits_in,
    room_of,
)
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import cpus_of, mask_of
from koordinator.scheduler.plugins.node_numa_resource.hint_merge import NOT_EXCLUSIVE, admit
from koordinator.scheduler.plugins.node_numa_resource.holdings import NodeTopologyFacts
from koordinator.scheduler.plugins.node_numa_resource.node_allocation import (
    NodeAllocation,
    NUMAStatus,
    PodHolding,
    free_zones,
)
from tests.scheduler.node_numa_resource.machines import held, machine, node

policies = st.sampled_from(("FullPCPUs", "SpreadByPCPUs"))


@st.composite
def requests(draw: st.DrawFn) -> AllocationRequest:
    binds = draw(st.booleans())
    cpus = draw(st.integers(1, 12))
    milli = cpus * 1_000 if binds else draw(st.integers(1, 12_000))
    amounts = {"cpu": milli, "memory": draw(st.integers(0, 1_500)), "example.com/other": 3}
    return AllocationRequest(amounts, cpus if binds else 0, draw(policies), draw(st.booleans()))


@given(st.lists(st.tuples(requests(), st.integers(0, 3), st.booleans()), max_size=12))
@settings(max_examples=150)
def test_what_is_given_out_never_exceeds_what_exists_and_no_cpu_is_given_twice(
    steps: list[tuple[AllocationRequest, int, bool]],
) -> None:
    topology = machine()
    state = node(topology)
    given_out: dict[str, PodHolding] = {}

    for i, (request, hint, leaves) in enumerate(steps):
        allocation = allocate(state, request, hint or None)
        if allocation.status.is_success:
            holding = PodHolding(f"{i}", frozenset(cpus_of(allocation.cpus)), numa=allocation.numa)
            state.node_allocation.add(holding)
            given_out[holding.uid] = holding
        if leaves and given_out:
            state.node_allocation.remove(given_out.pop(min(given_out)).uid)

        bound = [cpu for holding in given_out.values() for cpu in holding.cpus]
        assert len(bound) == len(set(bound))
        for numa, zone in state.zones.items():
            for name, amount in zone.items():
                used = sum(h.numa.get(numa, {}).get(name, 0) for h in given_out.values())
                assert used <= amount


@given(requests(), st.integers(1, 3), st.integers(0, 2**16 - 1))
@settings(max_examples=200)
def test_an_allocation_is_all_that_was_asked_within_the_hint(
    request: AllocationRequest, hint: int, taken: int
) -> None:
    topology = machine()
    state = node(topology, held("other", topology, taken))

    allocation = allocate(state, request, hint)

    if not allocation.status.is_success:
        assert (allocation.numa, allocation.cpus) == ({}, 0)
        return
    assert all(hint >> numa & 1 for numa in allocation.numa)
    for name in ("cpu", "memory"):
        assert sum(part.get(name, 0) for part in allocation.numa.values()) == request.amounts[name]
    assert allocation.cpus.bit_count() == request.cpu_count
    assert not allocation.cpus & taken
    if request.required_policy == "FullPCPUs":
        assert topology.core_count_of(allocation.cpus) * 2 == request.cpu_count
    if request.required_policy == "SpreadByPCPUs":
        assert topology.core_count_of(allocation.cpus) == request.cpu_count


@given(requests(), st.integers(0, 2**16 - 1), st.sampled_from(("BestEffort", "Restricted", "SingleNUMANode")))
@settings(max_examples=100)
def test_every_hint_can_be_allocated(request: AllocationRequest, taken: int, policy: str) -> None:
    topology = machine()
    state = node(topology, held("other", topology, taken))

    hints = hints_of(state, request, NUMATopologyPolicy(policy))

    assert set(hints) == {"cpu", "memory"}
    for hint in (hint for found in hints.values() for hint in found):
        assert allocate(state, request, hint.numa_nodes).status.is_success


@given(
    requests(),
    st.integers(1, 3),
    st.integers(0, 2**16 - 1),
    st.integers(0, 3) | st.integers(0, 2**16 - 1),
    st.integers(0, 9_000),
)
@settings(max_examples=400)
def test_counting_tells_whether_an_allocation_succeeds(
    request: AllocationRequest, hint: int, taken: int, preferred: int, shared_milli: int
) -> None:
    topology = machine()
    state = node(topology, held("a", topology, taken), PodHolding("b", numa={0: {"cpu": shared_milli}}))
    room = room_of(state, request, GivenBack(preferred_cpus=preferred))

    assert fits_in(room, state, request, hint) == allocate_in(room, state, request, hint).status.is_success


@given(
    requests(),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2_000),
    st.sampled_from(("BestEffort", "Restricted", "SingleNUMANode")),
)
@settings(max_examples=200)
def test_who_looks_at_single_numa_nodes_first_chooses_as_who_looks_at_all_sets(
    request: AllocationRequest, taken: int, held_memory: int, policy: str
) -> None:
    topology = machine()
    full = PodHolding("full", numa={0: {"memory": min(held_memory, 1_000)}})
    state, numa_policy = node(topology, held("other", topology, taken), full), NUMATopologyPolicy(policy)

    chosen = choose(state, request, numa_policy, NOT_EXCLUSIVE)

    everything = hints_of(state, request, numa_policy)
    assert chosen == admit(numa_policy, mask_of(state.zones), [everything], NOT_EXCLUSIVE)


@pytest.mark.parametrize(
    ("request_", "first_milli"),
    [
        (AllocationRequest({"cpu": 9_001}), 4_500),
        (AllocationRequest({"cpu": 9_000}, 9, "SpreadByPCPUs"), 4_000),
        (AllocationRequest({"cpu": 10_000}, 10, "FullPCPUs", is_policy_required=True), 4_000),
    ],
    ids=["any CPU time", "whole CPUs", "whole cores"],
)
def test_numa_nodes_that_are_equally_free_share_a_pod_equally(
    request_: AllocationRequest, first_milli: int
) -> None:
    allocation = allocate(node(machine()), request_, 0b11)

    assert allocation.numa == {
        0: {"cpu": first_milli},
        1: {"cpu": request_.amounts["cpu"] - first_milli},
    }


def test_the_emptier_numa_node_absorbs_what_the_fuller_one_lacks_whatever_their_ids() -> None:
    topology = machine(sockets=4)
    state = node(topology, PodHolding("full", numa={2: {"cpu": 7_000}}))

    allocation = allocate(state, AllocationRequest({"cpu": 9_000}), 0b1110)

    assert allocation.numa == {1: {"cpu": 4_000}, 2: {"cpu": 1_000}, 3: {"cpu": 4_000}}


@pytest.mark.parametrize(
    ("request_", "first_milli"),
    [
        (AllocationRequest({"cpu": 8_000}, 8, "FullPCPUs"), 3_000),
        (AllocationRequest({"cpu": 8_000}, 8, "FullPCPUs", is_policy_required=True), 2_000),
    ],
    ids=["whole CPUs", "whole cores"],
)
def test_parts_of_cpus_and_cores_that_are_left_keep_nobody_from_binding_others(
    request_: AllocationRequest, first_milli: int
) -> None:
    state = node(machine(), PodHolding("shares", numa={0: {"cpu": 4_500}}))

    allocation = allocate(state, request_, 0b11)

    assert allocation.numa == {0: {"cpu": first_milli}, 1: {"cpu": 8_000 - first_milli}}
    assert allocation.cpus.bit_count() == 8


def test_cpus_given_back_by_a_reservation_are_used_first() -> None:
    topology = machine()
    state = node(topology, held("reservation", topology, mask_of((12, 13))))

    allocation = allocate(
        state,
        AllocationRequest({"cpu": 2_000}, 2, "FullPCPUs"),
        None,
        GivenBack(preferred_cpus=mask_of((12, 13))),
    )

    assert list(cpus_of(allocation.cpus)) == [12, 13]


def test_a_resource_that_only_a_reservation_gives_back_is_accounted_as_zero() -> None:
    topology, node_allocation = machine(), NodeAllocation()
    node_allocation.add(PodHolding("pod", numa={0: {"memory": 300}}))
    zones = {0: {"cpu": 16_000, "memory": 1_000}}

    left = free_zones(node_allocation, topology, zones, {0: {"memory": 100, "cpu": 2_000}}, cpu_ratio=2.0)

    assert left.allocated == {0: {"memory": 200, "cpu": 0}}
    assert left.available == {0: {"memory": 800, "cpu": 16_000}}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**16 - 1)), max_size=12))
def test_a_ledger_that_everybody_left_is_empty(steps: list[tuple[int, int]]) -> None:
    topology, node_allocation = machine(), NodeAllocation()

    for uid, cpus in steps:
        node_allocation.update(held(f"{uid}", topology, cpus))
    for uid, _ in steps:
        node_allocation.remove(f"{uid}")

    assert (node_allocation.holdings, node_allocation.holds, node_allocation.numa) == ({}, {}, {})


def test_a_numa_node_is_shared_as_soon_as_one_pod_reaches_beyond_it() -> None:
    topology = machine()
    state = node(topology, held("a", topology, 0b1), held("b", topology, 0b110 | 1 << 8))

    assert state.node_allocation.numa_status(topology) == {0: NUMAStatus.SHARED, 1: NUMAStatus.SHARED}
    state.node_allocation.remove("b")
    assert state.node_allocation.numa_status(topology) == {0: NUMAStatus.SINGLE, 1: NUMAStatus.IDLE}


def test_a_node_fills_as_it_says_itself_or_else_as_the_configuration_says() -> None:
    for own, configured, expected in (
        ("", "MostAllocated", "MostAllocated"),
        ("LeastAllocated", "MostAllocated", "LeastAllocated"),
        ("MostAllocated", "LeastAllocated", "MostAllocated"),
    ):
        state = NodeTopologyFacts(strategy=own).state(NodeAllocation(), configured)
        assert state.strategy == expected
    assert NodeTopologyFacts().state(NodeAllocation()).strategy == "LeastAllocated"
