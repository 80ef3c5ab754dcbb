"""OpenAPI documents of what is served, for `kubectl explain` and `kubectl apply`: Swagger 2.0 for all, v3 for each
group and version.

`OpenApi(catalog, "v1.35.0")` answers `/openapi/v2`, `/openapi/v3` and `/openapi/v3/...` with JSON, generated from
the same types that decoding uses, when asked for.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from koordinator.api.meta import Resource
from koordinator.local.openapi.paths import paths_of
from koordinator.local.openapi.schemas import SchemaDefinitions
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


__all__ = ["OpenApi"]
