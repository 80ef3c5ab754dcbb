"""Apply JSON patches (RFC 6902) and JSON merge patches (RFC 7386).

A JSON patch never changes the document in place: the first change below a container copies that container, and later
operations of the same patch reuse the copy. A chain of `copy` operations could double a document with each step, so
the bytes that they add are bounded, as in the API server.
"""

from typing import Any

import msgspec

from koordinator.cluster.errors import BadRequest, Invalid, RequestTooLarge
from koordinator.cluster.strategic_merge import REJECTED


def merge(current: Any, patch: Any) -> Any:
    """`current` changed as `patch` says: objects merge, null removes, everything else replaces.

    Neither argument is changed; unchanged subtrees are shared with the result, which is `current` itself
    when nothing changes.
    """
    if not isinstance(patch, dict):
        return patch
    base: dict[str, Any] = current if isinstance(current, dict) else {}
    result: dict[str, Any] | None = None if base is current else {}
    for key, value in patch.items():
        if value is None:
            if key in base:
                result = dict(base) if result is None else result
                result.pop(key, None)
            continue
        present = key in base
        old = base.get(key)
        new = merge(old, value)
        if present and (new is old or (new == old and type(new) is type(old))):
            continue
        result = dict(base) if result is None else result
        result[key] = new
    return base if result is None else result


OPERATIONS_MAX = 10_000  # the API server's own limit
COPIED_BYTES_MAX = 3 * 1024 * 1024  # what `copy` operations may add, as in the API server


class PatchError(Exception):
    """An operation does not fit the document; its text says why."""


def parse(patch: Any) -> list[dict[str, Any]]:
    """Return the operations of a patch.

    Raises: BadRequest when the patch is no list of objects, RequestTooLarge for too many operations.
    """
    if not isinstance(patch, list):
        word = "object" if isinstance(patch, dict) else type(patch).__name__
        raise BadRequest(f"json: cannot unmarshal {word} into Go value of type jsonpatch.Patch")
    if len(patch) > OPERATIONS_MAX:
        raise RequestTooLarge(
            "Request entity too large: The allowed maximum operations in a JSON patch is "
            f"{OPERATIONS_MAX}, got {len(patch)}"
        )
    for operation in patch:
        if not isinstance(operation, dict):
            raise BadRequest("json: cannot unmarshal array element into Go value of type jsonpatch.Operation")
    return patch


def apply(document: Any, patch: Any) -> Any:
    """Return the document after all operations.

    Raises: BadRequest for a malformed patch, Invalid (422) when an operation does not fit (a missing path, a
    failed test), RequestTooLarge for too many operations or copied bytes.
    """
    operations = parse(patch)
    editor = Editor(document)
    try:
        for operation in operations:
            editor.run(operation)
    except PatchError as misfit:
        # The API server keeps the cause to itself; `kubectl` prints exactly this text.
        raise Invalid(REJECTED) from misfit
    return editor.root


def pointer(text: Any, member: str = "path") -> list[str]:
    """Return the tokens of a JSON pointer (RFC 6901). Raises: PatchError when it is none."""
    if not isinstance(text, str):
        raise PatchError(f"operation without {member}")
    if text == "":
        return []
    if not text.startswith("/"):
        raise PatchError(f"{member} {text!r} does not start with /")
    return [token.replace("~1", "/").replace("~0", "~") for token in text[1:].split("/")]


