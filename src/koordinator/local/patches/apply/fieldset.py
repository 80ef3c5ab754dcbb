"""Sets of field paths, in the very form in which `managedFields` stores them (`fieldsV1`).

A node is a dict from path elements to nodes. An element is `f:NAME` (a member), `k:{"name":"web"}` (a list
element by its keys), `v:"x"` (an element of a set) or `i:0`. A node belongs to the set when it is empty (a
leaf) or holds the key `.`. `None` is the empty set, also where a function returns it. All functions are pure
and share what they do not change. The order of elements means nothing (sorting them, as the API server does when
it stores them, took a fifth of a create).
"""

from collections.abc import Iterator
from typing import Any

import msgspec

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
    """Yield all paths of a set as people read them: `.spec.containers[name="web"].image`."""
    if node is None:
        return
    if prefix and is_member(node):
        yield prefix
    for key in sorted(node):
        if key != SELF:
            yield from paths(node[key], prefix + element_text(key))


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


__all__ = [
    "LEAF",
    "SELF",
    "Node",
    "build",
    "difference",
    "intersection",
    "is_member",
    "is_well_formed",
    "paths",
    "union",
    "without_below",
]
