"""Devices that are parts of others: what one takes of the counters that they share, no other one gets."""

from typing import Any

import pytest

from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.dra import ResourceClaim, ResourceSlice
from koordinator.scheduler.engine.results import Placed, Unplaced
from koordinator.scheduler.plugins.dynamic_resources.plugin import DynamicResources
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.dynamic_resources.bench import Bench
from tests.scheduler.dynamic_resources.builders import (
    claim,
    counter_slice,
    counters,
    device,
    device_class,
    exactly,
    of_size,
    partitioned,
    resource_slice,
    takes,
    user_of,
)

Json = dict[str, Any]
ON = "DRAPartitionableDevices=true"


def bench_of(*slices: Json, nodes: tuple[str, ...] = ("a",), gates: str = ON) -> Bench:
    bench = Bench(gates=gates)
    for name in nodes:
        bench.node(name)
    bench.classes(device_class())
    bench.slices(*slices)
    return bench


def ask(bench: Bench, name: str, size: int, **more: Any) -> Placed | Unplaced:
    bench.claims(claim(name, exactly(selectors=of_size(size), **more)))
    return bench.place(user_of(name, name))


def message(result: Placed | Unplaced) -> str:
    assert isinstance(result, Unplaced), result
    return result.status.message


def device_of(bench: Bench, name: str) -> str:
    return str(bench.promised()[name]["devices"]["results"][0]["device"])


def test_parts_of_a_card_are_given_until_its_memory_is_gone_and_the_whole_card_when_all_are_back() -> None:
    bench = bench_of(*partitioned("a"))

    half = ask(bench, "half", 2)
    assert isinstance(half, Placed)
    assert "cannot allocate all claims" in message(ask(bench, "whole", 4))
    quarters = [ask(bench, f"quarter{number}", 1) for number in range(3)]
    assert [type(each) for each in quarters] == [Placed, Placed, Unplaced]
    for placed in (half, *quarters[:2]):
        assert isinstance(placed, Placed)
        bench.forget(placed)
    assert isinstance(bench.place(user_of("whole", "whole")), Placed)


def test_two_parts_for_one_claim_come_from_different_cards_where_one_has_no_room() -> None:
    bench = bench_of(*partitioned("a", gpus=2))
    for name in ("x", "y"):
        assert isinstance(ask(bench, name, 1), Placed)
    assert device_of(bench, "x")[:4] == device_of(bench, "y")[:4] == "a-g0"

    assert isinstance(ask(bench, "halves", 2, count=3), Placed)
    chosen = [each["device"][:4] for each in bench.promised()["halves"]["devices"]["results"]]
    assert sorted(chosen) == ["a-g0", "a-g1", "a-g1"]


def test_each_node_has_its_own_counters_and_nodes_with_room_are_found() -> None:
    nodes = ("a", "b", "c")
    bench = bench_of(*(each for name in nodes for each in partitioned(name)), nodes=nodes)

    placed = [ask(bench, f"w{number}", 4) for number in range(4)]
    assert {each.node_name for each in placed if isinstance(each, Placed)} == set(nodes)
    assert message(placed[-1]).startswith("0/3 nodes are available: 3 cannot allocate all claims")


def test_devices_may_say_one_by_one_which_nodes_they_are_for() -> None:
    parts = [
        {**device("on-b"), "nodeName": "b", "consumesCounters": [takes("links", lanes=1)]},
        {**device("everywhere"), "allNodes": True, "consumesCounters": [takes("links", lanes=1)]},
    ]
    fabric = resource_slice("fabric", *parts, pool="fabric", count=2, perDeviceNodeSelection=True)
    links = counter_slice("links", counters("links", lanes=1), pool="fabric")
    bench = bench_of(fabric, links, nodes=("a",))
    bench.node("b", labels={"only": "b"})

    bench.claims(claim("both", exactly(count=2)), claim("all", exactly(allocationMode="All")), claim("one"))
    assert message(bench.place(user_of("x", "both"))).startswith("0/2 nodes are available: 2 cannot allocate")
    placed = bench.place(user_of("y", "all"))
    assert isinstance(placed, Placed) and placed.node_name == "a", (
        "both together have more lanes than there are"
    )
    assert device_of(bench, "all") == "everywhere"
    assert "nodeSelector" not in bench.promised()["all"]
    assert message(bench.place(user_of("z", "one"))).startswith("0/2 nodes are available: 2 cannot allocate")
    bench.forget(placed)
    on_b = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}
    assert isinstance(bench.place(user_of("z", "one", nodeSelector={"only": "b"})), Placed)
    assert device_of(bench, "one") == "on-b"
    assert bench.promised()["one"]["nodeSelector"] == {"nodeSelectorTerms": [on_b]}


