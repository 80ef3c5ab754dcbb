"""Strategic merge patch: a merge patch in which lists with a merge key merge element by element.

Directives: `$patch` (replace, delete) in objects and list elements, `$retainKeys`,
`$setElementOrder/<list>` and `$deleteFromPrimitiveList/<list>`. Source: the format that Kubernetes documents
under "Notes on the strategic merge patch"; elements keep the order that the API server gives them (elements
of the patch first in the patch's order, the others where they stood among them).
"""

from collections.abc import Sequence
from typing import Any, Protocol

from koordinator.cluster.errors import BadRequest, Invalid

REJECTED = "the server rejected our request due to an error in our request"

PATCH = "$patch"
RETAIN_KEYS = "$retainKeys"
SET_ORDER = "$setElementOrder/"
DELETE_FROM_LIST = "$deleteFromPrimitiveList/"

_UNKNOWN_PATCH_TYPE = "Unknown patch type: {}"
_NOTHING: Any = object()


class MergeSchema(Protocol):
    """The schema that the algorithm asks about a value; the API server's schemas have it, and small tables for
    clients."""

    @property
    def element(self) -> "MergeSchema | None":
        """Return the shape of the elements of a list."""

    def member(self, key: str) -> "MergeMember":
        """Return how the member `key` of an object merges; also for members that nobody knows."""


class MergeMember(Protocol):
    """The merge rules of an object's member: `strategies` out of merge, replace, retainKeys."""

    @property
    def type(self) -> MergeSchema: ...

    @property
    def strategies(self) -> Sequence[str]: ...

    @property
    def merge_key(self) -> str: ...


def merge(current: dict[str, Any], patch: Any, shape: MergeSchema) -> dict[str, Any]:
    """`current` (of `shape`) changed as `patch` says; neither argument is changed.

    Raises: BadRequest for a malformed patch or directive, Invalid when a list element lacks its merge key.
    """
    if not isinstance(patch, dict):
        raise BadRequest(
            "error decoding patch: json: cannot unmarshal into Go value of type map[string]interface {}"
        )
    return _merge_map(current, patch, shape)


def _merge_map(current: dict[str, Any], patch: dict[str, Any], shape: MergeSchema) -> dict[str, Any]:
    match patch.get(PATCH):
        case None:
            pass
        case "replace":
            return _clean_map(patch)
        case "delete":
            return {}
        case directive:
            raise BadRequest(_UNKNOWN_PATCH_TYPE.format(directive))
    result = _retain(current, patch)
    orders: dict[str, list[Any]] = {}
    removals: dict[str, list[Any]] = {}
    for key, value in patch.items():
        for prefix, found in ((SET_ORDER, orders), (DELETE_FROM_LIST, removals)):
            if key.startswith(prefix):
                if not isinstance(value, list):
                    raise BadRequest(f"invalid patch format: {key} must be a list")
                found[key[len(prefix) :]] = value
    for key, doomed in removals.items():
        old = result.get(key)
        if isinstance(old, list):
            result[key] = [item for item in old if item not in doomed]
    for key, value in patch.items():
        if _is_directive(key):
            continue
        if value is None:
            result.pop(key, None)
            continue
        new = _merge_value(result.get(key), value, shape.member(key), orders.get(key))
        if new is _NOTHING:
            result.pop(key, None)
        else:
            result[key] = new
    for key, order in orders.items():
        old = result.get(key)
        if key not in patch and isinstance(old, list):
            field = shape.member(key)
            result[key] = _in_order(old, order, old, field.merge_key)
    return result


