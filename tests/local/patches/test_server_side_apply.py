"""Server-side apply: ownership, conflicts, removal, and how other writes change owners."""

# ruff: noqa: E501 - the tables quote the API server's texts whole, one case a line

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.cluster.backend import WriteOptions
from koordinator.cluster.errors import BadRequest, Conflict, Invalid
from koordinator.cluster.protocol import PatchType
from koordinator.local.interfaces import WriteContext
from koordinator.local.patches.apply import managed
from tests.local.patches.catalog import DEPLOYMENTS, PATCHER, WIDGETS

Json = dict[str, Any]


def deployment(**spec: Any) -> Json:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}


def with_containers(*containers: Json, **spec: Any) -> Json:
    return deployment(template={"spec": {"containers": list(containers)}}, **spec)


def apply(
    current: Json,
    config: Json,
    manager: str = "me",
    *,
    force: bool = False,
    now_s: float = 0,
    subresource: str = "",
) -> Json:
    options = WriteOptions(field_manager=manager, force=force)
    context = WriteContext(DEPLOYMENTS, options, now_s, subresource)
    before = deepcopy((current, config))

    result = PATCHER.apply(PatchType.APPLY, current, config, context)

    assert (current, config) == before
    return result


def update(
    old: Json | None, new: Json, manager: str = "kubectl-edit", *, now_s: float = 0, subresource: str = ""
) -> Json:
    options = WriteOptions(field_manager=manager)
    return PATCHER.track(old, new, WriteContext(DEPLOYMENTS, options, now_s, subresource))


def owned(obj: Json, manager: str, operation: str = "Apply") -> list[str]:
    for entry in obj["metadata"].get("managedFields", []):
        if (entry["manager"], entry["operation"]) == (manager, operation):
            return list(managed.paths(entry["fieldsV1"]))
    return []


def test_applied_fields_belong_to_the_manager() -> None:
    obj = apply(
        {}, with_containers({"name": "c", "image": "i:1"}, replicas=2, selector={"matchLabels": {"a": "b"}})
    )

    assert owned(obj, "me") == [
        ".spec.replicas",
        ".spec.selector",
        '.spec.template.spec.containers[name="c"]',
        '.spec.template.spec.containers[name="c"].image',
        '.spec.template.spec.containers[name="c"].name',
    ]


def test_a_change_of_anothers_field_conflicts_in_the_words_of_the_api_server() -> None:
    live = update(None, deployment(replicas=1), "kubectl-client-side-apply")

    with pytest.raises(Conflict) as caught:
        apply(live, deployment(replicas=2))

    assert caught.value.message == (
        'Apply failed with 1 conflict: conflict with "kubectl-client-side-apply" using apps/v1: .spec.replicas'
    )
    assert caught.value.details is not None
    (cause,) = caught.value.details.causes
    assert (cause.reason, cause.field) == ("FieldManagerConflict", ".spec.replicas")


def test_several_conflicts_are_listed_by_manager() -> None:
    live = apply(deployment(), deployment(replicas=1, paused=True), "one")

    with pytest.raises(Conflict) as caught:
        apply(live, deployment(replicas=2, paused=False), "two")

    assert caught.value.message == (
        'Apply failed with 2 conflicts: conflicts with "one":\n- .spec.paused\n- .spec.replicas'
    )


def test_force_takes_the_field_over() -> None:
    live = apply({}, deployment(replicas=1), "one")

    forced = apply(live, deployment(replicas=2), "two", force=True)

    assert forced["spec"] == {"replicas": 2}
    assert owned(forced, "one") == []
    assert owned(forced, "two") == [".spec.replicas"]


def test_equal_values_are_owned_together() -> None:
    live = apply({}, deployment(replicas=1), "one")

    shared = apply(live, deployment(replicas=1), "two")

    assert owned(shared, "one") == owned(shared, "two") == [".spec.replicas"]


def test_a_field_that_is_no_longer_applied_goes_when_nobody_else_owns_it() -> None:
    live = apply({}, deployment(replicas=1, paused=True), "one")
    live = apply(live, deployment(paused=True), "two")

    left = apply(live, deployment(), "one")

    assert left["spec"] == {"paused": True}


