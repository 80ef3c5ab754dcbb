"""Devices that several claims may share: what each takes of the capacity, how amounts are rounded, what is written."""

from typing import Any

import pytest

from koordinator.api import quantity
from koordinator.api.decode import from_builtins
from koordinator.api.dra import DeviceCapacity, ResourceClaim
from koordinator.scheduler.engine.results import Placed, Unplaced
from koordinator.scheduler.plugins.dynamic_resources.consumable_capacity import CapacityTerms, share_of
from tests.scheduler.dynamic_resources.bench import Bench
from tests.scheduler.dynamic_resources.builders import (
    DRIVER,
    claim,
    counter_slice,
    counters,
    device,
    device_class,
    exactly,
    resource_slice,
    share,
    shareable,
    takes,
    user_of,
)

Json = dict[str, Any]
ON = "DRAConsumableCapacity=true"


def bench_of(*devices: Json, gates: str = ON) -> Bench:
    bench = Bench(gates=gates)
    bench.node("a")
    bench.classes(device_class())
    bench.slices(resource_slice("a", *devices, node="a"))
    return bench


def ask(bench: Bench, name: str, *requests: Json, **more: Any) -> Placed | Unplaced:
    bench.claims(claim(name, *requests, **more))
    return bench.place(user_of(name, name, cpu="10m"))


def results(bench: Bench, name: str) -> list[Json]:
    found: list[Json] = bench.promised()[name]["devices"]["results"]
    return found


def test_claims_share_a_device_until_its_capacity_is_gone_and_each_share_has_a_name() -> None:
    bench = bench_of(shareable("a0"))

    placed = [ask(bench, f"c{number}", share("30Gi")) for number in range(3)]
    assert [type(each) for each in placed] == [Placed, Placed, Unplaced]
    assert isinstance(ask(bench, "rest", share("20Gi")), Placed)
    given = [results(bench, name)[0] for name in ("c0", "c1", "rest")]
    assert [each["consumedCapacity"] for each in given] == [
        {"memory": "30Gi"},
        {"memory": "30Gi"},
        {"memory": "20Gi"},
    ]
    assert len({each["shareID"] for each in given}) == 3
    assert isinstance(placed[0], Placed)
    bench.forget(placed[0])
    assert isinstance(bench.place(user_of("c2", "c2")), Placed)


def test_one_claim_may_get_several_shares_of_a_device_unless_they_must_differ() -> None:
    bench = bench_of(shareable("a0", id="x"), shareable("a1", id="y"))
    apart = {"distinctAttribute": f"{DRIVER}/id"}

    assert isinstance(ask(bench, "same", share("10Gi", count=2)), Placed)
    assert [each["device"] for each in results(bench, "same")] == ["a0", "a0"]
    assert isinstance(ask(bench, "other", share("10Gi", count=2), constraints=[apart]), Placed)
    assert [each["device"] for each in results(bench, "other")] == ["a0", "a1"]


def test_a_request_without_amounts_takes_the_default_else_all_of_it() -> None:
    bench = bench_of(shareable("a0", {"default": "8Gi"}), shareable("a1"))

    for number in range(11):
        assert isinstance(ask(bench, f"c{number}"), Placed)
    assert [results(bench, f"c{number}")[0]["device"] for number in range(11)] == ["a0"] * 10 + ["a1"]
    assert results(bench, "c10")[0]["consumedCapacity"] == {"memory": "80Gi"}
    assert isinstance(ask(bench, "more"), Unplaced)


def test_devices_that_are_not_shared_need_the_capacity_and_are_given_whole() -> None:
    bench = bench_of(device("small", memory="10Gi"), device("large", memory="80Gi"))

    assert isinstance(ask(bench, "c", share("20Gi")), Placed)
    assert [(each["device"], "shareID" in each) for each in results(bench, "c")] == [("large", False)]
    assert isinstance(ask(bench, "d", share("20Gi")), Unplaced)
    cores = exactly(capacity={"requests": {"cores": 1}})
    assert isinstance(ask(bench, "e", cores), Unplaced), "no device has that capacity"


