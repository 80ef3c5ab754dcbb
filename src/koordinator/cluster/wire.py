"""Read what an API server sends (lists, watch streams, single objects, failures), and make the bodies that
components post.

The fast path decodes straight into the view; only when it refuses (or the source is not text), objects are looked at
one by one with the trouble named, so that one that does not fit costs itself and not its neighbours.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from koordinator.api import decode
from koordinator.api.meta import Object
from koordinator.cluster import errors
from koordinator.cluster.protocol import EventType, WatchEvent

log = logging.getLogger(__name__)


def binding(namespace: str, pod: str, node: str, uid: str = "") -> dict[str, Any]:
    """`v1/Binding` of a pod to a node; `uid` guards against a recreated pod of the same name."""
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod, "namespace": namespace} | ({"uid": uid} if uid else {}),
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


def eviction(
    namespace: str,
    pod: str,
    uid: str = "",
    grace_period_s: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """`policy/v1` Eviction of a pod; `uid` guards against a recreated pod of the same name."""
    options = delete_options(uid, grace_period_s, options)
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": namespace},
    }
    return body | ({"deleteOptions": options} if options else {})


def delete_options(
    uid: str = "",
    grace_period_s: int | None = None,
    more: Mapping[str, Any] | None = None,
    propagation: str = "",
) -> dict[str, Any]:
    """Return the members of `DeleteOptions` that are set; `more` has some by wire name, and a uid there counts."""
    options: dict[str, Any] = dict(more or {})
    if uid:
        options["preconditions"] = {"uid": uid} | options.get("preconditions", {})
    if grace_period_s is not None:
        options["gracePeriodSeconds"] = grace_period_s
    if propagation:
        options["propagationPolicy"] = propagation
    return options


T = TypeVar("T", bound=Object)


def read(view: type[T], obj: Any) -> T:
    """Return a decoded JSON object as a view. Raises: Unreadable, naming object, field and reason."""
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


def skipped(
    view: type[T], event_type: EventType, obj: Any, at: str, error: errors.Unreadable
) -> WatchEvent[T]:
    """Return what a watch tells of a changed object that does not fit its view: its deletion, or a bookmark."""
    log.warning("object skipped: %s", error)
    deleted = _metadata_only(view, obj) if event_type is EventType.DELETED else None
    return WatchEvent(EventType.BOOKMARK if deleted is None else EventType.DELETED, deleted, at)


def _metadata_only(view: type[T], obj: Any) -> T | None:
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


# etcd refuses objects beyond 1.5 MiB and servers allow a little more; a longer line is not a watch event.
LINE_BYTES_MAX = 16 << 20
# How much of an answer that is no Status goes into an error message.
_EXCERPT_CHARS = 200
# Within so much of a list its items begin, where the server writes its metadata first.
HEAD_BYTES_MAX = 8 << 10


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    """`metadata` of a list."""

    resource_version: str = ""
    continue_token: str = msgspec.field(name="continue", default="")


class ListPage(msgspec.Struct, Generic[T], frozen=True):
    """A page of a list as sent."""

    metadata: ListMeta = ListMeta()
    items: list[T] = []


class _RawListed(msgspec.Struct, frozen=True):
    metadata: ListMeta = ListMeta()
    items: list[Any] | None = None


def token_ahead(data: bytes) -> str:
    """Return the token of the page after this one, as far as the head of the answer tells: API servers write it before
    the items. "" where only the whole page tells."""
    end = data.find(b'"items"', 0, HEAD_BYTES_MAX)
    if end < 0:
        return ""
    try:
        head = msgspec.json.decode(data[:end].rstrip(b", \n\t") + b"}", type=_RawListed)
    except msgspec.DecodeError:
        return ""
    return head.metadata.continue_token


class _Line(msgspec.Struct, Generic[T], frozen=True):
    type: EventType
    object: T


def read_object(view: type[T], data: bytes) -> T:
    """Return an object. Raises: Unreadable; InternalError when it is no JSON."""
    try:
        return decode.from_json(data, view)
    except msgspec.ValidationError as error:
        raise unreadable(view, msgspec.json.decode(data), error) from error
    except msgspec.DecodeError as error:
        raise _no_json(data, error) from error


def read_page(view: type[T], data: bytes) -> tuple[ListPage[T], tuple[tuple[str, str], ...]]:
    """Return a page, and (namespace, name) of the objects left out because they do not fit (they are logged).

    Raises: InternalError when it is no list at all.
    """
    try:
        return decode.from_json(data, ListPage[view]), ()  # type: ignore[valid-type]
    except msgspec.ValidationError:
        return _read_one_by_one(view, data)
    except msgspec.DecodeError as error:
        raise _no_json(data, error) from error


def _read_one_by_one(view: type[T], data: bytes) -> tuple[ListPage[T], tuple[tuple[str, str], ...]]:
    try:
        page = msgspec.json.decode(data, type=_RawListed)
    except msgspec.ValidationError as error:
        raise errors.InternalError(f"not a list of {view.resource.plural}: {error}") from error
    items: list[T] = []
    unreadable: list[tuple[str, str]] = []
    for obj in page.items or []:
        try:
            items.append(read(view, obj))
        except errors.Unreadable as error:
            log.warning("object skipped: %s", error)
            unreadable.append(key(obj))
    return ListPage(page.metadata, items), tuple(unreadable)


def read_failure(code: int, data: bytes, retry_after: str = "") -> errors.ApiError:
    """Return the error that an answer with a failure code means; `retry_after` is the header of that name."""
    try:
        body = msgspec.json.decode(data)
    except msgspec.DecodeError:
        body = None
    if not isinstance(body, dict):
        text = data.decode(errors="replace").strip()[:_EXCERPT_CHARS]
        body = {"message": f"HTTP {code}: {text}" if text else f"HTTP {code}"}
    error = errors.from_status(code, body)
    asked_s = int(retry_after) if retry_after.isdecimal() else 0
    if asked_s:
        details = error.details or errors.StatusDetails()
        error.details = msgspec.structs.replace(details, retry_after_seconds=asked_s)
    return error


class WatchReader(Generic[T]):
    """Turns the chunks of a watch stream into batches of events: all lines that one chunk completes."""

    def __init__(self, view: type[T]) -> None:
        self._view = view
        self._decoder = msgspec.json.Decoder(_Line[view])  # type: ignore[valid-type]
        self._rest: list[bytes] = []
        self._rest_bytes = 0

    def feed(self, chunk: bytes) -> Sequence[WatchEvent[T]]:
        """Events of the lines that are complete now.

        Raises: ApiError for an ERROR event (Gone when the version expired); InternalError for a line that
        is no event, or has no end.
        """
        end = chunk.rfind(b"\n") + 1
        if end == 0:
            self._keep(chunk)
            return ()
        lines = b"".join((*self._rest, chunk[:end])) if self._rest else chunk[:end]
        self._rest, self._rest_bytes = [], 0
        if end < len(chunk):
            self._keep(chunk[end:])
        try:
            decoded: list[_Line[T]] = self._decoder.decode_lines(lines)
        except msgspec.DecodeError:
            return list(self._one_by_one(lines))
        return [
            WatchEvent(
                line.type,
                None if line.type is EventType.BOOKMARK else line.object,
                line.object.metadata.resource_version,
            )
            for line in decoded
        ]

    def _keep(self, piece: bytes) -> None:
        self._rest.append(piece)
        self._rest_bytes += len(piece)
        if self._rest_bytes > LINE_BYTES_MAX:
            raise errors.InternalError(f"watch sent a line of more than {LINE_BYTES_MAX} bytes")

    def _one_by_one(self, lines: bytes) -> Iterator[WatchEvent[T]]:
        for line in lines.splitlines():
            if line.strip():
                yield self._event(line)

    def _event(self, line: bytes) -> WatchEvent[T]:
        try:
            body = msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            raise _no_json(line, error) from error
        kind = body.get("type") if isinstance(body, dict) else None
        obj = body.get("object") if isinstance(body, dict) else None
        if kind == "ERROR" and isinstance(obj, dict):
            code = obj.get("code")
            raise errors.from_status(code if isinstance(code, int) else 500, obj)
        try:
            event_type = EventType(kind)
        except ValueError as error:
            raise errors.InternalError(f"watch sent no event but {_excerpt(line)}") from error
        at = version(obj)
        if event_type is EventType.BOOKMARK:
            return WatchEvent(event_type, None, at)
        try:
            return WatchEvent(event_type, read(self._view, obj), at)
        except errors.Unreadable as error:
            return skipped(self._view, event_type, obj, at, error)


def _no_json(data: bytes, error: msgspec.DecodeError) -> errors.InternalError:
    return errors.InternalError(f"the server sent no JSON ({error}): {_excerpt(data)}")


def _excerpt(data: bytes) -> str:
    return repr(data[:_EXCERPT_CHARS].decode(errors="replace"))
