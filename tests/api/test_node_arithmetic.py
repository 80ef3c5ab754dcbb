"""Node reservation, amplification and zones: what is given out never exceeds what exists."""

import math

from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import amplification, node_reservation, resource_list, zones
from koordinator.api.annotations.node import NodeReservation
from koordinator.api.quantity import Quantity
from koordinator.api.resource_list import Amounts

names = st.sampled_from(["cpu", "memory", "kubernetes.io/batch-cpu", "nvidia.com/gpu"])
amounts = st.dictionaries(names, st.builds(Quantity.of_milli, st.integers(0, 10**12)))
zone_names = st.sampled_from([zones.zone_name(numa) for numa in (0, 1, 2, 10)])
zone_lists = st.dictionaries(zone_names, amounts).map(zones.of_amounts)


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
    amplified = amplification.amplify(amount, ratio)
    assert amplified >= amount
    assert amplified == (math.ceil(amount * ratio) if ratio > 1 else amount)


@given(amounts)
def test_only_the_named_resources_are_amplified(given_amounts: Amounts) -> None:
    ratios = {"cpu": 1.5, "memory": 2.0}
    only_cpu = amplification.amplify_list(given_amounts, ratios, ["cpu"])
    for name, amount in given_amounts.items():
        assert (only_cpu[name] == amount) == (name != "cpu" or not amount)


@given(zone_lists, zone_lists)
def test_merged_zones_hold_all_and_the_second_list_wins(a: zones.Zones, b: zones.Zones) -> None:
    merged = zones.merge(a, b)
    assert list(merged) == sorted(a.keys() | b.keys())
    for zone, resources in merged.items():
        for name, resource in resources.items():
            assert resource == b.get(zone, {}).get(name, a.get(zone, {}).get(name))
    assert zones.merge(merged, b) == merged
    assert zones.trim(merged, a).keys() == a.keys()


def test_a_zone_name_says_its_numa_node() -> None:
    assert zones.numa_node_of(zones.zone_name(10)) == 10
    assert zones.numa_node_of("node-x") is None
    assert zones.numa_node_of("10") is None
