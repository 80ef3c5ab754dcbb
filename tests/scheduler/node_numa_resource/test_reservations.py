"""How: a reservation and its owners are on one node; what a pod may take is compared with what nobody else holds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api.annotations.placement import NUMATopologyPolicy
from koordinator.scheduler.plugins.node_numa_resource import admission
from koordinator.scheduler.plugins.node_numa_resource.allocate import AllocationRequest, NUMANodeState
from koordinator.scheduler.plugins.node_numa_resource.cpu_topology import cpus_of, mask_of
from koordinator.scheduler.plugins.node_numa_resource.holdings import NodeTopologyFacts
from koordinator.scheduler.plugins.node_numa_resource.node_allocation import PodHolding
from koordinator.scheduler.plugins.node_numa_resource.policy import BoundCPUUsage, PodPlan
from koordinator.scheduler.plugins.node_numa_resource.reservations import (
    NO_NOMINATION,
    NOT_TAKEN_OVER,
    OUT_OF_SCOPE,
    AllocatePolicy,
    Held,
    ReservationUse,
    ReservedNode,
    RestoredReservation,
    RestoreState,
    allocate_anywhere,
    allocate_nominated,
)
from koordinator.scheduler.plugins.node_numa_resource.score import NUMAScoringStrategies
from tests.scheduler.node_numa_resource.machines import held, machine, node

TOPOLOGY = machine()
RESERVED = mask_of(range(8, 16))


def world(owned: int, policy: AllocatePolicy, others: int = 0) -> tuple[NUMANodeState, RestoreState]:
    """A reservation of NUMA node 1, an owner with `owned` of its CPUs, and another pod with `others`."""
    reservation = held("reservation", TOPOLOGY, RESERVED)
    owner = held("owner", TOPOLOGY, owned)
    state = node(TOPOLOGY, reservation, *([owner] if owned else []), held("other", TOPOLOGY, others))
    restored = RestoredReservation.of(reservation, [owner] if owned else [], TOPOLOGY, policy)
    assert restored is not None
    return state, RestoreState(matched=(restored,))


policies = st.sampled_from(tuple(AllocatePolicy))


@given(st.integers(0, 255), st.integers(0, 255), st.integers(1, 12), policies)
@settings(max_examples=300, deadline=None)
def test_a_pod_never_gets_cpus_of_owners_or_others(
    owned: int, others: int, count: int, policy: AllocatePolicy
) -> None:
    state, restore = world(owned << 8, policy, others)

    request = AllocationRequest({"cpu": 1_000 * count}, count, "FullPCPUs")
    allocation = allocate_anywhere(state, request, None, restore)

    assert not allocation.cpus & (owned << 8 | others)
    free = 16 - owned.bit_count() - others.bit_count()
    free_beside = 8 - others.bit_count()
    if policy is AllocatePolicy.RESTRICTED:
        fits = count <= 8 - owned.bit_count() or count <= free_beside
    else:
        fits = count <= free
    assert allocation.status.is_success == fits


def test_what_a_reservation_keeps_free_is_used_first() -> None:
    state, restore = world(mask_of((8, 9)), AllocatePolicy.ALIGNED)

    allocation = allocate_anywhere(state, AllocationRequest({"cpu": 4_000}, 4, "FullPCPUs"), None, restore)

    assert set(cpus_of(allocation.cpus)) == {10, 11, 12, 13}


def test_a_numa_node_that_a_reservation_fills_is_open_to_pods_that_use_it() -> None:
    state, restore = world(0, AllocatePolicy.DEFAULT)
    request = AllocationRequest({"cpu": 6_000})

    assert not allocate_anywhere(state, request, 0b10).status.is_success
    assert allocate_anywhere(state, request, 0b10, restore).numa == {1: {"cpu": 6_000}}


def test_what_owners_use_is_given_back_once() -> None:
    reservation = held("reservation", TOPOLOGY, RESERVED)
    owner = PodHolding("owner", numa={1: {"cpu": 3_000}})
    state = node(TOPOLOGY, reservation, owner)
    restored = RestoredReservation.of(reservation, [owner], TOPOLOGY)
    assert restored is not None

    assert RestoreState(unmatched=(restored,)).node_path().zones == {1: {"cpu": 3_000}}
    request = AllocationRequest({"cpu": 5_000})
    assert allocate_anywhere(state, request, 0b10, RestoreState(matched=(restored,))).status.is_success
    too_much = AllocationRequest({"cpu": 6_000})
    assert not allocate_anywhere(state, too_much, 0b10, RestoreState(matched=(restored,))).status.is_success


@pytest.mark.parametrize("nominated", ["", "reservation", "unknown"])
def test_reserve_uses_the_nominated_reservation_only(nominated: str) -> None:
    state, restore = world(mask_of((8, 9)), AllocatePolicy.RESTRICTED, mask_of(range(4)))
    four = AllocationRequest({"cpu": 4_000}, 4, "FullPCPUs")

    allocation = allocate_nominated(state, four, None, restore, nominated)

    expected = {10, 11, 12, 13} if nominated == "reservation" else {4, 5, 6, 7}
    assert set(cpus_of(allocation.cpus)) == expected


def test_reserve_does_not_fall_back_silently() -> None:
    state, restore = world(mask_of((8, 9, 10, 11)), AllocatePolicy.RESTRICTED)
    six = AllocationRequest({"cpu": 6_000}, 6, "FullPCPUs")

    assert allocate_nominated(state, six, None, restore, "reservation").status == OUT_OF_SCOPE
    required = allocate_nominated(state, six, None, restore, "", requires_reservation=True)
    assert required.status == NO_NOMINATION
    refused = allocate_anywhere(state, six, None, restore, requires_reservation=True)
    assert refused.status.reasons == ("Reservation(s) not enough cpus available to satisfy request",)


def test_a_numa_policy_is_met_within_the_reservation_that_a_pod_may_use() -> None:
    state, restore = world(0, AllocatePolicy.ALIGNED, mask_of(range(8)))
    facts = NodeTopologyFacts(state.options, has_report=True, zones=state.zones)
    plan = PodPlan(requests={"cpu": 6_000}, numa_policy=NUMATopologyPolicy.SINGLE_NUMA_NODE)
    usage = BoundCPUUsage(0, 0, 0)

    alone = admission.place(plan, facts, state.node_allocation, usage, NUMAScoringStrategies())
    within = admission.place(
        plan, facts, state.node_allocation, usage, NUMAScoringStrategies(), ReservationUse(restore)
    )
    reserved = ReservationUse(restore, nominated="reservation")

    assert not alone.status.is_success
    assert within.allocation.numa == {1: {"cpu": 6_000}}
    assert (
        admission.place(plan, facts, state.node_allocation, usage, NUMAScoringStrategies(), reserved)
        == within
    )


@given(st.integers(1, 2**16 - 1), st.integers(0, 2**16 - 1), st.integers(1, 16))
@settings(max_examples=300, deadline=None)
def test_a_reservation_gets_all_cpus_of_the_pods_that_it_takes_over_or_nothing(
    taken: int, others: int, count: int
) -> None:
    others &= ~taken
    running = held("running", TOPOLOGY, taken)
    state = node(TOPOLOGY, running, held("other", TOPOLOGY, others))
    seen = ReservedNode.of_pods(state.node_allocation, [Held(running)], TOPOLOGY)
    assert seen is not None

    found = seen.use.allocate(state, AllocationRequest({"cpu": 1_000 * count}, count, "SpreadByPCPUs"), None)

    assert not found.cpus & others
    if found.status.is_success:
        assert found.cpus & taken == taken
    elif taken.bit_count() <= count <= 16 - others.bit_count():
        assert found.status == NOT_TAKEN_OVER, "only where whole cores or NUMA nodes lead elsewhere"
