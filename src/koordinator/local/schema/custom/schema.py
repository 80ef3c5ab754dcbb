"""Check one served version of a custom resource, with its `SchemaType` for patches and field ownership
and the decoding of its `metadata`; pruning and defaulting are compiled once per schema."""

import functools
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from koordinator.api.meta import Resource
from koordinator.cluster.errors import BadRequest, StatusCause
from koordinator.local.schema import decode, errors, names, types
from koordinator.local.schema.builtin import models
from koordinator.local.schema.custom import embedded, rules, validate
from koordinator.local.schema.custom import scale as scales
from koordinator.local.schema.custom.validate import Trouble
from koordinator.local.schema.types import Fields, ListType, SchemaField, SchemaType, WireKind

Json = dict[str, Any]
Defaulter = Callable[[Any], Any]

_RESOURCE_FIELDS = frozenset({"apiVersion", "kind", "metadata"})


def compile_pruner(schema: Json, *, is_root: bool = False) -> decode.Step:
    """Return the function that drops the fields that a schema does not name. `is_root` and embedded resources keep
    apiVersion, kind and metadata."""
    items = schema.get("items")
    if isinstance(items, dict):
        return _prune_items(compile_pruner(items))
    keeps = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    embedded = is_root or bool(schema.get("x-kubernetes-embedded-resource"))
    more = schema.get("additionalProperties")
    if not keeps and not embedded and schema.get("type") != "object":
        return decode.keep
    properties = {name: compile_pruner(inner) for name, inner in (schema.get("properties") or {}).items()}
    if embedded:
        properties |= dict.fromkeys(_RESOURCE_FIELDS, decode.keep)
    other: decode.Step | None = None
    if isinstance(more, dict):
        other = compile_pruner(more) if more else decode.keep
    elif more or keeps:
        other = decode.keep
    if other is decode.keep and all(pruner is decode.keep for pruner in properties.values()):
        return decode.keep
    return _prune_object(properties, other)


def _prune_object(properties: Mapping[str, decode.Step], other: decode.Step | None) -> decode.Step:
    each = decode.fields_step(lambda: properties, other, None, decode.keep)
    if any(pruner is not decode.keep for pruner in properties.values()):
        return each
    known = properties.keys()

    def prune(value: Any, unknown: list[str]) -> Any:
        is_known = not isinstance(value, dict) or value.keys() <= known
        return value if is_known else each(value, unknown)

    return prune


def _prune_items(inner: decode.Step) -> decode.Step:
    if inner is decode.keep:
        return decode.keep

    def prune(value: Any, unknown: list[str]) -> Any:
        return decode.through_list(value, inner, unknown, None) if isinstance(value, list) else value

    return prune


def compile_defaulter(schema: Json) -> Defaulter | None:
    """Return the function that fills in the defaults of a schema; None when it has none. Null counts as missing where
    the schema has a default and does not allow null."""
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
    """Return the function that gives an object its `defaults`, then fills members below by `steps`; `each` fills those
    not `known`."""

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


def compile_null_dropper(schema: Json) -> Defaulter | None:
    """Return the function that drops null from fields that do not allow it and have no default; None for a schema
    without fields."""
    properties = {
        name: inner for name, inner in (schema.get("properties") or {}).items() if isinstance(inner, dict)
    }
    more, items = schema.get("additionalProperties"), schema.get("items")
    kept = {name for name, inner in properties.items() if _takes_null(inner)}
    drops_others = isinstance(more, dict) and not _takes_null(more)
    below = {name: step for name, inner in properties.items() if (step := compile_null_dropper(inner))}
    each = compile_null_dropper(more) if isinstance(more, dict) else None
    every = compile_null_dropper(items) if isinstance(items, dict) else None
    if not (properties or drops_others or each or every):
        return None

    def goes(name: str) -> bool:
        return name not in kept if name in properties else drops_others

    def drop(value: Any) -> Any:
        if isinstance(value, list):
            if every is None:
                return value
            dropped = [every(item) for item in value]
            return value if all(a is b for a, b in zip(dropped, value, strict=True)) else dropped
        if not isinstance(value, dict):
            return value
        if None in value.values() and any(item is None and goes(name) for name, item in value.items()):
            value = {name: item for name, item in value.items() if item is not None or not goes(name)}
        return _changed(value, below, each, properties)

    return drop


