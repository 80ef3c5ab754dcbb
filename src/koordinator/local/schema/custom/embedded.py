"""Objects in objects (`x-kubernetes-embedded-resource`): they have apiVersion, kind and metadata like any other."""

from collections.abc import Callable
from typing import Any

import msgspec

from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import decode, errors, names

Json = dict[str, Any]
Check = Callable[[Any, str], list[StatusCause]]
Decode = Callable[[Any, str, list[str]], Any]
DecodeMeta = Callable[[Any, list[str]], Any]
"""Function that makes metadata of what was sent, and adds unknown fields to a list. Raises: decode.Undecodable."""


class NotEmbedded(Exception):
    """A part that should be an object is none."""

    def __init__(self, field: str, value: Any, detail: str) -> None:
        self.cause = errors.invalid(field, value, detail)
        super().__init__(f"{field}: {self.cause.message}")


def _parts(schema: Json) -> tuple[dict[str, Json], Json | None, Json | None]:
    """Return properties, the schema of further ones and that of items."""
    properties = {
        name: inner for name, inner in (schema.get("properties") or {}).items() if isinstance(inner, dict)
    }
    more, items = schema.get("additionalProperties"), schema.get("items")
    return properties, more if isinstance(more, dict) else None, items if isinstance(items, dict) else None


def compile_check(schema: Json) -> Check | None:
    """Return what finds faults of embedded objects in a value at a path; None where there can be none."""
    is_embedded = bool(schema.get("x-kubernetes-embedded-resource"))
    properties, more, items = _parts(schema)
    below = {name: found for name, inner in properties.items() if (found := compile_check(inner))}
    each = compile_check(more) if more is not None else None
    every = compile_check(items) if items is not None else None
    if not (is_embedded or below or each or every):
        return None

    def check(value: Any, path: str) -> list[StatusCause]:
        causes: list[StatusCause] = []
        if isinstance(value, dict):
            causes += _of_object(value, path) if is_embedded else []
            for name, item in value.items():
                if name in below:
                    causes += below[name](item, f"{path}.{name}".lstrip("."))
                elif each is not None and name not in properties:
                    causes += each(item, f"{path}[{name}]")
        elif isinstance(value, list) and every is not None:
            for index, item in enumerate(value):
                causes += every(item, f"{path}[{index}]")
        return causes

    return check


def _of_object(value: Json, path: str) -> list[StatusCause]:
    causes = [errors.required(f"{path}.{name}") for name in ("apiVersion", "kind") if name not in value]
    version, kind, meta = (value.get(name) for name in ("apiVersion", "kind", "metadata"))
    if isinstance(version, str):
        if not version:
            causes.append(errors.invalid(f"{path}.apiVersion", version, "must not be empty"))
        elif version.count("/") > 1:
            detail = f"unexpected GroupVersion string: {version}"
            causes.append(errors.invalid(f"{path}.apiVersion", version, detail))
    if isinstance(kind, str):
        reason = names.label_1035(kind.lower())
        if not kind:
            causes.append(errors.invalid(f"{path}.kind", kind, "must not be empty"))
        elif reason:
            detail = f"may have mixed case, but should otherwise match: {reason}"
            causes.append(errors.invalid(f"{path}.kind", kind, detail))
    if isinstance(meta, dict):
        named = {**meta, "name": meta.get("name") or "fakename"}
        found = names.check_metadata(named, bool(meta.get("namespace")), names.path_segment, is_core=False)
        causes += [msgspec.structs.replace(each, field=f"{path}.{each.field}") for each in found]
    return causes


def compile_decoder(schema: Json, decode_meta: DecodeMeta) -> Decode | None:
    """Return what gives embedded objects their metadata, without unknown fields; None where there can be none."""
    is_embedded = bool(schema.get("x-kubernetes-embedded-resource"))
    properties, more, items = _parts(schema)
    below = {
        name: step for name, inner in properties.items() if (step := compile_decoder(inner, decode_meta))
    }
    each = compile_decoder(more, decode_meta) if more is not None else None
    every = compile_decoder(items, decode_meta) if items is not None else None
    if not (is_embedded or below or each or every):
        return None

    def read(value: Any, path: str, unknown: list[str]) -> Any:
        if isinstance(value, list) and every is not None:
            return [every(item, f"{path}[{index}]", unknown) for index, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        found = dict(value)
        for name, item in value.items():
            at = f"{path}.{name}".lstrip(".")
            if is_embedded and name in ("apiVersion", "kind") and not isinstance(item, str):
                raise NotEmbedded(at, item, "must be a string")
            if is_embedded and name == "metadata":
                found[name] = _metadata(item, at, unknown, decode_meta)
            elif name in below:
                found[name] = below[name](item, at, unknown)
            elif each is not None and name not in properties:
                found[name] = each(item, f"{path}[{name}]", unknown)
        return found

    return read


def _metadata(value: Any, path: str, unknown: list[str], decode_meta: DecodeMeta) -> Any:
    told: list[str] = []
    try:
        found = decode_meta(value, told)
    except decode.Undecodable as error:
        raise NotEmbedded(path, value, str(error)) from error
    unknown += [f"{path}.{name.removeprefix('metadata.')}" for name in told]
    return found
