"""Values seen through their type: which fields they set, how two of them differ, how they merge.

The rules are those of Kubernetes' structured merge: structs and maps are owned field by field unless they are
atomic; lists as a whole, unless they are sets or maps by key; what a schema does not know is deduced from the
value (objects by field, lists as a whole).
"""

import functools
from collections.abc import Iterator
from typing import Any

import msgspec

from koordinator.local.patches.apply import managed
from koordinator.local.patches.apply.managed import LEAF, Node
from koordinator.local.schema.errors import shown
from koordinator.local.schema.known import ByIdentity, is_shared
from koordinator.local.schema.types import ListType, SchemaType, WireKind

_ABSENT: Any = object()

# Members that the Go types hold by value: they exist in every object, so that nobody is said to have added
# them (`f:spec` has no `.` of its own in managedFields of built-in kinds).
_ALWAYS_THERE = frozenset(
    {
        *(
            "metadata",
            "spec",
            "status",
            "template",
            "jobTemplate",
            "strategy",
            "updateStrategy",
            "containers",
        ),
        *("source", "devices", "podSelector", "scaleTargetRef", "pool", "drivers"),
    }
)


def _is_always_there(shape: SchemaType, key: str) -> bool:
    if key == "resources":  # of containers they are as long as they were sent
        return shape.name == "V1PersistentVolumeClaimSpec"
    return bool(shape.name) and key in _ALWAYS_THERE


class Mismatch(Exception):
    """A value does not fit its type; the text is `.path: reason`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = ""

    def under(self, element: str) -> "Mismatch":
        """Return the same, seen from one level up."""
        self.path = managed.element_text(element) + self.path
        return self

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class Difference(msgspec.Struct, frozen=True):
    """The difference between a new object and an old one; None is "nothing"."""

    added: Node | None
    modified: Node | None
    removed: Node | None

    @property
    def changed(self) -> Node | None:
        """Paths that the new object sets otherwise than the old one."""
        return managed.union(self.added, self.modified)

    @property
    def is_empty(self) -> bool:
        return self.added is None and self.modified is None and self.removed is None


_SAME = Difference(None, None, None)


def is_granular(shape: SchemaType, value: Any) -> bool:
    """Return whether ownership goes below this value."""
    if isinstance(value, dict):
        return shape.granular_map
    return isinstance(value, list) and shape.granular_list


def children(shape: SchemaType, value: Any) -> Iterator[tuple[str, SchemaType, Any]]:
    """Path element, type and value of everything directly below a granular value.

    Raises: Mismatch when elements of a list cannot be told apart.
    """
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"f:{key}", shape.child(key), item
        return
    seen: set[str] = set()
    element = shape.element
    assert element is not None, shape
    for item in value:
        name = _list_element(shape, item)
        if name in seen:
            raise Mismatch(f"duplicate entries for key {managed.element_text(name)}")
        seen.add(name)
        yield name, element, item


def _list_element(shape: SchemaType, item: Any) -> str:
    if shape.list_type is ListType.SET:
        return f"v:{shown(item)}"
    if not isinstance(item, dict):
        raise Mismatch("associative list with keys may not have non-map elements")
    keys, values = shape.list_keys, [item.get(key, shape.key_defaults.get(key)) for key in shape.list_keys]
    if None in values:
        keys = tuple(key for key, value in zip(keys, values, strict=True) if value is not None)
        values = [value for value in values if value is not None]
        if not keys:
            listed = " ".join(map(shown, shape.list_keys))
            raise Mismatch(
                f"associative list with keys has an element that omits all key fields [{listed}] "
                "(and doesn't have default values for any key fields)"
            )
    if not all(isinstance(value, str | int | float) for value in values):  # not validated yet
        return _key_text.__wrapped__(keys, tuple(values), ())
    return _key_text(keys, tuple(values), tuple(map(type, values)))


@functools.lru_cache(maxsize=8192)  # names of containers, ports and variables come again and again
def _key_text(keys: tuple[str, ...], values: tuple[Any, ...], types: tuple[type, ...]) -> str:
    """`types` only keeps 1 and true apart."""
    return f"k:{shown(dict(sorted(zip(keys, values, strict=True))))}"


def _parts(shape: SchemaType, value: Any) -> dict[str, tuple[SchemaType, Any]] | None:
    """Children by path element; None when the value is owned as a whole (or its keys are in disorder)."""
    if not is_granular(shape, value):
        return None
    try:
        return {name: (child, item) for name, child, item in children(shape, value)}
    except Mismatch:
        return None


def field_set(shape: SchemaType, value: Any) -> Node | None:
    """Return the paths that an applied configuration sets. Raises: Mismatch."""
    if not is_granular(shape, value):
        return LEAF
    found: Node = {}
    for name, child, item in children(shape, value):
        try:
            node = field_set(child, item)
        except Mismatch as mismatch:
            raise mismatch.under(name) from None
        is_list_element = name[0] in "kv"
        is_map_item = shape.kind is not WireKind.STRUCT or name[2:] not in shape.fields
        if is_list_element or is_map_item or item is None or item == {}:
            node = managed.union(node, LEAF)
        if node is not None:
            found[name] = node
    return found or None


def everything(shape: SchemaType, value: Any) -> Node:
    """Return all paths of a value that was added or removed as a whole, those on the way included."""
    if isinstance(value, dict):  # the common case, without the detour over named parts
        if not (value and shape.granular_map):
            return LEAF
        below = _members(shape, value)
        return {managed.SELF: LEAF, **below} if below else LEAF
    found: Node = {managed.SELF: LEAF}
    parts = _parts(shape, value)
    if not parts:
        return LEAF
    for name, (child, item) in parts.items():
        found[name] = everything(child, item)
    return found


def _members(shape: SchemaType, value: dict[str, Any]) -> Node:
    """Return all paths below an object that is owned field by field."""
    found: Node = {}
    for key, item in value.items():
        if type(item) is not dict and type(item) is not list:
            found["f:" + key] = LEAF
            continue
        is_always_there = _is_always_there(shape, key)
        if is_always_there and not item:
            continue
        child = shape.child(key)
        node = _fields_of_spec(child, item) if key == "spec" else everything(child, item)
        found["f:" + key] = _without_self(node) if is_always_there else node
    return found


_SPECS: ByIdentity[tuple[SchemaType, Node]] = ByIdentity()


def _fields_of_spec(shape: SchemaType, value: Any) -> Node:
    """Return all paths of a new object's spec; replicas share theirs (`local.schema.known`)."""
    known = _SPECS.get(value)
    if known is not None and known[0] is shape:
        return known[1]
    node = everything(shape, value)
    if is_shared(value):
        _SPECS.put(value, (shape, node))
    return node


