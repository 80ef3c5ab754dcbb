"""The bookkeeping of quota trees."""

import random
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api import resource_list
from koordinator.api.quantity import NANO, ZERO, Quantity
from koordinator.scheduler.plugins.elastic_quota.quota import (
    DEFAULT,
    ROOT,
    SYSTEM,
    Nanos,
    QuotaPodRequest,
    QuotaSpec,
    Sums,
    change_of,
    count_pod,
    nanos_of,
)
from koordinator.scheduler.plugins.elastic_quota.tree import GroupQuotaTree

LEAVES = ("a", "b", "c", "d")
PARENTS = {"p": ROOT, "r": ROOT, "a": "p", "b": "p", "c": "r", "d": ROOT}


def cpu(cores: int) -> dict[str, Quantity]:
    return resource_list.of({"cpu": cores})


def spec(name: str, *, low: int = 0, high: int = 100, parent: str = ROOT, lends: bool = True) -> QuotaSpec:
    return QuotaSpec(
        name=name, parent=parent, lends=lends, min=cpu(low), max=cpu(high), weight=cpu(high),
        is_parent=name in ("p", "r"),
    )  # fmt: skip


def pod(key: str, cores: int, *, is_on_node: bool = False) -> QuotaPodRequest:
    return QuotaPodRequest(key=key, request=cpu(cores), is_on_node=is_on_node)


def tree(total: int = 100, *, scales_min: bool = True) -> GroupQuotaTree:
    made = GroupQuotaTree(reserved={SYSTEM: cpu(10**15), DEFAULT: cpu(10**15)}, scales_min=scales_min)
    made.total = cpu(total)
    return made


def runtime(of: GroupQuotaTree, name: str) -> int:
    return of.refresh(name).get("cpu", ZERO).value


def total_of(lists: Iterable[Nanos]) -> Nanos:
    total: Nanos = {}
    for amounts in lists:
        for name, number in amounts.items():
            total[name] = total.get(name, 0) + number
    return without_zeros(total)


def without_zeros(amounts: Nanos) -> Nanos:
    return {name: number for name, number in amounts.items() if number}


def play(made: GroupQuotaTree, rng: random.Random, steps: int) -> None:
    """Random events; pods keep the name of their quota so that they can be found again."""
    for _ in range(steps):
        name, key = rng.choice(LEAVES), f"x{rng.randrange(6)}"
        match rng.randrange(6):
            case 0 | 1:
                made.add_pod(name, pod(key, rng.randrange(30), is_on_node=rng.random() < 0.5))
            case 2:
                made.update_pod(name, pod(key, rng.randrange(30), is_on_node=rng.random() < 0.5))
            case 3:
                made.remove_pod(name, key)
            case 4:
                (made.reserve if rng.random() < 0.5 else made.unreserve)(name, key)
            case _:
                limits = {"low": rng.randrange(20), "high": 20 + rng.randrange(60)}
                parent = rng.choice(("p", "r", ROOT))
                made.set_quota(spec(name, parent=parent, lends=rng.random() < 0.7, **limits))


def grown(seed: int, *, scales_min: bool = True) -> GroupQuotaTree:
    rng = random.Random(seed)
    made = tree(rng.randrange(200), scales_min=scales_min)
    names = list(PARENTS)
    rng.shuffle(names)  # children may come before their parents
    for name in names:
        made.set_quota(spec(name, low=rng.randrange(20), parent=PARENTS[name]))
    play(made, rng, 60)
    return made


@settings(deadline=None)
@given(seed=st.integers(0, 2**32))
def test_sums_are_those_of_the_pods_whatever_happened(seed: int) -> None:
    made = grown(seed)

    for name in made.names():
        quota = made.get(name)
        assert quota is not None
        inside = [each for each in made.names() if name in made.path(each)]
        counted = [p for each in inside for p in made.get(each).pods.values()]  # type: ignore[union-attr]
        used = total_of(p.amounts for p in counted if p.is_assigned)
        assert without_zeros(quota.below.used) == used
        children = [made.get(each) for each in made.names() if made.path(each)[1:2] == [name]]
        asked = [each.limited_request for each in children if each is not None]
        own = [p.amounts for p in quota.pods.values()]
        assert without_zeros(quota.below.request) == total_of([*asked, *own])


