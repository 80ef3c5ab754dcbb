"""CustomResourceDefinitions: served at once, cleaned up after, never in the way of others."""

import pytest

from koordinator.cluster import errors
from koordinator.cluster.backend import ListOptions
from koordinator.local.registry import ObjectRegistry
from tests.local.registry_builders import backend, create, definition, merge, names

CRDS = "apiextensions.k8s.io/v1"


async def defined(api: ObjectRegistry, **parts: object) -> None:
    await create(api, "customresourcedefinitions", definition(**parts), api_version=CRDS)  # type: ignore[arg-type]


async def drop(api: ObjectRegistry, name: str = "widgets.example.com") -> None:
    await api.delete(api.resolve("apiextensions.k8s.io", "v1", "customresourcedefinitions"), "", name)


async def test_a_definition_is_established_and_served_at_once() -> None:
    api = backend()
    await defined(api)

    crds = api.resolve("apiextensions.k8s.io", "v1", "customresourcedefinitions")
    obj = api.get(crds, "", "widgets.example.com").obj
    assert {one["type"]: one["status"] for one in obj["status"]["conditions"]} == {
        "NamesAccepted": "True",
        "Established": "True",
    }
    assert obj["status"]["acceptedNames"] == {
        "plural": "widgets",
        "kind": "Widget",
        "singular": "widget",
        "listKind": "WidgetList",
    }
    assert obj["status"]["storedVersions"] == ["v1"]
    assert api.resolve("example.com", "v1", "widgets").kind == "Widget"


async def test_names_that_are_taken_are_not_accepted() -> None:
    api = backend()
    await defined(api)
    await defined(api, plural="widgettes", kind="Widget")

    crds = api.resolve("apiextensions.k8s.io", "v1", "customresourcedefinitions")
    first, second = api.get(crds, "", "widgettes.example.com").obj["status"]["conditions"]
    assert (first["status"], first["reason"]) == ("False", "KindConflict")
    assert first["message"] == '"Widget" is already in use'
    assert (second["type"], second["status"], second["reason"]) == ("Established", "False", "NotAccepted")
    with pytest.raises(errors.NotFound):
        api.resolve("example.com", "v1", "widgettes")

    await drop(api, "widgettes.example.com")
    assert names_of_definitions(api) == ["widgets.example.com"]
    assert api.resolve("example.com", "v1", "widgets")


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"group": "example.org"}, "spec.group"),
        ({"scope": "Cluster"}, "spec.scope"),
        ({"names": {"kind": "Gadget"}}, "spec.names.kind"),
        ({"names": {"plural": "gadgets"}}, "spec.names.plural"),
    ],
)
async def test_the_address_of_a_resource_cannot_change(spec: dict[str, object], field: str) -> None:
    api = backend()
    await defined(api)

    with pytest.raises(errors.Invalid, match=f"{field}: Invalid value: .*: field is immutable"):
        patch = {"spec": spec}
        await merge(api, "customresourcedefinitions", "widgets.example.com", patch, "", api_version=CRDS)


async def test_a_status_that_somebody_spoilt_does_not_stop_the_service() -> None:
    api = backend()
    await defined(api)
    patch = {"status": {"conditions": []}}
    await merge(
        api,
        "customresourcedefinitions",
        "widgets.example.com",
        patch,
        "",
        api_version=CRDS,
        subresource="status",
    )
    await create(api, "widgets", {"metadata": {"name": "w"}}, "default", "example.com/v1")

    await drop(api)

    assert names_of_definitions(api) == []


async def test_a_new_version_is_served_and_remembered() -> None:
    api = backend()
    await defined(api)
    await create(api, "widgets", {"metadata": {"name": "w"}}, "default", "example.com/v1")
    spec = definition(versions=("v1", "v2"))["spec"]
    record = await merge(
        api, "customresourcedefinitions", "widgets.example.com", {"spec": spec}, "", api_version=CRDS
    )

    assert record.obj["status"]["storedVersions"] == ["v1", "v2"]
    assert (
        api.get(api.resolve("example.com", "v2", "widgets"), "default", "w").obj["apiVersion"]
        == "example.com/v2"
    )


async def test_deleting_a_definition_deletes_its_objects() -> None:
    api = backend()
    await defined(api)
    await create(api, "widgets", {"metadata": {"name": "w"}}, "default", "example.com/v1")
    watch = api.watch(api.resolve("example.com", "v1", "widgets"), "", ListOptions())

    await drop(api)

    with pytest.raises(errors.NotFound):
        api.resolve("example.com", "v1", "widgets")
    assert names_of_definitions(api) == []
    kinds = [event.type.value async for batch in watch for event in batch]  # ends: nobody serves it any more
    assert kinds == ["ADDED", "DELETED"]


def names_of_definitions(api: ObjectRegistry) -> list[str]:
    crds = api.resolve("apiextensions.k8s.io", "v1", "customresourcedefinitions")
    return [record.obj["metadata"]["name"] for record in api.list(crds, "", ListOptions()).records]


async def test_a_definition_waits_for_the_finalizers_of_its_objects() -> None:
    api = backend()
    await defined(api)
    body = {"metadata": {"name": "w", "finalizers": ["a.io/b"]}}
    await create(api, "widgets", body, "default", "example.com/v1")

    await drop(api)

    assert names_of_definitions(api) == ["widgets.example.com"]
    with pytest.raises(
        errors.MethodNotSupported, match="create not allowed while custom resource definition is"
    ):
        await create(api, "widgets", {"metadata": {"name": "x"}}, "default", "example.com/v1")

    await merge(api, "widgets", "w", {"metadata": {"finalizers": None}}, api_version="example.com/v1")
    assert names_of_definitions(api) == []


async def test_a_definition_that_came_back_starts_empty() -> None:
    api = backend()
    await defined(api)
    await create(api, "widgets", {"metadata": {"name": "w"}}, "default", "example.com/v1")
    await drop(api)
    await defined(api)

    widgets = api.resolve("example.com", "v1", "widgets")
    assert api.list(widgets, "", ListOptions()).records == []
    assert names(api, "pods") == []


async def test_a_version_that_is_not_served_is_not_found() -> None:
    api = backend()
    await defined(api)

    with pytest.raises(errors.NotFound, match="the server could not find the requested resource"):
        api.resolve("example.com", "v2", "widgets")
