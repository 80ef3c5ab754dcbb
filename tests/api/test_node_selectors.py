"""Which objects a node selector chooses: by labels, whole numbers and the name."""

import pytest

from koordinator.api import affinity
from koordinator.api.affinity import NodeSelectorRequirement, NodeSelectorTerm

HUGE = str(1 << 63)


def holds(operator: str, values: list[str], value: str | None) -> bool:
    return affinity.holds(NodeSelectorRequirement(key="k", operator=operator, values=values), value)


@pytest.mark.parametrize(
    ("value", "values", "is_greater", "is_less"),
    [
        pytest.param("5", ["4"], True, False, id="above"),
        pytest.param("5", ["6"], False, True, id="below"),
        pytest.param("5", ["5"], False, False, id="equal"),
        pytest.param("10", ["9"], True, False, id="as numbers and not as texts"),
        pytest.param("-1", ["0"], False, True, id="negative"),
        pytest.param(None, ["4"], False, False, id="not there"),
        pytest.param("", ["4"], False, False, id="empty"),
        pytest.param("x", ["4"], False, False, id="no number"),
        pytest.param("5", ["x"], False, False, id="no limit"),
        pytest.param("5.5", ["4"], False, False, id="no whole number"),
        pytest.param(HUGE, ["4"], False, False, id="more than 64 bits"),
        pytest.param("5", [HUGE], False, False, id="a limit of more than 64 bits"),
        pytest.param("5", [], False, False, id="without a limit"),
        pytest.param("5", ["4", "4"], False, False, id="two lower limits"),
        pytest.param("5", ["6", "6"], False, False, id="two upper limits"),
    ],
)
def test_numbers_are_strictly_above_or_below_one_limit(
    value: str | None, values: list[str], is_greater: bool, is_less: bool
) -> None:
    assert (holds("Gt", values, value), holds("Lt", values, value)) == (is_greater, is_less)


@pytest.mark.parametrize(
    ("values", "value", "expected"),
    [
        (["a", "b"], "b", {"In"}),
        (["a", "b"], "c", {"NotIn"}),
        (["a", "b"], None, {"NotIn"}),
        ([], "a", {"Exists"}),
        ([], None, {"DoesNotExist"}),
        ([], "", {"Exists"}),
        ([""], "", {"In"}),
        ([""], None, {"NotIn"}),
    ],
)
def test_of_the_operators_over_texts_these_hold(
    values: list[str], value: str | None, expected: set[str]
) -> None:
    operators = ("In", "NotIn", "Exists", "DoesNotExist", "Near", "")
    assert {operator for operator in operators if holds(operator, values, value)} == expected


IS_X = NodeSelectorRequirement(key="x", operator="In", values=["1"])
HAS_Y = NodeSelectorRequirement(key="y", operator="Exists")
NAMED_N = NodeSelectorRequirement(key="metadata.name", operator="In", values=["n"])
NOT_NAMED_M = NodeSelectorRequirement(key="metadata.name", operator="NotIn", values=["m"])
NAMED_M = NodeSelectorRequirement(key="metadata.name", operator="In", values=["m"])
OF_A_NAMESPACE = NodeSelectorRequirement(key="metadata.namespace", operator="In", values=["n"])


@pytest.mark.parametrize(
    ("expressions", "fields", "expected"),
    [
        ([], [], False),
        ([IS_X], [], True),
        ([HAS_Y], [], False),
        ([IS_X, HAS_Y], [], False),
        ([], [NAMED_N], True),
        ([], [NOT_NAMED_M, NAMED_N], True),
        ([IS_X], [NAMED_N], True),
        ([HAS_Y], [NAMED_N], False),
        ([], [NAMED_M], False),
        ([], [OF_A_NAMESPACE], False),
        ([IS_X], [NAMED_N, OF_A_NAMESPACE], False),
    ],
)
def test_all_conditions_of_one_term_must_hold(
    expressions: list[NodeSelectorRequirement], fields: list[NodeSelectorRequirement], expected: bool
) -> None:
    term = NodeSelectorTerm(match_expressions=expressions, match_fields=fields)

    assert affinity.term_holds(term, {"x": "1"}, "n") is expected
    assert affinity.any_term_holds([NodeSelectorTerm(), term], {"x": "1"}, "n") is expected
    assert not affinity.any_term_holds([], {"x": "1"}, "n")
