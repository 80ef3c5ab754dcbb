"""The node table: rows come, grow, are freed and used again; nothing of a former node is left."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.errors import ProtocolError
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.scheduler.table.changes import RECENT_MAX, ChangeLog, NodeAspect, RowChange
from koordinator.scheduler.table.columns import ColumnSpec, at
from koordinator.scheduler.table.nodes import NodeTable
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