def test_while_the_gate_is_off_parts_and_devices_with_nodes_of_their_own_are_not_given() -> None:
    own = resource_slice("own", {**device("own"), "allNodes": True}, perDeviceNodeSelection=True)
    bench = bench_of(*partitioned("a"), own, gates="")
    bench.claims(claim("one"))

    result = bench.place(user_of("x", "one"))
    assert "cannot allocate all claims" in message(result)
    assert facts(bench, "one") == [
        "pool gpu.example.com/a has devices that need the feature gate DRAPartitionableDevices"
    ]


def facts(bench: Bench, name: str) -> list[str]:
    """What `koordinator explain` adds for the first node."""
    plugin = next(each for each in bench.profile.plugins if isinstance(each, DynamicResources))
    body = user_of("explained", name)
    pod = PodInfo.of(from_builtins(body, Pod), bench.engine.table.registry)
    return list(plugin.facts(plugin.prepare(pod), 0))


@pytest.mark.parametrize(
    ("slices", "reason"),
    [
        (
            [counter_slice("c", counters("x", m=1), counters("x", m=1), pool="a")],
            "duplicate counter set name x",
        ),
        ([counter_slice("c", counters("y", m=1), pool="a")], "counter set x not found"),
        ([counter_slice("c", counters("x", n=1), pool="a")], "counter m not found in counter set x"),
        (
            [counter_slice("c", counters("x", m="much"), pool="a")],
            "counter m of counter set x: 'much' is not",
        ),
    ],
)
def test_a_pool_whose_counters_contradict_each_other_is_not_used_and_says_why(
    slices: list[Json], reason: str
) -> None:
    part = {**device("part"), "consumesCounters": [takes("x", m=1)]}
    bench = bench_of(*slices, resource_slice("a", part, node="a", count=2))
    bench.claims(claim("one"))

    assert "1 invalid resource pools were encountered" in message(bench.place(user_of("x", "one")))
    assert bench.books.inventory.invalid["gpu.example.com", "a"].startswith(reason)


def test_what_was_given_away_counts_against_slices_that_come_later() -> None:
    bench = bench_of()
    taken = {"request": "req", "driver": "gpu.example.com", "pool": "a", "device": "a-g0-2-0"}
    status = {"allocation": {"devices": {"results": [taken]}}, "reservedFor": [{"uid": "z"}]}
    bench.claims({**claim("old"), "status": status})
    bench.slices(*partitioned("a"))

    assert "cannot allocate" in message(ask(bench, "whole", 4))
    bench.remove(ResourceClaim, "old")
    assert isinstance(bench.place(user_of("whole", "whole")), Placed)


def test_administrators_take_nothing_of_the_counters() -> None:
    bench = bench_of(*partitioned("a"))
    assert isinstance(ask(bench, "whole", 4), Placed)

    assert isinstance(ask(bench, "admin", 2, adminAccess=True), Placed)
    assert bench.books.inventory.used_keys == {("gpu.example.com", "a", "a-g0-4-0"): 1}


def test_a_pool_is_not_used_before_its_counters_are_there() -> None:
    [counter, devices] = partitioned("a")
    bench = bench_of(devices)

    assert "cannot allocate" in message(ask(bench, "one", 1))
    bench.slices(counter)
    assert isinstance(bench.place(user_of("one", "one")), Placed)
    bench.remove(ResourceSlice, counter["metadata"]["name"])
    assert "cannot allocate" in message(ask(bench, "two", 1))
