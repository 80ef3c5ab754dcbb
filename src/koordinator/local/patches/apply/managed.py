"""Keep `metadata.managedFields`: who owns which fields of an object, as sets of field paths in the very form in which
they are stored (`fieldsV1`).

A node of a set is a dict from path elements to nodes. An element is `f:NAME` (a member), `k:{"name":"web"}` (a list
element by its keys), `v:"x"` (an element of a set) or `i:0`. A node belongs to the set when it is empty (a leaf) or
holds the key `.`. `None` is the empty set, also where a function returns it. Functions of sets are pure and share what
they do not change. The order of elements means nothing (sorting them, as the API server does when it stores them, took
a fifth of a create).
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from koordinator.api.meta import Resource
from koordinator.clock import rfc3339

Node = dict[str, Any]
SELF = "."
LEAF: Node = {}


def is_member(node: Node) -> bool:
    """Return whether the path that ends here belongs to the set."""
    return not node or SELF in node


def build(member: bool, children: Node) -> Node | None:
    """Return a node from its parts; None when nothing is in it."""
    if not children:
        return LEAF if member else None
    return {SELF: LEAF, **children} if member else children


def union(left: Node | None, right: Node | None) -> Node | None:
    """Paths of either set."""
    if left is None or right is None or left is right:
        return right if left is None else left
    children = {key: node for key, node in left.items() if key != SELF}
    for key, node in right.items():
        if key != SELF:
            merged = union(children.get(key), node)
            assert merged is not None, key
            children[key] = merged
    return build(is_member(left) or is_member(right), children)


def difference(left: Node | None, right: Node | None) -> Node | None:
    """Paths of `left` that are not in `right`; `left` itself when there is nothing to take away."""
    if left is None or right is None:
        return left
    children: Node = {}
    is_same = True
    for key, node in left.items():
        if key != SELF:
            rest = difference(node, right[key]) if key in right else node
            is_same = is_same and rest is node
            if rest is not None:
                children[key] = rest
    stays = is_member(left) and not is_member(right)
    return left if is_same and stays == is_member(left) else build(stays, children)


def intersection(left: Node | None, right: Node | None) -> Node | None:
    """Paths of both sets."""
    if left is None or right is None:
        return None
    children: Node = {}
    for key, node in left.items():
        if key != SELF and key in right:
            common = intersection(node, right[key])
            if common is not None:
                children[key] = common
    return build(is_member(left) and is_member(right), children)


def without_below(left: Node | None, right: Node | None) -> Node | None:
    """Paths of `left` that are neither in `right` nor below a path of `right`."""
    if left is None or right is None:
        return left
    if is_member(right):
        return None
    children: Node = {}
    for key, node in left.items():
        if key != SELF:
            rest = without_below(node, right.get(key)) if key in right else node
            if rest is not None:
                children[key] = rest
    return build(is_member(left), children)


def paths(node: Node | None, prefix: str = "") -> Iterator[str]:
    """Yield all paths of a set as people read them: `.spec.containers[name="web"].image`; those of a level come before
    what is below, as in the API server."""
    below = {prefix + element_text(key): child for key, child in sorted((node or {}).items()) if key != SELF}
    yield from (path for path, child in below.items() if is_member(child))
    for path, child in below.items():
        yield from paths(child, path)


def element_text(element: str) -> str:
    """`f:image` → `.image`, `k:{"name":"web"}` → `[name="web"]`, `v:"x"` → `[="x"]`, `i:0` → `[0]`."""
    kind, text = element[:2], element[2:]
    if kind == "f:":
        return f".{text}"
    if kind == "v:":
        return f"[={text}]"
    if kind == "k:":
        keys = msgspec.json.decode(text)
        return "[" + ",".join(f"{k}={msgspec.json.encode(keys[k]).decode()}" for k in sorted(keys)) + "]"
    return f"[{text}]"


def is_well_formed(node: Any) -> bool:
    """Return whether a value from outside is such a set."""
    if not isinstance(node, dict):
        return False
    for key, child in node.items():
        if key == SELF:
            if child != {}:
                return False
        elif (
            key[:2] not in {"f:", "k:", "v:", "i:"}
            or not is_well_formed(child)
            or (key[:2] in {"k:", "v:"} and not _is_json(key[2:], key[:2] == "k:"))
        ):
            return False
    return True


def _is_json(text: str, must_be_object: bool) -> bool:
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return isinstance(value, dict) or not must_be_object


UPDATE_MANAGERS_MAX = 10  # as in the API server: older non-apply managers are merged into one
ANCIENT = "ancient-changes"

APPLY, UPDATE = "Apply", "Update"


class FieldManager(msgspec.Struct, frozen=True, order=True):
    """The key that tells two entries apart."""

    manager: str
    operation: str
    api_version: str
    subresource: str = ""

    def describe(self) -> str:
        """Return the owner as a conflict names it."""
        text = f'"{self.manager}"'
        if self.subresource:
            text += f' with subresource "{self.subresource}"'
        return f"{text} using {self.api_version}" if self.operation == UPDATE else text


class ManagedFields(msgspec.Struct, frozen=True):
    """The fields of one owner and when it last took some."""

    fields: Node
    time: str


Owners = dict[FieldManager, ManagedFields]


def decode(obj: dict[str, Any] | None, *, stored: bool = False) -> Owners:
    """Return the owners of an object; none when managedFields are absent or malformed (as the API server does).

    `stored`: the object comes out of the store, so that we wrote its managedFields ourselves.
    """
    entries = metadata(obj).get("managedFields")
    owners: Owners = {}
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict):
            return {}
        fields = entry.get("fieldsV1") or {}
        words = [entry.get(key, "") for key in ("manager", "operation", "apiVersion", "subresource", "time")]
        if not all(isinstance(word, str) for word in words) or words[1] not in {APPLY, UPDATE}:
            return {}
        if not stored and not is_well_formed(fields):
            return {}
        owners[FieldManager(*words[:4])] = ManagedFields(fields, words[4])
    return owners


def is_reset(obj: dict[str, Any]) -> bool:
    """Return whether a client asks for managedFields to be cleared (`[{}]`)."""
    entries = metadata(obj).get("managedFields")
    return isinstance(entries, list) and bool(entries) and all(entry == {} for entry in entries)


def encode(obj: dict[str, Any], owners: Owners, old: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the object with its managedFields replaced (removed when there are none).

    Entries of `old`, the object as stored, that still hold are taken over as they are.
    """
    meta = {key: value for key, value in metadata(obj).items() if key != "managedFields"}
    known = {_words(entry): entry for entry in metadata(old).get("managedFields") or ()}
    entries = []
    for owner, share in owners.items():
        entry = known.get((owner.manager, owner.operation, owner.api_version, owner.subresource))
        holds = (
            entry is not None
            and entry.get("fieldsV1") is share.fields
            and entry.get("time", "") == share.time
        )
        entries.append(entry if entry is not None and holds else _entry(owner, share))
    entries.sort(
        key=lambda e: (
            e["operation"],
            e.get("time", ""),
            e["manager"],
            e["apiVersion"],
            e.get("subresource", ""),
        )
    )
    if entries:
        meta["managedFields"] = entries
    return {**obj, "metadata": meta}


