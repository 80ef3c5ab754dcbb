"""Percentages in floating point are those of whole numbers."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from koordinator.api.core import Node
from koordinator.api.decode import from_builtins
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.scheduler.plugin.percent import ScoredRequest, floor_percent, free_percent, mean_percent
from koordinator.scheduler.table.nodes import SMALL_AMOUNT_MAX, NodeTable
from tests.scheduler.world import node

WHOLES = st.integers(1, 200) | st.integers(1, SMALL_AMOUNT_MAX)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[int, int]:
    """A whole, and a part of it: often one whose percentage is a whole number, or just misses one."""
    whole = draw(WHOLES)
    near = draw(st.integers(0, 100)) * whole // 100 + draw(st.integers(-2, 2))
    return draw(st.sampled_from((near, draw(st.integers(-whole, whole))))), whole


@given(pair=pairs())
@example(pair=(SMALL_AMOUNT_MAX, SMALL_AMOUNT_MAX))
@example(pair=(SMALL_AMOUNT_MAX - 1, SMALL_AMOUNT_MAX))
def test_a_percentage_is_rounded_down_as_in_whole_numbers(pair: tuple[int, int]) -> None:
    part, whole = min(pair), pair[1]  # a part is never more than the whole

    [found] = floor_percent(np.array([part], np.float64), np.array([whole], np.float64))

    assert found == max(0, part) * 100 // whole


@given(
    rows=st.lists(st.tuples(pairs(), pairs()), min_size=1, max_size=8),
    weights=st.sampled_from(([1, 1], [3, 3], [1, 2], [0, 5])),
)
def test_a_mean_of_percentages_is_rounded_down_as_in_whole_numbers(
    rows: list[tuple[tuple[int, int], tuple[int, int]]], weights: list[int]
) -> None:
    parts, wholes = (
        [[min(pair[at], pair[1]) for pair in pairs] for pairs in zip(*rows, strict=True)] for at in (0, 1)
    )

    found = mean_percent(100 * np.array(parts, np.float64), np.array(wholes, np.float64), weights)

    shares = [
        [max(0, part) * 100 // whole for part, whole in zip(*each, strict=True)]
        for each in zip(parts, wholes, strict=True)
    ]
    assert found.tolist() == [
        sum(weight * share for weight, share in zip(weights, each, strict=True)) // sum(weights)
        for each in zip(*shares, strict=True)
    ]


def table_of(*cpus: str) -> NodeTable:
    table = NodeTable(ResourceRegistry())
    for number, cpu in enumerate(cpus):
        table.set_node(from_builtins(node(f"node-{number}", cpu=cpu, memory="10Gi"), Node))
    return table


@pytest.mark.parametrize("copies", [1, 2, 9])
def test_what_is_left_is_the_weighted_mean_over_resources(copies: int) -> None:
    table = table_of("4", "8")

    found = free_percent(table, ScoredRequest.of([(0, 1_000, 1), (1, 0, 3)]), table.rows, copies)

    assert found is not None
    assert found.tolist() == [
        (max(0, size - copies * 1_000) * 100 // size + 300) // 4 for size in (4_000, 8_000)
    ]


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(table_of("4", "0"), id="a node lacks the resource"),
        pytest.param(table_of("4", str(SMALL_AMOUNT_MAX)), id="an amount is too large"),
    ],
)
def test_who_asks_works_it_out_otherwise_where_floating_point_would_not_do(table: NodeTable) -> None:
    assert free_percent(table, ScoredRequest.of([(0, 1_000, 1)]), table.rows) is None


def test_the_table_knows_again_what_is_everywhere_when_nodes_change() -> None:
    table = table_of("4", "0")
    assert not table.is_everywhere(0)

    table.remove_node("node-1")

    assert table.is_everywhere(0)
    table.set_node(from_builtins(node("node-2", cpu="0"), Node))
    assert not table.is_everywhere(0)
