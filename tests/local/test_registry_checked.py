"""The registry with its schemas, patches and webhooks: every room of a write at work together."""

from typing import Any

import msgspec
import pytest

from koordinator.clock import FixedClock
from koordinator.cluster import errors
from koordinator.cluster.backend import ObjectRecord, WriteOptions
from koordinator.cluster.protocol import PatchType
from koordinator.local import registry
from koordinator.local.admission import AdmissionChain
from koordinator.local.registry import ObjectRegistry
from tests.local.registry_builders import NOW_S, create, definition, pod

CRDS = "apiextensions.k8s.io/v1"
MANAGED_BY = WriteOptions(field_manager="kubectl")
WIDGET_SCHEMA = {"openAPIV3Schema": {"type": "object", "properties": {"size": {"type": "integer"}}}}


def checked() -> ObjectRegistry:
    return registry.in_memory(FixedClock(NOW_S))


def deployment(**spec: Any) -> dict[str, Any]:
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": pod()["spec"]}
    return {
        "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": labels}, "template": template, **spec},
    }


async def patch(
    api: ObjectRegistry,
    name: str,
    change: Any,
    kind: PatchType = PatchType.STRATEGIC,
    options: WriteOptions = WriteOptions(),
    plural: str = "pods",
    api_version: str = "v1",
    subresource: str = "",
) -> ObjectRecord:
    group, _, version = api_version.rpartition("/")
    resource = api.resolve(group, version, plural)
    return await api.patch(resource, "default", name, change, kind, options, subresource)


async def test_a_new_object_gets_the_defaults_of_its_kind() -> None:
    obj = (await create(checked(), "deployments", deployment(), "default", "apps/v1")).obj

    assert (obj["spec"]["replicas"], obj["spec"]["strategy"]["type"]) == (1, "RollingUpdate")
    assert obj["spec"]["template"]["spec"]["restartPolicy"] == "Always"


async def test_everything_that_is_wrong_is_said_at_once() -> None:
    api = checked()

    with pytest.raises(errors.Invalid) as refused:
        await create(api, "pods", {"metadata": {"name": "Web_0"}, "spec": {"containers": []}}, "default")

    assert refused.value.details is not None
    assert [cause.field for cause in refused.value.details.causes] == ["metadata.name", "spec.containers"]
    assert str(refused.value).startswith('Pod "Web_0" is invalid: [metadata.name: Invalid value: "Web_0": ')


async def test_wrong_types_are_a_bad_request_in_an_object_and_invalid_by_a_patch() -> None:
    api = checked()
    with pytest.raises(errors.BadRequest, match="json: cannot unmarshal string into Go struct field"):
        await create(api, "pods", {"metadata": {"name": "a"}, "spec": {"containers": "x"}}, "default")
    await create(api, "pods", pod("a"), "default")

    with pytest.raises(errors.Invalid, match=r"patch: Invalid value: .*json: cannot unmarshal"):
        await patch(api, "a", {"spec": {"containers": "x"}}, PatchType.MERGE)


async def test_wrong_types_in_a_strategic_patch_are_reported_by_the_patch_alone() -> None:
    api = checked()
    await create(api, "pods", pod("a"), "default")

    with pytest.raises(errors.Invalid) as refused:
        await patch(api, "a", {"spec": {"containers": None, "nodeName": [1, True]}})

    assert str(refused.value).startswith(
        ' "" is invalid: patch: Invalid value: "map[spec:map[containers:<nil> nodeName:[1 true]]]": json: cannot'
    )


async def test_unknown_fields_warn_or_refuse() -> None:
    api = checked()
    warnings: list[str] = []
    pods = api.resolve("", "v1", "pods")
    body = pod("a")
    body["spec"]["colour"] = "red"

    with pytest.raises(errors.BadRequest, match=r'strict decoding error: unknown field "spec.colour"'):
        await api.create(pods, "default", {**body}, WriteOptions(field_validation="Strict"))
    record = await api.create(pods, "default", body, WriteOptions(warn=warnings.append))
    assert warnings == ['unknown field "spec.colour"']
    assert "colour" not in record.obj["spec"]
    with pytest.raises(
        errors.Invalid, match=r"patch: Invalid value: .* strict decoding error: unknown field"
    ):
        strict = WriteOptions(field_validation="Strict")
        await patch(api, "a", {"spec": {"colour": "red"}}, PatchType.MERGE, strict)


