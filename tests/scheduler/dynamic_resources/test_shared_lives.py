"""Over random lives no counter and no capacity is given away twice, and books made anew from the objects are equal."""

from collections import Counter
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api import quantity
from koordinator.api.decode import from_builtins
from koordinator.api.dra import AllocationResult, ResourceClaim, ResourceSlice
from koordinator.api.meta import Object
from koordinator.scheduler.engine.results import Placed
from koordinator.scheduler.plugins.dynamic_resources.shared_counters import Codes
from tests.scheduler.dynamic_resources.bench import Bench
from tests.scheduler.dynamic_resources.builders import (
    claim,
    device_class,
    exactly,
    of_size,
    partitioned,
    share,
    shareable,
    takes,
    user_of,
)

GATES = "DRAPartitionableDevices=true,DRAConsumableCapacity=true"
RANGE = {"default": "8Gi", "validRange": {"min": "8Gi", "step": "8Gi"}}


def overdrawn(slices: Iterable[ResourceSlice], given: Iterable[AllocationResult]) -> list[str]:
    """Return counters and capacities of which more is given away than there is, and devices given twice."""
    totals: Counter[tuple[str, ...]] = Counter()
    used: Counter[tuple[str, ...]] = Counter()
    devices = {}
    for each in slices:
        pool = each.spec.pool.name
        for of_set in each.spec.shared_counters:
            for name, amount in of_set.counters.items():
                totals[pool, of_set.name, name] = quantity.of(amount.value).nanos
        devices.update({(pool, device.name): device for device in each.spec.devices})
    users: Counter[tuple[str, str]] = Counter()
    for allocation in given:
        for result in allocation.devices.results:
            key = (result.pool, result.device)
            totals[key] = 1
            used[key] += result.share_id is None
            for name, raw in result.consumed_capacity.items():
                totals[(*key, name)] = quantity.of(devices[key].capacity[name].value).nanos
                used[(*key, name)] += quantity.of(raw).nanos
            users[key] += 1
            if users[key] == 1:
                for of_device in devices[key].consumes_counters:
                    for name, amount in of_device.counters.items():
                        used[result.pool, of_device.counter_set, name] += quantity.of(amount.value).nanos
    return [f"{key}: {amount} of {totals[key]}" for key, amount in used.items() if amount > totals[key]]


def slices_of(name: str) -> list[dict[str, object]]:
    [counters, devices] = partitioned(name, gpus=2)
    both = {**shareable(f"{name}-shared", RANGE), "consumesCounters": [takes("gpu-1", memory="2Gi")]}
    devices["spec"]["devices"] += [both, shareable(f"{name}-plain")]
    return [counters, devices]


def request(choice: int) -> dict[str, object]:
    if choice % 3 == 0:
        return exactly(count=1 + choice % 2, selectors=of_size((1, 2, 4)[choice % 7 % 3]))
    if choice % 3 == 1:
        return share(f"{choice % 50}Gi", count=1 + choice % 2)
    return exactly(allocationMode="All") if choice % 11 == 0 else exactly()


steps = st.lists(
    st.tuples(st.sampled_from(["place", "place", "place", "end", "slice"]), st.integers(0, 1_000)),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(steps, st.integers(0, 3))
def test_counters_and_capacities_are_never_overdrawn_and_books_made_anew_are_the_same(
    events: list[tuple[str, int]], seed: int
) -> None:
    bench, placed = Bench(seed, GATES), {}
    bench.classes(device_class())
    for name in "ab":
        bench.node(name, cpu="100")
        bench.slices(*slices_of(name))
    for number, (what, choice) in enumerate(events):
        if what == "place":
            name = f"c{number}"
            bench.claims(claim(name, request(choice)))
            result = bench.place(user_of(f"p{number}", name, cpu="10m"))
            if isinstance(result, Placed):
                placed[name] = result
                if choice % 5:
                    bench.write(name, f"p{number}")
            else:
                bench.remove(ResourceClaim, name)
        elif what == "end" and placed:
            name = sorted(placed)[choice % len(placed)]
            bench.forget(placed.pop(name))
            bench.remove(ResourceClaim, name)
        elif what == "slice":
            bench.slices(slices_of("ab"[choice % 2])[choice // 2 % 2])
        check(bench)
    if events:
        compare_with_a_restart(bench, seed)


def allocations(bench: Bench) -> list[AllocationResult]:
    """Of claims as they are, and as they are promised."""
    found = [from_builtins(each, AllocationResult) for each in bench.promised().values()]
    claims = [each for (view, _), each in bench.objects.items() if view is ResourceClaim]
    return found + [each.status.allocation for each in claims if each.status.allocation is not None]


def check(bench: Bench) -> None:
    slices = [each for (view, _), each in bench.objects.items() if view is ResourceSlice]
    assert overdrawn(slices, allocations(bench)) == []


def compare_with_a_restart(bench: Bench, seed: int) -> None:
    again = Bench(seed, GATES)
    again.classes(device_class())
    kinds: dict[type[Object], None] = {ResourceClaim: None, ResourceSlice: None}
    for wanted in kinds:  # claims before the slices that they are about
        for (view, _), found in bench.objects.items():
            if view is wanted:
                again.deliver(view, None, found)
    again.books.inventory.take([use for each in bench.books.promises for use in each.devices], 1)
    before, after = bench.books.inventory, again.books.inventory
    before.refresh()
    after.refresh()
    for name in ("used_keys", "shares", "consumed"):
        assert getattr(after, name) == getattr(before, name)
    for key, number in before.number_of.items():
        pool, other = before.counters.pool_of(number), after.counters.pool_of(after.number_of[key])
        if pool is None:
            assert other is None, key
            continue
        assert other is not None and other.left == pool.left, key
        assert min(pool.left) >= 0, key


@given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 30))), max_size=80))
def test_slots_have_equal_numbers_exactly_when_their_keys_are_equal(
    changes: list[tuple[int, int | None]],
) -> None:
    codes, keys = Codes(keys_max=4), dict[int, int | None]()
    for slot, key in changes:
        codes.set(slot, key)
        keys[slot] = key
        column = codes.column(6).tolist()
        assert [number == 0 for number in column] == [keys.get(each) is None for each in range(6)]
        for one in range(6):
            for other in range(one):
                assert (column[one] == column[other]) == (keys.get(one) == keys.get(other))
