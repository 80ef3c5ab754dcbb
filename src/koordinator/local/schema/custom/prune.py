"""Pruning and defaulting of custom resources, compiled once per schema."""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from koordinator.local.schema import decode

Json = dict[str, Any]
Pruner = Callable[[Any, list[str]], Any]
"""Value and the list that collects the paths of dropped fields → value without unknown fields."""
Defaulter = Callable[[Any], Any]

_RESOURCE_FIELDS = frozenset({"apiVersion", "kind", "metadata"})


def compile_pruner(schema: Json, *, is_root: bool = False) -> Pruner:
    """Return the function that drops the fields that a schema does not name. `is_root` and embedded resources keep
    apiVersion, kind and metadata.
    """
    items = schema.get("items")
    if isinstance(items, dict):
        return _prune_items(compile_pruner(items))
    keeps = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    embedded = is_root or bool(schema.get("x-kubernetes-embedded-resource"))
    more = schema.get("additionalProperties")
    if not keeps and not embedded and schema.get("type") != "object":
        return _keep
    properties = {name: compile_pruner(inner) for name, inner in (schema.get("properties") or {}).items()}
    if embedded:
        properties |= dict.fromkeys(_RESOURCE_FIELDS, _keep)
    other: Pruner | None = None
    if isinstance(more, dict):
        other = compile_pruner(more) if more else _keep
    elif more or keeps:
        other = _keep
    if other is _keep and all(pruner is _keep for pruner in properties.values()):
        return _keep
    return _prune_object(properties, other)


def _keep(value: Any, unknown: list[str]) -> Any:
    return value


def _prune_object(properties: Mapping[str, Pruner], other: Pruner | None) -> Pruner:
    known = properties.keys()
    deep = {name: pruner for name, pruner in properties.items() if pruner is not _keep}

    def prune(value: Any, unknown: list[str]) -> Any:
        if not isinstance(value, dict):
            return value
        all_known = value.keys() <= known
        if all_known and not deep:
            return value
        result: Json | None = None
        mark = len(unknown)
        for key, item in value.items():
            if all_known and key not in deep:
                continue
            inner = properties.get(key, other)
            if inner is None:
                unknown.append(key)
                mark += 1
                result = dict(value) if result is None else result
                del result[key]
                continue
            new = inner(item, unknown)
            if len(unknown) > mark:
                decode.put_below(unknown, mark, key)
                mark = len(unknown)
            if new is not item:
                result = dict(value) if result is None else result
                result[key] = new
        return value if result is None else result

    return prune


def _prune_items(inner: Pruner) -> Pruner:
    if inner is _keep:
        return _keep

    def prune(value: Any, unknown: list[str]) -> Any:
        return decode.through_list(value, inner, unknown, None) if isinstance(value, list) else value

    return prune


def compile_defaulter(schema: Json) -> Defaulter | None:
    """Return the function that fills in the defaults of a schema; None when it has none. Null counts as missing
    where the schema has a default and does not allow null.
    """
    steps: list[tuple[str, Defaulter]] = []
    defaults: Json = {}
    not_null: set[str] = set()
    for name, inner in (schema.get("properties") or {}).items():
        if not isinstance(inner, dict):
            continue
        if "default" in inner:
            defaults[name] = inner["default"]
            if not inner.get("nullable"):
                not_null.add(name)
        below = compile_defaulter(inner)
        if below is not None:
            steps.append((name, below))
            if name in defaults:  # a default may itself lack the defaults below it
                defaults[name] = below(defaults[name])
    more = schema.get("additionalProperties")
    each = compile_defaulter(more) if isinstance(more, dict) else None
    items = schema.get("items")
    every = compile_defaulter(items) if isinstance(items, dict) else None
    if not (steps or defaults or each or every):
        return None
    known = frozenset(schema.get("properties") or {})
    fill_object = _object_filler(defaults, not_null, steps, each, known)

    def fill(value: Any) -> Any:
        if isinstance(value, dict):
            return fill_object(value)
        if isinstance(value, list) and every is not None:
            filled = [every(item) for item in value]
            return value if all(a is b for a, b in zip(filled, value, strict=True)) else filled
        return value

    return fill


def _object_filler(
    defaults: Json,
    not_null: Set[str],
    steps: Sequence[tuple[str, Defaulter]],
    each: Defaulter | None,
    known: Set[str],
) -> Defaulter:
    """Return the function that gives an object its `defaults`, then fills members below by `steps`; `each` fills
    those not `known`.
    """

    def fill_object(value: Json) -> Json:
        result: Json | None = None
        for name, default in defaults.items():
            if name not in value or (value[name] is None and name in not_null):
                result = dict(value) if result is None else result
                result[name] = default
        current = value if result is None else result
        for name, below in steps:
            if name in current and (new := below(current[name])) is not current[name]:
                result = dict(value) if result is None else result
                result[name] = new
                current = result
        if each is not None:
            for name, item in value.items():
                if name not in known and (new := each(item)) is not item:
                    result = dict(value) if result is None else result
                    result[name] = new
        return value if result is None else result

    return fill_object
