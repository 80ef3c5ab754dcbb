"""From JSON objects to typed views, one object at a time, with the trouble named.

Used where a whole page or batch could not be decoded, or where the source is not text.
"""

import logging
from typing import Any, TypeVar

import msgspec

from koordinator.api import decode
from koordinator.api.meta import Object
from koordinator.cluster import errors

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)


def read(view: type[T], obj: Any) -> T:
    """Return a decoded JSON object as a view.

    Raises: Unreadable, naming object, field and reason.
    """
    try:
        return decode.from_builtins(obj, view)
    except msgspec.ValidationError as error:
        raise unreadable(view, obj, error) from error


def unreadable(view: type[Object], obj: Any, error: msgspec.ValidationError) -> errors.Unreadable:
    """Return the error for an object that does not fit its view."""
    # msgspec words it "Expected `int`, got `str` - at `$.spec.replicas`".
    why, found, field = str(error).rpartition(" - at ")
    if not found:
        why, field = str(error), "$"
    return errors.Unreadable(view.resource.kind, "/".join(filter(None, key(obj))), field.strip("`"), why)


def key(obj: Any) -> tuple[str, str]:
    """(namespace, name) of a JSON object of unknown quality; empty texts where it has none."""
    meta = obj.get("metadata") if isinstance(obj, dict) else None
    if not isinstance(meta, dict):
        return "", ""
    namespace, name = meta.get("namespace", ""), meta.get("name", "")
    return (namespace if isinstance(namespace, str) else "", name if isinstance(name, str) else "")


def version(obj: Any) -> str:
    """`metadata.resourceVersion` of a JSON object of unknown quality."""
    meta = obj.get("metadata") if isinstance(obj, dict) else None
    found = meta.get("resourceVersion", "") if isinstance(meta, dict) else ""
    return found if isinstance(found, str) else ""


def metadata_only(view: type[T], obj: Any) -> T | None:
    """Return a view that holds nothing but the readable identity of the object, for its deletion."""
    namespace, name = key(obj)
    uid = obj["metadata"].get("uid", "") if name else ""
    if not name or not isinstance(uid, str):
        return None
    meta = {"namespace": namespace, "name": name, "uid": uid, "resourceVersion": version(obj)}
    try:
        return msgspec.convert({"metadata": meta}, view)
    except msgspec.ValidationError:
        return None  # the view has required fields: nothing true can be said of the object