async def test_a_pod_keeps_what_it_was_made_of() -> None:
    api = checked()
    await create(api, "pods", pod("a"), "default")

    with pytest.raises(errors.Invalid, match="spec: Forbidden: pod updates may not change fields other than"):
        await patch(api, "a", {"spec": {"hostNetwork": True}})
    assert (await patch(api, "a", {"metadata": {"labels": {"x": "y"}}})).obj["metadata"]["labels"] == {
        "x": "y"
    }


async def test_field_owners_are_kept_and_cost_no_version_by_themselves() -> None:
    api = checked()
    configs = api.resolve("", "v1", "configmaps")
    first = await api.create(configs, "default", {"metadata": {"name": "c"}, "data": {"x": "1"}}, MANAGED_BY)
    assert [one["manager"] for one in first.obj["metadata"]["managedFields"]] == ["kubectl"]

    assert isinstance(api.clock, FixedClock)
    api.clock.now_s += 60
    same = await patch(api, "c", {"data": {"x": "1"}}, options=MANAGED_BY, plural="configmaps")
    assert same.version == first.version


async def test_server_side_apply_creates_changes_and_conflicts() -> None:
    api = checked()
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"x": "1"}}
    mine, theirs = WriteOptions(field_manager="me"), WriteOptions(field_manager="they")
    first = await patch(api, "c", body, PatchType.APPLY, mine, "configmaps")
    again = await patch(api, "c", body, PatchType.APPLY, mine, "configmaps")
    assert (first.obj["data"], again.version) == ({"x": "1"}, first.version)

    taken = {**body, "data": {"x": "2"}}
    with pytest.raises(errors.Conflict, match='conflict with "me"'):
        await patch(api, "c", taken, PatchType.APPLY, theirs, "configmaps")
    forced = WriteOptions(field_manager="they", force=True)
    assert (await patch(api, "c", taken, PatchType.APPLY, forced, "configmaps")).obj["data"] == {"x": "2"}


async def test_what_applies_must_name_the_object() -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}}

    with pytest.raises(errors.ApiError) as refused:
        await patch(checked(), "c", body, PatchType.APPLY, WriteOptions(field_manager="me"), "configmaps")

    assert 400 <= refused.value.code < 500


async def test_custom_resources_are_held_to_their_schema() -> None:
    api = checked()
    size = {"type": "integer", "minimum": 1, "default": 3}
    spec_schema = {"type": "object", "properties": {"size": size}, "default": {}}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec_schema}}}
    await create(api, "customresourcedefinitions", definition(schema=schema), api_version=CRDS)

    made = await create(api, "widgets", {"metadata": {"name": "w"}}, "default", "example.com/v1")
    assert made.obj["spec"] == {"size": 3}
    with pytest.raises(errors.Invalid, match=r"spec.size: Invalid value: 0"):
        await patch(
            api, "w", {"spec": {"size": 0}}, PatchType.MERGE, plural="widgets", api_version="example.com/v1"
        )


async def test_a_definition_without_a_schema_is_refused() -> None:
    crd = definition()
    del crd["spec"]["versions"][0]["schema"]

    with pytest.raises(errors.Invalid, match=r"spec\.versions\[0\]\.schema"):
        await create(checked(), "customresourcedefinitions", crd, api_version=CRDS)


