"""The node table: rows come, grow, are freed and used again; nothing of a former node is left."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.errors import ProtocolError
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.scheduler.table.columns import RECENT_MAX, ChangeLog, ColumnSpec, NodeAspect, RowChange, at
from koordinator.scheduler.table.nodes import NODE_AMOUNT_MAX, NodeTable, RowKeeper
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import trial_of
from tests.scheduler.world import node, pod


def table_of(*names: str) -> NodeTable:
    table = NodeTable(ResourceRegistry())
    for name in names:
        table.set_node(from_builtins(node(name), Node))
    return table


def info(table: NodeTable, name: str, **parts: object) -> PodInfo:
    body = pod(name, **parts)  # type: ignore[arg-type]
    body["metadata"]["uid"] = name
    return PodInfo.of(from_builtins(body, Pod), table.registry)


@given(rows=st.sets(st.integers(0, 9)))
def test_a_view_of_rows_holds_what_gathering_them_gives(rows: set[int]) -> None:
    values = np.arange(20).reshape(2, 10)
    chosen = np.array(sorted(rows), np.intp)

    assert np.array_equal(at(values, chosen), values[:, chosen])
    assert np.array_equal(at(values[0], chosen), values[0, chosen])


def test_a_table_grows_and_keeps_what_it_has() -> None:
    table = table_of(*(f"n-{number}" for number in range(200)))

    assert table.node_count == 200
    assert (table.allocatable[0][table.rows] == 4000).all()
    assert table.name_of(table.row_of("n-150") or -1) == "n-150"


def test_a_freed_row_forgets_its_node() -> None:
    table = table_of("a", "b")
    column = table.add_column(ColumnSpec("own", np.int64))
    row = table.row_of("a")
    assert row is not None
    column.values[row] = 7
    table.remove_node("a")

    table.set_node(from_builtins(node("c", cpu="1"), Node))

    assert table.row_of("c") == row
    assert (table.allocatable[0][row], column.values[row]) == (1000, 0)
    assert table.row_of("a") is None


def test_pods_of_a_node_that_is_not_known_yet_count_when_it_comes() -> None:
    table = table_of("a")
    table.assign(info(table, "early"), "b")
    assert table.node_count == 1

    table.set_node(from_builtins(node("b"), Node))

    assert table.requested[0][table.row_of("b") or -1] == 1000


def test_a_new_resource_gets_a_column_everywhere() -> None:
    table = table_of("a")
    table.assign(info(table, "gpu", requests={"example.com/gpu": "2"}), "a")

    column = table.registry.find("example.com/gpu")
    assert column is not None
    assert (table.requested[column][0], table.allocatable[column][0]) == (2, 0)


def test_a_pod_may_ask_for_a_new_resource_where_it_is() -> None:
    table = table_of("a")
    table.assign(info(table, "web"), "a")
    table.assign(info(table, "web", requests={"example.com/gpu": "2"}), "a")
    assert table.requested[table.registry.find("example.com/gpu") or 0][0] == 2


def test_confirming_an_assumed_pod_changes_nothing_else() -> None:
    table = table_of("a")
    assumed = info(table, "web")
    table.assign(assumed, "a", assumed=True)
    before = table.changes.sequence

    table.assign(info(table, "web"), "a")

    assert table.assumed_count == 0
    assert table.changes.sequence == before
    assert table.requested[0][0] == 1000


def test_heartbeats_are_no_change() -> None:
    table = table_of("a")
    beat = node("a")
    beat["status"]["conditions"] = [
        {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}
    ]
    assert table.set_node(from_builtins(beat, Node)) is NodeAspect.CONDITIONS
    beat["status"]["conditions"][0]["lastHeartbeatTime"] = "2026-01-01T00:00:10Z"
    assert table.set_node(from_builtins(beat, Node)) is NodeAspect.NONE


def test_an_unreadable_amount_names_node_and_field() -> None:
    table = table_of("a")
    with pytest.raises(ProtocolError, match=r"Node a: status.allocatable\[cpu\]: 'x' is not a quantity"):
        table.set_node(from_builtins(node("a", cpu="x"), Node))
    assert table.allocatable[0][0] == 4000


@pytest.mark.parametrize("more", [pytest.param(0, id="soon"), pytest.param(RECENT_MAX, id="late")])
def test_the_change_log_tells_each_row_once_and_in_order(more: int) -> None:
    log = ChangeLog(8)
    log.add(5, RowChange.NODE)
    start = log.sequence

    log.add(3, RowChange.PODS)
    log.add(1, RowChange.USAGE)
    for _ in range(more):
        log.add(3, RowChange.PODS)

    changes = log.since(start)
    assert changes.rows.tolist() == [1, 3]
    assert changes.kinds == RowChange.PODS | RowChange.USAGE
    assert log.since(log.sequence).rows.size == 0


def test_the_change_log_does_not_count_what_happens_while_muted() -> None:
    log = ChangeLog(8)

    with log.muted(), log.muted():
        log.add(3, RowChange.PODS)

    assert log.sequence == 0
    log.add(3, RowChange.PODS)
    assert log.sequence == 1


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["assume", "confirm", "forget", "try"]), st.integers(0, 2), st.sampled_from("ab")
        ),
        max_size=20,
    )
)
def test_assumed_pods_are_counted_as_they_come_and_go(steps: list[tuple[str, int, str]]) -> None:
    table = table_of("a", "b")
    for what, number, name in steps:
        pod_info = info(table, f"p-{number}")
        match what:
            case "assume" | "confirm":
                table.assign(pod_info, name, assumed=what == "assume")
            case "forget":
                table.unassign(pod_info.uid)
            case "try":
                with trial_of(table) as trial:
                    for place in list(table.places()):
                        trial.take(place.pod)
        assert table.assumed_count == sum(place.assumed for place in table.places())


class Hearer(RowKeeper):
    """Keeps what it is told, and nothing else."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.pods: dict[int, dict[str, PodInfo]] = {}
        self.freed: list[int] = []

    def node_changed(self, row: int, node: Node) -> None:
        self.nodes[row] = node

    def row_freed(self, row: int) -> None:
        assert not self.pods.pop(row, {})
        self.nodes.pop(row, None)
        self.freed.append(row)

    def pod_assigned(self, row: int, pod: PodInfo) -> None:
        assert pod.uid not in self.pods.setdefault(row, {})
        self.pods[row][pod.uid] = pod

    def pod_changed(self, row: int, old: PodInfo, new: PodInfo) -> None:
        assert self.pods[row][old.uid] is old
        self.pods[row][new.uid] = new

    def pod_unassigned(self, row: int, pod: PodInfo) -> None:
        assert self.pods[row].pop(pod.uid) is pod