def test_a_list_element_that_is_no_longer_applied_goes_and_the_others_stay() -> None:
    live = apply({}, with_containers({"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}))
    live = update(live, {**live, "spec": {**live["spec"], "replicas": 3}})

    left = apply(live, with_containers({"name": "b", "image": "b:1"}))

    assert left["spec"] == {
        "template": {"spec": {"containers": [{"name": "b", "image": "b:1"}]}},
        "replicas": 3,
    }


def test_elements_that_others_added_stay_where_they_stood() -> None:
    live = apply({}, with_containers({"name": "a"}, {"name": "b"}))
    sidecar = with_containers({"name": "a"}, {"name": "sidecar"}, {"name": "b"})["spec"]
    live = update(live, {**live, "spec": sidecar}, "injector")

    again = apply(live, with_containers({"name": "a"}, {"name": "b"}))

    assert [c["name"] for c in again["spec"]["template"]["spec"]["containers"]] == ["a", "sidecar", "b"]


def test_ports_are_told_apart_by_number_and_protocol_with_its_default() -> None:
    live = apply({}, with_containers({"name": "a", "ports": [{"containerPort": 80}]}))
    live["spec"]["template"]["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "protocol": "TCP"}]

    again = apply(live, with_containers({"name": "a", "ports": [{"containerPort": 80, "name": "http"}]}))

    assert again["spec"]["template"]["spec"]["containers"][0]["ports"] == [
        {"containerPort": 80, "protocol": "TCP", "name": "http"}
    ]


def test_an_apply_that_changes_nothing_returns_the_very_object() -> None:
    live = apply({}, deployment(replicas=1), now_s=0)

    assert apply(live, deployment(replicas=1), now_s=1_000) is live


def test_the_first_apply_on_an_untracked_object_finds_before_first_apply() -> None:
    with pytest.raises(Conflict, match=r'conflict with "before-first-apply" using apps/v1: .spec.replicas'):
        apply(deployment(replicas=1), deployment(replicas=2))


def test_a_scale_between_applies_is_a_true_conflict() -> None:
    live = apply({}, deployment(replicas=1), "kubectl")
    scaled = update(live, {**live, "spec": {"replicas": 5}}, "kubectl", subresource="scale")

    with pytest.raises(
        Conflict, match=r'conflict with "kubectl" with subresource "scale" using apps/v1: .spec.repl'
    ):
        apply(scaled, deployment(replicas=1), "kubectl")


def test_status_belongs_to_writers_of_the_status_subresource() -> None:
    live = update(None, {**deployment(replicas=1), "status": {"replicas": 1}}, "creator")
    reported = update(live, {**live, "status": {"replicas": 2}}, "controller", subresource="status")

    assert owned(live, "creator", "Update") == [".spec.replicas"]
    assert owned(reported, "controller", "Update") == [".status.replicas"]


def test_a_removed_field_has_no_owner() -> None:
    live = apply({}, deployment(replicas=1, paused=True))
    left = update(live, {**live, "spec": {"replicas": 1}})

    assert owned(left, "me") == [".spec.replicas"]


def test_without_a_manager_owners_are_carried_over() -> None:
    live = apply({}, deployment(replicas=1))
    sent = deployment(replicas=4)

    kept = update(live, sent, "")

    assert owned(kept, "me") == [".spec.replicas"]


def test_a_client_can_clear_the_owners() -> None:
    live = apply({}, deployment(replicas=1))
    cleared = update(live, {**live, "metadata": {"name": "web", "managedFields": [{}]}}, "kubectl")

    assert "managedFields" not in cleared["metadata"]


def test_a_client_can_hand_fields_over() -> None:
    """What kubectl does when it moves from client-side to server-side apply."""
    live = update(None, deployment(replicas=1), "kubectl-client-side-apply")
    entries = [
        {**entry, "manager": "kubectl", "operation": "Apply"} for entry in live["metadata"]["managedFields"]
    ]
    moved = update(live, {**live, "metadata": {"name": "web", "managedFields": entries}}, "kubectl")

    assert apply(moved, deployment(replicas=7), "kubectl")["spec"] == {"replicas": 7}


def test_at_most_ten_update_managers_are_kept() -> None:
    obj = update(None, deployment(replicas=0), "first")
    for number in range(1, 14):
        annotations = {**obj["metadata"].get("annotations", {}), f"a{number}": "x"}
        new = {**obj, "metadata": {**obj["metadata"], "annotations": annotations}}
        obj = update(obj, new, f"m{number}", now_s=number)

    managers = [entry["manager"] for entry in obj["metadata"]["managedFields"]]
    assert len(managers) == 10
    assert "ancient-changes" in managers


@pytest.mark.parametrize(
    ("config", "error", "text"),
    [
        pytest.param(deployment(foo=1), BadRequest, ".spec.foo: field not declared in schema", id="unknown field"),
        pytest.param(deployment(replicas="x"), BadRequest, r".spec.replicas: expected numeric \(int or float\), got string", id="wrong type"),
        pytest.param(with_containers({"name": "a"}, {"name": "a"}), BadRequest, r'duplicate entries for key \[name="a"\]', id="twice the same key"),
        pytest.param({**deployment(), "apiVersion": "apps/v2"}, BadRequest, "Incorrect version specified in apply patch", id="other version"),
        pytest.param({**deployment(), "metadata": {"name": "web", "managedFields": [{}]}}, BadRequest, "metadata.managedFields must be nil", id="managedFields"),
        pytest.param([], BadRequest, "must be an object", id="no object"),
    ],
)  # fmt: skip
def test_a_bad_configuration_is_refused(config: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        apply({}, config)


def test_a_manager_is_required() -> None:
    with pytest.raises(
        Invalid, match=r'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value'
    ):
        apply({}, deployment(), "")


def test_force_is_for_apply_only() -> None:
    with pytest.raises(Invalid, match="force: Forbidden: may not be specified for non-apply patch"):
        PATCHER.apply(PatchType.MERGE, {}, {}, WriteContext(DEPLOYMENTS, WriteOptions(force=True), 0))


SPECS = st.fixed_dictionaries(
    {},
    optional={
        "replicas": st.integers(0, 3),
        "paused": st.booleans(),
        "template": st.fixed_dictionaries(
            {
                "spec": st.fixed_dictionaries(
                    {
                        "containers": st.lists(
                            st.fixed_dictionaries(
                                {"name": st.sampled_from("abc")}, optional={"image": st.sampled_from("xy")}
                            ),
                            max_size=3,
                            unique_by=lambda c: c["name"],
                        )
                    }
                )
            }
        ),
    },
)


@given(first=SPECS, second=SPECS)
def test_apply_is_idempotent_and_the_applied_values_hold(first: Json, second: Json) -> None:
    live = apply({}, deployment(**first), "one")
    once = apply(live, deployment(**second), "two", force=True)

    assert apply(once, deployment(**second), "two", now_s=99) is once
    assert {key: once["spec"][key] for key in ("replicas", "paused") if key in second} == {
        key: value for key, value in second.items() if key != "template"
    }


@given(spec=SPECS)
def test_applying_nothing_removes_all_that_was_applied(spec: Json) -> None:
    live = apply({}, deployment(**spec))

    left = apply(live, deployment())

    remaining = left.get("spec", {})
    assert not {"replicas", "paused"} & set(remaining)
    assert not remaining.get("template", {}).get("spec", {}).get("containers")


NODES = st.recursive(
    st.just({}),
    lambda inner: st.dictionaries(st.sampled_from(["f:a", "f:b", "."]), inner, min_size=1, max_size=3).map(
        lambda node: {key: ({} if key == "." else child) for key, child in node.items()}
    ),
    max_leaves=6,
)


@given(left=NODES, right=NODES)
def test_field_sets_obey_the_laws_of_sets(left: Json, right: Json) -> None:
    def members(node: Json | None) -> set[str]:
        return set(managed.paths(node, "root"))

    assert members(managed.union(left, right)) == members(left) | members(right)
    assert members(managed.difference(left, right)) == members(left) - members(right)
    assert members(managed.intersection(left, right)) == members(left) & members(right)


def test_custom_resources_without_schema_are_owned_by_field() -> None:
    config = {
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "metadata": {"name": "w"},
        "spec": {"a": [1], "b": {"c": 1}},
    }
    made = PATCHER.apply(
        PatchType.APPLY, {}, config, WriteContext(WIDGETS, WriteOptions(field_manager="me"), 0)
    )

    assert owned(made, "me") == [".spec", ".spec.a", ".spec.b", ".spec.b.c"]


def test_an_object_that_is_nested_too_deeply_is_refused() -> None:
    deep: Any = 1
    for _ in range(3_000):
        deep = {"a": deep}
    widget = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": deep}

    with pytest.raises(BadRequest, match="exceeded max depth"):
        PATCHER.track(None, widget, WriteContext(WIDGETS, WriteOptions(field_manager="me"), 0))
    with pytest.raises(BadRequest, match="exceeded max depth"):
        PATCHER.apply(PatchType.MERGE, widget, {"spec": deep}, WriteContext(WIDGETS, WriteOptions(), 0))
