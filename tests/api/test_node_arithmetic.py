"""Node reservation and amplification: what is given out never exceeds what exists."""

import math

from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import node_labels, node_reservation, resource_list
from koordinator.api.annotations.node import NodeReservation
from koordinator.api.quantity import Quantity
from koordinator.api.resource_list import Amounts

names = st.sampled_from(["cpu", "memory", "kubernetes.io/batch-cpu", "nvidia.com/gpu"])
amounts = st.dictionaries(names, st.builds(Quantity.of_milli, st.integers(0, 10**12)))


@given(amounts, amounts, st.sampled_from(["", "Default", "ReservedCPUsOnly", "Other"]))
def test_a_reservation_never_adds_anything_nor_goes_below_zero(
    allocatable: Amounts, reserved: Amounts, policy: str
) -> None:
    reservation = NodeReservation(resources=resource_list.to_wire(reserved), apply_policy=policy)
    left = node_reservation.trim_allocatable(allocatable, reservation)
    assert left.keys() == allocatable.keys()
    assert all(0 <= left[name].nanos <= allocatable[name].nanos for name in left)
    if policy in ("ReservedCPUsOnly", "Other"):
        assert left == allocatable


def test_a_bad_cpu_list_counts_as_no_reservation() -> None:
    bad = NodeReservation(resources={"cpu": "2"}, reserved_cpus="0-")
    assert node_reservation.amounts(bad) == {}
    assert node_reservation.reserved_cpus(bad).cpus == "0-"


@given(st.integers(0, 2**50), st.floats(0.1, 10))
def test_amplified_amounts_are_rounded_up_and_never_shrink(amount: int, ratio: float) -> None:
    amplified = node_labels.amplify(amount, ratio)
    assert amplified >= amount
    assert amplified == (math.ceil(amount * ratio) if ratio > 1 else amount)
