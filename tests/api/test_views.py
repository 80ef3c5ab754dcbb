"""Views read whatever an API server sends, under the names that Kubernetes gives the fields."""

import json
import re
from typing import Any

import msgspec
import pytest
from kubernetes import client as stock

from koordinator.api import apps, core, decode, groups, kinds
from koordinator.api.meta import Object, ObjectMeta, metadata_view, to_wire
from tests.api.walk import structs

TYPED = [view for view in map(kinds.view_of, kinds.ALL) if len(view.__struct_fields__) > 1]
BUILT_IN = [view for view in TYPED if view.resource in kinds.BUILT_IN]


def view_id(view: type[Object]) -> str:
    return f"{view.resource.kind}.{view.resource.group}/{view.resource.version}"


@pytest.mark.parametrize("view", TYPED, ids=view_id)
def test_a_null_means_not_set_wherever_it_stands(view: type[Object]) -> None:
    for struct in structs(view):
        nulls = {field.encode_name: None for field in msgspec.structs.fields(struct)}

        assert decode.from_builtins(nulls, struct) == struct()
        assert decode.from_json(json.dumps(nulls), struct) == struct()


def test_nulls_deep_inside_leave_their_neighbours_alone() -> None:
    text = """{
      "metadata": {"name": "web-0", "labels": null, "creationTimestamp": null},
      "spec": {"containers": [{"name": "main", "env": null, "resources": {"limits": null}, "command": ["x"]}],
               "tolerations": null, "affinity": null},
      "status": null}"""

    pod = decode.from_json(text, core.Pod)

    main = core.Container(name="main", command=["x"])
    assert pod == core.Pod(
        metadata=ObjectMeta(name="web-0"), spec=core.PodSpec(containers=[main]), status=core.PodStatus()
    )


def test_nulls_in_free_form_parts_stay() -> None:
    obj = {"metadata": {"labels": None}, "spec": {"template": {"metadata": {"creationTimestamp": None}}}}

    replica_set = decode.from_builtins(obj, apps.ReplicaSet)

    assert replica_set.spec.template == {"metadata": {"creationTimestamp": None}}
    assert obj["metadata"] == {"labels": None}, "the input is not changed"


def test_an_object_that_does_not_fit_is_refused_with_its_path() -> None:
    with pytest.raises(msgspec.ValidationError, match=re.escape("$.spec.containers[0].name")):
        decode.from_json('{"metadata": {"labels": null}, "spec": {"containers": [{"name": 3}]}}', core.Pod)
    with pytest.raises(msgspec.DecodeError):
        decode.from_json("{", core.Pod)


def test_unknown_fields_are_ignored() -> None:
    node = decode.from_json('{"spec": {"unheardOf": [1]}, "new": {}, "metadata": {"name": "n"}}', core.Node)

    assert node.key == "n"


@pytest.mark.parametrize("raw", [1, "50%"])
def test_numbers_and_percentages_are_both_read(raw: int | str) -> None:
    budget = decode.from_builtins({"spec": {"minAvailable": raw}}, groups.PodDisruptionBudget)

    assert budget.spec.min_available == raw


@pytest.mark.parametrize("raw", ["500m", 2, 0.5])
def test_quantities_are_read_as_text_and_as_numbers(raw: str | float) -> None:
    node = decode.from_builtins({"status": {"allocatable": {"cpu": raw}}}, core.Node)

    assert node.status.allocatable == {"cpu": raw}


@pytest.mark.parametrize("view", TYPED, ids=view_id)
def test_views_hold_no_cycles_so_the_collector_can_skip_them(view: type[Object]) -> None:
    assert all(not struct.__struct_config__.gc for struct in structs(view))


def model_of(view: type[Object]) -> type[Any]:
    """The stock client's model of a kind."""
    group = {"": "Core", "events.k8s.io": "Events", "resource.k8s.io": "Resource"}.get(
        view.resource.group, ""
    )
    prefix = view.resource.version.capitalize()
    for name in (f"{prefix}{view.resource.kind}", f"{group}{prefix}{view.resource.kind}"):
        if hasattr(stock, name):
            found: type[Any] = getattr(stock, name)
            return found
    raise AssertionError(f"the stock client has no {view.resource.kind}")