def _without_self(node: Node) -> Node:
    """Return the paths below a node, without the node's own (unless it is all there is)."""
    return {key: below for key, below in node.items() if key != managed.SELF} if len(node) > 1 else node


def compare(shape: SchemaType, old: Any, new: Any) -> Difference:
    """Return how `new` differs from `old`; subtrees that both share cost nothing."""
    # Equality of whole subtrees is a matter of microseconds. ANY is looked at more closely: there 1 is not true.
    if old is new or (shape.kind is not WireKind.ANY and type(old) is type(new) and old == new):
        return _SAME
    if old == {} and new and isinstance(new, dict) and isinstance(old, dict) and shape.granular_map:
        return Difference(_members(shape, new), None, None)
    old_parts, new_parts = _parts(shape, old), _parts(shape, new)
    if old_parts is None or new_parts is None or not (old_parts or new_parts):
        same = bool(old == new) and isinstance(old, bool) == isinstance(new, bool)
        return _SAME if same else Difference(None, LEAF, None)
    added: Node = {}
    modified: Node = {}
    removed: Node = {}
    for name, (child, item) in new_parts.items():
        if name not in old_parts:
            node = _fields_of_spec(child, item) if name == "f:spec" else everything(child, item)
            if not _is_always_there(shape, name[2:]):
                added[name] = node
            elif item:
                added[name] = _without_self(node)
            continue
        inner = compare(child, old_parts[name][1], item)
        if inner is _SAME:
            continue
        for target, part in ((added, inner.added), (modified, inner.modified), (removed, inner.removed)):
            if part is not None:
                target[name] = part
    for name, (child, item) in old_parts.items():
        if name not in new_parts:
            removed[name] = everything(child, item)
    if not (added or modified or removed):
        return _SAME
    return Difference(added or None, modified or None, removed or None)


