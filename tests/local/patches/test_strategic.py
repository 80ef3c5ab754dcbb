"""Strategic merge patches on real kinds."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.cluster import strategic_merge
from koordinator.cluster.backend import WriteOptions
from koordinator.cluster.errors import ApiError, BadRequest, Invalid, UnsupportedMediaType
from koordinator.cluster.protocol import PatchType
from koordinator.local.interfaces import WriteContext
from koordinator.local.patches import json_patch
from koordinator.local.schema.types import ANY
from tests.local.patches.catalog import CATALOG, DEPLOYMENTS, PATCHER, PODS, WIDGETS

POD = CATALOG.type_of(PODS)
DEPLOYMENT = CATALOG.type_of(DEPLOYMENTS)


def containers(*items: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"containers": list(items)}}


WEB, LOG = {"name": "web", "image": "web:1"}, {"name": "log", "image": "log:1"}


@pytest.mark.parametrize(
    ("current", "patch", "expected"),
    [
        pytest.param(
            containers(WEB, LOG),
            containers({"name": "log", "image": "log:2"}),
            containers(WEB, {"name": "log", "image": "log:2"}),
            id="an element is found by its merge key",
        ),
        pytest.param(
            containers(WEB),
            containers({"name": "log", "image": "log:1"}),
            containers(LOG, WEB),
            id="a new element comes first, as the API server does it",
        ),
        pytest.param(
            containers(WEB, LOG),
            containers({"name": "web", "$patch": "delete"}),
            containers(LOG),
            id="$patch delete removes an element",
        ),
        pytest.param(
            containers(WEB, LOG),
            containers({"$patch": "replace"}, {"name": "new", "image": "new:1"}),
            containers({"name": "new", "image": "new:1"}),
            id="$patch replace swaps the list",
        ),
        pytest.param(
            {"spec": {"nodeSelector": {"a": "1", "b": "2"}}},
            {"spec": {"nodeSelector": {"$patch": "replace", "c": "3"}}},
            {"spec": {"nodeSelector": {"c": "3"}}},
            id="$patch replace swaps an object",
        ),
        pytest.param(
            {"spec": {"nodeSelector": {"a": "1"}, "nodeName": "n"}},
            {"spec": {"nodeSelector": {"$patch": "delete"}}},
            {"spec": {"nodeSelector": {}, "nodeName": "n"}},
            id="$patch delete empties an object",
        ),
        pytest.param(
            containers(WEB, LOG),
            {
                "spec": {
                    "$setElementOrder/containers": [{"name": "log"}, {"name": "web"}],
                    "containers": [{"name": "web", "image": "web:2"}],
                }
            },
            containers(LOG, {"name": "web", "image": "web:2"}),
            id="$setElementOrder orders a list",
        ),
        pytest.param(
            {"metadata": {"finalizers": ["a", "b"]}},
            {"metadata": {"finalizers": ["c", "a"]}},
            {"metadata": {"finalizers": ["c", "a", "b"]}},
            id="lists of scalars with merge strategy unite",
        ),
        pytest.param(
            {"metadata": {"finalizers": ["a", "b"]}},
            {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}},
            {"metadata": {"finalizers": ["b"]}},
            id="$deleteFromPrimitiveList removes scalars",
        ),
        pytest.param(
            {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}},
            {
                "spec": {
                    "volumes": [
                        {"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}
                    ]
                }
            },
            {"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}},
            id="$retainKeys drops the other members",
        ),
        pytest.param(
            {"spec": {"tolerations": [{"key": "a"}]}},
            {"spec": {"tolerations": [{"key": "b"}]}},
            {"spec": {"tolerations": [{"key": "b"}]}},
            id="a list without merge key is replaced",
        ),
        pytest.param(
            containers({"name": "web", "env": [{"name": "A", "value": "1"}]}),
            containers({"name": "web", "env": [{"name": "B", "value": None}]}),
            containers({"name": "web", "env": [{"name": "B"}, {"name": "A", "value": "1"}]}),
            id="nulls of a new element are dropped",
        ),
    ],
)
def test_lists_and_directives(current: Any, patch: Any, expected: Any) -> None:
    before = deepcopy((current, patch))

    assert strategic_merge.merge(current, patch, POD) == expected
    assert (current, patch) == before


def test_the_strategy_of_a_deployment_can_be_switched_as_kubectl_apply_does() -> None:
    rolling = {"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}
    patch = {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}

    assert strategic_merge.merge(rolling, patch, DEPLOYMENT) == {"spec": {"strategy": {"type": "Recreate"}}}


def test_an_element_without_its_merge_key_is_refused() -> None:
    with pytest.raises(Invalid, match="does not contain declared merge key: name"):
        strategic_merge.merge(containers(WEB), containers({"image": "x"}), POD)


def test_an_unknown_directive_is_malformed() -> None:
    with pytest.raises(BadRequest, match="Unknown patch type: frob"):
        strategic_merge.merge({"spec": {}}, {"spec": {"$patch": "frob"}}, POD)


def test_custom_resources_do_not_take_strategic_patches() -> None:
    with pytest.raises(UnsupportedMediaType, match="accepted media types include: application/json-patch"):
        PATCHER.apply(PatchType.STRATEGIC, {}, {}, WriteContext(WIDGETS, WriteOptions(), 0))


VALUES = st.recursive(
    st.booleans() | st.integers(0, 2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), VALUES | st.none(), max_size=3)


@given(current=OBJECTS, patch=OBJECTS)
def test_without_merge_keys_it_is_a_merge_patch(current: Any, patch: Any) -> None:
    assert strategic_merge.merge(current, patch, ANY) == json_patch.merge(current, patch)


WILD = st.recursive(
    st.none() | st.integers(0, 2) | st.sampled_from(["replace", "delete", "web"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "$patch",
                    "$retainKeys",
                    "name",
                    "containers",
                    "$setElementOrder/containers",
                    "env",
                    "finalizers",
                    "$deleteFromPrimitiveList/finalizers",
                    "image",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(current=WILD, patch=WILD)
def test_wild_patches_end_in_an_object_or_an_api_error(current: Any, patch: Any) -> None:
    objects = [{"spec": part, "metadata": part} for part in (current, patch)]
    before = deepcopy(objects)

    try:
        PATCHER.apply(PatchType.STRATEGIC, objects[0], objects[1], WriteContext(PODS, WriteOptions(), 0))
    except ApiError as error:
        assert error.code in {400, 422}

    assert objects == before


@pytest.mark.parametrize("directive", [["delete"], {"a": 1}, 3, "merge"])
def test_a_directive_that_is_no_text_is_refused(directive: Any) -> None:
    with pytest.raises((BadRequest, Invalid)):
        strategic_merge.merge(containers(WEB), containers({"name": "web", "$patch": directive}), POD)


def test_directives_without_meaning_in_new_lists_do_not_break_the_merge() -> None:
    patch = {"spec": {"tolerations": [{"key": "a", "$patch": ["x"]}]}}

    assert strategic_merge.merge({}, patch, POD) == {"spec": {"tolerations": []}}


@pytest.mark.parametrize("directive", ["replace", "delete", "merge"])
def test_what_a_directive_has_nothing_to_change_in_is_left_out(directive: str) -> None:
    patch = {"metadata": {"annotations": {"$patch": directive, "a": "b"}, "labels": {"c": "d"}}}

    assert strategic_merge.merge({"metadata": {}}, patch, POD) == {"metadata": {"labels": {"c": "d"}}}


def test_a_list_where_none_was_is_taken_as_it_is() -> None:
    volumes = [
        {"name": "v"},
        {"name": "v", "emptyDir": {}},
        {"hostPath": {"path": "/"}},
        {"$patch": "delete"},
    ]

    assert strategic_merge.merge({}, {"spec": {"volumes": volumes}}, POD) == {
        "spec": {"volumes": volumes[:3]}
    }