class Editor:
    """A document being changed; containers in `_own` are ours to write to."""

    def __init__(self, document: Any) -> None:
        self.root = document
        self._own: dict[int, Any] = {}  # by id; holding the object keeps its id from being given again
        self._copied_bytes = 0

    def run(self, operation: dict[str, Any]) -> None:
        """Carry one operation out. Raises: PatchError, RequestTooLarge."""
        path = pointer(operation.get("path"))
        match operation.get("op"):
            case "add":
                self._add(path, _value(operation))
            case "remove":
                self._remove(path)
            case "replace":
                self._replace(path, _value(operation))
            case "move":
                self._move(pointer(operation.get("from"), "from"), path)
            case "copy":
                value = self.get(pointer(operation.get("from"), "from"))
                self._count_copied(value)
                self._own.clear()  # from here on it has two places: neither may write to it
                self._add(path, value)
            case "test":
                self._test(path, operation.get("value"))
            case other:
                raise PatchError(f"unexpected kind: {other!r}")

    def get(self, path: list[str]) -> Any:
        """Return the value at a path. Raises: PatchError when there is none."""
        value = self.root
        for token in path:
            value = _step(value, token)
        return value

    def _count_copied(self, value: Any) -> None:
        self._copied_bytes += len(msgspec.json.encode(value))
        if self._copied_bytes > COPIED_BYTES_MAX:
            raise RequestTooLarge(
                "Request entity too large: Unable to complete the copy, the accumulated size increase of copy is "
                f"{self._copied_bytes}, exceeding the limit {COPIED_BYTES_MAX}"
            )

    def _owned(self, value: Any) -> Any:
        """Return a container that we may write to: itself, or a copy made now."""
        if id(value) in self._own:
            return value
        if isinstance(value, dict):
            copy: Any = dict(value)
        elif isinstance(value, list):
            copy = list(value)
        else:
            raise PatchError("the parent of the path is neither an object nor an array")
        self._own[id(copy)] = copy
        return copy

    def _parent(self, path: list[str]) -> Any:
        """Return the container of the last token, ours to write to."""
        self.root = here = self._owned(self.root)
        for token in path[:-1]:
            child = self._owned(_step(here, token))
            here[token if isinstance(here, dict) else _index(token, len(here) - 1)] = child
            here = child
        return here

    def _add(self, path: list[str], value: Any) -> None:
        if not path:
            self.root = value
            return
        parent, last = self._parent(path), path[-1]
        if isinstance(parent, dict):
            parent[last] = value
        else:
            parent.insert(len(parent) if last == "-" else _index(last, len(parent)), value)

    def _remove(self, path: list[str]) -> Any:
        if not path:
            raise PatchError("the whole document cannot be removed")
        parent, last = self._parent(path), path[-1]
        _step(parent, last)
        return parent.pop(last if isinstance(parent, dict) else _index(last, len(parent) - 1))

    def _replace(self, path: list[str], value: Any) -> None:
        if not path:
            self.root = value
            return
        parent, last = self._parent(path), path[-1]
        # Against RFC 6902, a member need not be there, as in the API server.
        parent[last if isinstance(parent, dict) else _index(last, len(parent) - 1)] = value

    def _move(self, source: list[str], target: list[str]) -> None:
        if source == target:
            self.get(source)
            return
        if target[: len(source)] == source:
            raise PatchError("a value cannot be moved into itself")
        self._add(target, self._remove(source))

    def _test(self, path: list[str], expected: Any) -> None:
        try:
            actual = self.get(path)
        except PatchError:
            if expected is None:  # a missing member equals null, as in the API server
                return
            raise
        if not same(actual, expected):
            raise PatchError(f"testing path /{'/'.join(path)} failed")


def same(left: Any, right: Any) -> bool:
    """JSON equality: unlike Python's, `true` is not 1."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(value, right[key]) for key, value in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)


def _value(operation: dict[str, Any]) -> Any:
    if "value" not in operation:
        raise PatchError(f"{operation.get('op')} operation without value")
    return operation["value"]


def _step(container: Any, token: str) -> Any:
    if isinstance(container, dict):
        if token not in container:
            raise PatchError(f"missing key {token!r}")
        return container[token]
    if isinstance(container, list):
        return container[_index(token, len(container) - 1)]
    raise PatchError(f"{token!r} leads below a scalar")


def _index(token: str, last: int) -> int:
    """Return an array index as RFC 6901 writes it: no sign, no leading zeros, at most `last`."""
    if not (token.isascii() and token.isdigit()) or (len(token) > 1 and token[0] == "0") or len(token) > 9:
        raise PatchError(f"{token!r} is no array index")
    if int(token) > last:
        raise PatchError(f"index {token} is out of bounds")
    return int(token)