def _takes_null(schema: Json) -> bool:
    return bool(schema.get("nullable")) or schema.get("default") is not None


def _changed(
    value: Json, below: Mapping[str, Defaulter], each: Defaulter | None, known: Mapping[str, Any]
) -> Json:
    """Return an object with some members made anew; itself when none of them changes."""
    result: Json | None = None
    for name, step in below.items():
        if name in value and (new := step(value[name])) is not value[name]:
            result = dict(value) if result is None else result
            result[name] = new
    if each is not None:
        for name, item in value.items():
            if name not in known and (new := each(item)) is not item:
                result = dict(value) if result is None else result
                result[name] = new
    return value if result is None else result


_SCALARS = {
    "string": types.STRING,
    "boolean": types.BOOL,
    "integer": types.INT64,
    "number": types.FLOAT,
}


def shape_of(schema: Json, *, is_root: bool = False) -> SchemaType:
    """Return the type that a structural schema describes; what it leaves open is ANY."""
    if schema.get("x-kubernetes-int-or-string"):
        return types.INT_OR_STRING
    kind = schema.get("type")
    if kind in _SCALARS:
        return _SCALARS[kind]
    if kind == "array":
        return _list(schema)
    if kind == "object" or is_root or schema.get("x-kubernetes-embedded-resource"):
        return _object(schema, is_root)
    return types.ANY


def _list(schema: Json) -> SchemaType:
    items = schema.get("items")
    element = shape_of(items) if isinstance(items, dict) else types.ANY
    keys = tuple(schema.get("x-kubernetes-list-map-keys") or ())
    properties = (items or {}).get("properties") or {}
    return SchemaType(
        WireKind.LIST,
        element=element,
        list_type=ListType(schema.get("x-kubernetes-list-type") or "atomic"),
        list_keys=keys,
        key_defaults={
            key: properties[key]["default"] for key in keys if "default" in properties.get(key, {})
        },
    )


def _object(schema: Json, is_root: bool) -> SchemaType:
    atomic = schema.get("x-kubernetes-map-type") == "atomic"
    more = schema.get("additionalProperties")
    keeps = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    embedded = is_root or bool(schema.get("x-kubernetes-embedded-resource"))
    properties = schema.get("properties") or {}
    if not properties and not embedded:
        if isinstance(more, dict) and more:
            return SchemaType(WireKind.MAP, element=shape_of(more), atomic=atomic)
        return (
            SchemaType(WireKind.MAP, element=types.ANY, atomic=atomic)
            if keeps or more
            else SchemaType(WireKind.STRUCT, atomic=atomic)
        )
    return SchemaType(
        WireKind.STRUCT,
        load=functools.partial(_fields, schema, embedded),
        element=types.ANY if keeps else None,
        atomic=atomic,
        open=keeps,
    )


def _fields(schema: Json, embedded: bool) -> Fields:
    required = set(schema.get("required") or ())
    fields: Fields = {
        name: SchemaField(
            name=name,
            type=shape_of(inner),
            required=name in required,
        )
        for name, inner in (schema.get("properties") or {}).items()
    }
    if embedded:
        fields["apiVersion"] = SchemaField(name="apiVersion", type=types.STRING)
        fields["kind"] = SchemaField(name="kind", type=types.STRING)
        fields["metadata"] = SchemaField(name="metadata", type=models.struct_of("V1ObjectMeta"))
    return fields


