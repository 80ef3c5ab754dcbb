"""Make OpenAPI documents of what is served, for `kubectl explain` and `kubectl apply`: Swagger 2.0 for all, v3 for
each group and version.

`OpenApi(catalog, "v1.35.0")` answers `/openapi/v2`, `/openapi/v3` and `/openapi/v3/...` with JSON, generated from the
same types that decoding uses, when asked for.

Of paths and operations kubectl reads three things: the kind behind a path (`explain`), whether PATCH takes
`fieldValidation` and `dryRun` (server-side validation), and which patch types a kind takes (`apply`).
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from koordinator.api.meta import Resource
from koordinator.local.openapi.schemas import SchemaDefinitions, gvk
from koordinator.local.schema import Catalog

Json = dict[str, Any]


class OpenApi:
    """Documents of everything in a catalog.

    `version` is the server's (`v1.35.0`). A document is kept until a CRD comes, changes or goes.
    """

    def __init__(self, catalog: Catalog, version: str) -> None:
        self._catalog = catalog
        self._version = version
        self._cache: dict[str, bytes] = {}
        catalog.on_change(self._cache.clear)

    def v2(self) -> bytes:
        """Swagger 2.0 of all groups, as JSON."""
        if "v2" not in self._cache:
            definitions, paths = self._contents(self._catalog.resources(), v3=False)
            document = {
                "swagger": "2.0",
                "info": self._info(),
                "paths": paths,
                "definitions": definitions.schemas,
            }
            self._cache["v2"] = msgspec.json.encode(document)
        return self._cache["v2"]

    def v3_index(self) -> bytes:
        """Return where the document of each group and version is; the hash changes when the document does."""
        if "index" not in self._cache:
            paths = {
                path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={self._hash(resources)}"}
                for path, resources in self._by_path().items()
            }
            self._cache["index"] = msgspec.json.encode({"paths": paths})
        return self._cache["index"]

    def v3(self, path: str) -> bytes | None:
        """Return the document of `api/v1` or `apis/GROUP/VERSION`; None when that is not served."""
        path = path.strip("/")
        key = f"v3/{path}"
        if key not in self._cache:
            resources = self._by_path().get(path)
            if resources is None:
                return None
            definitions, paths = self._contents(resources, v3=True)
            document = {
                "openapi": "3.0.0",
                "info": self._info(),
                "paths": paths,
                "components": {"schemas": definitions.schemas},
            }
            self._cache[key] = msgspec.json.encode(document)
        return self._cache[key]

    def _info(self) -> Json:
        return {"title": "Kubernetes", "version": self._version}

    def _by_path(self) -> dict[str, list[Resource]]:
        found: dict[str, list[Resource]] = {}
        for resource in self._catalog.resources():
            found.setdefault(resource.root_path.lstrip("/"), []).append(resource)
        return found

    def _hash(self, resources: list[Resource]) -> str:
        """Return a hash of what a document is made from: making all documents for the index would cost a second."""
        parts = [(self._version, resource, self._catalog.custom_schema(resource)) for resource in resources]
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest().upper()

    def _contents(
        self, resources: Iterable[Resource], *, v3: bool
    ) -> tuple[SchemaDefinitions, dict[str, Json]]:
        definitions = SchemaDefinitions(v3=v3)
        paths: dict[str, Json] = {}
        for resource in resources:
            schema = self._catalog.custom_schema(resource)
            if schema is not None:
                item = definitions.add_custom(resource, schema)
            else:
                item = definitions.add_kind(resource, self._catalog.type_of(resource))
            items = definitions.add_list(resource, item)
            paths |= paths_of(resource, item, items, definitions, v3=v3, custom=schema is not None)
        return definitions, paths


_PATCH_TYPES = (
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
)
_STRATEGIC = _PATCH_TYPES[3]
_SCALE = Resource(group="autoscaling", version="v1", kind="Scale", plural="scales")


class _Writer:
    """Writes operations in one of the two dialects."""

    def __init__(self, definitions: SchemaDefinitions, *, v3: bool) -> None:
        self.definitions = definitions
        self._v3 = v3

    def query(self, name: str, kind: str, text: str) -> Json:
        """Return a query parameter."""
        base: Json = {"name": name, "in": "query", "description": text}
        return base | (
            {"schema": {"type": kind, "uniqueItems": True}}
            if self._v3
            else {"type": kind, "uniqueItems": True}
        )

    def in_path(self, name: str, text: str) -> Json:
        """Return a path parameter."""
        base: Json = {"name": name, "in": "path", "required": True, "description": text}
        return base | (
            {"schema": {"type": "string", "uniqueItems": True}} if self._v3 else {"type": "string"}
        )

    def operation(
        self,
        action: str,
        resource: Resource,
        operation_id: str,
        parameters: list[Json],
        answer: str,
        body: str = "",
        patch_types: tuple[str, ...] = (),
    ) -> Json:
        """Return one operation; `answer` and `body` are names of definitions."""
        answer_ref = self.definitions.ref(answer)
        ok: Json = {"description": "OK"}
        ok |= (
            {"content": {"application/json": {"schema": answer_ref}}} if self._v3 else {"schema": answer_ref}
        )
        operation: Json = {
            "operationId": operation_id,
            "tags": [_tag(resource)],
            "parameters": parameters,
            "responses": {"200": ok, "401": {"description": "Unauthorized"}},
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": gvk(resource),
        }
        media = patch_types or ("application/json",)
        if not self._v3:
            operation |= {"consumes": list(media), "produces": ["application/json"], "schemes": ["https"]}
        if not body:
            return operation
        schema = {"type": "object"} if patch_types else self.definitions.ref(body)
        if self._v3:
            operation["requestBody"] = {
                "required": True,
                "content": {kind: {"schema": schema} for kind in media},
            }
        else:
            operation["parameters"] = [
                *parameters,
                {"name": "body", "in": "body", "required": True, "schema": schema},
            ]
        return operation


def _tag(resource: Resource) -> str:
    group = (resource.group or "core").split(".")[0]
    return f"{group}_{resource.version}"


def paths_of(
    resource: Resource, item: str, items: str, definitions: SchemaDefinitions, *, v3: bool, custom: bool
) -> dict[str, Json]:
    """Return all paths of one resource; `item` and `items` are the names of its definitions."""
    writer = _Writer(definitions, v3=v3)
    own = f"{resource.root_path}/namespaces/{{namespace}}" if resource.namespaced else resource.root_path
    collection, single = f"{own}/{resource.plural}", f"{own}/{resource.plural}/{{name}}"
    shared = [writer.in_path("namespace", "object name and auth scope")] if resource.namespaced else []
    named = [writer.in_path("name", f"name of the {resource.kind}"), *shared]
    write = _write_parameters(writer)
    scope = "Namespaced" if resource.namespaced else ""
    kind = _id_part(resource) + scope + resource.kind
    patch_types = tuple(media for media in _PATCH_TYPES if not (custom and media == _STRATEGIC))

    def patch(operation_id: str, target: Resource, name: str) -> Json:
        force = writer.query("force", "boolean", "Take fields from other managers (apply patches only).")
        return writer.operation("patch", target, operation_id, [*write, force], name, name, patch_types)

    paths: dict[str, Json] = {
        collection: {
            "get": writer.operation("list", resource, f"list{kind}", _list_parameters(writer), items),
            "post": writer.operation("post", resource, f"create{kind}", write, item, item),
            "delete": writer.operation(
                "deletecollection", resource, f"deleteCollection{kind}", _list_parameters(writer), items
            ),
            "parameters": shared,
        },
        single: {
            "get": writer.operation("get", resource, f"read{kind}", [], item),
            "put": writer.operation("put", resource, f"replace{kind}", write, item, item),
            "patch": patch(f"patch{kind}", resource, item),
            "delete": writer.operation("delete", resource, f"delete{kind}", write[:1], item),
            "parameters": named,
        },
    }
    if resource.namespaced:
        everywhere = f"list{_id_part(resource)}{resource.kind}ForAllNamespaces"
        paths[f"{resource.root_path}/{resource.plural}"] = {
            "get": writer.operation("list", resource, everywhere, _list_parameters(writer), items)
        }
    for name in resource.subresources:
        if name in {"status", "scale"}:
            target = _SCALE if name == "scale" else resource
            body = definitions.add_model("V1Scale", "io.k8s.api.autoscaling.v1") if name == "scale" else item
            ending = f"{kind}{name.capitalize()}"
            paths[f"{single}/{name}"] = {
                "get": writer.operation("get", target, f"read{ending}", [], body),
                "put": writer.operation("put", target, f"replace{ending}", write, body, body),
                "patch": patch(f"patch{ending}", target, body),
                "parameters": named,
            }
    return paths


def _id_part(resource: Resource) -> str:
    group = "".join(
        part.capitalize() for part in (resource.group or "core").removesuffix(".k8s.io").split(".")
    )
    return group + resource.version.capitalize()


def _write_parameters(writer: _Writer) -> list[Json]:
    return [
        writer.query("dryRun", "string", "`All`: process the request but store nothing."),
        writer.query("fieldManager", "string", "Who makes the change, for the ownership of fields."),
        writer.query("fieldValidation", "string", "What to do with unknown fields: Ignore, Warn or Strict."),
    ]


def _list_parameters(writer: _Writer) -> list[Json]:
    return [
        writer.query("allowWatchBookmarks", "boolean", "Send BOOKMARK events."),
        writer.query("continue", "string", "Where the last page ended."),
        writer.query("fieldSelector", "string", "Select by fields."),
        writer.query("labelSelector", "string", "Select by labels."),
        writer.query("limit", "integer", "Objects per page at most."),
        writer.query("resourceVersion", "string", "Which state to read."),
        writer.query("resourceVersionMatch", "string", "How resourceVersion is meant."),
        writer.query("sendInitialEvents", "boolean", "Begin a watch with the present state."),
        writer.query("timeoutSeconds", "integer", "When to end the request."),
        writer.query("watch", "boolean", "Watch for changes instead of listing."),
    ]
