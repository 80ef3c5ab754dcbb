"""The shape of an object: what decoding, patching, field ownership and the OpenAPI documents all read.

Built-in kinds (`schema.builtin`) and custom resources (`schema.custom`) are described by the same `SchemaType`.
The fields of a struct are loaded when somebody first asks for them: a kind that nobody uses costs nothing,
and a type may contain itself.
"""

import enum
from collections.abc import Callable, Mapping
from typing import Any

import msgspec


class WireKind(enum.Enum):
    """The type of a value on the wire. `value` is the word Go uses for it in decoding errors."""

    STRING = "string"
    BOOL = "bool"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT = "float64"
    BYTES = "[]uint8"
    TIME = "v1.Time"
    MICRO_TIME = "v1.MicroTime"
    QUANTITY = "resource.Quantity"
    INT_OR_STRING = "intstr.IntOrString"
    ANY = "interface {}"  # anything goes; ownership is deduced from the value
    STRUCT = "struct"
    MAP = "map"
    LIST = "slice"


class ListType(enum.Enum):
    """The way in which server-side apply tells elements of a list apart."""

    ATOMIC = "atomic"
    SET = "set"
    MAP = "map"


class SchemaField(msgspec.Struct, frozen=True, kw_only=True):
    """One member of a struct.

    `strategies` and `merge_key` are those of strategic merge patches (`merge`, `replace`, `retainKeys`).
    """

    name: str
    type: "SchemaType"
    required: bool = False
    strategies: tuple[str, ...] = ()
    merge_key: str = ""


Fields = dict[str, SchemaField]


class SchemaType:
    """One node of a shape. Immutable once loaded.

    `key_defaults` are the values of list keys that an element may omit (`protocol` of a port).
    `element` belongs to MAP and LIST, `fields` to STRUCT; a STRUCT with `element` also takes other members
    (custom resources with `additionalProperties`) and with `open` keeps what it does not know.
    `atomic` marks a STRUCT or MAP that server-side apply owns as a whole.
    """

    __slots__ = (
        "_fields",
        "_load",
        "atomic",
        "element",
        "granular_list",
        "granular_map",
        "key_defaults",
        "kind",
        "list_keys",
        "list_type",
        "name",
        "open",
    )

    def __init__(
        self,
        kind: WireKind,
        *,
        name: str = "",
        element: "SchemaType | None" = None,
        load: Callable[[], Fields] | None = None,
        atomic: bool = False,
        list_type: ListType = ListType.ATOMIC,
        list_keys: tuple[str, ...] = (),
        key_defaults: Mapping[str, Any] | None = None,
        open: bool = False,
    ) -> None:
        self.kind = kind
        self.name = name
        self.element = element
        self.atomic = atomic
        self.list_type = list_type
        self.list_keys = list_keys
        self.key_defaults = key_defaults or {}
        self.open = open
        # Whether server-side apply tells apart what is inside an object, or a list, of this type.
        self.granular_map = kind in (WireKind.STRUCT, WireKind.MAP, WireKind.ANY) and not atomic
        self.granular_list = kind is WireKind.LIST and list_type is not ListType.ATOMIC
        self._load = load
        self._fields: Fields | None = None

    @property
    def fields(self) -> Fields:
        """Members of a STRUCT by their JSON names; empty for everything else."""
        if self._fields is None:
            self._fields = self._load() if self._load else {}
        return self._fields

    def child(self, key: str) -> "SchemaType":
        """Return the type below a member of a STRUCT or MAP; ANY for what the schema does not know."""
        if self.kind is WireKind.STRUCT:
            field = self.fields.get(key)
            if field is not None:
                return field.type
        return self.element or ANY

    def member(self, key: str) -> SchemaField:
        """Return the field `key` of a STRUCT; for members that the schema does not know, one that merges as it may."""
        found = self.fields.get(key) if self.kind is WireKind.STRUCT else None
        return found or SchemaField(name=key, type=self.child(key))

    def __repr__(self) -> str:
        return f"Type({self.kind.name}, {self.name or '-'})"


ANY = SchemaType(WireKind.ANY)
STRING = SchemaType(WireKind.STRING)
BOOL = SchemaType(WireKind.BOOL)
INT32 = SchemaType(WireKind.INT32)
INT64 = SchemaType(WireKind.INT64)
FLOAT = SchemaType(WireKind.FLOAT)
BYTES = SchemaType(WireKind.BYTES)
TIME = SchemaType(WireKind.TIME)
MICRO_TIME = SchemaType(WireKind.MICRO_TIME)
QUANTITY = SchemaType(WireKind.QUANTITY)
INT_OR_STRING = SchemaType(WireKind.INT_OR_STRING)