def _words(entry: dict[str, Any]) -> tuple[str, str, str, str]:
    return entry["manager"], entry["operation"], entry["apiVersion"], entry.get("subresource", "")


def _entry(owner: FieldManager, share: ManagedFields) -> dict[str, Any]:
    entry = {
        "manager": owner.manager,
        "operation": owner.operation,
        "apiVersion": owner.api_version,
        **({"time": share.time} if share.time else {}),
        "fieldsType": "FieldsV1",
        "fieldsV1": share.fields,
    }
    if owner.subresource:
        entry["subresource"] = owner.subresource
    return entry


def metadata(obj: dict[str, Any] | None) -> dict[str, Any]:
    """`metadata` of an object that may be none or malformed."""
    meta = (obj or {}).get("metadata")
    return meta if isinstance(meta, dict) else {}


def cap(owners: Owners) -> Owners:
    """At most `UPDATE_MANAGERS_MAX` non-apply owners: the oldest become one called `ancient-changes`."""
    updates = sorted(
        (owner for owner in owners if owner.operation == UPDATE), key=lambda o: (owners[o].time, o.manager)
    )
    if len(updates) <= UPDATE_MANAGERS_MAX:
        return owners
    old = updates[: len(updates) - UPDATE_MANAGERS_MAX + 1]
    merged: Node | None = None
    for owner in old:
        merged = union(merged, owners[owner].fields)
    assert merged is not None
    kept = {owner: share for owner, share in owners.items() if owner not in old}
    kept[FieldManager(ANCIENT, UPDATE, old[-1].api_version)] = ManagedFields(merged, owners[old[-1]].time)
    return kept


# Fields that belong to nobody: the API server sets them, or they say which object this is. `generateName` is a choice
# of who made the object, and theirs.
_UNOWNED: Node = {
    "f:apiVersion": LEAF,
    "f:kind": LEAF,
    "f:metadata": {
        f"f:{name}": LEAF
        for name in (
            "name",
            "namespace",
            "creationTimestamp",
            "selfLink",
            "uid",
            "clusterName",
            "generation",
            "managedFields",
            "resourceVersion",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
        )
    },
}


def ownable(fields: Node | None, resource: Resource, subresource: str) -> Node | None:
    """Return the part of a set that a writer of this (sub)resource can own."""
    fields = without_below(fields, _UNOWNED)
    meta = (fields or {}).get("f:metadata")
    if fields and meta is not None and is_member(meta):
        inner = {key: node for key, node in meta.items() if key != SELF}
        fields = {key: node for key, node in fields.items() if key != "f:metadata"}
        if inner:
            fields["f:metadata"] = inner
    if not fields:
        return None
    if subresource == "status":
        return without_below(fields, {"f:spec": LEAF})
    if not subresource and "status" in resource.subresources:
        return without_below(fields, {"f:status": LEAF})
    return fields or None


def stamp(now_s: float) -> str:
    """Return the time of an entry."""
    return rfc3339(now_s)