def test_all_devices_are_those_with_room_left() -> None:
    bench = bench_of(shareable("a0"), shareable("a1"))
    assert isinstance(ask(bench, "first", share("60Gi")), Placed)

    assert isinstance(ask(bench, "all", share("40Gi", allocationMode="All")), Placed)
    assert [each["device"] for each in results(bench, "all")] == ["a1"]


def test_a_shared_device_takes_its_counters_once() -> None:
    part = {**shareable("a0"), "consumesCounters": [takes("card", units=1)]}
    other = {**device("a1", memory="20Gi"), "consumesCounters": [takes("card", units=1)]}
    bench = Bench(gates=f"{ON},DRAPartitionableDevices=true")
    bench.node("a")
    bench.classes(device_class())
    bench.slices(
        resource_slice("a", part, other, node="a", count=2),
        counter_slice("counters", counters("card", units=1), pool="a"),
    )

    placed = [ask(bench, f"c{number}", share("40Gi")) for number in range(2)]
    assert all(isinstance(each, Placed) for each in placed)
    assert isinstance(ask(bench, "late", share("20Gi")), Unplaced)
    for each in placed:
        assert isinstance(each, Placed)
        bench.forget(each)
    small = exactly(selectors=[{"cel": {"expression": "!device.allowMultipleAllocations"}}])
    assert isinstance(ask(bench, "whole", small), Placed)


def test_while_the_gate_is_off_a_device_is_given_whole() -> None:
    bench = bench_of(shareable("a0"), gates="")

    assert isinstance(ask(bench, "c"), Placed)
    assert "shareID" not in results(bench, "c")[0]
    assert isinstance(ask(bench, "d"), Unplaced)


def test_what_shares_took_is_read_from_claims() -> None:
    bench = bench_of(shareable("a0"))
    written = {
        "request": "req",
        "driver": DRIVER,
        "pool": "a",
        "device": "a0",
        "shareID": "b2a6c2c0-0000-4000-8000-000000000000",
        "consumedCapacity": {"memory": "50Gi"},
    }
    status = {"allocation": {"devices": {"results": [written]}}, "reservedFor": [{"uid": "z"}]}
    bench.claims({**claim("old"), "status": status})

    assert isinstance(ask(bench, "large", share("40Gi")), Unplaced)
    assert isinstance(ask(bench, "small", share("30Gi")), Placed)
    bench.remove(ResourceClaim, "old")
    assert isinstance(bench.place(user_of("large", "large")), Placed)


RANGE = {"default": "4Gi", "validRange": {"min": "4Gi", "max": "20Gi", "step": "4Gi"}}
VALUES = {"default": "4Gi", "validValues": ["4Gi", "16Gi"]}


@pytest.mark.parametrize(
    ("policy", "asked", "taken"),
    [
        pytest.param(None, "3Gi", "3Gi", id="without a policy what was asked for"),
        pytest.param(None, "81Gi", None, id="never more than there is"),
        pytest.param(RANGE, "1Gi", "4Gi", id="at least the least"),
        pytest.param(RANGE, "9Gi", "12Gi", id="rounded up to the next step"),
        pytest.param(RANGE, "12Gi", "12Gi", id="a step as it is"),
        pytest.param(RANGE, "21Gi", None, id="not above the most"),
        pytest.param(RANGE, None, "4Gi", id="the default"),
        pytest.param(VALUES, "5Gi", "16Gi", id="the next value"),
        pytest.param(VALUES, "17Gi", None, id="no value is enough"),
    ],
)
def test_amounts_are_rounded_up_to_what_the_policy_allows(
    policy: Json | None, asked: str | None, taken: str | None
) -> None:
    body = {"value": "80Gi", **({"requestPolicy": policy} if policy else {})}
    terms = {"memory": CapacityTerms.of(from_builtins(body, DeviceCapacity))}

    found = share_of(() if asked is None else (("memory", asked),), terms)
    assert found == (None if taken is None else {"memory": quantity.of(taken)})