def name_mismatches(info: msgspec.inspect.Type, model_text: str, path: str) -> list[str]:
    """Fields below `info` that the stock client's type does not have."""
    match info:
        case msgspec.inspect.Metadata():
            return name_mismatches(info.type, model_text, path)
        case msgspec.inspect.UnionType():
            return [bad for member in info.types for bad in name_mismatches(member, model_text, path)]
        case msgspec.inspect.ListType():
            inner = re.fullmatch(r"(?i:list)\[(.+)\]", model_text)
            return name_mismatches(info.item_type, inner[1], f"{path}[]") if inner else [f"{path}: no list"]
        case msgspec.inspect.DictType(value_type=msgspec.inspect.AnyType()):
            return []  # kept whole, whatever it is
        case msgspec.inspect.DictType():
            return [] if model_text.startswith(("dict", "Dict", "object")) else [f"{path}: no map"]
        case msgspec.inspect.StructType():
            return struct_mismatches(info, getattr(stock, model_text), path)
    return []


# Views that stand for several types of Kubernetes: fields that only some of them have.
SHARED = {
    "Condition": {"lastProbeTime", "lastHeartbeatTime", "lastUpdateTime", "observedGeneration", "reason"}
    | {"message", "lastTransitionTime"},
    "ObjectSource": {"name", "secretName"},
    "RollingUpdate": {"maxSurge", "partition", "maxUnavailable"},
    "ReplicaCounts": {"fullyLabeledReplicas", "terminatingReplicas"},
    "Webhook": {"reinvocationPolicy"},
}
# Newer than the oldest stock client that the tests may meet.
RECENT = {"observedGeneration", "preventPodSchedulingIfMissing", "resize", "resources", "terminatingReplicas"}
RECENT |= {"capacity", "distinctAttribute", "allowMultipleAllocations", "bindingConditions"}


def struct_mismatches(info: msgspec.inspect.StructType, model: type[Any], path: str) -> list[str]:
    types = {model.attribute_map[name]: text for name, text in model.openapi_types.items()}
    bad: list[str] = []
    for field in info.fields:
        here = f"{path}.{field.encode_name}"
        if field.encode_name in types:
            bad += name_mismatches(field.type, types[field.encode_name], here)
        elif field.encode_name not in SHARED.get(info.cls.__name__, set()) | RECENT:
            bad.append(f"{here}: not in {model.__name__}")
    return bad


@pytest.mark.parametrize("view", BUILT_IN, ids=view_id)
def test_fields_have_the_names_and_shapes_that_the_stock_client_knows(view: type[Object]) -> None:
    info = msgspec.inspect.type_info(view)
    assert isinstance(info, msgspec.inspect.StructType)

    assert struct_mismatches(info, model_of(view), view.resource.kind) == []


def test_both_forms_of_an_event_read_the_same_object() -> None:
    assert core.Event.resource.plural == groups.Event.resource.plural
    modern = decode.from_builtins(
        {"note": "n", "deprecatedCount": 2, "regarding": {"name": "p"}}, groups.Event
    )

    assert (modern.note, modern.count, modern.regarding.name) == ("n", 2, "p")


def test_a_view_that_we_build_names_its_kind() -> None:
    body = to_wire(core.ConfigMap(metadata=ObjectMeta(name="c", namespace="n"), data={"k": "v"}))

    assert body == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "c", "namespace": "n"},
        "data": {"k": "v"},
    }


def test_a_metadata_view_reads_any_kind() -> None:
    view = metadata_view(core.Pod.resource)

    assert decode.from_json('{"metadata": {"name": "p"}, "spec": {"containers": 1}}', view).key == "p"


def test_resources_are_found_by_kind() -> None:
    assert kinds.by_kind("apps", "Deployment") is apps.Deployment.resource
    topology = kinds.by_kind("topology.node.k8s.io", "NodeResourceTopology", "v1alpha2")
    assert topology is not None and topology.version == "v1alpha2"
    assert kinds.by_kind("topology.node.k8s.io", "NodeResourceTopology", "v9") is None


def test_kinds_without_a_typed_view_have_one_of_their_metadata() -> None:
    roles = kinds.by_kind("rbac.authorization.k8s.io", "Role")
    assert roles is not None

    assert kinds.view_of(roles).__struct_fields__ == ("metadata",)
    assert kinds.view_of(roles) is kinds.view_of(roles)
    assert kinds.view_of(core.Pod.resource) is core.Pod


def test_no_two_resources_share_an_address_or_a_short_name() -> None:
    addresses = [(resource.group, resource.version, resource.plural) for resource in kinds.ALL]
    names = {(short, resource.qualified) for resource in kinds.ALL for short in resource.short_names}
    shorts = [short for short, qualified in names if qualified != "events.events.k8s.io"]

    assert len(addresses) == len(set(addresses))
    assert len(shorts) == len(set(shorts))
