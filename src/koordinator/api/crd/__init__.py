"""CustomResourceDefinitions of everything that Koordinator adds to a cluster, generated from the views and the table
of definitions.
"""

from typing import Any

from koordinator.api import schema
from koordinator.api.crd.definitions import DEFINITIONS, Definition, PrinterColumn
from koordinator.api.meta import Object

__all__ = ["DEFINITIONS", "Definition", "PrinterColumn", "manifest", "manifests"]


def manifests() -> list[dict[str, Any]]:
    """Return all CRDs as JSON objects, ready to be created; the caller may change them."""
    return [manifest(definition) for definition in DEFINITIONS]


def manifest(definition: Definition) -> dict[str, Any]:
    """Return one CRD as a JSON object."""
    stored = definition.views[-1]
    resource = stored.resource
    metadata: dict[str, Any] = {"name": resource.qualified}
    if definition.approved:
        metadata["annotations"] = {"api-approved.kubernetes.io": definition.approved}
    names: dict[str, Any] = {
        "kind": resource.kind,
        "listKind": f"{resource.kind}List",
        "plural": resource.plural,
        "singular": resource.singular,
    }
    if resource.short_names:
        names["shortNames"] = list(resource.short_names)
    if resource.categories:
        names["categories"] = list(resource.categories)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": {
            "group": resource.group,
            "names": names,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "versions": [
                _version(view, definition.columns, is_stored=view is stored) for view in definition.views
            ],
        },
    }


def _version(view: type[Object], columns: tuple[PrinterColumn, ...], *, is_stored: bool) -> dict[str, Any]:
    version: dict[str, Any] = {
        "name": view.resource.version,
        "served": True,
        "storage": is_stored,
        "schema": {"openAPIV3Schema": object_schema(view)},
    }
    if columns:
        version["additionalPrinterColumns"] = [_column(column) for column in columns]
    if "status" in view.resource.subresources:
        version["subresources"] = {"status": {}}
    return version


def object_schema(view: type[Object]) -> dict[str, Any]:
    """Schema of a whole custom object: what the view says, below the members that all objects have."""
    result = schema.of_struct(view, without=frozenset({"metadata"}))
    result["properties"] = {
        "apiVersion": {"type": "string", "description": "Group and version of the object."},
        "kind": {"type": "string", "description": "Kind of the object."},
        "metadata": {"type": "object"},
        **result["properties"],
    }
    return result


def _column(column: PrinterColumn) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": column.name, "type": column.type, "jsonPath": column.path}
    if column.description:
        entry["description"] = column.description
    if column.is_wide:
        entry["priority"] = 1
    return entry