def merge(shape: SchemaType, live: Any, config: Any) -> Any:
    """`live` with everything that `config` sets; `live` itself when that changes nothing."""
    if live is _ABSENT:
        return config
    if isinstance(live, dict) and isinstance(config, dict) and is_granular(shape, config):
        result: dict[str, Any] | None = None
        for key, item in config.items():
            old = live.get(key, _ABSENT)
            new = merge(shape.child(key), old, item)
            if new is not old:
                result = dict(live) if result is None else result
                result[key] = new
        return live if result is None else result
    if isinstance(live, list) and isinstance(config, list) and is_granular(shape, config):
        return _merge_list(shape, live, config)
    return live if live == config and type(live) is type(config) else config


def _merge_list(shape: SchemaType, live: list[Any], config: list[Any]) -> list[Any]:
    """Elements of both: the order of `config` rules, elements of `live` alone stay where they stood."""
    mine, theirs = _parts(shape, live), _parts(shape, config)
    element = shape.element
    if mine is None or theirs is None or element is None:
        return config
    left, right = list(mine), list(theirs)
    merged: list[Any] = []
    done: set[str] = set()
    i = j = 0
    while i < len(left) or j < len(right):
        if i < len(left):
            name = left[i]
            if name not in theirs:
                merged.append(mine[name][1])
                i += 1
                continue
            if name in done:
                i += 1
                continue
        name = right[j]
        j += 1
        done.add(name)
        merged.append(merge(element, mine[name][1], theirs[name][1]) if name in mine else theirs[name][1])
    same = len(merged) == len(live) and all(a is b for a, b in zip(merged, live, strict=True))
    return live if same else merged


def remove(shape: SchemaType, value: Any, doomed: Node | None) -> Any:
    """`value` without the paths of a set; containers that this empties go as well."""
    parts = _parts(shape, value)
    if doomed is None or parts is None:
        return value
    kept: list[tuple[str, Any]] = []
    touched = False
    for name, (child, item) in parts.items():
        node = doomed.get(name)
        if node is None:
            kept.append((name, item))
            continue
        if managed.is_member(node):
            touched = True
            continue
        rest = remove(child, item, node)
        touched = touched or rest is not item
        if rest is item or rest:
            kept.append((name, rest))
    if not touched:
        return value
    if isinstance(value, dict):
        return {name[2:]: item for name, item in kept}
    return [item for _, item in kept]


def check(shape: SchemaType, value: Any) -> None:
    """Raises: Mismatch when an applied configuration does not fit its type (unknown fields included)."""
    if value is None or shape.kind is WireKind.ANY:
        return
    if shape.kind in {WireKind.STRUCT, WireKind.MAP}:
        if not isinstance(value, dict):
            raise Mismatch(f"expected map, got {_shown(value)}")
        for key, item in value.items():
            known = (
                shape.kind is WireKind.MAP or key in shape.fields or shape.element is not None or shape.open
            )
            try:
                if not known:
                    raise Mismatch("field not declared in schema")
                check(shape.child(key), item)
            except Mismatch as mismatch:
                raise mismatch.under(f"f:{key}") from None
        return
    if shape.kind is WireKind.LIST:
        if not isinstance(value, list):
            raise Mismatch(f"expected list, got {_shown(value)}")
        for index, item in enumerate(value):
            try:
                check(shape.element or shape, item)
            except Mismatch as mismatch:
                raise mismatch.under(f"i:{index}") from None
        return
    _check_scalar(shape.kind, value)


def _check_scalar(kind: WireKind, value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match kind:
        case WireKind.BOOL:
            fits, wanted = isinstance(value, bool), "boolean"
        case WireKind.INT32 | WireKind.INT64 | WireKind.FLOAT:
            fits, wanted = is_number, "numeric (int or float)"
        case WireKind.QUANTITY | WireKind.INT_OR_STRING:
            fits, wanted = is_number or isinstance(value, str), "scalar"
        case _:
            fits, wanted = isinstance(value, str), "string"
    if not fits:
        raise Mismatch(f"expected {wanted}, got {_shown(value)}")


def _shown(value: Any) -> str:
    match value:
        case dict():
            return "map"
        case list():
            return "list"
        case bool():
            return "boolean"
        case str():
            return "string"
        case float():
            return "float"
    return "int"
