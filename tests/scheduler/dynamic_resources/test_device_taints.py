"""Which taints of devices a request bears."""

from typing import Any

import pytest

from koordinator.api.dra import DeviceTaint, DeviceTaintRule
from koordinator.scheduler.engine.results import Placed
from koordinator.scheduler.plugins.dynamic_resources.slice_devices import tolerates
from tests.scheduler.dynamic_resources.bench import Bench
from tests.scheduler.dynamic_resources.builders import (
    DRIVER,
    claim,
    device,
    device_class,
    exactly,
    resource_slice,
    user_of,
)

Json = dict[str, Any]


@pytest.mark.parametrize(
    ("toleration", "is_borne"),
    [
        (("k", "Equal", "v", "NoSchedule"), True),
        (("k", "Equal", "v", ""), True),
        (("k", "Equal", "v", "NoExecute"), False),
        (("k", "Equal", "w", ""), False),
        (("l", "Equal", "v", ""), False),
        (("", "Equal", "v", ""), False),
        (("k", "Exists", "", ""), True),
        (("l", "Exists", "", ""), False),
        (("", "Exists", "", ""), True),
        (("", "Exists", "", "NoExecute"), False),
    ],
)
def test_a_taint_is_borne_by_key_value_and_effect(
    toleration: tuple[str, str, str, str], is_borne: bool
) -> None:
    taint = DeviceTaint(key="k", value="v", effect="NoSchedule")
    assert tolerates([toleration], taint) is is_borne
    assert tolerates([("other", "Exists", "", ""), toleration], taint) is is_borne
    assert tolerates([], taint) is False
    assert tolerates([], DeviceTaint(key="k", value="v", effect="None")) is True


TAINTED = {"key": "example.com/broken", "effect": "NoSchedule"}
ON = "DRADeviceTaints=true,DRADeviceTaintRules=true"


def rule(name: str, **selected: str) -> Json:
    spec = {"taint": TAINTED, **({"deviceSelector": selected} if selected else {})}
    return {"metadata": {"name": name}, "spec": spec}


def bench_of(gates: str = ON) -> Bench:
    bench = Bench(gates=gates)
    bench.classes(device_class())
    for name in "ab":
        bench.node(name)
        bench.slices(resource_slice(name, device("x"), device("y"), node=name))
    return bench


def free(bench: Bench) -> set[tuple[str, str]]:
    """(pool, device) of all devices that a claim can get now."""
    found: set[tuple[str, str]] = set()
    placed = []
    while True:
        bench.claims(claim(f"probe{len(found)}"))
        result = bench.place(user_of(f"probe{len(found)}", f"probe{len(found)}", cpu="10m"))
        if not isinstance(result, Placed):
            break
        [given] = bench.promised()[f"probe{len(found)}"]["devices"]["results"]
        found.add((given["pool"], given["device"]))
        placed.append(result)
    for each in placed:
        bench.forget(each)
    return found


EVERY = {("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")}


@pytest.mark.parametrize(
    ("selected", "left"),
    [
        pytest.param({}, set(), id="all devices"),
        pytest.param({"driver": DRIVER, "pool": "a"}, {("b", "x"), ("b", "y")}, id="a pool"),
        pytest.param({"device": "x"}, {("a", "y"), ("b", "y")}, id="a name in every pool"),
        pytest.param({"pool": "b", "device": "y"}, EVERY - {("b", "y")}, id="one device"),
        pytest.param({"driver": "other.example.com"}, EVERY, id="another driver"),
    ],
)
def test_a_rule_taints_the_devices_that_it_selects_until_it_goes(
    selected: dict[str, str], left: set[tuple[str, str]]
) -> None:
    bench = bench_of()
    bench.put(DeviceTaintRule, rule("r", **selected))
    assert free(bench) == left
    bench.remove(DeviceTaintRule, "r")
    assert free(bench) == EVERY


def test_a_rule_that_changes_taints_other_devices_and_slices_that_come_later() -> None:
    bench = bench_of()
    bench.put(DeviceTaintRule, rule("r", pool="a"))
    bench.put(DeviceTaintRule, rule("r", pool="b"))
    assert free(bench) == {("a", "x"), ("a", "y")}
    bench.slices(resource_slice("b", device("x"), device("z"), node="b", generation=2))
    assert free(bench) == {("a", "x"), ("a", "y")}
    tolerant = exactly(tolerations=[{"key": TAINTED["key"], "operator": "Exists"}], count=2)
    bench.node("b", labels={"only": "b"})
    bench.claims(claim("c", tolerant))
    assert isinstance(bench.place(user_of("p", "c", nodeSelector={"only": "b"})), Placed)


def test_rules_are_read_only_where_both_gates_are_on() -> None:
    def reads(gates: str) -> bool:
        handles = bench_of(gates).engine.handles
        return any(watch.view is DeviceTaintRule for handle in handles for watch in handle.watches)

    assert reads(ON)
    assert not reads("DRADeviceTaintRules=true") and not reads("DRADeviceTaints=true")