def _retain(current: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of `current` with only the keys that `$retainKeys` names, when it is there."""
    keys = patch.get(RETAIN_KEYS)
    if keys is None:
        return dict(current)
    if not isinstance(keys, list):
        raise BadRequest("invalid patch format of retainKeys")
    for key, value in patch.items():
        if not _is_directive(key) and value is not None and key not in keys:
            raise BadRequest("invalid patch format of retainKeys")
    return {key: value for key, value in current.items() if key in keys}


def _is_directive(key: str) -> bool:
    return key in {PATCH, RETAIN_KEYS} or key.startswith((SET_ORDER, DELETE_FROM_LIST))


def _merge_value(old: Any, value: Any, field: MergeMember, order: list[Any] | None) -> Any:
    if isinstance(value, dict) and isinstance(old, dict):
        return _clean_map(value) if "replace" in field.strategies else _merge_map(old, value, field.type)
    if isinstance(value, list) and isinstance(old, list) and "merge" in field.strategies:
        return _merge_list(old, value, field, order)
    alone = _clean(value)
    return (
        alone
        if order is None or not isinstance(alone, list)
        else _in_order(alone, order, [], field.merge_key)
    )


def _merge_list(old: list[Any], patch: list[Any], field: MergeMember, order: list[Any] | None) -> list[Any]:
    if not any(isinstance(item, dict) for item in (*old, *patch)):
        merged = list(old)
        for item in patch:
            if item not in merged:
                merged.append(item)
        return _in_order(merged, patch if order is None else order, old, "")
    key = field.merge_key
    element = field.type.element
    assert element is not None, field
    for item in (*old, *patch):
        if not isinstance(item, dict):
            raise BadRequest("invalid patch: a list mixes objects and other values")
    if not key:
        raise Invalid(REJECTED)
    replaced = False
    changes: list[dict[str, Any]] = []
    doomed: list[Any] = []
    for item in patch:
        match item.get(PATCH):
            case None:
                changes.append(item)
            case "delete":
                doomed.append(_key_of(item, key))
            case "replace":
                replaced = True
            case other:
                raise BadRequest(_UNKNOWN_PATCH_TYPE.format(other))
    if replaced:  # a `$patch: replace` element swaps the whole list for the others
        return [_clean_map(item) for item in changes]
    merged = [item for item in old if item.get(key) not in doomed]
    places = {_hashable(item.get(key)): index for index, item in enumerate(merged)}
    for item in changes:
        name = _hashable(_key_of(item, key))
        if name in places:
            merged[places[name]] = _merge_map(merged[places[name]], item, element)
        else:
            places[name] = len(merged)
            merged.append(_merge_map({}, item, element))
    return _in_order(merged, changes if order is None else order, old, key)


def _key_of(item: dict[str, Any], key: str) -> Any:
    if key not in item:
        raise Invalid(
            f"{REJECTED}: map: {item} does not contain declared merge key: {key}",
        )
    return item[key]


def _hashable(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


def _in_order(merged: list[Any], order: list[Any], server: list[Any], key: str) -> list[Any]:
    """Elements named in `order` in that order; each other one before the first that followed it before."""

    def name(item: Any) -> Any:
        return _hashable(item.get(key) if key and isinstance(item, dict) else item)

    rank: dict[Any, int] = {}
    for index, item in enumerate(order):
        rank.setdefault(name(item), index)
    stood: dict[Any, int] = {}
    for index, item in enumerate(server):
        stood.setdefault(name(item), index)
    ranked = sorted((item for item in merged if name(item) in rank), key=lambda item: rank[name(item)])
    others = [item for item in merged if name(item) not in rank]
    result: list[Any] = []
    left = right = 0
    while left < len(others) and right < len(ranked):
        mine, theirs = stood.get(name(others[left])), stood.get(name(ranked[right]))
        if mine is not None and theirs is not None and mine < theirs:
            result.append(others[left])
            left += 1
        else:
            result.append(ranked[right])
            right += 1
    return result + others[left:] + ranked[right:]


def _clean_map(patch: dict[str, Any]) -> dict[str, Any]:
    """Return a value that stands alone: without directives and nulls."""
    members = {
        key: _clean(value) for key, value in patch.items() if value is not None and not _is_directive(key)
    }
    return {key: value for key, value in members.items() if value is not _NOTHING}


def _clean(value: Any) -> Any:
    """Return what a patch puts where nothing of its kind was: a directive has nothing to change there, and the object
    that carries it is left out."""
    if isinstance(value, dict):
        return _NOTHING if PATCH in value else _clean_map(value)
    if isinstance(value, list):
        return [member for member in map(_clean, value) if member is not _NOTHING]
    return value