ALLOCATABLE = st.fixed_dictionaries(
    {
        "cpu": st.sampled_from(["0", "1", "4"]),
        "memory": st.sampled_from(["1Gi", "1Ei"]),
        "pods": st.just("3"),
    },
    optional={"x.io/y": st.sampled_from(["0", "2"])},
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("node"), st.sampled_from("abc"), ALLOCATABLE, st.booleans()),
        st.tuples(st.just("gone"), st.sampled_from("abc")),
        st.tuples(
            st.just("pod"),
            st.sampled_from("abc"),
            st.sampled_from(["p", "q", "r"]),
            st.sampled_from([{}, {"cpu": "0"}, {"cpu": "2", "memory": "1Mi"}, {"x.io/y": "1"}]),
        ),
        st.tuples(st.just("done"), st.sampled_from(["p", "q", "r"])),
    ),
    max_size=12,
)


@given(STEPS)
def test_whatever_came_and_went_a_row_says_what_its_node_and_pods_say(steps: list[Any]) -> None:
    table, hearer = NodeTable(ResourceRegistry()), Hearer()
    table.add_keeper(hearer)
    alive: set[str] = set()
    objects: dict[str, Any] = {}
    placed: dict[str, tuple[str, dict[str, str]]] = {}
    for step in steps:
        before, membership, sequence = facts_of(table), table.membership, table.changes.sequence
        table.is_everywhere(0)  # kept until nodes change
        match step:
            case ("node", name, allocatable, is_off):
                objects[name] = (allocatable, is_off)
                alive.add(name)
                body = {**node(name, unschedulable=is_off), "status": {"allocatable": allocatable}}
                table.set_node(from_builtins(body, Node))
            case ("gone", name):
                alive.discard(name)
                table.remove_node(name)
            case ("pod", name, uid, requests):
                placed[uid] = (name, requests)
                assert table.name_of(table.assign(info(table, uid, requests=requests), name)) == name
            case (_, uid):
                assert (table.unassign(uid) is None) == (placed.pop(uid, None) is None)
        objects = {name: objects.get(name, ({}, False)) for name in alive | {on for on, _ in placed.values()}}
        after = {name: slow_facts(name in alive, objects[name], asked_on(name, placed)) for name in objects}
        assert facts_of(table) == after
        assert_that_least_is_a_bound(table)
        assert [table.is_everywhere(column) for column in (0, 1)] == [
            all(after[name]["amounts"].get(resource, (0,))[0] for name in alive)
            for resource in ("cpu", "memory")
        ]

        if before != after:
            assert table.changes.since(sequence).rows.size, "cached evaluations must hear of it"
        if {name for name in before if before[name]["exists"]} != alive:
            assert table.membership > membership
        assert [table.row_of(name) is not None for name in "abc"] == [name in alive for name in "abc"]
        for name in alive:
            row = table.row_of(name)
            assert row in table.rows
            assert hearer.nodes[row or 0] == table.node_at(row or 0)
        heard = {row: pods for row, pods in hearer.pods.items() if pods}
        assert heard == {place.row: table.pods_at(place.row) for place in table.places()}


