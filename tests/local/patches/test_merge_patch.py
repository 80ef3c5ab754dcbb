"""RFC 7386 and its laws."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.local.patches import json_patch

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.text("ab", max_size=1),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=10,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), JSON, max_size=3)


@pytest.mark.parametrize(
    ("current", "patch", "expected"),
    [
        # The table of RFC 7386, appendix A.
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_the_table_of_the_rfc(current: Any, patch: Any, expected: Any) -> None:
    assert json_patch.merge(current, patch) == expected


@given(current=JSON, patch=JSON)
def test_a_merge_patch_is_idempotent_and_leaves_its_input(current: Any, patch: Any) -> None:
    before = deepcopy((current, patch))

    once = json_patch.merge(current, patch)

    assert json_patch.merge(once, patch) == once
    assert (current, patch) == before


@given(current=OBJECTS)
def test_an_empty_patch_returns_the_very_object(current: Any) -> None:
    assert json_patch.merge(current, {}) is current


@given(current=OBJECTS, patch=OBJECTS)
def test_members_that_the_patch_does_not_name_are_shared(current: Any, patch: Any) -> None:
    merged = json_patch.merge(current, patch)

    assert all(merged[key] is value for key, value in current.items() if key not in patch)
