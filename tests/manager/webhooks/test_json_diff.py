"""JSON patches between two values."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.local.patches import json_patch
from koordinator.manager.webhooks import review

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab/~"), inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.sampled_from(["a", "b", "c/d", "e~f"]), JSON, max_size=4)


@settings(max_examples=50)
@given(OBJECTS, OBJECTS)
def test_the_patch_turns_the_one_into_the_other(old: dict[str, Any], new: dict[str, Any]) -> None:
    patched = json_patch.apply(old, review.diff(old, new))

    assert msgspec.json.encode(patched, order="sorted") == msgspec.json.encode(new, order="sorted")


@settings(max_examples=25)
@given(OBJECTS, JSON)
def test_what_both_share_needs_no_operation(shared: dict[str, Any], value: Any) -> None:
    operations = review.diff({"kept": shared}, {"kept": shared, "new": value})

    assert operations == [{"op": "add", "path": "/new", "value": value}]


def test_equal_numbers_of_other_types_differ() -> None:
    assert review.diff({"a": 1}, {"a": True}) == [{"op": "replace", "path": "/a", "value": True}]