class CustomSchema:
    """The schema of one custom resource's objects; `schema` is its `openAPIV3Schema`, `scale` says where its scale
    subresource reads."""

    def __init__(self, resource: Resource, schema: Json, scale: Json | None = None) -> None:
        self.resource = resource
        self.schema = schema
        self.type: SchemaType = shape_of(schema, is_root=True)
        self._prune = compile_pruner(schema, is_root=True)
        own = {
            name: inner
            for name, inner in (schema.get("properties") or {}).items()
            if name not in _RESOURCE_FIELDS
        }
        self._own = {**schema, "properties": own}
        self._drop_nulls = compile_null_dropper(self._own)
        self._fill = compile_defaulter(schema)
        self._check = validate.compile_schema(self._own)
        self._ask_rules = rules.compile_rules(schema)
        self._check_name = validate.compile_schema((schema.get("properties") or {}).get("metadata") or {})
        self._read_embedded = embedded.compile_decoder(self._own, decode_meta)
        self._check_embedded = embedded.compile_check(self._own)
        self._scale = scale

    def decode(self, obj: Json, field_validation: str) -> tuple[Json, list[str]]:
        """See `BuiltinSchema.decode`. Only metadata has Go types; the rest is pruned here and its
        types are a matter of `validate`."""
        unknown: list[str] = []
        try:
            decoded = self._prune(obj, unknown)
            if self._drop_nulls is not None:
                decoded = self._drop_nulls(decoded)
            if self._read_embedded is not None:
                decoded = self._read_embedded(decoded, "", unknown)
            meta = decoded.get("metadata")
            if meta is not None:
                typed = decode_meta(meta, unknown)
                if typed is not meta:
                    decoded = {**decoded, "metadata": typed}
        except (decode.Undecodable, embedded.NotEmbedded) as error:
            raise errors.unreadable(self.resource, str(error)) from error
        except RecursionError:
            raise BadRequest("json: exceeded max depth") from None
        return decoded, errors.warnings_of(self.resource, unknown, field_validation) if unknown else []

    def default(self, obj: Json) -> Json:
        """See `BuiltinSchema.default`; also for objects stored before the schema had the default."""
        if self._fill is None:
            return obj
        filled: Json = self._fill(obj)
        return filled

    def validate(self, obj: Json, old: Json | None) -> list[StatusCause]:
        """See `BuiltinSchema.validate`. Ratcheting: parts that an update leaves alone do not block it when the schema
        became stricter since."""
        meta = obj.get("metadata") or {}
        causes: list[StatusCause] = []
        if old is None or meta is not old.get("metadata"):
            causes += names.check_metadata(
                meta, self.resource.namespaced, names.subdomain_1123, is_core=False
            )
        if old is None:
            causes += validate.causes_of(self._check_name, meta, "metadata")
        causes += validate.causes(self._troubles(obj, old))
        if self._scale is not None:
            causes += scales.check(obj, self._scale)
        if self._check_embedded is not None:
            causes += self._check_embedded(obj, "")
        if self._ask_rules is None:
            return causes
        if any(cause.reason in _BLOCKING for cause in causes):
            return [*causes, rules.UNCHECKED]
        return causes + self._ask_rules(obj, old, "")

    def _troubles(self, obj: Json, old: Json | None) -> list[Trouble]:
        found = self._check(obj)
        if not found or old is None:
            return found or []
        found = validate.ratcheted(found, self._own, obj, old)
        if any(each.is_repeated for each in found) and any(
            each.is_repeated for each in self._check(old) or ()
        ):
            return [each for each in found if not each.is_repeated]
        return found


_BLOCKING = frozenset(
    (
        "FieldValueNotSupported",
        "FieldValueRequired",
        "FieldValueTooLong",
        "FieldValueTooMany",
        "FieldValueTypeInvalid",
    )
)
"""Reasons for which rules are not asked: they see objects of the right types only."""


@functools.cache
def _decoder() -> decode.Step:
    return decode.decoder_of(models.struct_of("V1ObjectMeta"))


def decode_meta(meta: Any, unknown: list[str]) -> Any:
    """`metadata` by its Go types; paths of unknown fields are added to `unknown`. Raises: decode.Undecodable."""
    found: list[str] = []
    try:
        decoded = _decoder()(meta, found)
    except decode.Undecodable as error:
        error.struct = error.struct or "Object"
        error.path.insert(0, "metadata")
        raise
    unknown += [f"metadata.{path}" for path in found]
    return decoded