async def test_nodes_may_be_assigned_by_binding_only() -> None:
    api = checked()
    await create(api, "pods", pod("a"), "default")
    pods = api.resolve("", "v1", "pods")

    with pytest.raises(errors.Invalid):
        await patch(api, "a", {"spec": {"nodeName": "n1"}})
    binding = {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n1"}}
    await api.connect(pods, "default", "a", "binding", binding)

    assert api.get(pods, "default", "a").obj["spec"]["nodeName"] == "n1"


async def webhook(api: ObjectRegistry, *operations: str) -> list[dict[str, Any]]:
    """Labels every pod, refuses deletes of pods called `kept`; returns the requests that it got."""
    requests: list[dict[str, Any]] = []

    async def answer(body: bytes) -> bytes:
        request = msgspec.json.decode(body)["request"]
        requests.append(request)
        response: dict[str, Any] = {"uid": request["uid"], "allowed": True}
        if request["operation"] == "DELETE" and request["name"] == "kept":
            response |= {"allowed": False, "status": {"message": "this one stays"}}
        elif request["operation"] == "CREATE":
            ops = [{"op": "add", "path": "/metadata/labels", "value": {"seen": "yes"}}]
            response |= {"patchType": "JSONPatch", "patch": msgspec.to_builtins(msgspec.json.encode(ops))}
        return msgspec.json.encode(
            {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        )

    assert isinstance(api.admission, AdmissionChain)
    api.admission.webhooks.register_handler("test", answer)
    rule = {"operations": list(operations), "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    hook = {
        "name": "pods.example.com",
        "clientConfig": {"url": "inproc://test"},
        "rules": [rule],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    body = {"metadata": {"name": "test"}, "webhooks": [hook]}
    await create(api, "mutatingwebhookconfigurations", body, api_version="admissionregistration.k8s.io/v1")
    return requests


async def test_webhooks_change_what_is_created() -> None:
    api = checked()
    requests = await webhook(api, "CREATE")

    record = await create(api, "pods", pod("a"), "default")

    assert record.obj["metadata"]["labels"] == {"seen": "yes"}
    (request,) = requests
    assert (request["namespace"], request["name"]) == ("default", "a")
    assert request["object"]["spec"]["priority"] == 0  # built-in admission comes first
    await api.close()


async def test_webhooks_may_forbid_a_delete() -> None:
    api = checked()
    await webhook(api, "DELETE")
    pods = api.resolve("", "v1", "pods")
    for name in ("kept", "other"):
        await create(api, "pods", pod(name), "default")

    with pytest.raises(errors.ApiError, match="this one stays"):
        await api.delete(pods, "default", "kept")
    _, is_gone = await api.delete(pods, "default", "other")

    assert is_gone
    await api.close()


async def test_string_data_of_a_secret_becomes_data_however_it_is_written() -> None:
    api = checked()
    body = {"metadata": {"name": "web"}, "data": {"a": "b2xk", "b": "Yg=="}, "stringData": {"a": "new"}}
    made = await create(api, "secrets", body, "default")
    assert (made.obj["data"], "stringData" in made.obj) == ({"a": "bmV3", "b": "Yg=="}, False)

    for kind in (PatchType.MERGE, PatchType.STRATEGIC):
        changed = await patch(api, "web", {"stringData": {"c": kind.name}}, kind, plural="secrets")
        assert (set(changed.obj["data"]), "stringData" in changed.obj) == ({"a", "b", "c"}, False)
    applied = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "web"}, "stringData": {"d": "é"}}
    changed = await patch(api, "web", applied, PatchType.APPLY, MANAGED_BY, plural="secrets")
    assert (changed.obj["data"]["d"], "stringData" in changed.obj) == ("w6k=", False)

    resource = api.resolve("", "v1", "secrets")
    replaced = await api.update(
        resource, "default", "web", {"metadata": {"name": "web"}, "stringData": {"x": "y"}}
    )
    assert (replaced.obj["data"], replaced.obj["type"]) == ({"x": "eQ=="}, "Opaque")


async def test_a_custom_object_owns_its_fields_and_has_only_its_subresources() -> None:
    api = checked()
    await create(api, "customresourcedefinitions", definition(schema=WIDGET_SCHEMA), api_version=CRDS)
    widgets = api.resolve("example.com", "v1", "widgets")
    widget = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "one"}, "size": 1}
    made = (await api.create(widgets, "default", widget, MANAGED_BY)).obj
    assert [entry["fieldsV1"] for entry in made["metadata"]["managedFields"]] == [{"f:size": {}}]

    with pytest.raises(errors.NotFound, match=r'widgets\.example\.com "one" not found'):
        api.get(widgets, "default", "one", "status")


async def test_a_custom_object_is_scaled_by_the_checks_of_its_own_definition() -> None:
    api = checked()
    paths = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
    schema = {
        "openAPIV3Schema": {
            "type": "object",
            "properties": {
                part: {"type": "object", "properties": {"replicas": {"type": "integer"}}}
                for part in ("spec", "status")
            },
        }
    }
    crd = definition(schema=schema, subresources={"scale": paths})
    await create(api, "customresourcedefinitions", crd, api_version=CRDS)
    await create(api, "widgets", {"metadata": {"name": "web"}}, "default", "example.com/v1")
    widgets = api.resolve("example.com", "v1", "widgets")

    with pytest.raises(
        errors.InternalError, match=r'the spec replicas field "\.spec\.replicas" does not exist'
    ):
        api.get(widgets, "default", "web", "scale")
    with pytest.raises(
        errors.Invalid, match=r"\.spec\.replicas: Invalid value: -1: should be a non-negative"
    ):
        await patch_scale(api, -1)
    await patch_scale(api, 2)
    assert api.get(widgets, "default", "web", "scale").obj["spec"] == {"replicas": 2}


async def patch_scale(api: ObjectRegistry, replicas: int) -> None:
    change, version = {"spec": {"replicas": replicas}}, "example.com/v1"
    await patch(
        api, "web", change, PatchType.MERGE, plural="widgets", api_version=version, subresource="scale"
    )
