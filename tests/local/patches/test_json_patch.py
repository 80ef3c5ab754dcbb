"""RFC 6902, and the API server's limits and words."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.cluster.errors import ApiError, BadRequest, Invalid, RequestTooLarge
from koordinator.local.patches import json_patch

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab/~", max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "0", "~/"]), inner, max_size=3)
    ),
    max_leaves=8,
)
POINTERS = st.lists(st.sampled_from(["a", "b", "0", "1", "-", "~0~1"]), max_size=3).map(
    lambda tokens: "".join(f"/{token}" for token in tokens)
)
OPERATIONS = st.fixed_dictionaries(
    {"op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test", "bad"]), "path": POINTERS},
    optional={"value": JSON, "from": POINTERS},
)


@pytest.mark.parametrize(
    ("document", "operation", "expected"),
    [
        pytest.param({"a": 1}, {"op": "add", "path": "/b", "value": 2}, {"a": 1, "b": 2}, id="add a member"),
        pytest.param({"a": 1}, {"op": "add", "path": "/a", "value": 2}, {"a": 2}, id="add replaces a member"),
        pytest.param({"a": [1, 3]}, {"op": "add", "path": "/a/1", "value": 2}, {"a": [1, 2, 3]}, id="insert"),
        pytest.param({"a": [1]}, {"op": "add", "path": "/a/-", "value": 2}, {"a": [1, 2]}, id="append"),
        pytest.param({"a": 1, "b": 2}, {"op": "remove", "path": "/a"}, {"b": 2}, id="remove"),
        pytest.param(
            {"a": {"b": 1}}, {"op": "replace", "path": "/a/b", "value": 2}, {"a": {"b": 2}}, id="replace"
        ),
        pytest.param(
            {"a": {"b": 1}}, {"op": "move", "from": "/a/b", "path": "/c"}, {"a": {}, "c": 1}, id="move"
        ),
        pytest.param({"a": [1]}, {"op": "copy", "from": "/a", "path": "/b"}, {"a": [1], "b": [1]}, id="copy"),
        pytest.param({"a/b": 1, "m~n": 2}, {"op": "remove", "path": "/a~1b"}, {"m~n": 2}, id="escaped slash"),
        pytest.param(
            {"m~n": 2}, {"op": "replace", "path": "/m~0n", "value": 3}, {"m~n": 3}, id="escaped tilde"
        ),
        pytest.param({"a": 1}, {"op": "test", "path": "/a", "value": 1}, {"a": 1}, id="a test that holds"),
        pytest.param({}, {"op": "test", "path": "/a", "value": None}, {}, id="a missing member is null"),
    ],
)
def test_operations(document: Any, operation: Any, expected: Any) -> None:
    assert json_patch.apply(document, [operation]) == expected


@pytest.mark.parametrize(
    ("document", "operation"),
    [
        pytest.param({}, {"op": "remove", "path": "/a"}, id="remove what is not there"),
        pytest.param(
            {"a": []}, {"op": "replace", "path": "/a/0", "value": 1}, id="replace what is not there"
        ),
        pytest.param({}, {"op": "add", "path": "/a/b", "value": 1}, id="add below what is not there"),
        pytest.param({"a": [1]}, {"op": "add", "path": "/a/2", "value": 1}, id="index out of bounds"),
        pytest.param({"a": [1, 2]}, {"op": "remove", "path": "/a/01"}, id="index with a leading zero"),
        pytest.param({"a": True}, {"op": "test", "path": "/a", "value": 1}, id="true is not 1"),
        pytest.param({"a": 1}, {"op": "add", "path": "/a/b", "value": 1}, id="below a scalar"),
        pytest.param({"a": 1}, {"op": "frob", "path": "/a"}, id="unknown operation"),
        pytest.param({"a": 1}, {"op": "add", "path": "/b"}, id="no value"),
        pytest.param({"a": {}}, {"op": "move", "from": "/a", "path": "/a/b"}, id="into itself"),
    ],
)
def test_an_operation_that_does_not_fit_is_refused_with_422(document: Any, operation: Any) -> None:
    with pytest.raises(Invalid, match="the server rejected our request due to an error in our request"):
        json_patch.apply(document, [operation])


def test_replacing_a_member_that_is_not_there_adds_it() -> None:
    assert json_patch.apply({}, [{"op": "replace", "path": "/a", "value": 1}]) == {"a": 1}


def test_a_patch_that_is_no_list_is_malformed() -> None:
    with pytest.raises(BadRequest, match="cannot unmarshal object"):
        json_patch.apply({}, {"op": "add"})


def test_more_than_ten_thousand_operations_are_too_many() -> None:
    test = {"op": "test", "path": "", "value": {}}

    assert json_patch.apply({}, [test] * 10_000) == {}
    with pytest.raises(RequestTooLarge, match="10000, got 10001"):
        json_patch.apply({}, [test] * 10_001)


def test_copies_that_double_the_document_are_bounded() -> None:
    doubling = {"op": "copy", "from": "/a", "path": "/a/-"}

    with pytest.raises(RequestTooLarge, match="accumulated size increase of copy"):
        json_patch.apply({"a": ["x" * 100]}, [doubling] * 40)


@given(document=JSON, patch=st.lists(OPERATIONS, max_size=6))
def test_any_patch_ends_in_a_value_or_an_api_error_and_leaves_its_input(document: Any, patch: Any) -> None:
    before = deepcopy((document, patch))

    try:
        json_patch.apply(document, patch)
    except ApiError as error:
        assert error.code in {400, 413, 422}

    assert (document, patch) == before


@given(document=st.dictionaries(st.text("ab", min_size=1), JSON, max_size=3), value=JSON)
def test_add_then_remove_is_nothing(document: Any, value: Any) -> None:
    patch = [{"op": "add", "path": "/new", "value": value}, {"op": "remove", "path": "/new"}]

    assert json_patch.apply(document, patch) == document
