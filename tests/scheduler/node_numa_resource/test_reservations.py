"""How: a reservation and its owners are on one node; what a pod may take is compared with what nobody else holds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api.annotations.placement import NUMATopologyPolicy
from koordinator.scheduler.plugins.node_numa_resource import admission
from koordinator.scheduler.plugins.node_numa_resource.allocate import AllocationRequest, NUMANodeState
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import cpus_of, mask_of
from koordinator.scheduler.plugins.node_numa_resource.holdings import NodeTopologyFacts
from koordinator.scheduler.plugins.node_numa_resource.node_allocation import (
    NOT_ENOUGH,
    NodeAllocation,
    PodHolding,
)
from koordinator.scheduler.plugins.node_numa_resource.policy import PodPlan
from koordinator.scheduler.plugins.node_numa_resource.reservations import (
    BEYOND_RESERVATION,
    NO_USE,
    NOT_TAKEN_OVER,
    Held,
    ReservationUse,
    ReservedHoldings,
    ReservedNode,
)
from koordinator.scheduler.plugins.node_numa_resource.score import NUMAScoringStrategy
from tests.scheduler.node_numa_resource.machines import held, machine, node

TOPOLOGY = machine()
RESERVED = mask_of(range(8, 16))


def world(
    owned: int, others: int = 0, *, is_restricted: bool = False
) -> tuple[NUMANodeState, ReservationUse]:
    """A reservation of NUMA node 1, an owner with `owned` of its CPUs, and another pod with `others`."""
    allocation = NodeAllocation()
    holdings = ReservedHoldings(allocation)
    holdings.hold(Held(held("reservation", TOPOLOGY, RESERVED), is_reservation=True))
    if owned:
        holdings.hold(Held(held("owner", TOPOLOGY, owned), "reservation"))
    holdings.hold(Held(held("other", TOPOLOGY, others)))
    state = node(TOPOLOGY, *allocation.holdings.values())
    rest = allocation.holdings["reservation"]
    seen = ReservedNode.of(state.node_allocation, rest, TOPOLOGY, is_restricted=is_restricted)
    return state, seen.use


@given(st.integers(0, 255), st.integers(0, 255), st.integers(1, 12), st.booleans())
@settings(max_examples=300, deadline=None)
def test_a_pod_never_gets_cpus_of_owners_or_others(
    owned: int, others: int, count: int, is_restricted: bool
) -> None:
    state, use = world(owned << 8, others, is_restricted=is_restricted)

    request = AllocationRequest({"cpu": 1_000 * count}, count, "FullPCPUs")
    allocation = use.allocate(state, request, None)

    assert not allocation.cpus & (owned << 8 | others)
    beside = 0 if is_restricted else 8 - others.bit_count()
    assert allocation.status.is_success == (count <= 8 - owned.bit_count() + beside)


def test_what_a_reservation_keeps_free_is_used_first() -> None:
    state, use = world(mask_of((8, 9)))

    allocation = use.allocate(state, AllocationRequest({"cpu": 4_000}, 4, "FullPCPUs"), None)

    assert set(cpus_of(allocation.cpus)) == {10, 11, 12, 13}


def test_a_numa_node_that_a_reservation_fills_is_open_to_pods_that_use_it() -> None:
    state, use = world(0)
    request = AllocationRequest({"cpu": 6_000})

    assert not NO_USE.allocate(state, request, 0b10).status.is_success
    assert use.allocate(state, request, 0b10).numa == {1: {"cpu": 6_000}}


def test_what_owners_use_is_given_back_once() -> None:
    allocation = NodeAllocation()
    holdings = ReservedHoldings(allocation)
    holdings.hold(Held(held("reservation", TOPOLOGY, RESERVED), is_reservation=True))
    holdings.hold(Held(PodHolding("owner", numa={1: {"cpu": 3_000}}), "reservation"))
    state = node(TOPOLOGY, *allocation.holdings.values())
    use = ReservedNode.of(allocation, allocation.holdings["reservation"], TOPOLOGY, is_restricted=False).use

    assert use.allocate(state, AllocationRequest({"cpu": 5_000}), 0b10).status.is_success
    assert not use.allocate(state, AllocationRequest({"cpu": 6_000}), 0b10).status.is_success


@pytest.mark.parametrize("uses", [False, True])
def test_reserve_uses_the_nominated_reservation_only(uses: bool) -> None:
    state, use = world(mask_of((8, 9)), mask_of(range(4)), is_restricted=True)
    four = AllocationRequest({"cpu": 4_000}, 4, "FullPCPUs")

    allocation = (use if uses else NO_USE).allocate(state, four, None)

    assert set(cpus_of(allocation.cpus)) == ({10, 11, 12, 13} if uses else {4, 5, 6, 7})


def test_reserve_does_not_fall_back_silently() -> None:
    state, use = world(mask_of((8, 9, 10, 11)), is_restricted=True)

    six = AllocationRequest({"cpu": 6_000}, 6, "FullPCPUs")

    assert use.allocate(state, six, None).status == BEYOND_RESERVATION


def test_a_numa_policy_is_met_within_the_reservation_that_a_pod_may_use() -> None:
    state, use = world(0, mask_of(range(8)))
    facts = NodeTopologyFacts(state.options, has_report=True, zones=state.zones)
    plan = PodPlan(requests={"cpu": 6_000}, numa_policy=NUMATopologyPolicy.SINGLE_NUMA_NODE)
    terms, usage = admission.terms_of(plan, facts), None

    alone = admission.place(terms, facts, state.node_allocation, usage, NUMAScoringStrategy())
    within = admission.place(terms, facts, state.node_allocation, usage, NUMAScoringStrategy(), use)

    assert not alone.status.is_success
    assert within.allocation.numa == {1: {"cpu": 6_000}}


def test_a_required_bind_policy_is_met_by_the_reservation_where_the_node_is_full_otherwise() -> None:
    state, use = world(0, mask_of(range(8)))
    facts = NodeTopologyFacts(state.options, has_report=True)
    plan = PodPlan({"cpu": 6_000}, binds_cpus=True, required_policy="FullPCPUs", policy="FullPCPUs")
    terms, usage = admission.terms_of(plan, facts), None

    alone = admission.place(terms, facts, state.node_allocation, usage, NUMAScoringStrategy())
    within = admission.place(terms, facts, state.node_allocation, usage, NUMAScoringStrategy(), use)

    assert alone.status == NOT_ENOUGH
    assert set(cpus_of(within.allocation.cpus)) == {8, 9, 10, 11, 12, 13}


@given(st.integers(1, 2**16 - 1), st.integers(0, 2**16 - 1), st.integers(1, 16))
@settings(max_examples=300, deadline=None)
def test_a_reservation_gets_all_cpus_of_the_pods_that_it_takes_over_or_nothing(
    taken: int, others: int, count: int
) -> None:
    others &= ~taken
    running = held("running", TOPOLOGY, taken)
    state = node(TOPOLOGY, running, held("other", TOPOLOGY, others))
    seen = ReservedNode.of_all(state.node_allocation, [running], TOPOLOGY, takes_over=True)
    assert seen is not None

    found = seen.use.allocate(state, AllocationRequest({"cpu": 1_000 * count}, count, "SpreadByPCPUs"), None)

    assert not found.cpus & others
    if found.status.is_success:
        assert found.cpus & taken == taken
    elif taken.bit_count() <= count <= 16 - others.bit_count():
        assert found.status == NOT_TAKEN_OVER, "only where whole cores or NUMA nodes lead elsewhere"
