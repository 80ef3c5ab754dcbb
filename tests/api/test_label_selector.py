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


LONG = "a" * 63


@pytest.mark.parametrize(
    ("key", "is_one"),
    [
        ("tier", True),
        ("example.com/Tier_1.x", True),
        (LONG, True),
        (f"{'a.' * 126}a/{LONG}", True),
        ("", False),
        ("two words", False),
        ("-tier", False),
        ("tier-", False),
        ("a/b/c", False),
        ("Example.com/tier", False),
        ("example.com/", False),
        ("/tier", False),
        (f"{LONG}a", False),
        (f"{'a.' * 127}a/b", False),
        ("tier\n", False),
    ],
)
def test_keys_of_labels(key: str, is_one: bool) -> None:
    assert (not label_selector.key_faults(key)) is is_one


@pytest.mark.parametrize("operator", ["Exists", "DoesNotExist", "In", "NotIn"])
def test_what_no_label_can_be_is_refused_instead_of_matching_all_or_none(operator: str) -> None:
    values = ("x",) if operator in ("In", "NotIn") else ()
    with pytest.raises(ProtocolError, match="'two words' is no key of a label"):
        label_selector.compile_selector(selector(operator, *values, key="two words"))
    if values:
        with pytest.raises(ProtocolError, match=r"'two words' is no value of a label .key 'tier'"):
            label_selector.compile_selector(selector(operator, "x", "two words"))
    with pytest.raises(ProtocolError, match="matchLabels: '-' is no key"):
        label_selector.compile_selector(LabelSelector(match_labels={"-": "x"}))


@pytest.mark.parametrize("text", ["", " ", "\t"])
def test_a_text_that_says_nothing_matches_everything(text: str) -> None:
    assert label_selector.matches(label_selector.of_text(text), {})


@pytest.mark.parametrize("text", [",", "a,", "a=1, ", "a,,b", "a b", "a>1"])
def test_a_text_that_is_no_selector_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        label_selector.matches(label_selector.of_text(text), {})
