"""The rules that the API server has for CRD schemas, and a check of values against a schema.

Source: https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/
"""

import re
from collections.abc import Iterator
from typing import Any

ALLOWED = {
    "type", "description", "properties", "required", "items", "additionalProperties", "format", "default",
    "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "minProperties",
    "nullable", "anyOf", "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields", "x-kubernetes-map-type",
    "x-kubernetes-list-type",
}  # fmt: skip
INT_OR_STRING = [{"type": "integer"}, {"type": "string"}]
TYPES = {"object", "array", "string", "integer", "number", "boolean"}


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema below and including `schema`, with its path."""
    yield path, schema
    for name, member in schema.get("properties", {}).items():
        yield from nodes(member, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


def structural_problems(path: str, schema: dict[str, Any]) -> list[str]:
    """Why one node of a schema is not structural."""
    problems = [f"{path}: {name} is not allowed" for name in sorted(schema.keys() - ALLOWED)]
    kind = schema.get("type")
    int_or_string = schema.get("x-kubernetes-int-or-string", False)
    if kind is None and not int_or_string and not schema.get("x-kubernetes-preserve-unknown-fields"):
        problems.append(f"{path}: no type")
    if kind is not None and kind not in TYPES:
        problems.append(f"{path}: unknown type {kind}")
    if int_or_string and (kind is not None or schema.get("anyOf") != INT_OR_STRING):
        problems.append(f"{path}: malformed int-or-string")
    if "anyOf" in schema and not int_or_string:
        problems.append(f"{path}: anyOf stands for int-or-string only")
    if "properties" in schema and "additionalProperties" in schema:
        problems.append(f"{path}: properties and additionalProperties exclude each other")
    if ("items" in schema) != (kind == "array"):
        problems.append(f"{path}: items belong to arrays, and arrays have items")
    if ("properties" in schema or "additionalProperties" in schema) and kind != "object":
        problems.append(f"{path}: members belong to objects")
    problems += [
        f"{path}: required {name} has no schema"
        for name in schema.get("required", [])
        if name not in schema.get("properties", {})
    ]
    if "default" in schema:
        problems += mismatches(schema["default"], schema, f"{path} default")
    return problems


def mismatches(value: Any, schema: dict[str, Any], path: str = "") -> list[str]:
    """Why a value does not fit a schema; unknown members count."""
    if value is None:
        return [] if schema.get("nullable") or "type" not in schema else [f"{path}: null"]
    if schema.get("x-kubernetes-int-or-string"):
        fits = isinstance(value, int | str) and not isinstance(value, bool)
        if fits and isinstance(value, str) and "pattern" in schema:
            fits = re.search(schema["pattern"], value) is not None
        return [] if fits else [f"{path}: {value!r} is neither a number nor a fitting text"]
    checks = {"object": _object, "array": _array, "string": _string, "boolean": _boolean}
    check = checks.get(schema.get("type", ""), _number if "type" in schema else None)
    return check(value, schema, path) if check else []


def _object(value: Any, schema: dict[str, Any], path: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{path}: {value!r} is no object"]
    problems = [f"{path}: no {name}" for name in schema.get("required", []) if name not in value]
    if len(value) < schema.get("minProperties", 0):
        problems.append(f"{path}: too few members")
    if path == ".metadata" or schema.get("x-kubernetes-preserve-unknown-fields"):
        return problems
    for name, member in value.items():
        known = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
        problems += mismatches(member, known, f"{path}.{name}") if known else [f"{path}.{name}: unknown"]
    return problems


def _array(value: Any, schema: dict[str, Any], path: str) -> list[str]:
    if not isinstance(value, list):
        return [f"{path}: {value!r} is no list"]
    problems = [f"{path}: too few items"] if len(value) < schema.get("minItems", 0) else []
    for index, item in enumerate(value):
        problems += mismatches(item, schema["items"], f"{path}[{index}]")
    return problems


def _string(value: Any, schema: dict[str, Any], path: str) -> list[str]:
    fits = (
        isinstance(value, str)
        and value in schema.get("enum", [value])
        and re.search(schema.get("pattern", ""), value) is not None
        and schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
    )
    return [] if fits else [f"{path}: {value!r} is no fitting text"]


def _boolean(value: Any, schema: dict[str, Any], path: str) -> list[str]:
    return [] if isinstance(value, bool) else [f"{path}: {value!r} is no boolean"]


def _number(value: Any, schema: dict[str, Any], path: str) -> list[str]:
    fits = (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and schema.get("minimum", value) <= value <= schema.get("maximum", value)
    )
    return [] if fits else [f"{path}: {value!r} is no fitting number"]
