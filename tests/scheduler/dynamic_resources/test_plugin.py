"""Where pods with claims go, what their claims get, and what is said when they go nowhere."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api.dra import ResourceClaim, ResourceSlice
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.clock import FixedClock
from koordinator.scheduler.config import config
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.results import Placed, Unplaced
from koordinator.scheduler.plugins.built_in import installed_plugins
from tests.scheduler.dynamic_resources.bench import Bench
from tests.scheduler.dynamic_resources.builders import (
    DRIVER,
    claim,
    device,
    device_class,
    exactly,
    resource_slice,
    selector,
    user_of,
)

Json = dict[str, Any]
NUMA = {"matchAttribute": f"{DRIVER}/numa"}


def bench_of(*slices: Json, nodes: tuple[str, ...] = ("a", "b"), gates: str = "") -> Bench:
    bench = Bench(gates=gates)
    for name in nodes:
        bench.node(name)
    bench.classes(device_class())
    bench.slices(*slices)
    return bench


def given_to(bench: Bench, name: str) -> list[str]:
    return [each["device"] for each in bench.promised()[name]["devices"]["results"]]


def refusal(result: Placed | Unplaced) -> str:
    assert isinstance(result, Unplaced), result
    return result.status.message


def test_a_node_that_comes_after_its_slice_onto_the_first_row_of_a_table_that_grew_has_its_devices() -> None:
    bench = bench_of(nodes=())
    bench.claims(claim("one"))
    bench.slices(resource_slice("late", device("gpu"), node="late"))
    for number in range(bench.engine.table.capacity):
        bench.node(f"n{number}")

    bench.node("late")

    assert isinstance(placed := bench.place(user_of("x", "one")), Placed)
    assert placed.node_name == "late"


def test_constraints_choose_among_free_devices_and_pods_without_room_for_them_wait() -> None:
    bench = bench_of(
        resource_slice("a", *(device(f"a{n}", numa=n % 2) for n in range(4)), node="a"), nodes=("a",)
    )
    for number in range(3):
        bench.claims(claim(f"pair{number}", exactly(count=2), constraints=[NUMA]))
    bench.claims(claim("one"))

    assert isinstance(bench.place(user_of("x", "one")), Placed)
    assert isinstance(bench.place(user_of("y", "pair0")), Placed)
    assert given_to(bench, "one") == ["a0"]
    assert given_to(bench, "pair0") == ["a1", "a3"]
    assert "1 cannot allocate all claims" in refusal(bench.place(user_of("z", "pair1")))


def test_the_first_of_several_wishes_that_can_be_met_anywhere_on_a_node_counts() -> None:
    bench = bench_of(resource_slice("a", device("small", memory="40Gi"), node="a"), nodes=("a",))
    sub_request = {"deviceClassName": "gpu", "count": 1}
    big = selector(f"device.capacity['{DRIVER}'].memory.isGreaterThan(quantity('60Gi'))")
    bench.claims(
        claim(
            "gpu",
            {
                "name": "gpu",
                "firstAvailable": [
                    {"name": "big", "selectors": big, **sub_request},
                    {"name": "any", **sub_request},
                ],
            },
            config=[
                {"requests": ["gpu/big"], "opaque": {"driver": DRIVER, "parameters": 1}},
                {"requests": ["gpu"], "opaque": {"driver": DRIVER, "parameters": 2}},
            ],
        )
    )

    assert isinstance(bench.place(user_of("x", "gpu")), Placed)
    devices = bench.promised()["gpu"]["devices"]
    assert devices["results"][0]["request"] == "gpu/any"
    assert [each["opaque"]["parameters"] for each in devices["config"]] == [2]


def alternatives(name: str, *models: str) -> Json:
    """A request for a device of the first model that there is."""
    chosen = [selector(f"device.attributes['{DRIVER}'].model == '{model}'") for model in models]
    return {
        "name": name,
        "firstAvailable": [
            {"name": model, "selectors": selectors, "deviceClassName": "gpu", "count": 1}
            for model, selectors in zip(models, chosen, strict=True)
        ],
    }


def test_nodes_that_meet_what_claims_prefer_score_higher() -> None:
    slices = [resource_slice(n, device(f"{n}0", model=m), node=n) for n, m in (("a", "t4"), ("b", "h100"))]
    bench = bench_of(*slices)
    bench.node("b", labels={"busy": "yes"})
    assert isinstance(bench.place(user_of("load", cpu="1", nodeSelector={"busy": "yes"})), Placed)
    bench.claims(
        claim("gpu", alternatives("gpu", "h100", "t4")), claim("rest", alternatives("gpu", "h100", "t4"))
    )

    first = bench.place(user_of("x", "gpu", cpu="10m"))
    second = bench.place(user_of("y", "rest", cpu="10m"))
    assert isinstance(first, Placed) and isinstance(second, Placed)
    assert (first.node_name, second.node_name) == ("b", "a"), "though node a is emptier"


def test_scores_are_those_of_the_alternatives_that_each_request_gets() -> None:
    slices = [
        resource_slice(n, *(device(f"{n}{m}", model=m) for m in ms), node=n) for n, ms in MODELS.items()
    ]
    bench = bench_of(*slices, nodes=tuple(MODELS))
    bench.claims(claim("gpus", alternatives("x", "h100", "a100", "t4"), alternatives("y", "a100", "t4")))

    placed = bench.place(user_of("x", "gpus"))
    assert isinstance(placed, Placed) and placed.node_name == "both"
    bench.forget(placed)
    rows = np.array([0, 1, 2])
    [share] = [each for each in placed.evaluation.score_shares(rows) if each.plugin == "DynamicResources"]
    assert share.raw.tolist() == [8 + 8, 7 + 7, 8 + 7]
    assert share.normalised.tolist() == [100, 87, 93]
    assert share.weight == 2
    bench.claims(claim("one"))
    plain = bench.place(user_of("y", "one"))
    assert isinstance(plain, Placed)
    assert not [each for each in plain.evaluation.score_shares(rows) if each.plugin == "DynamicResources"]


MODELS = {"both": ("h100", "a100"), "second": ("a100", "t4"), "mixed": ("h100", "t4")}


def test_nodes_that_take_too_long_to_search_leave_the_others_time_enough() -> None:
    def hard(node: str, number: int) -> list[Json]:
        """Devices of which no three have the same value, and many more could."""
        return [device(f"{node}{n}", numa=n // 2, other=n, salt=number) for n in range(24)]

    bench = Bench(filterTimeout="20ms")
    bench.classes(device_class())
    names = [f"hard{number}" for number in range(6)]
    for number, name in enumerate(names):
        bench.node(name)
        bench.slices(resource_slice(name, *hard(name, number), node=name))
    all_different = {"distinctAttribute": f"{DRIVER}/numa"}
    bench.claims(claim("c", exactly(count=13), constraints=[all_different]))

    message = refusal(bench.place(user_of("x", "c")))
    assert "6 timed out trying to allocate devices" in message
    bench.node("easy")
    bench.slices(resource_slice("easy", *(device(f"e{n}", numa=n) for n in range(13)), node="easy"))
    placed = bench.place(user_of("x", "c"))
    assert isinstance(placed, Placed) and placed.node_name == "easy"


def test_all_devices_of_a_node_are_given_only_where_all_are_free() -> None:
    bench = bench_of(*(resource_slice(n, device(f"{n}0"), device(f"{n}1"), node=n) for n in "ab"))
    bench.claims(claim("one"), *(claim(f"all{n}", exactly(allocationMode="All")) for n in range(2)))

    first = bench.place(user_of("x", "one"))
    second = bench.place(user_of("y", "all0"))
    assert isinstance(first, Placed) and isinstance(second, Placed)
    assert first.node_name != second.node_name
    assert len(given_to(bench, "all0")) == 2
    assert "2 cannot allocate all claims" in refusal(bench.place(user_of("z", "all1")))


def test_administrators_get_devices_that_others_use_and_take_nothing_away() -> None:
    bench = bench_of(resource_slice("a", device("a0"), node="a"), nodes=("a",))
    bench.claims(claim("user"), claim("admin", exactly(adminAccess=True)), claim("late"))

    assert isinstance(bench.place(user_of("x", "admin")), Placed)
    assert isinstance(bench.place(user_of("y", "user")), Placed)
    assert bench.promised()["admin"]["devices"]["results"][0]["adminAccess"] is True
    assert given_to(bench, "user") == ["a0"]
    assert "cannot allocate all claims" in refusal(bench.place(user_of("z", "late")))


def test_tainted_devices_go_to_those_who_tolerate_the_taint() -> None:
    taint = {"key": "broken", "value": "yes", "effect": "NoSchedule"}
    tainted = resource_slice("a", device("a0", taints=[taint]), node="a")
    bench = bench_of(tainted, nodes=("a",), gates="DRADeviceTaints=true")
    tolerant = exactly(tolerations=[{"key": "broken", "operator": "Exists"}])
    bench.claims(claim("plain"), claim("tolerant", tolerant))

    assert "cannot allocate all claims" in refusal(bench.place(user_of("x", "plain")))
    assert isinstance(bench.place(user_of("y", "tolerant")), Placed)
    assert bench.promised()["tolerant"]["devices"]["results"][0]["tolerations"][0]["key"] == "broken"

    without = bench_of(tainted, nodes=("a",))
    without.claims(claim("plain"))
    assert isinstance(without.place(user_of("x", "plain")), Placed)


def test_only_slices_of_the_newest_generation_count() -> None:
    bench = bench_of(
        resource_slice("old", device("gone"), node="a", generation=1),
        resource_slice("new", device("here"), node="a", generation=2, count=2),
        nodes=("a",),
    )
    bench.claims(claim("one"), claim("all", exactly(allocationMode="All")), claim("rest"))

    assert "cannot allocate" in refusal(bench.place(user_of("w", "one")))
    assert "is currently being updated" in refusal(bench.place(user_of("x", "all")))

    bench.slices(resource_slice("other", device("more"), node="a", generation=2, count=2))
    bench.remove(ResourceSlice, "old")
    assert isinstance(bench.place(user_of("y", "one")), Placed)
    assert given_to(bench, "one") == ["here"]
    assert isinstance(bench.place(user_of("z", "rest")), Placed)
    assert given_to(bench, "rest") == ["more"]


def test_pools_with_two_devices_of_one_name_are_not_used() -> None:
    bench = bench_of(
        resource_slice("s1", device("a0"), node="a", count=2),
        resource_slice("s2", device("a0"), node="a", count=2),
        nodes=("a",),
    )
    bench.claims(claim("one"))

    assert "1 invalid resource pools were encountered" in refusal(bench.place(user_of("x", "one")))


def test_a_selector_that_fails_on_a_device_passes_it_over_and_others_are_found() -> None:
    bench = bench_of(
        resource_slice("a", device("a0"), node="a"), resource_slice("b", device("b0", model="x"), node="b")
    )
    asks = selector(f"device.attributes['{DRIVER}'].model == 'x'")
    bench.claims(claim("one", exactly(selectors=asks)))

    placed = bench.place(user_of("x", "one"))
    assert isinstance(placed, Placed) and placed.node_name == "b"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (claim("c", exactly(device_class_name="none")), "request req: device class none does not exist"),
        (claim("c", {"name": "req"}), "claim default/c, request req: unknown request type"),
        (claim("c", exactly(selectors=selector("device."))), "claim default/c: selector #0: CEL compile error"),
        (claim("c", exactly(allocationMode="Some")), "claim default/c, request req: unsupported count mode Some"),
        (claim("c", exactly(count=33)), "claim default/c: number of requested devices 33 exceeds the claim limit"),
        (claim("c", exactly(), constraints=[{"requests": ["req"]}]), "claim default/c, constraint #0: empty"),
        (claim("c", exactly(capacity={"requests": {"memory": "1Gi"}})),
         "claim default/c, request req: has capacity requests, but the DRAConsumableCapacity feature is disabled"),
        ({**claim("c"), "status": {"allocation": {}, "reservedFor": [{"uid": f"{n}"} for n in range(256)]}},
         "resourceclaim in use"),
    ],
)  # fmt: skip
def test_what_cannot_be_given_anywhere_is_said_for_the_pod_as_a_whole(body: Json, text: str) -> None:
    bench = bench_of(resource_slice("a", device("a0"), node="a"))
    bench.claims(body)

    message = refusal(bench.place(user_of("x", "c")))
    assert message.startswith(f"0/2 nodes are available: {text}")


def test_pods_without_claims_are_told_that_there_is_nothing_to_deallocate() -> None:
    bench = bench_of(nodes=("a",))
    message = refusal(bench.place(user_of("x", cpu="100")))
    assert message.startswith(
        "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption:"
    )


def test_a_claim_on_its_way_is_waited_for_and_free_again_when_its_pod_fails() -> None:
    bench = bench_of(resource_slice("a", device("a0"), node="a"), nodes=("a",))
    bench.claims(claim("one"))
    placed = bench.place(user_of("x", "one"))
    assert isinstance(placed, Placed)

    waiting = "resource claim default/one is in the process of being allocated"
    assert waiting in refusal(bench.place(user_of("y", "one")))
    bench.forget(placed)
    assert isinstance(bench.place(user_of("y", "one")), Placed)


def test_clusters_without_claims_are_not_asked_for_them_when_the_gate_says_so() -> None:
    def watched(gates: str) -> bool:
        chosen = FeatureGates.of(Component.SCHEDULER, gates)
        engine = Engine(config.decode({}), FixedClock(0.0), gates=chosen, plugins=installed_plugins())
        return any(watch.view is ResourceClaim for handle in engine.handles for watch in handle.watches)

    assert watched("")
    assert not watched("DisableDynamicResourceAllocationInformer=true")


steps = st.lists(
    st.tuples(st.sampled_from(["place", "place", "place", "end", "slice", "node"]), st.integers(0, 1_000)),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(steps, st.integers(0, 3))
def test_no_device_is_given_twice_and_books_made_anew_from_the_objects_are_the_same(
    events: list[tuple[str, int]], seed: int
) -> None:
    bench, placed = Bench(seed), {}
    bench.classes(device_class())
    for name in "abc":
        bench.node(name)
        bench.slices(resource_slice(name, *(device(f"{name}{n}", numa=n % 2) for n in range(4)), node=name))
    bench.slices(resource_slice("shared", device("s0", numa=0), device("s1", numa=1)))
    for number, (what, choice) in enumerate(events):
        if what == "place":
            asks = exactly(count=1 + choice % 3)
            name = f"c{number}"
            bench.claims(claim(name, asks, constraints=[NUMA] if choice % 2 else ()))
            result = bench.place(user_of(f"p{number}", name))
            if isinstance(result, Placed):
                placed[name] = (result, asks["exactly"]["count"], choice % 2)
                if choice % 5:
                    bench.write(name, f"p{number}")
            else:
                bench.remove(ResourceClaim, name)
        elif what == "end" and placed:
            name = sorted(placed)[choice % len(placed)]
            result, _, _ = placed.pop(name)
            bench.forget(result)
            bench.remove(ResourceClaim, name)
        elif what == "slice":
            name = "abc"[choice % 3]
            devices = (device(f"{name}{n}", numa=n % 2) for n in range(2 + choice % 4))
            bench.slices(resource_slice(name, *devices, node=name, generation=number + 2))
        elif what == "node":
            bench.node("abc"[choice % 3], labels={"x": str(choice)})
        check(bench, placed)
    again = Bench(seed)
    again.classes(device_class())
    for (view, _), found in bench.objects.items():
        again.deliver(view, None, found)
    again.books.inventory.take([use for each in bench.books.promises for use in each.devices], 1)
    assert again.books.inventory.used_keys == bench.books.inventory.used_keys


def check(bench: Bench, placed: dict[str, tuple[Placed, int, int]]) -> None:
    given = bench.promised()
    for (view, name), found in bench.objects.items():
        if view is ResourceClaim and found.status.allocation is not None:
            devices = [{"device": each.device} for each in found.status.allocation.devices.results]
            given[name] = {"devices": {"results": devices}}
    assert given.keys() == placed.keys()
    every = [each["device"] for allocation in given.values() for each in allocation["devices"]["results"]]
    assert len(every) == len(set(every))
    for name, (result, count, is_bound_to_numa) in placed.items():
        names = [each["device"] for each in given[name]["devices"]["results"]]
        assert len(names) == count
        assert all(each[0] in (result.node_name, "s") for each in names)
        if is_bound_to_numa:
            assert len({int(each[1:]) % 2 for each in names}) == 1
    used = {key[2] for key in bench.books.inventory.used_keys}
    assert used == set(every)


@pytest.mark.parametrize(
    ("written", "is_doubtful", "is_kept"),
    [(0, False, False), (7, False, True), (0, True, True), (7, True, True)],
)
def test_only_a_promise_that_surely_was_not_written_is_taken_back(
    written: int, is_doubtful: bool, is_kept: bool
) -> None:
    bench = Bench()
    bench.node("a")
    bench.classes(device_class())
    bench.slices(resource_slice("a", device("a0"), node="a"))
    bench.claims(claim("c", exactly()))
    bench.place(user_of("p", "c"))
    [promise] = bench.books.promises
    promise.written_version, promise.is_doubtful = written, is_doubtful
    for _ in range(2):
        bench.books.withdraw(promise)
        assert (list(bench.books.promises) == [promise]) is is_kept
        assert bool(bench.books.inventory.used_keys) is is_kept