def test_a_pod_that_is_told_again_keeps_what_it_uses() -> None:
    made = tree()
    made.set_quota(spec("a"))

    def used() -> int:
        quota = made.get("a")
        assert quota is not None
        return quota.below.used.get("cpu", 0) // NANO

    made.add_pod("a", pod("x", 3))
    assert made.reserve("a", "x")
    made.add_pod("a", pod("x", 3))
    assert used() == 3, "an informer tells all pods again after a break"
    made.update_pod("a", pod("x", 5))
    assert used() == 5
    made.update_pod("b", pod("x", 5), was_in="a")
    assert used() == 0
    made.add_pod("nobody", pod("y", 1))
    assert not made.reserve("nobody", "y")


@settings(deadline=None)
@given(seed=st.integers(0, 2**32))
def test_runtime_of_children_never_exceeds_the_parent_when_minima_are_scaled(seed: int) -> None:
    made = grown(seed)

    for _ in range(3):  # scaled minima of siblings take a pass to settle
        for name in made.names():
            made.refresh(name)

    for parent in (ROOT, "p", "r"):
        children = [each for each in made.names() if made.path(each)[1:2] == [parent]]
        shares = [made.get(each) for each in children if each not in (SYSTEM, DEFAULT)]
        given_out = sum(runtime(made, each.spec.name) for each in shares if each is not None)
        ceiling = runtime(made, parent)
        assert given_out <= max(ceiling, 0) + len(shares)


