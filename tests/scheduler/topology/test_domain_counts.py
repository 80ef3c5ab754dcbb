"""Vectors of pods per domain: brought up to date pod by pod, they are what counting anew gives."""

import itertools
import random

import pytest

from koordinator.api.core import Node
from koordinator.api.decode import from_builtins
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.scheduler.table.domain_counts import DomainCounts, MatchCounts, RowCounts, Topology
from koordinator.scheduler.table.label_columns import LabelColumns
from koordinator.scheduler.table.nodes import NodeTable
from tests.scheduler.world import node

HOST, ZONE = "kubernetes.io/hostname", "zone"


def table_of(zones: list[str | None]) -> NodeTable:
    table = NodeTable(ResourceRegistry())
    for number, zone in enumerate(zones):
        labels = {} if zone is None else {ZONE: zone}
        table.set_node(from_builtins(node(f"node-{number}", labels=labels), Node))
    return table


def topology_of(table: NodeTable, bytes_max: int = 1 << 20) -> Topology:
    return Topology(table, table.shared(LabelColumns), bytes_max=bytes_max)


@pytest.mark.parametrize("seed", range(5))
def test_steps_and_a_fresh_count_agree(seed: int) -> None:
    rng = random.Random(seed)
    table = table_of([rng.choice(("a", "b", "c", None)) for _ in range(12)])
    topology, matches = topology_of(table), MatchCounts(itertools.count())
    for _ in range(300):
        row = rng.randrange(12)
        matches.add(row, -1 if matches.rows.get(row, 0) and rng.random() < 0.5 else 1)
        for key in (HOST, ZONE):
            kept = topology.domains(matches, key)
            fresh = DomainCounts(matches, topology.layout(key), itertools.count())
            assert kept.by_value.tolist() == fresh.by_value.tolist()
            assert (kept.total, kept.lowest) == (fresh.total, fresh.lowest)
        per_row = topology.per_row(matches)
        assert {row: count for row, count in enumerate(per_row.tolist()) if count} == matches.rows


def test_other_rows_have_to_look_again_only_when_a_shared_domain_or_everything_is_empty_or_not() -> None:
    table = table_of(["a", "a", "b", None])
    topology, matches = topology_of(table), MatchCounts(itertools.count())

    def has_flipped(key: str, row: int, change: int) -> bool:
        before = topology.domains(matches, key).flips
        matches.add(row, change)
        return topology.domains(matches, key).flips != before

    assert has_flipped(HOST, 0, 1)  # there was nobody anywhere
    assert not has_flipped(HOST, 1, 1)
    assert not has_flipped(HOST, 1, -1)
    assert has_flipped(HOST, 0, -1)
    assert has_flipped(ZONE, 2, 1)
    assert has_flipped(ZONE, 0, 1)  # node-1 is in the same zone
    assert not has_flipped(ZONE, 1, 1)
    assert not has_flipped(ZONE, 3, 1)  # without the key
    assert not has_flipped(ZONE, 0, -1)
    assert has_flipped(ZONE, 1, -1)


def test_a_node_that_moves_takes_its_pods_along() -> None:
    table = table_of(["a", "a", "b"])
    topology, matches = topology_of(table), MatchCounts(itertools.count())
    matches.add(0, 2)
    matches.add(2, 1)
    assert topology.domains(matches, ZONE).at(table.rows).tolist() == [2, 2, 1]

    table.set_node(from_builtins(node("node-0", labels={ZONE: "b"}), Node))
    assert topology.domains(matches, ZONE).at(table.rows).tolist() == [3, 0, 3]

    table.remove_node("node-2")
    assert topology.domains(matches, ZONE).at(table.rows).tolist() == [2, 0]


def test_memory_of_vectors_is_bounded_and_dropped_ones_are_counted_anew() -> None:
    table = table_of(["a", "b"])
    one_vector = topology_of(table).domains(MatchCounts(itertools.count()), HOST).byte_count
    topology = topology_of(table, bytes_max=3 * one_vector)
    ten = [MatchCounts(itertools.count()) for _ in range(10)]
    for number, matches in enumerate(ten):
        matches.add(number % 2, 1)
        topology.domains(matches, HOST)
    assert sum(bool(matches.vectors) for matches in ten) == 3
    ten[0].add(0, 1)
    assert topology.domains(ten[0], HOST).at(table.rows).tolist() == [2, 0]


def test_vectors_that_nobody_asked_for_longest_make_room_for_new_ones() -> None:
    table = table_of(["a", "b"])
    one_vector = topology_of(table).domains(MatchCounts(itertools.count()), HOST).byte_count
    topology = topology_of(table, bytes_max=2 * one_vector)
    first, second, third = (MatchCounts(itertools.count()) for _ in range(3))
    kept = topology.domains(first, HOST)
    topology.domains(second, HOST)
    assert topology.domains(first, HOST) is kept

    topology.domains(third, HOST)
    assert [bool(matches.vectors) for matches in (first, second, third)] == [True, False, True]


@pytest.mark.parametrize("row", [0, 3, 4, 8, 9, 40])
def test_counts_per_row_reach_as_far_as_rows_do(row: int) -> None:
    counts = RowCounts(MatchCounts(itertools.count(1)), 4)

    counts.add(row, 2)
    counts.add(0, 1)

    assert counts.values[row] == 2 + (row == 0)
    assert counts.values.sum() == 3