def assert_that_least_is_a_bound(table: NodeTable) -> None:
    """Until somebody looks; then it is exact."""
    columns = [
        table.free_pods,
        *table.free[:2],
        *(table.allocatable[:2] - table.nonzero_requested),
    ]
    if table.node_count:
        exact = [int(each[table.rows].min()) for each in columns]
        assert all(bound <= found for bound, found in zip(bounds_of(table), exact, strict=True))
    if table.node_count > 2:
        table.look_at_least()
        assert bounds_of(table) == exact


def bounds_of(table: NodeTable) -> list[float]:
    return [table.least_free.pods, *table.least_free.amounts, *table.least_free.nonzero]


def asked_on(name: str, placed: dict[str, tuple[str, dict[str, str]]]) -> list[dict[str, str]]:
    return [requests for on, requests in placed.values() if on == name]


def facts_of(table: NodeTable) -> dict[str, Any]:
    """What the columns say of each node, and of each name that has pods."""
    facts = {}
    columns = {name: table.registry.find(name) for name in ("cpu", "memory", "x.io/y")}
    for row in {int(row) for row in table.rows} | {place.row for place in table.places()}:
        amounts = {
            name: (
                int(table.allocatable[column, row]),
                int(table.requested[column, row]),
                int(table.free[column, row]),
                float(table.divisor[column, row]),
            )
            for name, column in columns.items()
            if column is not None and column < len(table.allocatable)
        }
        facts[table.name_of(row)] = {
            "exists": table.node_at(row) is not None,
            "amounts": {name: found for name, found in amounts.items() if found != (0, 0, 0, 1)},
            "nonzero": table.nonzero_requested[:, row].tolist(),
            "free hundredths": table.free_hundredths[:, row].tolist(),
            "nonzero free hundredths": table.nonzero_free_hundredths[:, row].tolist(),
            "used": table.used[:, row].tolist(),
            "pods": (int(table.pods_max[row]), int(table.pod_count[row]), int(table.free_pods[row])),
            "unschedulable": bool(table.is_unschedulable[row]),
        }
    return facts


