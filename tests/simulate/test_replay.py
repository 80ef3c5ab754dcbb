"""Replays: who is placed, who is not and why, and what room is left."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.scheduler.config import config, default_plugins
from koordinator.simulate import replay, replay_report
from koordinator.simulate.dump import Dump
from koordinator.simulate.replay import ReplayResult
from koordinator.simulate.replay_csv import TimedPod
from koordinator.simulate.replay_input import InputError, ReplayInput
from koordinator.simulate.replay_options import Order
from tests.scheduler import world


def node(name: str, **parts: Any) -> Node:
    return from_builtins(world.node(name, **parts), Node)


def pod(name: str, arrives_s: float | None = None, departs_s: float | None = None, **parts: Any) -> TimedPod:
    return TimedPod(from_builtins(world.pod(name, **parts), Pod), arrives_s, departs_s)


def played(nodes: list[Node], pods: list[TimedPod], **options: Any) -> ReplayResult:
    ticks = itertools.count()
    settings_ = options.pop("config", default_plugins.shipped_config())
    return replay.run(
        ReplayInput(nodes, pods, Dump()), settings_, timer=lambda: next(ticks) / 1_000, **options
    )


def where(result: ReplayResult) -> dict[str, str]:
    return {each.info.pod.metadata.name: each.node for each in result.outcomes}


def test_pods_are_placed_in_the_order_of_the_list_until_the_nodes_are_full() -> None:
    result = played([node("n", cpu="2")], [pod("a", cpu="1500m"), pod("b", cpu="1"), pod("c", cpu="500m")])

    assert where(result) == {"a": "n", "b": "", "c": "n"}
    assert result.outcomes[1].reasons == ("Insufficient cpu",)


def test_important_pods_come_first_when_asked_for() -> None:
    pods = [pod("low", cpu="2", priority=1), pod("high", cpu="2", priority=9)]

    result = played([node("n", cpu="2")], pods, order=Order.PRIORITY)

    assert where(result) == {"high": "n", "low": ""}


def test_pods_come_by_their_times_when_asked_for() -> None:
    pods = [pod("late", 9.0, cpu="2"), pod("early", 1.0, cpu="2")]

    assert where(played([node("n", cpu="2")], pods, order=Order.ARRIVAL)) == {"early": "n", "late": ""}


def test_no_preemption_is_replayed() -> None:
    result = played([node("n", cpu="2")], [pod("low", cpu="2"), pod("high", cpu="2", priority=9)])

    assert where(result) == {"low": "n", "high": ""}


def test_a_time_line_gives_the_room_of_leaving_pods_to_waiting_ones() -> None:
    pods = [pod("a", 0.0, 100.0, cpu="2"), pod("b", 10.0, cpu="2"), pod("c", 20.0, 30.0, cpu="2")]

    result = played([node("n", cpu="2")], pods, timeline=True)

    assert where(result) == {"a": "n", "b": "n", "c": ""}
    waited = {each.info.pod.metadata.name: each.waited_s for each in result.outcomes}
    assert waited["b"] == 90.0
    assert [each.waiting for each in result.samples] == [0, 1, 2, 1, 0]


def test_a_departure_and_an_arrival_at_one_moment_fit_together() -> None:
    pods = [pod("a", 0.0, 10.0, cpu="2"), pod("b", 10.0, cpu="2")]

    result = played([node("n", cpu="2")], pods, timeline=True)

    assert {each.waited_s for each in result.outcomes} == {0.0}


def test_a_time_line_needs_times() -> None:
    with pytest.raises(InputError, match="pod default/a has no creation time"):
        played([node("n")], [pod("a")], timeline=True)


def member(
    name: str,
    gang: str,
    minimum: int,
    arrives_s: float | None = None,
    departs_s: float | None = None,
    **parts: Any,
) -> TimedPod:
    body = world.pod(name, **parts)
    prefix = "gang.scheduling.koordinator.sh"
    body["metadata"]["annotations"] = {f"{prefix}/name": gang, f"{prefix}/min-available": str(minimum)}
    return TimedPod(from_builtins(body, Pod), arrives_s, departs_s)


def test_a_gang_is_placed_as_a_whole_or_leaves_the_room_to_those_behind_it() -> None:
    pods = [
        *(member(f"big-{number}", "big", 5) for number in range(5)),
        *(member(f"small-{number}", "small", 3) for number in range(3)),
        pod("alone"),
    ]

    result = played([node("n", cpu="4")], pods)

    placed = [name for name, node_name in where(result).items() if node_name]
    assert placed == ["small-0", "small-1", "small-2", "alone"]
    first, *others = [each.reasons for each in result.outcomes if not each.node]
    assert "gang default/big needs 5 members, at most 4 fit now" in first[0]
    assert others == [("gave its place back: its gang does not fit as a whole",)] * 4


def test_every_member_of_a_gang_that_does_not_fit_says_why() -> None:
    pods = [member(f"big-{number}", "big", 8, cpu="20") for number in range(8)]

    result = played([node(f"n-{number}", cpu="32") for number in range(5)], pods)

    assert all(any(each.reasons) for each in result.outcomes)


def test_members_of_a_gang_come_one_after_the_other_whoever_stands_between_them() -> None:
    pods = [member("a", "job", 2), pod("other", cpu="3"), member("b", "job", 2)]

    assert where(played([node("n", cpu="4")], pods)) == {"a": "n", "b": "n", "other": ""}


def test_a_gang_without_enough_members_is_not_tried() -> None:
    result = played([node("n")], [member("a", "job", 2)])

    assert "child pod not collect enough" in result.outcomes[0].reasons[0]


def test_on_a_time_line_a_gang_waits_for_its_last_member_and_for_room() -> None:
    pods = [
        pod("first", 0.0, 50.0, cpu="3"),
        member("a", "job", 2, 10.0, cpu="2"),
        member("b", "job", 2, 20.0, cpu="2"),
        pod("last", 100.0, cpu="2"),
    ]

    result = played([node("n", cpu="4")], pods, timeline=True)

    assert where(result) == {"first": "n", "a": "n", "b": "n", "last": ""}
    waited = {each.info.pod.metadata.name: each.waited_s for each in result.outcomes}
    assert (waited["a"], waited["b"]) == (40.0, 30.0)


def test_gated_pods_wait_with_their_reason() -> None:
    result = played([node("n")], [pod("held", schedulingGates=[{"name": "quota"}])])

    assert "quota" in result.outcomes[0].reasons[0]


def test_pods_of_unknown_schedulers_get_the_first_profile() -> None:
    settings_ = config.decode({"profiles": [{"schedulerName": "mine"}]})

    assert where(played([node("n")], [pod("a", scheduler="theirs")], config=settings_)) == {"a": "n"}


def test_equal_seeds_give_equal_placements() -> None:
    nodes = [node(f"n-{number}") for number in range(8)]
    pods = [pod(f"p-{number}") for number in range(12)]

    assert where(played(nodes, pods, seed=3)) == where(played(nodes, pods, seed=3))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20), st.integers(1, 30)), max_size=20),
    st.booleans(),
)
def test_nothing_is_given_out_twice(
    cores: list[int], wanted: list[tuple[int, int, int]], timeline: bool
) -> None:
    nodes = [node(f"n-{number}", cpu=str(count)) for number, count in enumerate(cores)]
    pods = [
        pod(f"p-{number}", float(at), float(at + lasts), cpu=str(cpu))
        for number, (cpu, at, lasts) in enumerate(wanted)
    ]

    result = played(nodes, pods, timeline=timeline)

    assert len(result.outcomes) == len(pods)
    table = result.engine.table
    assert (table.requested[:, table.rows] <= table.allocatable[:, table.rows]).all()
    assert all(0.0 <= share <= 1.0 for each in result.samples for share in each.allocated)
    if timeline:
        assert table.pod_count.sum() == 0


# The report


def test_the_report_counts_what_was_placed_and_groups_what_was_not() -> None:
    nodes = [node("n-0", cpu="4"), node("n-1", cpu="4")]
    pods = [pod("a", cpu="3"), pod("b", cpu="3"), pod("c", cpu="3"), pod("d", cpu="3"), pod("e", cpu="9")]
    result = played(nodes, pods)

    found = replay_report.report(ReplayInput(nodes, pods, Dump()), result, 0.5, 2.0)

    assert (found.placed, found.unplaced, found.nodes_used) == (2, 3, 2)
    [left] = found.left_over
    assert (left.reasons, left.pods) == (["Insufficient cpu"], 3)
    assert left.examples == ["default/c", "default/d", "default/e"]
    cpu = next(each for each in found.resources if each.resource == "cpu")
    assert (cpu.allocatable, cpu.wanted, cpu.allocated, cpu.allocated_ratio) == ("8", "21", "6", 0.75)
    assert found.histogram["cpu"] == [0, 0, 0, 0, 0, 0, 0, 2, 0, 0]
    assert found.speed.pods_per_s == 2.5
    assert found.speed.engine_s == pytest.approx(0.005)


def test_headroom_is_what_fits_node_by_node_against_what_would_fit_in_one_piece() -> None:
    free = np.array([[3, 3], [10, 10]], np.int64)

    assert replay_report.headroom(free, np.array([9, 9]), np.array([2, 1], np.int64)) == (2, 3)
    assert replay_report.headroom(free, np.array([1, 0]), np.array([2, 1], np.int64)) == (1, 1)


def test_capacity_is_unusable_to_the_share_of_pods_that_do_not_fit_there() -> None:
    free = np.array([[4, 1]], np.int64)
    wanted = np.array([[1], [2]], np.int64)

    # Half of the pods (those of 2) cannot use the 1 that is free on the second node.
    assert replay_report.unusable_ratio(free, np.array([9, 9]), wanted).tolist() == [0.5 * 1 / 5]
    assert replay_report.unusable_ratio(free, np.array([0, 9]), wanted).tolist() == [(2 * 4 + 1) / 10]


def test_capacity_is_stranded_beside_an_exhausted_resource() -> None:
    free = np.array([[0, 2], [6, 2]], np.int64)
    wanted = np.array([[1, 1], [2, 3]], np.int64)

    assert replay_report.stranded_ratio(free, wanted).tolist() == [0.0, 0.75]


def test_a_time_line_is_reported_at_its_fullest_moment() -> None:
    nodes = [node("n", cpu="4")]
    pods = [pod("a", 0.0, 10.0, cpu="2"), pod("b", 5.0, 10.0, cpu="1"), pod("c", 20.0, 30.0, cpu="1")]

    found = replay_report.report(ReplayInput(nodes, pods, Dump()), played(nodes, pods, timeline=True), 0, 1)

    assert found.peak["cpu"] == 0.75
    assert found.resources[0].allocated == "3"
    assert found.mean["cpu"] == pytest.approx((5 * 0.5 + 5 * 0.75 + 10 * 0.25) / 30)
    assert found.waiting is not None and found.waiting.at_once == 3
