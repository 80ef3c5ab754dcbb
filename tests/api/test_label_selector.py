"""Label selectors: each operator, and what is refused."""

import pytest

from koordinator.api import label_selector
from koordinator.api.affinity import LabelSelector, LabelSelectorRequirement
from koordinator.api.errors import ProtocolError


def selector(operator: str, *values: str, key: str = "tier") -> LabelSelector:
    return LabelSelector(
        match_expressions=[LabelSelectorRequirement(key=key, operator=operator, values=list(values))]
    )


@pytest.mark.parametrize(
    ("chosen", "labels", "expected"),
    [
        pytest.param(LabelSelector(), {}, True, id="an empty selector matches everything"),
        pytest.param(
            LabelSelector(match_labels={"a": "1"}), {"a": "1", "b": "2"}, True, id="all labels equal"
        ),
        pytest.param(LabelSelector(match_labels={"a": "1"}), {"a": "2"}, False, id="a label differs"),
        pytest.param(
            LabelSelector(match_labels={"a": ""}), {}, False, id="an absent label is not empty text"
        ),
        pytest.param(selector("In", "x", "y"), {"tier": "y"}, True, id="In matches a listed value"),
        pytest.param(selector("In", "x"), {}, False, id="In needs the label"),
        pytest.param(selector("NotIn", "x"), {}, True, id="NotIn accepts a missing label"),
        pytest.param(selector("NotIn", "x"), {"tier": "x"}, False, id="NotIn refuses a listed value"),
        pytest.param(selector("Exists"), {"tier": ""}, True, id="Exists accepts any value"),
        pytest.param(selector("DoesNotExist"), {"tier": "x"}, False, id="DoesNotExist refuses the label"),
    ],
)
def test_selector(chosen: LabelSelector, labels: dict[str, str], expected: bool) -> None:
    assert label_selector.matches(chosen, labels) is expected


@pytest.mark.parametrize(
    "chosen",
    [
        selector("In"),
        selector("NotIn"),
        selector("Exists", "x"),
        selector("DoesNotExist", "x"),
        selector("Near", "x"),
    ],
)
def test_a_malformed_requirement_is_refused_by_name(chosen: LabelSelector) -> None:
    with pytest.raises(ProtocolError, match="tier"):
        label_selector.matches(chosen, {})
