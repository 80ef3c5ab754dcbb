"""What profiles make of pods: order, probability, mappings, patches, resources, and that the input is kept."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api import labels, priority
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.groups import ClusterColocationProfile, PriorityClass
from koordinator.cluster import strategic_merge
from koordinator.manager.profiles import colocation_profile, profile_matching
from koordinator.manager.profiles.colocation_profile import ProfileError, ProfileOutcome
from koordinator.manager.profiles.profile_matching import CompiledProfile, compile_profile

CLASSES = {
    name: from_builtins({"metadata": {"name": name}, "value": value}, PriorityClass)
    for name, value in (("koord-batch", 5_000), ("koord-mid", 7_000))
}


def compiled(name: str = "p", skips: bool = False, **spec: Any) -> CompiledProfile:
    annotations = {labels.SKIP_UPDATE_RESOURCES: ""} if skips else {}
    body = {"metadata": {"name": name, "annotations": annotations}, "spec": spec}
    return compile_profile(from_builtins(body, ClusterColocationProfile))


def pod_body(**spec: Any) -> dict[str, Any]:
    amounts = {"cpu": "500m", "memory": "1Gi"}
    container = {"name": "main", "image": "x", "resources": {"requests": amounts, "limits": dict(amounts)}}
    metadata = {"name": "p", "namespace": "d", "labels": {"app": "a"}}
    return {"metadata": metadata, "spec": {"containers": [container], **spec}}


def mutate(pod: dict[str, Any], *profiles: CompiledProfile, draw: int = 0) -> ProfileOutcome:
    return colocation_profile.mutate(pod, profiles, priority_class=CLASSES.get, draw=lambda: draw)


@pytest.mark.parametrize("percent", [1, 50, 99])
def test_a_probability_of_n_percent_applies_to_n_of_a_hundred_draws(percent: int) -> None:
    profile = compiled(probability=f"{percent}%")

    drawn = sum(colocation_profile.is_drawn(profile, lambda number=number: number) for number in range(100))

    assert drawn == percent


@pytest.mark.parametrize(
    ("probability", "is_drawn"), [(None, True), (100, True), (250, True), (0, False), (-5, False)]
)
def test_beyond_the_ends_probability_is_certainty(probability: int | None, is_drawn: bool) -> None:
    profile = compiled(probability=probability)

    assert {colocation_profile.is_drawn(profile, lambda draw=draw: draw) for draw in (0, 99)} == {is_drawn}


def test_a_broken_profile_refuses_only_pods_that_it_would_change() -> None:
    off = compiled(probability=0, patch={"spec": {"containers": 5}})
    half = compiled(probability=50, patch={"spec": {"containers": 5}})

    assert mutate(pod_body(), off).applied == ()
    assert mutate(pod_body(), half, draw=50).applied == ()
    for profile in (half, compiled(probability="half")):
        with pytest.raises(ProfileError):
            mutate(pod_body(), profile, draw=49)


def test_chained_mappings_follow_the_order_of_their_keys() -> None:
    for mapping in ({"a": "b", "b": "c"}, {"b": "c", "a": "b"}):
        pod = pod_body()
        pod["metadata"]["labels"] = {"a": "1", "b": "2"}

        found = mutate(pod, compiled(labelKeysMapping=mapping)).pod["metadata"]["labels"]

        assert found == {"a": "1", "b": "1", "c": "1"}


def test_later_profiles_see_and_overwrite_what_earlier_ones_did() -> None:
    first = compiled("a", labels={"x": "1", "y": "1"}, labelSuffixes={"x": "-s"}, schedulerName="one")
    second = compiled("b", labels={"y": "2"}, labelKeysMapping={"x": "z"}, schedulerName="two")

    outcome = mutate(pod_body(), first, second)

    assert outcome.applied == ("a", "b")
    assert outcome.pod["metadata"]["labels"] == {"app": "a", "x": "1-s", "y": "2", "z": "1-s"}
    assert outcome.pod["spec"]["schedulerName"] == "two"


def test_a_patch_is_merged_by_key_and_a_later_profile_works_on_what_it_made() -> None:
    patch = {
        "metadata": {"labels": {"patched": "yes"}},
        "spec": {"containers": [{"name": "main", "env": [{"name": "A", "value": "1"}]}, {"name": "side"}]},
    }

    found = mutate(pod_body(), compiled("a", patch=patch), compiled("b", labelSuffixes={"patched": "!"})).pod

    assert found["metadata"]["labels"]["patched"] == "yes!"
    names = {each["name"]: each for each in found["spec"]["containers"]}
    assert names.keys() == {"main", "side"}
    assert names["main"]["env"] == [{"name": "A", "value": "1"}] and names["main"]["image"] == "x"


def test_a_patch_that_cannot_be_merged_refuses_with_profile_and_field() -> None:
    with pytest.raises(ProfileError, match=r"^ClusterColocationProfile p: spec\.patch: "):
        mutate(pod_body(), compiled(patch={"spec": {"containers": [{"image": "whose?"}]}}))


def test_a_missing_priority_class_says_what_to_create() -> None:
    with pytest.raises(ProfileError, match=r'spec\.priorityClassName: no PriorityClass "gone" exists'):
        mutate(pod_body(), compiled(priorityClassName="gone"))


def test_amounts_of_the_whole_pod_are_handed_to_its_containers() -> None:
    whole = {"requests": {"cpu": "4", "memory": "4Gi", "hugepages-2Mi": "8Mi"}, "limits": {"cpu": "6"}}
    pod = pod_body(resources=whole)
    pod["spec"]["containers"].append({"name": "free"})
    pod["spec"]["initContainers"] = [
        {"name": "first", "resources": {"requests": {"cpu": "1"}}},
        {"name": "side", "restartPolicy": "Always", "resources": {"requests": {"cpu": "250m"}}},
    ]

    outcome = mutate(pod, compiled(qosClass="BE", priorityClassName="koord-batch"))

    spec = outcome.pod["spec"]
    assert spec["resources"] == {"requests": {"hugepages-2Mi": "8Mi"}}
    main, free = (each["resources"] for each in spec["containers"])
    first, side = (each["resources"] for each in spec["initContainers"])
    batch_cpu, batch_memory = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
    # 4 cores for the pod: half a core and a quarter are taken, the others go to the one without a limit.
    assert [part["requests"][batch_cpu] for part in (main, free, side)] == ["500", "3250", "250"]
    assert [part["limits"][batch_cpu] for part in (main, free, side)] == ["500", "6k", "6k"]
    assert free["requests"][batch_memory] == "3Gi" and batch_memory not in free["limits"]
    assert first == {"requests": {batch_cpu: "1k"}}
    assert "spec.resources" in outcome.warnings[0]


def test_pods_that_are_no_batch_pods_keep_the_amounts_of_the_whole_pod() -> None:
    pod = pod_body(resources={"requests": {"cpu": "4"}})

    outcome = mutate(pod, compiled(labels={"x": "y"}))

    assert outcome.pod["spec"]["resources"] == {"requests": {"cpu": "4"}}
    assert outcome.warnings == ()


AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory"]), st.sampled_from(["1", "500m", "3", "1Gi"]))
RESOURCES = st.fixed_dictionaries({}, optional={"requests": AMOUNTS, "limits": AMOUNTS})
CONTAINERS = st.lists(st.fixed_dictionaries({}, optional={"resources": RESOURCES}), max_size=3)
PODS = st.fixed_dictionaries(
    {},
    optional={
        "containers": CONTAINERS,
        "initContainers": CONTAINERS,
        "resources": RESOURCES,
        "overhead": AMOUNTS,
        "priority": st.sampled_from([5_500, 7_500, 9_500, 3_500]),
    },
)


@settings(max_examples=50)
@given(spec=PODS, own=st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["", "x"])))
def test_the_pod_that_came_is_never_changed_and_no_native_amount_is_left(spec: Any, own: Any) -> None:
    pod = {"metadata": {"labels": own}, "spec": spec}
    before = copy.deepcopy(pod)
    profile = compiled(
        qosClass="BE",
        labels={"b": "2"},
        labelKeysMapping={"a": "c"},
        labelSuffixes={"a": "!"},
        patch={"metadata": {"annotations": {"k": "v"}}, "spec": {"hostNetwork": True}},
    )

    found = mutate(pod, profile).pod

    assert pod == before
    again = mutate(found, compiled(qosClass="BE")).pod
    assert again == found, "what is rewritten already stays"
    if spec.get("priority") in (5_500, 7_500) or "priority" not in spec:
        parts = [
            found["spec"],
            *found["spec"].get("containers", []),
            *found["spec"].get("initContainers", []),
        ]
        sides = [part.get("resources", {}).get(side, {}) for part in parts for side in ("requests", "limits")]
        assert all(
            not {"cpu", "memory"} & side.keys() for side in (*sides, found["spec"].get("overhead", {}))
        )


CLASS_TEXTS = st.sampled_from(["koord-batch", "koord-mid", "koord-prod", "bogus", ""])
OWN = st.fixed_dictionaries(
    {},
    optional={
        labels.PRIORITY_CLASS: CLASS_TEXTS,
        labels.QOS_CLASS: st.sampled_from(["BE", "LSR", "LS", "?", ""]),
    },
)


@settings(max_examples=50)
@given(spec=PODS, own=OWN)
def test_the_class_of_a_pod_in_json_is_that_of_the_decoded_pod(spec: Any, own: Any) -> None:
    pod = {"metadata": {"labels": own}, "spec": spec}

    assert colocation_profile.priority_class_of(pod) is priority.default(from_builtins(pod, Pod))


SCALARS = st.booleans() | st.integers(0, 3) | st.sampled_from(["", "x"])
MEMBERS = st.sampled_from(["metadata", "spec", "labels", "containers", "name", "affinity"])
VALUES = st.recursive(
    SCALARS | st.none(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(MEMBERS, inner, max_size=3),
    max_leaves=6,
)
PLAIN = st.recursive(SCALARS, lambda inner: st.dictionaries(MEMBERS, inner, max_size=3), max_leaves=6)


@settings(max_examples=50)
@given(obj=st.dictionaries(MEMBERS, VALUES, max_size=3), patch=st.dictionaries(MEMBERS, PLAIN, max_size=3))
def test_a_plain_patch_is_merged_as_any_other(obj: Any, patch: Any) -> None:
    before = copy.deepcopy((obj, patch))
    assert profile_matching.is_plain(patch)

    merged = profile_matching.merge_plain(obj, patch)

    for shape in (profile_matching.POD, profile_matching.RESERVATION):
        assert merged == strategic_merge.merge(obj, patch, shape)
    assert (obj, patch) == before


@pytest.mark.parametrize("patch", [{"a": None}, {"a": [1]}, {"$patch": "delete"}, {"a": {"$retainKeys": []}}])
def test_a_patch_that_does_more_than_setting_members_is_not_plain(patch: Any) -> None:
    assert not profile_matching.is_plain(patch)
    assert not compiled(patch=patch).has_plain_patch
