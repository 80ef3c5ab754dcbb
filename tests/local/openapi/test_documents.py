"""The OpenAPI documents: complete, consistent, and with what kubectl looks for."""

from typing import Any

import msgspec
import pytest

from koordinator.api.kinds import BUILT_IN
from koordinator.local.openapi import OpenApi
from koordinator.local.schema import Catalog

Json = dict[str, Any]

CRD: Json = {
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "description": "A widget.",
                        "properties": {"spec": {"type": "object", "oneOf": [{"required": ["a"]}]}},
                    }
                },
            }
        ],
    },
}


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    made = Catalog(BUILT_IN)
    made.add_crd(CRD)
    return made


@pytest.fixture(scope="module")
def openapi(catalog: Catalog) -> OpenApi:
    return OpenApi(catalog, "v1.32.0")


def document(openapi: OpenApi, path: str) -> Json:
    body = openapi.v3(path)
    assert body is not None
    found: Json = msgspec.json.decode(body)
    return found


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(references(item) for item in value.values()))
    return set().union(*(references(item) for item in value)) if isinstance(value, list) else set()


def test_every_group_and_version_has_a_document_whose_references_resolve(openapi: OpenApi) -> None:
    paths = msgspec.json.decode(openapi.v3_index())["paths"]

    assert {"api/v1", "apis/apps/v1", "apis/example.com/v1"} <= set(paths)
    for path, entry in paths.items():
        made = document(openapi, path)
        known = {f"#/components/schemas/{name}" for name in made["components"]["schemas"]}
        assert references(made) <= known, path
        assert entry["serverRelativeURL"].startswith(f"/openapi/v3/{path}?hash=")


def test_swagger_resolves_and_has_nothing_that_version_two_lacks(openapi: OpenApi) -> None:
    made = msgspec.json.decode(openapi.v2())

    assert references(made) <= {f"#/definitions/{name}" for name in made["definitions"]}
    assert "oneOf" not in made["definitions"]["com.example.v1.Widget"]["properties"]["spec"]


def test_patches_take_what_kubectl_asks_for(openapi: OpenApi) -> None:
    paths = document(openapi, "apis/apps/v1")["paths"]
    patch = paths["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"]

    names = {parameter["name"] for parameter in patch["parameters"]}
    assert {"fieldValidation", "dryRun", "fieldManager", "force"} <= names
    assert patch["x-kubernetes-group-version-kind"] == {
        "group": "apps",
        "version": "v1",
        "kind": "Deployment",
    }
    assert "application/strategic-merge-patch+json" in patch["requestBody"]["content"]


def test_custom_resources_take_no_strategic_patches(openapi: OpenApi) -> None:
    paths = document(openapi, "apis/example.com/v1")["paths"]
    patch = paths["/apis/example.com/v1/namespaces/{namespace}/widgets/{name}"]["patch"]

    assert "application/strategic-merge-patch+json" not in patch["requestBody"]["content"]


def test_merge_keys_and_list_types_are_marked(openapi: OpenApi) -> None:
    schemas = document(openapi, "apis/apps/v1")["components"]["schemas"]
    containers = schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"]

    assert containers["x-kubernetes-patch-merge-key"] == "name"
    assert containers["x-kubernetes-patch-strategy"] == "merge"
    assert containers["x-kubernetes-list-map-keys"] == ["name"]
    assert "Cannot be updated" in containers["description"]


def test_no_description_holds_source_code(openapi: OpenApi) -> None:
    for path in ("api/v1", "apis/apps/v1", "apis/batch/v1"):
        for name, schema in document(openapi, path)["components"]["schemas"].items():
            for field, body in (schema.get("properties") or {}).items():
                assert "noqa" not in body.get("description", ""), (name, field)
                assert ":rtype:" not in body.get("description", ""), (name, field)


def test_documents_follow_the_definitions(catalog: Catalog, openapi: OpenApi) -> None:
    before = openapi.v3_index()
    catalog.remove_crd(CRD)
    try:
        assert openapi.v3("apis/example.com/v1") is None
        assert openapi.v3_index() != before
    finally:
        catalog.add_crd(CRD)
    assert openapi.v3_index() == before


def test_an_unknown_group_has_no_document(openapi: OpenApi) -> None:
    assert openapi.v3("apis/nothing/v1") is None
