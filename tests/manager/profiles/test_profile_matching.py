"""Which profiles an object matches: the same as by asking each of them, at a cost that others do not add to."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api import label_selector
from koordinator.api.decode import from_builtins
from koordinator.api.groups import ClusterColocationProfile
from koordinator.manager.profiles.profile_matching import CompiledProfile, Profiles, compile_profile

KEYS = st.sampled_from(["app", "team", "tier"])
VALUES = st.sampled_from(["a", "b", "c"])
LABELS = st.dictionaries(KEYS, VALUES)
EXPRESSION = st.one_of(
    st.fixed_dictionaries(
        {
            "key": KEYS,
            "operator": st.sampled_from(["In", "NotIn"]),
            "values": st.lists(VALUES, min_size=1, max_size=3),
        }
    ),
    st.fixed_dictionaries({"key": KEYS, "operator": st.sampled_from(["Exists", "DoesNotExist"])}),
)
SELECTOR = st.fixed_dictionaries(
    {}, optional={"matchLabels": LABELS, "matchExpressions": st.lists(EXPRESSION, max_size=2)}
)
SPEC = st.fixed_dictionaries({}, optional={"selector": SELECTOR, "namespaceSelector": SELECTOR})


def compiled(name: str, **spec: Any) -> CompiledProfile:
    return compile_profile(
        from_builtins({"metadata": {"name": name}, "spec": spec}, ClusterColocationProfile)
    )


def names(found: list[CompiledProfile]) -> list[str]:
    return [profile.name for profile in found]


@settings(max_examples=50)
@given(specs=st.lists(SPEC, max_size=12), pods=st.lists(LABELS, min_size=1, max_size=4), namespace=LABELS)
def test_an_index_finds_what_asking_every_profile_finds(
    specs: list[Any], pods: list[dict[str, str]], namespace: dict[str, str]
) -> None:
    sources = [
        from_builtins({"metadata": {"name": f"p{9 - at}"}, "spec": spec}, ClusterColocationProfile)
        for at, spec in enumerate(specs[:9])
    ]
    profiles = Profiles(map(compile_profile, sources))

    for own in pods:
        wanted = sorted(
            source.metadata.name
            for source in sources
            if (source.spec.selector is None or label_selector.matches(source.spec.selector, own))
            and (
                source.spec.namespace_selector is None
                or label_selector.matches(source.spec.namespace_selector, namespace)
            )
        )
        assert names(profiles.matching(own, "n", namespace)) == wanted


def test_a_namespace_whose_labels_change_is_asked_anew() -> None:
    profiles = Profiles([compiled("p", namespaceSelector={"matchLabels": {"batch": "yes"}})])

    assert names(profiles.matching({}, "n", {"batch": "yes"})) == ["p"]
    assert names(profiles.matching({}, "n", {"batch": "no"})) == []


def test_a_namespace_that_is_not_known_matches_only_profiles_that_do_not_look_at_it() -> None:
    both = [compiled("any"), compiled("some", namespaceSelector={"matchLabels": {"a": "b"}})]

    assert names(Profiles(both).matching({}, "n", None)) == ["any"]
    assert names(Profiles(both).matching_anywhere({})) == ["any", "some"]


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        pytest.param({"key": "a", "operator": "In"}, "operator In of key 'a' needs values", id="no values"),
        pytest.param({"key": "a", "operator": "Is"}, "unknown operator 'Is'", id="unknown operator"),
        pytest.param(
            {"key": "a", "operator": "Exists", "values": ["b"]}, "takes no values", id="values too many"
        ),
    ],
)
@pytest.mark.parametrize("field", ["selector", "namespaceSelector"])
def test_a_selector_that_says_nothing_matches_nobody_and_says_why(
    field: str, selector: dict[str, Any], said: str
) -> None:
    profile = compiled("p", **{field: {"matchExpressions": [selector]}})

    assert profile.unusable is not None
    assert profile.unusable.field == f"spec.{field}"
    assert said in profile.unusable.reason
    assert names(Profiles([profile]).matching({"a": "b"}, "n", {"a": "b"})) == []


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        pytest.param({"probability": "half"}, "spec.probability", id="no number"),
        pytest.param({"probability": "--5%"}, "spec.probability", id="two signs"),
        pytest.param({"probability": "5"}, "spec.probability", id="no percent sign"),
        pytest.param({"patch": {"metadata": {"labels": 5}}}, "spec.patch", id="labels that are none"),
        pytest.param({"patch": {"spec": {"containers": [{"image": "x"}]}}}, "spec.patch", id="no merge key"),
        pytest.param({"patch": {"spec": {"$patch": "swap"}}}, "spec.patch", id="unknown directive"),
        pytest.param({"patch": ["x"]}, "spec.patch", id="a list"),
    ],
)
def test_what_is_wrong_with_a_profile_is_known_before_a_pod_comes(spec: Any, field: str) -> None:
    broken = compiled("p", **spec).broken

    assert broken is not None and broken.field == field


def test_profiles_for_others_are_not_even_asked() -> None:
    asked: list[str] = []
    found = []
    for number in range(100):
        profile = compiled(f"p{number:03}", selector={"matchLabels": {"batch": "yes", "app": f"a{number}"}})
        found.append(_telling(profile, asked))
    profiles = Profiles(found)

    assert names(profiles.matching({"batch": "yes", "app": "a7"}, "n", {})) == ["p007"]
    assert asked == ["p007"]


def _telling(profile: CompiledProfile, asked: list[str]) -> CompiledProfile:
    def selects(own: Any) -> bool:
        asked.append(profile.name)
        assert profile.selects is not None
        return profile.selects(own)

    return msgspec.structs.replace(profile, selects=selects)
