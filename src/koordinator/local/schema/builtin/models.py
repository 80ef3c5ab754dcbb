"""Shapes of the built-in kinds, read from the model classes of the `kubernetes_asyncio` package.

The package generates one class per schema of Kubernetes' OpenAPI document, each with two literal tables
(`openapi_types`, `attribute_map`), a required-field check in its setters and a docstring per property. They are
read as text: importing the package would cost every start half a second and 40 MB for some 750 classes and an HTTP
stack of its own, while reading the ~120 files below a Pod takes some 20 ms, once. `facts` adds what the classes do
not say (merge keys, list types, integer sizes).
"""

import functools
import importlib.util
import re
from pathlib import Path

from koordinator.local.schema import types
from koordinator.local.schema.builtin import facts
from koordinator.local.schema.types import Fields, ListType, SchemaField, SchemaType, WireKind

_IMPORT = re.compile(r"^from kubernetes_asyncio\.client\.models\.(\w+) import (\w+)", re.MULTILINE)
_PAIR = re.compile(r"'(\w+)': '([^']+)'")
_REQUIRED = re.compile(r"client_side_validation and (\w+) is None")
_DESCRIPTION = re.compile(
    r'"""Gets the (\w+) of this \w+\.  # noqa: E501\n\n        (\S.*?)(?:  # noqa: E501)?\n\n', re.DOTALL
)
_VERSION_PREFIX = re.compile(r"^(?:[A-Z][a-z]+)?V\d+(?:(?:alpha|beta)\d+)?(?=[A-Z])")
_MAP = re.compile(r"^dict\(str, (.+)\)$")
_LIST = re.compile(r"^list\[(.+)\]$")


class MissingModel(LookupError):
    """A kind that the installed `kubernetes_asyncio` does not describe."""


@functools.cache
def _folder() -> Path:
    spec = importlib.util.find_spec("kubernetes_asyncio")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("the schemas of built-in kinds", name="kubernetes_asyncio")
    return Path(spec.submodule_search_locations[0]) / "client" / "models"


@functools.cache
def _modules() -> dict[str, str]:
    """Model class → module name."""
    text = (_folder() / "__init__.py").read_text(encoding="utf-8")
    return {cls: module for module, cls in _IMPORT.findall(text)}


def go_name(model: str) -> str:
    """`V1DeploymentSpec` → `DeploymentSpec`, the struct's name in error messages."""
    return _VERSION_PREFIX.sub("", model)


def model_of(group: str, version: str, kind: str) -> str:
    """Return the class that describes a kind.

    Raises: MissingModel.
    """
    plain = version.capitalize() + kind
    prefix = (group or "core").split(".")[0].capitalize()
    for name in (plain, prefix + plain):
        if name in _modules():
            return name
    raise MissingModel(f"{group}/{version} {kind}: no model class {plain} in kubernetes_asyncio")


@functools.cache
def struct_of(model: str) -> SchemaType:
    """Return the STRUCT type of a model class; its fields load on first use."""
    name = go_name(model)
    return SchemaType(
        WireKind.STRUCT,
        name=model,
        load=functools.partial(_load, model),
        atomic=name in facts.ATOMIC_STRUCTS,
    )


@functools.cache
def _source(model: str) -> str:
    return (_folder() / f"{_modules()[model]}.py").read_text(encoding="utf-8")


def _table(source: str, name: str) -> dict[str, str]:
    start = source.index(f"    {name} = {{")
    return dict(_PAIR.findall(source[start : source.index("    }\n", start)]))


def _load(model: str) -> Fields:
    source = _source(model)
    kinds = _table(source, "openapi_types")
    wire_names = _wire_names(source)
    required = set(_REQUIRED.findall(source))
    owner = go_name(model)
    fields: Fields = {}
    for attr, text in kinds.items():
        name = wire_names[attr]
        fact = facts.FIELDS.get((owner, name), facts.PLAIN)
        text = facts.TYPES.get((owner, name), text)
        fields[name] = SchemaField(
            name=name,
            type=_type(owner, name, text, fact),
            required=attr in required,
            strategies=fact.strategies,
            merge_key=fact.merge_key,
        )
    _source.cache_clear()
    return fields


def _wire_names(source: str) -> dict[str, str]:
    start = source.index("    attribute_map = {")
    return dict(re.findall(r"'(\w+)': '([^']*)'", source[start : source.index("    }\n", start)]))


def _type(owner: str, name: str, text: str, fact: facts.Fact) -> SchemaType:
    """Return the type that `openapi_types` says in words, made exact by what `facts` knows of the field."""
    if match := _LIST.match(text):
        element = _type(owner, name, match[1], facts.PLAIN)
        return SchemaType(
            WireKind.LIST,
            element=element,
            list_type=fact.list_type,
            list_keys=fact.list_keys,
            key_defaults={"protocol": "TCP"} if "protocol" in fact.list_keys else None,
        )
    if match := _MAP.match(text):
        is_amounts = name in facts.RESOURCE_LISTS and match[1] == "str"
        element = types.QUANTITY if is_amounts else _type(owner, name, match[1], facts.PLAIN)
        if (owner, name) in facts.BYTE_MAPS:
            element = types.BYTES
        return SchemaType(WireKind.MAP, element=element, atomic=fact.atomic)
    if text == "int":
        return types.INT64 if name in facts.INT64_FIELDS else types.INT32
    if text == "datetime":
        return types.MICRO_TIME if name in facts.MICRO_TIMES else types.TIME
    if text == "object":
        return types.INT_OR_STRING if name in facts.INT_OR_STRINGS else types.ANY
    if text == "str":
        if (owner, name) in facts.QUANTITIES:
            return types.QUANTITY
        return types.BYTES if (owner, name) in facts.BYTE_FIELDS else types.STRING
    if text in {"bool", "float"}:
        return types.BOOL if text == "bool" else types.FLOAT
    return struct_of(text)


def is_model(name: str) -> bool:
    """Return whether a type's name is that of a model class."""
    return name in _modules()


def descriptions(model: str) -> dict[str, str]:
    """Return what each field means, by JSON name, for `kubectl explain`."""
    source = _source(model)
    _source.cache_clear()
    wire_names = _wire_names(source)
    return {
        wire_names[attr]: text.strip().replace('\\"', '"')
        for attr, text in _DESCRIPTION.findall(source)
        if attr in wire_names and not text.startswith(":return:")
    }


__all__ = ["ListType", "MissingModel", "descriptions", "go_name", "is_model", "model_of", "struct_of"]
