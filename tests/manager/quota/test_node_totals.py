"""Sums of nodes by selector: whatever happens to nodes, they are what a fresh look at all nodes says."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import resource_list
from koordinator.api.affinity import LabelSelector
from koordinator.api.core import Node
from koordinator.api.decode import from_builtins
from koordinator.api.errors import ProtocolError
from koordinator.manager.quota import profile_controller
from koordinator.manager.quota.profile_controller import NodeTotals

SELECTORS = {
    "a": {"matchLabels": {"pool": "a"}},
    "not-a": {"matchExpressions": [{"key": "pool", "operator": "NotIn", "values": ["a"]}]},
    "all": {},
}


def selector(name: str) -> LabelSelector:
    return from_builtins(SELECTORS[name], LabelSelector)


def node(name: str, pool: str = "a", *, ready: bool = True, cordoned: bool = False, **amounts: str) -> Node:
    body: dict[str, Any] = {
        "metadata": {"name": name, "labels": {"pool": pool}},
        "spec": {"unschedulable": cordoned},
        "status": {
            "allocatable": amounts or {"cpu": "4", "memory": "8Gi"},
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }
    return from_builtins(body, Node)


AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory", "gpu"]), st.sampled_from(["0", "1500m", "3"]))
CHANGES = st.lists(
    st.one_of(
        st.builds(
            lambda name, pool, ready, cordoned, amounts: node(
                name, pool, ready=ready, cordoned=cordoned, **amounts
            ),
            st.sampled_from("wxyz"),
            st.sampled_from("ab"),
            st.booleans(),
            st.booleans(),
            AMOUNTS,
        ),
        st.sampled_from("wxyz"),
    ),
    max_size=20,
)


@given(changes=CHANGES, late=st.integers(0, 20))
def test_sums_are_those_of_the_nodes_that_are_there(changes: list[Node | str], late: int) -> None:
    reported: list[str] = []
    totals = NodeTotals(reported.append)
    there: dict[str, Node] = {}
    totals.select("all", selector("all"))
    totals.select("a", selector("a"))
    for number, change in enumerate(changes):
        if number == late:
            totals.select("not-a", selector("not-a"))
        before = {key: totals.sums(key) for key in ("all", "a")}
        reported.clear()
        if isinstance(change, str):
            totals.remove(change)
            there.pop(change, None)
        else:
            totals.put(change)
            there[change.metadata.name] = change
        assert {key for key in before if totals.sums(key) != before[key]} <= set(reported)

    totals.select("not-a", selector("not-a"))
    for key in SELECTORS:
        assert totals.sums(key) == profile_controller.totals_of(there.values(), selector(key))


def test_a_node_whose_amounts_are_none_does_not_count_until_they_are() -> None:
    totals = NodeTotals(lambda _: None)
    totals.select("all", selector("all"))
    totals.put(node("x", cpu="4"))
    totals.put(node("y", cpu="many"))
    totals.put(node("x", cpu="lots"))

    assert totals.sums("all") == ({}, {})
    totals.put(node("x", cpu="5"))
    assert totals.sums("all")[0] == resource_list.of({"cpu": "5"})


def test_a_selector_that_became_invalid_keeps_no_old_sums() -> None:
    totals = NodeTotals(lambda _: None)
    totals.select("key", selector("all"))
    broken = from_builtins({"matchExpressions": [{"key": "pool", "operator": "In"}]}, LabelSelector)

    with pytest.raises(ProtocolError):
        totals.select("key", broken)
    with pytest.raises(KeyError):
        totals.sums("key")


def test_heartbeats_are_told_from_changes() -> None:
    assert profile_controller.is_heartbeat(node("x"), node("x"))
    for changed in (node("x", "b"), node("x", ready=False), node("x", cordoned=True), node("x", cpu="3")):
        assert not profile_controller.is_heartbeat(node("x"), changed)
