"""Profiles on pods that wait already: each decision is the same whenever it is taken again."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.groups import ClusterColocationProfile
from koordinator.manager.profiles import colocation_profile, profile_matching
from koordinator.manager.profiles.profile_matching import CompiledProfile

KEYS = st.sampled_from("abc")
TEXTS = st.sampled_from(["", "x", "x-1", "-1", "x-1-2", "-2", "y"])
MAPS = st.dictionaries(KEYS, TEXTS, max_size=3)
PROFILES = st.fixed_dictionaries(
    {
        "labels": MAPS,
        "annotations": MAPS,
        "labelKeysMapping": st.dictionaries(KEYS, KEYS, max_size=2),
        "annotationKeysMapping": st.dictionaries(KEYS, KEYS, max_size=2),
        "labelSuffixes": st.dictionaries(KEYS, st.sampled_from(["", "-1", "-2", "x"]), max_size=2),
    }
)


def profile(name: str = "p", generation: int = 1, **spec: Any) -> CompiledProfile:
    metadata = {"name": name, "uid": f"uid-of-{name}", "generation": generation}
    found = from_builtins({"metadata": metadata, "spec": spec}, ClusterColocationProfile)
    return profile_matching.compile_profile(found)


def pod(labels: dict[str, str], annotations: dict[str, str] | None = None) -> dict[str, Any]:
    return {"metadata": {"name": "p", "labels": labels, "annotations": annotations or {}}}


def labels_of(obj: dict[str, Any]) -> dict[str, str]:
    return dict(obj["metadata"].get("labels") or {})


@given(own=MAPS, notes=MAPS, spec=PROFILES)
def test_applying_a_profile_twice_is_applying_it_once(
    own: dict[str, str], notes: dict[str, str], spec: dict[str, Any]
) -> None:
    compiled = profile(**spec)

    once = colocation_profile.applied(pod(own, notes), compiled)

    assert colocation_profile.applied(once, compiled) == once


def test_profiles_that_append_to_one_label_leave_each_other_alone() -> None:
    first = profile("a", labelSuffixes={"app": "-1"}, labelKeysMapping={"app": "origin"})
    second = profile("b", labelSuffixes={"app": "-2"})
    obj = pod({"app": "web"})

    for _ in range(3):
        obj = colocation_profile.applied(colocation_profile.applied(obj, first), second)

    assert labels_of(obj) == {"app": "web-1-2", "origin": "web"}


def test_a_pod_that_admission_changed_already_is_left_as_it_is() -> None:
    compiled = profile(labelSuffixes={"app": "-batch"}, labelKeysMapping={"app": "was"}, qosClass="BE")
    admitted = from_builtins(pod({"app": "web-batch", "was": "web", "koordinator.sh/qosClass": "BE"}), Pod)

    assert colocation_profile.metadata_patch(admitted, compiled) == {}


@given(old=st.dictionaries(KEYS, MAPS | TEXTS), new=st.dictionaries(KEYS, MAPS | TEXTS))
def test_a_difference_applied_gives_the_new_object(old: dict[str, Any], new: dict[str, Any]) -> None:
    def merged(target: Any, patch: Any) -> Any:
        if not isinstance(patch, dict):
            return patch
        result = dict(target) if isinstance(target, dict) else {}
        for key, value in patch.items():
            if value is None:
                result.pop(key, None)
            else:
                result[key] = merged(result.get(key), value)
        return result

    patch = colocation_profile.difference(old, new)

    assert merged(old, patch) == new
    assert (patch == {}) == (old == new)


def test_a_draw_depends_on_pod_and_version_only_and_is_even() -> None:
    one, other = profile().source, profile(generation=2).source

    draws = [colocation_profile.steady_draw(0, one, f"pod-{number}") for number in range(4_000)]

    assert draws == [colocation_profile.steady_draw(0, one, f"pod-{number}") for number in range(4_000)]
    assert draws != [colocation_profile.steady_draw(0, other, f"pod-{number}") for number in range(4_000)]
    assert 1_100 < sum(number < 30 for number in draws) < 1_300
    assert min(draws) >= 0 and max(draws) <= 99


def test_a_profile_without_a_pod_selector_changes_no_pod_that_exists() -> None:
    everything, of_team = (
        profile(selector={}),
        profile(selector={}, namespaceSelector={"matchLabels": {"t": "1"}}),
    )

    assert not colocation_profile.matches(profile(), {}, {})
    assert colocation_profile.matches(everything, {}, None)
    assert colocation_profile.matches(of_team, {}, {"t": "1"})
    assert not colocation_profile.matches(of_team, {}, {})
    assert not colocation_profile.matches(of_team, {}, None)
    broken = profile(selector={"matchExpressions": [{"key": "a", "operator": "In"}]})
    assert not colocation_profile.matches(broken, {}, {})