@settings(deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_minimum_is_guaranteed_where_minima_fit(seed: int) -> None:
    rng = random.Random(seed)
    made = tree(100)
    lows = [rng.randrange(25) for _ in LEAVES]
    for name, low in zip(LEAVES, lows, strict=True):
        made.set_quota(spec(name, low=low))
        made.add_pod(name, pod("x", rng.randrange(120)))

    for name, low in zip(LEAVES, lows, strict=True):
        quota = made.get(name)
        assert quota is not None
        asked = quota.request["cpu"] // NANO
        assert runtime(made, name) >= min(low, asked)


@settings(deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_tree_is_empty_again_when_everything_has_left(seed: int) -> None:
    made = grown(seed)

    for name in LEAVES:
        for number in range(6):
            made.remove_pod(name, f"x{number}")
    for name in PARENTS:
        made.remove_quota(name)

    root = made.get(ROOT)
    assert root is not None
    assert not any(root.below.used.values())
    assert not any(root.below.request.values())


def test_reserving_twice_counts_once_and_undoing_twice_undoes_once() -> None:
    made = tree()
    made.set_quota(spec("a"))
    made.add_pod("a", pod("x", 3))

    made.reserve("a", "x")
    made.reserve("a", "x")
    quota = made.get("a")
    assert quota is not None
    assert quota.below.used == nanos_of(cpu(3))

    made.unreserve("a", "x")
    made.unreserve("a", "x")
    assert quota.below.used == nanos_of(cpu(0))


def test_deleting_a_quota_that_asked_above_its_max_leaves_the_demand_of_its_siblings() -> None:
    made = tree()
    made.set_quota(spec("p"))
    for name in ("a", "b"):
        made.set_quota(spec(name, parent="p", high=10))
        made.add_pod(name, pod("x", 50))

    made.remove_quota("b")

    parent = made.get("p")
    assert parent is not None
    assert parent.below.request == nanos_of(cpu(10))


def test_quotas_that_are_each_others_parents_hang_nothing() -> None:
    made = tree()
    made.set_quota(spec("a", parent="b"))
    made.set_quota(spec("b", parent="a"))

    made.add_pod("a", pod("x", 3))

    assert made.refresh("a") == {}


@pytest.mark.parametrize("name", [SYSTEM, DEFAULT])
def test_what_a_reserved_quota_uses_leaves_the_pool(name: str) -> None:
    made = tree(100)
    made.set_quota(spec("a"))
    made.add_pod("a", pod("x", 500))

    made.add_pod(name, pod("s", 30, is_on_node=True))

    assert runtime(made, "a") == 70


@settings(deadline=None)
@given(seed=st.integers(0, 2**32))
def test_runtimes_after_any_history_are_those_of_a_tree_built_anew(seed: int) -> None:
    made = grown(seed, scales_min=False)
    anew = tree(scales_min=False)
    anew.total = made.total
    for name in made.names():
        quota = made.get(name)
        assert quota is not None
        anew.set_quota(quota.spec)
        for key, known in quota.pods.items():
            request = {"cpu": Quantity(known.request.get("cpu", 0))}
            anew.add_pod(name, QuotaPodRequest(key=key, request=request, is_on_node=known.is_assigned))

    for name in made.names():
        assert made.refresh(name) == anew.refresh(name)


def test_pods_are_counted_anew_when_their_quota_comes_to_count_other_resources() -> None:
    made = tree()
    made.set_quota(spec("p"))
    made.set_quota(spec("a", parent="p"))
    request = resource_list.of({"cpu": 3, "memory": 5})
    made.add_pod("a", QuotaPodRequest(key="x", request=request, is_on_node=True))
    both = resource_list.of({"cpu": 100, "memory": 100})

    made.set_quota(QuotaSpec(name="a", parent="p", max=both, weight=both))

    parent = made.get("p")
    assert parent is not None
    assert parent.below.used == nanos_of(request)
    made.remove_pod("a", "x")
    assert not any(parent.below.used.values())


def test_only_the_path_and_its_siblings_are_computed_again() -> None:
    made = tree(1000)
    for parent in ("p", "r"):
        made.set_quota(spec(parent, high=1000))
        for number in range(3):
            made.set_quota(spec(f"{parent}{number}", parent=parent, high=1000))
            made.add_pod(f"{parent}{number}", pod("x", 10))
    for name in ("p0", "r0"):
        made.refresh(name)
    other = made.get("r0")
    assert other is not None
    before = other.runtime_version

    made.add_pod("p0", pod("y", 5))
    made.refresh("p0")

    assert other.runtime_version == before
    assert runtime(made, "p0") == 15


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_guarantees_after_any_history_are_those_of_a_tree_built_anew(seed: int) -> None:
    rng = random.Random(seed)
    made, anew = (GroupQuotaTree(keeps_guarantee=True) for _ in range(2))
    for each in (made, anew):
        each.total = cpu(150)
    names = list(PARENTS)
    rng.shuffle(names)
    for name in names:
        made.set_quota(spec(name, low=rng.randrange(20), parent=PARENTS[name]))
    for _ in range(4):
        play(made, rng, 15)
        gone = rng.choice(LEAVES)
        made.remove_quota(gone)
        play(made, rng, 5)
    for name in names:
        if (quota := made.get(name)) is not None:
            anew.set_quota(quota.spec)
            for key, known in quota.pods.items():
                request = {"cpu": Quantity(known.request.get("cpu", 0))}
                anew.add_pod(name, QuotaPodRequest(key=key, request=request, is_on_node=known.is_assigned))

    for name in made.names():
        quota, other = made.get(name), anew.get(name)
        assert quota is not None and other is not None
        assert without_zeros(quota.allocated) == without_zeros(other.allocated), name
        assert without_zeros(quota.guaranteed) == without_zeros(other.guaranteed), name
        assert made.refresh(name) == anew.refresh(name)


@pytest.mark.parametrize("keeps_guarantee", [False, True])
def test_own_pods_of_a_parent_leave_less_to_its_children(keeps_guarantee: bool) -> None:
    made = GroupQuotaTree(reserved={}, scales_min=True, keeps_guarantee=keeps_guarantee)
    made.total = cpu(100)
    made.set_quota(spec("p", low=50))
    for name, cores in (("a", 40), ("b", 60)):
        made.set_quota(spec(name, low=10, parent="p"))
        made.add_pod(name, pod(f"{name}1", cores))
    made.add_pod("p", pod("p1", 30))
    assert (runtime(made, "a"), runtime(made, "b")) == (40, 60)

    made.reserve("p", "p1")

    assert (runtime(made, "a"), runtime(made, "b")) == (35, 35)


@given(
    st.tuples(st.booleans(), st.booleans()),
    st.tuples(st.booleans(), st.booleans()),
    st.integers(0, 4),
    st.integers(0, 4),
)
def test_what_a_pods_change_adds_leads_from_its_old_sums_to_its_new_ones(
    old: tuple[bool, bool], new: tuple[bool, bool], old_cores: int, new_cores: int
) -> None:
    before, after = count_pod({"cpu": old_cores}, {"cpu"}, *old), count_pod({"cpu": new_cores}, {"cpu"}, *new)
    if old_cores == new_cores:  # an update that changes no request shares it
        after = msgspec.structs.replace(after, amounts=before.amounts, request=before.request)

    def sums_of(*changes: Sums) -> list[Nanos]:
        total = Sums()
        for each in changes:
            total.add(each)
        return [{name: amount for name, amount in amounts.items() if amount} for amounts in total.lists]

    came, changed, left = change_of(None, before), change_of(before, after), change_of(after, None)
    assert sums_of(came.copy(), changed) == sums_of(change_of(None, after).copy())
    assert sums_of(came.copy(), changed, left) == sums_of()
