"""Tables: what `kubectl get` prints, made from the printers of built-in kinds and the columns of CRDs."""

from collections.abc import Sequence
from typing import Any

import msgspec

from koordinator.api.meta import Resource
from koordinator.cluster import errors
from koordinator.cluster.backend import Backend, ObjectRecord
from koordinator.local.apiserver import jsonpath, printers
from koordinator.local.apiserver.calls import ResourceCall
from koordinator.local.apiserver.printers import PrintedColumn, Printer
from koordinator.local.apiserver.printers import column as cells
from koordinator.local.apiserver.query import invalid_options

_CRDS = ("apiextensions.k8s.io", "v1", "customresourcedefinitions")
_INCLUDE = ("None", "Metadata", "Object", "")


class Tables:
    """Encodes records as `Table` objects."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._custom: dict[tuple[str, str, str], tuple[int, Printer]] = {}

    def encode(
        self,
        call: ResourceCall,
        records: Sequence[ObjectRecord],
        meta: dict[str, Any],
        *,
        with_columns: bool = True,
    ) -> bytes:
        """Return the `Table` of some objects; `meta` is its list metadata.

        Raises: Invalid (an `includeObject` that does not exist).
        """
        include = call.params.get("includeObject", "")
        if include not in _INCLUDE:
            raise invalid_options(
                "TableOptions",
                f'includeObject: Unsupported value: "{include}": '
                'supported values: "Metadata", "None", "Object"',
            )
        scaled = call.target.subresource == "scale"
        printer = printers.SCALE if scaled else self.printer_of(call.resource)
        now_s = self._backend.clock.now()
        version = call.wanted.version
        rows = [
            {"cells": printer.row(record.obj, now_s), "object": _object(record, include, version)}
            for record in records
        ]
        return msgspec.json.encode(
            {
                "kind": "Table",
                "apiVersion": f"meta.k8s.io/{version}",
                "metadata": meta,
                "columnDefinitions": printer.columns if with_columns else [],
                "rows": rows,
            }
        )

    def printer_of(self, resource: Resource) -> Printer:
        """Return the printer of a resource's objects."""
        built_in = printers.BUILT_IN.get((resource.group, resource.kind))
        if built_in is not None:
            return built_in
        try:
            crds = self._backend.resolve(*_CRDS)
            record = self._backend.get(crds, "", resource.qualified)
        except errors.NotFound:
            return printers.DEFAULT
        key = (resource.group, resource.plural, resource.version)
        known = self._custom.get(key)
        if known is None or known[0] != record.version:
            known = self._custom[key] = (record.version, custom_printer(record.obj, resource.version))
        return known[1]


def custom_printer(crd: dict[str, Any], version: str) -> Printer:
    """Return the printer of a CRD's version: its `additionalPrinterColumns` after the name, else the age."""
    declared: list[dict[str, Any]] = []
    for served in cells.objects(crd, "spec", "versions"):
        if served.get("name") == version:
            declared = cells.objects(served, "additionalPrinterColumns")
    if not declared:
        declared = [{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}]
    columns = [printers.NAME]
    readers = []
    for item in declared:
        kind = cells.text(item, "type")
        columns.append(
            PrintedColumn(
                cells.text(item, "name"),
                kind,
                cells.text(item, "format"),
                cells.text(item, "description"),
                cells.number(item, "priority"),
            )
        )
        readers.append((_steps(cells.text(item, "jsonPath")), kind))

    def row(obj: dict[str, Any], now_s: float) -> list[Any]:
        return [
            cells.name_of(obj),
            *(_cell(jsonpath.find(steps, obj), kind, now_s) for steps, kind in readers),
        ]

    return Printer(tuple(columns), row)


def _steps(path: str) -> tuple[jsonpath.Step, ...]:
    """A path that cannot be read matches nothing, as a missing field does: the other columns still print."""
    try:
        return jsonpath.compile(path)
    except jsonpath.JsonPathError:
        return (_nothing,)


def _nothing(value: Any) -> Any:
    return iter(())


def _cell(found: list[Any], kind: str, now_s: float) -> Any:
    """Return a value as its column's type wants it; None (an empty cell) where the value is of another type."""
    if not found:
        return None
    value = found[0]
    if kind == "integer":
        return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    if kind == "number":
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None
    if kind == "boolean":
        return value if isinstance(value, bool) else None
    if kind == "date":
        return cells.since(value, now_s) if isinstance(value, str) else None
    return ",".join(map(_text, found))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def _object(record: ObjectRecord, include: str, version: str) -> Any:
    if include == "None":
        return None
    if include == "Object":
        return msgspec.Raw(record.json())
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": record.obj.get("metadata", {}),
    }
