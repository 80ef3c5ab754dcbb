"""JSON merge patch (RFC 7386)."""

from typing import Any


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


__all__ = ["merge"]
