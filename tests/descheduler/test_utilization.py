"""LowNodeUtilization and HighNodeUtilization against their plain definition, and the arguments that they refuse."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.errors import ProtocolError
from koordinator.descheduler import node_fit
from koordinator.descheduler.node_fit import NodeFree
from koordinator.descheduler.plugins.stock import utilization
from koordinator.descheduler.plugins.stock.utilization import (
    HighNodeUtilizationArgs,
    LowNodeUtilizationArgs,
)
from tests.descheduler.builders import node, pod
from tests.vectors.adapters.descheduler_plugins import drive

Json = dict[str, Any]
GIB = 2**30
TAINT = {"key": "k", "effect": "NoSchedule"}


class Work(msgspec.Struct, frozen=True):
    """A pod: its cores and GiB, its priority, whether it bears the taint, whether its eviction is refused."""

    cpu: int = 1
    memory: int = 0
    priority: int = 0
    tolerates: bool = False
    is_refused: bool = False

    def rank(self) -> tuple[int, bool]:
        """Lower goes first: of equal priority those without requests."""
        return self.priority, bool(self.cpu or self.memory)


class Machine(msgspec.Struct, frozen=True):
    """A node of so many cores, 10 GiB and room for 10 pods."""

    work: list[Work]
    cpu: int = 10
    is_cordoned: bool = False
    is_tainted: bool = False

    def has(self) -> dict[str, int]:
        return {"cpu": self.cpu * 1000, "memory": 10 * GIB * 1000, "pods": 10_000}

    def uses(self) -> dict[str, int]:
        return total(need(each) for each in self.work)

    def percent(self, name: str) -> float:
        return self.uses()[name] / self.has()[name] * 100 if self.has()[name] else 0.0

    def size(self) -> int:
        """Milli-cores, bytes and pods, as upstream adds them up."""
        uses = self.uses()
        return uses["cpu"] + uses["memory"] // 1000 + uses["pods"] // 1000


def need(work: Work) -> dict[str, int]:
    """Thousandths that a pod takes."""
    return {"cpu": work.cpu * 1000, "memory": work.memory * GIB * 1000, "pods": 1000}


def total(lists: Any) -> dict[str, int]:
    found = {"cpu": 0, "memory": 0, "pods": 0}
    for each in lists:
        found = {name: found[name] + each[name] for name in found}
    return found


def less(amounts: Mapping[str, int], gone: Mapping[str, int]) -> dict[str, int]:
    return {name: amounts[name] - gone[name] for name in amounts}


def rooms_of(machines: Sequence[Machine]) -> list[NodeFree]:
    return [
        node_fit.room_of(node_of(f"n{i}", each), [pod_of(i, j, work) for j, work in enumerate(each.work)])
        for i, each in enumerate(machines)
    ]


def node_of(name: str, machine: Machine) -> Node:
    spec = {"unschedulable": machine.is_cordoned, "taints": [TAINT] * machine.is_tainted}
    allocatable = {"cpu": str(machine.cpu), "memory": "10Gi", "pods": "10"}
    return from_builtins(
        {"metadata": {"name": name}, "spec": spec, "status": {"allocatable": allocatable}}, Node
    )


def pod_of(machine: int, number: int, work: Work) -> Pod:
    amounts = {"cpu": str(work.cpu), "memory": f"{work.memory}Gi"}
    requests = {name: text for name, text in amounts.items() if text[0] != "0"}
    spec = {
        "nodeName": f"n{machine}",
        "priority": work.priority,
        "tolerations": [{"operator": "Exists"}] * work.tolerates,
        "containers": [{"name": "c", "resources": {"requests": requests}}],
    }
    metadata = {"namespace": "default", "name": f"p{machine}-{number}"}
    return from_builtins({"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}, Pod)


def carried_out(steps: Any, machines: Sequence[Machine]) -> tuple[list[str], int]:
    """Names of pods whose eviction was asked for, in order, and how many the pass says were accepted."""
    asked: list[str] = []

    def accept(action: Any) -> bool:
        name = action.pod.metadata.name
        asked.append(name)
        machine, number = (int(each) for each in name[1:].split("-"))
        return not machines[machine].work[number].is_refused

    accepted: int = drive(steps, accept)
    return asked, accepted


def accepted_of(asked: Sequence[str], machines: Sequence[Machine]) -> int:
    places = [[int(each) for each in name[1:].split("-")] for name in asked]
    return sum(not machines[machine].work[number].is_refused for machine, number in places)


def part(name: str, percent: float, amount: int) -> int:
    """Whole milli-cores, bytes and pods, in thousandths: a node never has room for half a pod."""
    unit = 1 if name == "cpu" else 1000
    return int(percent * 0.01 * (amount // unit)) * unit


def find_takers(work: Work, targets: Sequence[Machine]) -> bool:
    return any(work.tolerates or not target.is_tainted for target in targets)


def plain_relieve(
    low_at: Mapping[str, float],
    high_at: Mapping[str, float],
    machines: Sequence[Machine],
    number: int,
    most: int | None,
) -> list[str]:
    low = [m for m in machines if not m.is_cordoned and all(m.percent(n) <= low_at[n] for n in low_at)]
    high = [
        i
        for i, m in enumerate(machines)
        if not any(m is each for each in low) and any(m.percent(n) > high_at[n] for n in high_at)
    ]
    if not low or len(low) <= number or not high:
        return []
    budget = total(
        {n: part(n, high_at.get(n, 100.0), m.has()[n]) - m.uses()[n] for n in m.has()} for m in low
    )
    asked = []
    for i in sorted(high, key=lambda i: (-machines[i].size(), i)):
        machine, gone = machines[i], 0
        used, has = machine.uses(), machine.has()
        for j, work in sorted(enumerate(machine.work), key=lambda each: each[1].rank()):
            is_above = any(used[n] > part(n, high_at.get(n, 100.0), has[n]) for n in has)
            if not is_above or any(amount <= 0 for amount in budget.values()) or gone == most:
                break
            if find_takers(work, low):
                asked.append(f"p{i}-{j}")
                if not work.is_refused:
                    gone += 1
                    used, budget = less(used, need(work)), less(budget, need(work))
    return asked


def plain_empty_out(
    at: Mapping[str, float], machines: Sequence[Machine], number: int, *, only_thresholds: bool
) -> list[str]:
    sources = [i for i, m in enumerate(machines) if all(m.percent(n) <= at[n] for n in at)]
    targets = [m for i, m in enumerate(machines) if i not in sources and not m.is_cordoned]
    if len(sources) <= number or not targets:
        return []
    budget = total(less(m.has(), m.uses()) for m in targets)
    asked = []
    for i in sorted(sources, key=lambda i: (machines[i].size(), i)):
        for j, work in sorted(enumerate(machines[i].work), key=lambda each: each[1].rank()):
            if any(amount <= 0 for amount in budget.values()):
                break
            is_meant = not only_thresholds or any(need(work)[n] for n in at if n != "pods")
            if is_meant and find_takers(work, targets):
                asked.append(f"p{i}-{j}")
                if not work.is_refused:
                    budget = less(budget, need(work))
    return asked


WORK = st.builds(
    Work,
    st.sampled_from([0, 1, 1, 2, 3]),
    st.sampled_from([0, 0, 1, 2]),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from([False, False, False, True]),
)
MACHINE = st.builds(
    Machine,
    st.lists(WORK, max_size=6),
    st.sampled_from([10, 10, 5, 0]),
    st.sampled_from([False, False, False, True]),
    st.booleans(),
)
MACHINES = st.lists(MACHINE, min_size=1, max_size=5)
LOW, HIGH = st.sampled_from([0, 10, 20, 30]), st.sampled_from([30, 40, 50, 60])
NAMES = st.sets(st.sampled_from(["cpu", "memory", "pods"]), min_size=1)


@st.composite
def thresholds(draw: st.DrawFn) -> tuple[dict[str, float], dict[str, float]]:
    names = draw(NAMES)
    return {name: draw(LOW) for name in names}, {name: draw(HIGH) for name in names}


@settings(max_examples=400)
@given(
    limits=thresholds(),
    machines=MACHINES,
    number=st.integers(0, 2),
    most=st.none() | st.integers(0, 3),
)
def test_full_nodes_are_relieved_as_the_definition_says(
    limits: tuple[dict[str, float], dict[str, float]],
    machines: list[Machine],
    number: int,
    most: int | None,
) -> None:
    low, high = limits
    args = LowNodeUtilizationArgs(
        thresholds=low,
        target_thresholds=high,
        number_of_nodes=number,
        eviction_limits=utilization.EvictionLimits(node=most),
    )

    asked, accepted = carried_out(utilization.relieve(args, rooms_of(machines), lambda _: True), machines)

    assert asked == plain_relieve(low, high, machines, number, most)
    assert accepted == accepted_of(asked, machines)


@settings(max_examples=200)
@given(
    limits=thresholds(),
    machines=st.lists(MACHINE, min_size=2, max_size=2) | st.lists(MACHINE, min_size=4, max_size=4),
)
def test_in_deviation_mode_limits_are_around_the_average_of_all_nodes(
    limits: tuple[dict[str, float], dict[str, float]], machines: list[Machine]
) -> None:
    low, high = limits
    args = LowNodeUtilizationArgs(thresholds=low, target_thresholds=high, use_deviation_thresholds=True)
    average = {name: sum(m.percent(name) for m in machines) / len(machines) for name in low}

    asked, _ = carried_out(utilization.relieve(args, rooms_of(machines), lambda _: True), machines)

    assert asked == plain_relieve(
        {name: min(max(average[name] - low[name], 0), 100) for name in low},
        {name: min(average[name] + high[name], 100) for name in low},
        machines,
        0,
        None,
    )


@settings(max_examples=400)
@given(
    names=NAMES,
    percent=st.sampled_from([0, 10, 20, 30]),
    machines=MACHINES,
    number=st.integers(0, 2),
    only=st.booleans(),
)
def test_nodes_with_little_are_emptied_as_the_definition_says(
    names: set[str], percent: int, machines: list[Machine], number: int, only: bool
) -> None:
    at = dict.fromkeys(names, float(percent))
    modes = [utilization.ONLY_THRESHOLDING] * only
    args = HighNodeUtilizationArgs(thresholds=at, number_of_nodes=number, eviction_modes=modes)

    asked, accepted = carried_out(utilization.empty_out(args, rooms_of(machines), lambda _: True), machines)

    assert asked == plain_empty_out(at, machines, number, only_thresholds=only)
    assert accepted == accepted_of(asked, machines)


def test_a_node_with_room_for_half_a_pod_has_none() -> None:
    machines = [Machine([Work(0)] * 9), Machine([Work(0)] * 4)]
    limits: Json = {"thresholds": {"pods": 40}}

    def asked(percent: int) -> list[str]:
        args = LowNodeUtilizationArgs(**limits, target_thresholds={"pods": percent})
        return carried_out(utilization.relieve(args, rooms_of(machines), lambda _: True), machines)[0]

    assert asked(45) == []  # of 10 pods: 4.5
    assert len(asked(50)) == 1


def test_percentages_are_rounded_as_upstream_rounds_them() -> None:
    def asked(machines: list[Machine], low: int, target: int) -> list[str]:
        limits: Json = {"thresholds": {"cpu": low}, "target_thresholds": {"cpu": target}}
        args = LowNodeUtilizationArgs(**limits)
        return carried_out(utilization.relieve(args, rooms_of(machines), lambda _: True), machines)[0]

    half = [Machine([Work(55)], cpu=100), Machine([Work(35), Work(35)], cpu=100)]
    assert asked(half, 55, 60) == [], "55 / 100 * 100 is a little more than 55"
    assert asked(half, 56, 60) == ["p1-0"]


def test_a_node_that_is_asked_for_more_than_it_has_is_relieved_of_that_too() -> None:
    machines = [Machine([Work(1, 5), Work(4, 4), Work(1, 4)]), Machine([])]
    args = LowNodeUtilizationArgs(thresholds={"cpu": 20}, target_thresholds={"cpu": 50})
    asked, _ = carried_out(utilization.relieve(args, rooms_of(machines), lambda _: True), machines)
    assert asked == ["p0-0"]
    more = [Machine([Work(2, 0), Work(4, 6), Work(0, 6)]), Machine([])]
    asked, _ = carried_out(utilization.relieve(args, rooms_of(more), lambda _: True), more)
    assert asked == ["p0-0", "p0-1"], "its memory is still overcommitted when its cores are not"


def test_in_deviation_mode_nodes_without_a_resource_do_not_lower_its_average() -> None:
    nodes = [node("n1"), node("n2"), *(node(f"plain{i}") for i in range(6))]
    for index in (0, 1):
        has = nodes[index].status.allocatable | {"gpu": "10"}
        status = msgspec.structs.replace(nodes[index].status, allocatable=has)
        nodes[index] = msgspec.structs.replace(nodes[index], status=status)
    gpu = [{"name": "c", "resources": {"requests": {"gpu": "1"}}}]
    pods = [pod(f"p{i}", "n1", containers=gpu) for i in range(8)] + [pod("q", "n2", containers=gpu)]
    rooms = [
        node_fit.room_of(one, [p for p in pods if p.spec.node_name == one.metadata.name]) for one in nodes
    ]
    limits: Json = {"thresholds": {"gpu": 10}, "target_thresholds": {"gpu": 10}}
    args = LowNodeUtilizationArgs(**limits, use_deviation_thresholds=True)
    gone = drive(utilization.relieve(args, rooms, lambda _: True), lambda _: True)
    assert gone == 3, "the average of the two is 45 percent: five of ten are at most ten above"


def test_no_pod_requests_pods() -> None:
    machines = [Machine([Work()]), Machine([Work()] * 5)]
    args = HighNodeUtilizationArgs(thresholds={"pods": 20}, eviction_modes=[utilization.ONLY_THRESHOLDING])

    asked, _ = carried_out(utilization.empty_out(args, rooms_of(machines), lambda _: True), machines)

    assert asked == []


def test_pods_of_excluded_namespaces_and_those_that_may_not_be_evicted_stay() -> None:
    machines = [Machine([Work()] * 8), Machine([])]
    limits: Json = {"thresholds": {"cpu": 20}, "target_thresholds": {"cpu": 70}}
    excluded = utilization.Namespaces(exclude=["default"])

    def asked(may_evict: bool, **args: Any) -> list[str]:
        steps = utilization.relieve(
            LowNodeUtilizationArgs(**limits, **args), rooms_of(machines), lambda _: may_evict
        )
        return carried_out(steps, machines)[0]

    assert asked(True) == ["p0-0"]
    assert asked(False) == []
    assert asked(True, evictable_namespaces=excluded) == []
    assert asked(True, evictable_namespaces=utilization.Namespaces(exclude=["other"])) == ["p0-0"]


def test_a_node_that_tells_no_allocatable_is_judged_by_its_capacity() -> None:
    [room] = rooms_of([Machine([Work()])])
    status = room.node.status
    silent = msgspec.structs.replace(
        room.node, status=msgspec.structs.replace(status, allocatable={}, capacity={"cpu": "4", "pods": "10"})
    )

    found = utilization.requested(
        node_fit.room_of(silent, room.pods), ["cpu", "memory", "example.com/gpu", "pods"]
    )

    assert found.capacity == {"cpu": 4000, "memory": 0, "example.com/gpu": 0, "pods": 10_000}
    assert [found.percent(name) for name in ("cpu", "memory", "example.com/gpu", "pods")] == [25, 0, 0, 10]


def test_nothing_moves_where_no_node_has_what_is_looked_at() -> None:
    machines = [Machine([Work()] * 8), Machine([])]
    low = {"cpu": 20.0, "example.com/gpu": 100.0}
    high = {"cpu": 50.0, "example.com/gpu": 100.0}

    for nodes in ([], machines):
        for deviates in (False, True):
            args = LowNodeUtilizationArgs(
                thresholds=low, target_thresholds=high, use_deviation_thresholds=deviates
            )
            assert carried_out(utilization.relieve(args, rooms_of(nodes), lambda _: True), nodes) == ([], 0)


GOOD_LOW: Json = {"thresholds": {"cpu": 20}, "targetThresholds": {"cpu": 50}}
GOOD_HIGH: Json = {"thresholds": {"cpu": 20}}
ANY_INCLUDED, ANY_EXCLUDED = ({"evictableNamespaces": {key: ["a"]}} for key in ("include", "exclude"))


@pytest.mark.parametrize(
    ("args", "told"),
    [
        pytest.param(GOOD_LOW, "", id="good"),
        pytest.param({"thresholds": {"cpu": 0}, "targetThresholds": {"cpu": 100}}, "", id="the widest"),
        pytest.param({"thresholds": {"cpu": 50}, "targetThresholds": {"cpu": 50}}, "", id="equal ones"),
        pytest.param(
            {"thresholds": {"cpu": 51}, "targetThresholds": {"cpu": 50}}, "thresholds.cpu", id="above"
        ),
        pytest.param({**GOOD_LOW, "thresholds": {"cpu": -1}}, "thresholds.cpu", id="below nothing"),
        pytest.param({**GOOD_LOW, "targetThresholds": {"cpu": 101}}, "targetThresholds.cpu", id="beyond all"),
        pytest.param({**GOOD_LOW, "thresholds": {}}, "thresholds", id="no thresholds"),
        pytest.param({**GOOD_LOW, "targetThresholds": {}}, "targetThresholds", id="no targets"),
        pytest.param({**GOOD_LOW, "targetThresholds": {"memory": 50}}, "targetThresholds", id="of others"),
        pytest.param(
            {"thresholds": {"cpu": 60}, "targetThresholds": {"cpu": 50}, "useDeviationThresholds": True},
            "",
            id="deviations may be in any order",
        ),
        pytest.param({**GOOD_LOW, "metricsUtilization": {}}, "metricsUtilization", id="by metrics"),
        pytest.param({**GOOD_LOW, **ANY_INCLUDED}, "evictableNamespaces.include", id="namespaces to include"),
        pytest.param({**GOOD_LOW, **ANY_EXCLUDED}, "", id="namespaces to exclude"),
    ],
)
def test_arguments_of_low_node_utilization(args: Json, told: str) -> None:
    check(lambda: utilization.check_low(from_builtins(args, LowNodeUtilizationArgs)), told)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        pytest.param(GOOD_HIGH, "", id="good"),
        pytest.param({"thresholds": {"cpu": 0, "memory": 100}}, "", id="the widest"),
        pytest.param({"thresholds": {}}, "thresholds", id="no thresholds"),
        pytest.param({"thresholds": {"cpu": 101}}, "thresholds.cpu", id="beyond all"),
        pytest.param({"thresholds": {"cpu": -1}}, "thresholds.cpu", id="below nothing"),
        pytest.param(
            {**GOOD_HIGH, "evictionModes": ["OnlyThresholdingResources"]}, "", id="the mode there is"
        ),
        pytest.param({**GOOD_HIGH, "evictionModes": ["All"]}, "evictionModes", id="another mode"),
        pytest.param(
            {**GOOD_HIGH, "evictionModes": ["OnlyThresholdingResources", "All"]},
            "'All' is unknown",
            id="one mode of two is unknown",
        ),
        pytest.param(
            {**GOOD_HIGH, **ANY_INCLUDED}, "evictableNamespaces.include", id="namespaces to include"
        ),
        pytest.param({**GOOD_HIGH, **ANY_EXCLUDED}, "", id="namespaces to exclude"),
    ],
)
def test_arguments_of_high_node_utilization(args: Json, told: str) -> None:
    check(lambda: utilization.check_high(from_builtins(args, HighNodeUtilizationArgs)), told)


def check(steps: Any, told: str) -> None:
    if not told:
        steps()
        return
    with pytest.raises(ProtocolError, match=told):
        steps()