def slow_facts(
    exists: bool, said: tuple[dict[str, str], bool], asked: list[dict[str, str]]
) -> dict[str, Any]:
    """The same from the objects, added up; what a vanished node allowed stays until its last pod is gone."""
    sizes = {"1Mi": 1 << 20, "1Gi": 1 << 30, "1Ei": NODE_AMOUNT_MAX}

    def number(name: str, text: str) -> int:
        return sizes.get(text, 0) or int(text) * (1000 if name == "cpu" else 1)

    allocatable, is_off = said
    room = {name: number(name, text) for name, text in allocatable.items()}
    requested = {
        name: sum(number(name, requests.get(name, "0")) for requests in asked)
        for name in ("cpu", "memory", "x.io/y")
    }
    defaults = {"cpu": 100, "memory": 200 << 20}
    nonzero = [
        sum(number(name, requests[name]) if name in requests else default for requests in asked)
        for name, default in defaults.items()
    ]
    amounts = {
        name: (room.get(name, 0), asks, room.get(name, 0) - asks, float(max(room.get(name, 0), 1)))
        for name, asks in requested.items()
    }
    return {
        "exists": exists,
        "amounts": {name: found for name, found in amounts.items() if found != (0, 0, 0, 1)},
        "nonzero": nonzero,
        "free hundredths": [float(100 * amounts[name][2]) for name in defaults],
        "nonzero free hundredths": [
            float(100 * (room.get(name, 0) - n)) for name, n in zip(defaults, nonzero, strict=True)
        ],
        "used": [requested["cpu"], requested["memory"]],
        "pods": (room.get("pods", 0), len(asked), room.get("pods", 0) - len(asked)),
        "unschedulable": is_off,
    }


def test_who_keeps_facts_hears_of_what_is_there_already() -> None:
    table = table_of("a")
    table.assign(info(table, "web"), "a")
    late = Hearer()
    table.add_keeper(late)
    assert (list(late.nodes), [list(pods) for pods in late.pods.values()]) == ([0], [["web"]])

    with table.notifying(lambda keeper: keeper is not late):
        table.assign(info(table, "unheard"), "a")
    table.assign(info(table, "heard"), "a")
    assert list(late.pods[0]) == ["web", "heard"]


def test_of_each_kind_the_table_has_one_keeper() -> None:
    table = table_of("a")
    made: list[NodeTable] = []

    class Shared(Hearer):
        def __init__(self, of: NodeTable) -> None:
            super().__init__()
            made.append(of)

    assert table.shared(Shared) is table.shared(Shared)
    assert made == [table]
    assert list(table.shared(Shared).nodes) == [0]


@pytest.mark.parametrize(
    ("memory", "is_small"), [("64Ti", True), (str((64 << 40) + 1), False), ("65Ti", False)]
)
def test_amounts_are_small_up_to_what_floating_point_divides_exactly(memory: str, is_small: bool) -> None:
    table = table_of("a")
    table.set_node(from_builtins(node("b", memory=memory), Node))
    table.remove_node("b")
    assert table.has_small_amounts is is_small


def test_a_pod_in_a_new_state_counts_by_its_new_amounts_and_ports_make_others_look_again() -> None:
    table = table_of("a")
    table.assign(info(table, "web"), "a")
    sequence = table.changes.sequence
    with_port = info(table, "web")
    table.assign(msgspec.structs.replace(with_port, host_ports=(("0.0.0.0", "TCP", 80),)), "a")
    assert (table.changes.sequence, table.requested[0][0]) == (sequence + 1, 1000)
    table.assign(info(table, "web", cpu="3"), "a")
    assert (table.requested[0][0], table.pod_count[0], table.free[0][0]) == (3000, 1, 1000)


def test_a_trial_brings_the_last_pod_of_a_vanished_node_back_to_where_it_was() -> None:
    table = table_of("a")
    one = info(table, "one")
    row = table.assign(one, "a")
    table.remove_node("a")

    with trial_of(table) as trial:
        trial.take(one)

    place = table.place_of("one")
    assert place is not None
    assert (place.row, table.name_of(place.row)) == (row, "a")
