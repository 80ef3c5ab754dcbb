"""Tables: what `kubectl get` prints, made from the printers of built-in kinds and the columns of CRDs.

Columns of CRDs are read with a part of JSONPath: `.a.b`, `['a']`, `[0]`, `[-1]`, `[*]`, `.*`, slices, `..name` and
filters with one comparison: `[?(@.type=="Ready")]`.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from koordinator.api.meta import Resource
from koordinator.cluster import errors
from koordinator.cluster.backend import Backend, ObjectRecord
from koordinator.local.apiserver import printers
from koordinator.local.apiserver.calls import ResourceCall
from koordinator.local.apiserver.printers import PrintedColumn, Printer
from koordinator.local.apiserver.printers import column as cells
from koordinator.local.schema import errors as fields

Step = Callable[[Any], Iterator[Any]]


class JsonPathError(ValueError):
    """The text is no path of the supported form."""


@lru_cache(maxsize=1024)
def compile(path: str) -> tuple[Step, ...]:
    """Return the steps of a path such as `.status.conditions[?(@.type=="Ready")].status`. Raises: JsonPathError."""
    text = path.strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1].strip()
    text = text.removeprefix("$")
    steps: list[Step] = []
    position = 0
    while position < len(text):
        for pattern, build in _SYNTAX:
            match = pattern.match(text, position)
            if match:
                steps.append(build(match))
                position = match.end()
                break
        else:
            raise JsonPathError(f"{path}: cannot be read from {text[position:]!r} on")
    return tuple(steps)


def find(steps: tuple[Step, ...], value: Any) -> list[Any]:
    """Return all values at a compiled path."""
    found = [value]
    for step in steps:
        found = [child for parent in found for child in step(parent)]
    return found


def _key(name: str) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, dict) and name in value:
            yield value[name]

    return step


def _deep(name: str) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, dict):
            if name in value:
                yield value[name]
            for child in value.values():
                yield from step(child)
        elif isinstance(value, list):
            for child in value:
                yield from step(child)

    return step


def _index(number: int) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list) and -len(value) <= number < len(value):
            yield value[number]

    return step


def _slice(start: str | None, end: str | None) -> Step:
    first = int(start) if start else None
    last = int(end) if end else None

    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list):
            yield from value[first:last]

    return step


def _all(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _filter(path: str, operator: str, literal: str) -> Step:
    steps = compile(path)
    wanted = _literal(literal) if operator else None

    def keeps(item: Any) -> bool:
        found = find(steps, item)
        if not operator:
            return bool(found)
        return any(_COMPARE[operator](left, wanted) for left in found)

    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list):
            yield from filter(keeps, value)

    return step


def _literal(text: str) -> Any:
    text = text.strip()
    if text[:1] in "'\"":
        return text[1:-1]
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text)
    except ValueError:
        raise JsonPathError(f"{text!r} is no text in quotes, number, true or false") from None


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def safe(left: Any, right: Any) -> bool:
        both_numbers = isinstance(left, int | float) and isinstance(right, int | float)
        return (both_numbers or (isinstance(left, str) and isinstance(right, str))) and compare(left, right)

    return safe


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda left, right: bool(left == right),
    "!=": lambda left, right: bool(left != right),
    "<": _ordered(lambda left, right: left < right),
    "<=": _ordered(lambda left, right: left <= right),
    ">": _ordered(lambda left, right: left > right),
    ">=": _ordered(lambda left, right: left >= right),
}

# Names may hold escaped dots: `.metadata.labels.app\.kubernetes\.io/name`.
_NAME = r"((?:[^.\[\]\\*]|\\.)+)"
_SYNTAX: list[tuple[re.Pattern[str], Callable[[re.Match[str]], Step]]] = [
    (re.compile(r"\.\." + _NAME), lambda m: _deep(_plain(m[1]))),
    (re.compile(r"\.?\*|\.?\[\*\]"), lambda m: _all),
    (re.compile(r"\.?\[\s*(-?\d{1,9})\s*\]"), lambda m: _index(int(m[1]))),
    (re.compile(r"\.?\[\s*(-?\d{1,9})?\s*:\s*(-?\d{1,9})?\s*\]"), lambda m: _slice(m[1], m[2])),
    (
        re.compile(r"""\.?\[\s*(?:'([^']*)'|"([^"]*)")\s*\]"""),
        lambda m: _key(m[1] if m[1] is not None else m[2]),
    ),
    (
        re.compile(
            r"""\.?\[\?\(\s*@((?:[^=!<>()\s'"]|\\.)*)\s*(?:(==|!=|<=|>=|<|>)\s*('[^']*'|"[^"]*"|[^)'"]+?))?\s*\)\]"""
        ),
        lambda m: _filter(m[1], m[2] or "", m[3] or ""),
    ),
    (re.compile(r"\." + _NAME), lambda m: _key(_plain(m[1]))),
    (re.compile(_NAME), lambda m: _key(_plain(m[1]))),
    (re.compile(r"\.\Z"), lambda m: _self),
]


def _self(value: Any) -> Iterator[Any]:
    yield value


def _plain(name: str) -> str:
    return re.sub(r"\\(.)", r"\1", name)


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
            trouble = fields.not_supported("includeObject", include, ("Metadata", "None", "Object"))
            raise fields.invalid_options("TableOptions", trouble)
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
            *(_cell(find(steps, obj), kind, now_s) for steps, kind in readers),
        ]

    return Printer(tuple(columns), row)


def _steps(path: str) -> tuple[Step, ...]:
    """A path that cannot be read matches nothing, as a missing field does: the other columns still print."""
    try:
        return compile(path)
    except JsonPathError:
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
