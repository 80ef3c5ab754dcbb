"""List and watch: which version a query asks for, pages, and what a watch starts with.

Source: "Kubernetes API Concepts", resource versions, chunked lists and streaming lists.
"""

import base64
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from koordinator.api.meta import Resource
from koordinator.cluster import errors
from koordinator.cluster.backend import ListOptions, ObjectRecord, RecordEvent, RecordList
from koordinator.cluster.errors import StatusCause, StatusDetails
from koordinator.cluster.protocol import EventType
from koordinator.local import selectors
from koordinator.local.change_log import Key, Matches
from koordinator.local.registry import refusals
from koordinator.local.schema import errors as fields
from koordinator.local.selectors import FieldRequirement, text_at
from koordinator.local.store import IndexKey, StoreWatch, Table

FieldReader = Callable[[dict[str, Any]], str]


def _text_or(path: str, default: str) -> FieldReader:
    """Reads a field whose absence means `default`."""
    read = text_at(path)
    return lambda obj: read(obj) or default


def _event_source(obj: dict[str, Any]) -> str:
    return _SOURCE_COMPONENT(obj) or _REPORTING_COMPONENT(obj)


_SOURCE_COMPONENT = text_at("source.component")
_REPORTING_COMPONENT = text_at("reportingComponent")

_METADATA = {"metadata.name": text_at("metadata.name"), "metadata.namespace": text_at("metadata.namespace")}


def _paths(*paths: str) -> dict[str, FieldReader]:
    return {path: text_at(path) for path in paths}


_EVENT_OBJECT = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")

SELECTABLE: dict[str, dict[str, FieldReader]] = {
    "pods": {
        **_paths(
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ),
        "spec.hostNetwork": _text_or("spec.hostNetwork", "false"),
    },
    "nodes": {"spec.unschedulable": _text_or("spec.unschedulable", "false")},
    "namespaces": _paths("status.phase"),
    "secrets": _paths("type"),
    "services": _paths("spec.clusterIP", "spec.type"),
    "replicationcontrollers": {"status.replicas": _text_or("status.replicas", "0")},
    "replicasets.apps": {"status.replicas": _text_or("status.replicas", "0")},
    "jobs.batch": {"status.successful": _text_or("status.succeeded", "0")},
    "certificatesigningrequests.certificates.k8s.io": _paths("spec.signerName"),
    "events": {
        **_paths(*(f"involvedObject.{field}" for field in _EVENT_OBJECT), "reason", "type"),
        **{f"regarding.{field}": text_at(f"involvedObject.{field}") for field in _EVENT_OBJECT},
        "reportingComponent": _event_source,
        "reportingController": _event_source,
        "source": _event_source,
    },
}
"""Fields that a selector may name besides `metadata.name` and `metadata.namespace`, by table."""

INDEXES: dict[str, dict[str, FieldReader]] = {
    "pods": _paths("spec.nodeName"),
    "events": _paths("involvedObject.name"),
}
"""Fields by which objects are found without a scan: a node asks for its own pods, people for one object's events."""


class CompiledSelector(msgspec.Struct, frozen=True):
    """A compiled choice: the test (None: all), an index value that all chosen objects share, a name."""

    matches: Matches | None = None
    index: IndexKey | None = None
    name: str = ""


EVERYTHING = CompiledSelector()


def select(
    namespace: str,
    label_selector: str,
    field_selector: str,
    selectable: dict[str, FieldReader] | None,
    indexes: dict[str, FieldReader],
) -> CompiledSelector:
    """Return the choice that the parts of a query stand for.

    `selectable` are the kind's own selectable fields; None when it has no field selectors of its own.
    Raises: BadRequest with the parser's text.
    """
    if not (namespace or label_selector or field_selector):
        return EVERYTHING
    try:
        by_labels = selectors.labels(label_selector) if label_selector else None
        wanted = selectors.fields(field_selector) if field_selector else ()
    except selectors.SelectorError as error:
        raise errors.BadRequest(str(error)) from None
    tests: list[Matches] = []
    index: IndexKey | None = None
    if namespace:
        index = ("metadata.namespace", namespace)
        tests.append(_in_namespace(namespace))
    name = ""
    for requirement in wanted:
        tests.append(_field_test(requirement, _reader(requirement.field, selectable)))
        if requirement.negative or not requirement.value:
            continue
        if requirement.field == "metadata.name":
            name = requirement.value
            index = ("metadata.name", name)
        elif requirement.field in indexes:
            index = (requirement.field, requirement.value)
    if by_labels is not None:
        label_test = by_labels
        tests.append(lambda record: label_test(record.obj["metadata"].get("labels") or {}))
    if len(tests) == 1:
        return CompiledSelector(tests[0], index, name)
    return CompiledSelector(lambda record: all(test(record) for test in tests), index, name)


def _in_namespace(namespace: str) -> Matches:
    return lambda record: record.obj["metadata"].get("namespace") == namespace


def _reader(field: str, selectable: dict[str, FieldReader] | None) -> FieldReader:
    found = _METADATA.get(field) or (selectable or {}).get(field)
    if found is not None:
        return found
    if selectable is None:
        raise errors.BadRequest(
            f'"{field}" is not a known field selector: only "metadata.name", "metadata.namespace"'
        )
    raise errors.BadRequest(f"field label not supported: {field}")


def _field_test(requirement: FieldRequirement, read: FieldReader) -> Matches:
    value = requirement.value
    if requirement.negative:
        return lambda record: read(record.obj) != value
    return lambda record: read(record.obj) == value


BOOKMARK_S = 60.0
"""Interval of bookmarks of an idle watch that asked for them, as in the API server."""

_INCONSISTENT = -1  # version of a token that carries on with the newest state
_TOO_OLD_TO_CONTINUE = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new "
    "list without the continue parameter, or use the continue token in this response to retrieve the "
    "remainder of the results. Continuing with the provided token results in an inconsistent list - objects "
    "that were created, modified, or deleted between the time the first chunk was returned and now may show "
    "up in the list."
)


class ContinueExpired(errors.Gone):
    """A continue token outlived its version; the answer carries one that goes on with the newest state."""

    def __init__(self, token: str) -> None:
        super().__init__(_TOO_OLD_TO_CONTINUE)
        self.continue_token = token

    def status(self) -> dict[str, Any]:
        return {**super().status(), "metadata": {"continue": self.continue_token}}


class _Token(msgspec.Struct, rename={"version": "v", "at": "rv"}):
    """The content of a continue token (JSON in URL-safe base64, as the API server's)."""

    at: int
    start: str
    version: str = "meta.k8s.io/v1"


def list_page(
    table: Table, namespace: str, selection: CompiledSelector, options: ListOptions, version: int
) -> RecordList:
    """Return the page that the options ask for, records as stored; `version` is the store's.

    Raises: BadRequest, Invalid (options that contradict each other), Gone, Timeout (a version of the future).
    """
    _check_list(options)
    after, at = _start(options, version)
    if not after and not at and not options.limit:
        return RecordList(records=list(_newest(table, namespace, selection)), version=version)
    try:
        rows = table.records(namespace, after, at)
        page, more = _cut(rows, selection, options.limit)
    except KeyError:
        if after is not None:
            raise ContinueExpired(_encode(_INCONSISTENT, after)) from None
        raise errors.Gone("The resourceVersion for the provided list is too old.") from None
    shown = at or version
    if not more:
        return RecordList(records=page, version=shown)
    last = page[-1].obj["metadata"]
    token = _encode(shown, (last.get("namespace", ""), last["name"]))
    # Like the API server: a count is only known when nothing was filtered out on the way.
    filtered = bool(options.label_selector or options.field_selector)
    left = None if filtered else 1 + sum(1 for _ in rows)
    return RecordList(records=page, version=shown, continue_token=token, remaining_count=left)


def _newest(table: Table, namespace: str, selection: CompiledSelector) -> Iterator[ObjectRecord]:
    """Return all chosen objects, by the shortest way to them."""
    named = table.get(namespace, selection.name) if selection.name else None
    if selection.name and (namespace or named is not None):
        candidates = iter(() if named is None else (named,))
    elif selection.index is not None and (indexed := table.indexed(selection.index)) is not None:
        candidates = iter(indexed)
    else:
        candidates = table.records(namespace)
    return candidates if selection.matches is None else filter(selection.matches, candidates)


def _cut(
    rows: Iterator[ObjectRecord], selection: CompiledSelector, limit: int
) -> tuple[list[ObjectRecord], bool]:
    """Return the first `limit` chosen rows (0: all), and whether a chosen one follows (it is consumed)."""
    page: list[ObjectRecord] = []
    for record in rows:
        if selection.matches is not None and not selection.matches(record):
            continue
        if limit and len(page) == limit:
            return page, True
        page.append(record)
    return page, False


def _check_list(options: ListOptions) -> None:
    if options.send_initial_events is not None:
        raise _bad(fields.forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"))
    match = options.resource_version_match
    if not match:
        return
    if options.continue_token:
        raise _bad_match("resourceVersionMatch is forbidden when continue is provided")
    if not options.resource_version:
        raise _bad_match("resourceVersionMatch is forbidden unless resourceVersion is provided")
    if match not in ("Exact", "NotOlderThan"):
        raise _bad(fields.not_supported("resourceVersionMatch", match, ("Exact", "NotOlderThan", "")))
    if match == "Exact" and options.resource_version == "0":
        raise _bad_match('resourceVersionMatch "exact" is forbidden for resourceVersion "0"')


def _bad_match(why: str) -> errors.Invalid:
    return _bad(fields.forbidden("resourceVersionMatch", why))


def _bad(cause: StatusCause) -> errors.Invalid:
    return fields.invalid_options("ListOptions", cause)


def _start(options: ListOptions, newest: int) -> tuple[Key | None, int]:
    """Return the key to start behind, and the version to show (0: the newest)."""
    if options.continue_token:
        if options.resource_version not in ("", "0"):
            raise errors.BadRequest("specifying resource version is not allowed when using continue")
        token = _decode(options.continue_token)
        namespace, _, name = token.start.rstrip("\0").rpartition("/")
        return (namespace, name), max(token.at, 0)
    asked = parse_version(options.resource_version)
    if not asked:
        return None, 0
    if asked > newest:
        raise too_large(asked, newest)
    is_exact = options.resource_version_match == "Exact" or (
        options.limit > 0 and not options.resource_version_match
    )
    return None, asked if is_exact else 0


def parse_version(text: str) -> int:
    """Return a resourceVersion of a query; 0 when none is given. Raises: BadRequest."""
    if not text:
        return 0
    try:
        return refusals.version_number(text)
    except ValueError as error:
        raise errors.BadRequest(f"resourceVersion: Invalid value: {fields.shown(text)}: {error}") from None


def too_large(asked: int, newest: int) -> errors.Timeout:
    """The client has seen a version that this server has not reached."""
    cause = StatusCause(reason="ResourceVersionTooLarge", message="Too large resource version")
    return errors.Timeout(
        f"Timeout: Too large resource version: {asked}, current: {newest}",
        details=StatusDetails(causes=[cause], retry_after_seconds=1),
    )


def _encode(at: int, last: Key) -> str:
    start = f"{last[0]}/{last[1]}\0"
    text = msgspec.json.encode(_Token(at=at, start=start))
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def _decode(token: str) -> _Token:
    try:
        text = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        decoded = msgspec.json.decode(text, type=_Token)
    except ValueError as error:
        raise errors.BadRequest(f"continue key is not valid: {error}") from None
    if decoded.version != "meta.k8s.io/v1":
        why = f'server does not recognize this encoded version "{decoded.version}"'
        raise errors.BadRequest(f"continue key is not valid: {why}")
    if decoded.at == 0 or decoded.at < _INCONSISTENT or "/" not in decoded.start:
        raise errors.BadRequest(
            "continue key is not valid: incorrect encoded start resourceVersion (version meta.k8s.io/v1)"
        )
    return decoded


def open_watch(
    table: Table, namespace: str, selection: CompiledSelector, options: ListOptions, version: int
) -> StoreWatch:
    """Return the watch that the options ask for; `version` is the store's.

    Raises: BadRequest, Invalid, Gone (the version is no longer kept), Timeout (a version of the future).
    """
    _check_watch(options)
    asked = parse_version(options.resource_version)
    if asked > version:
        raise too_large(asked, version)
    first: list[RecordEvent] = []
    wants_initial = options.send_initial_events
    # Without a version (or with 0) a watch begins with the current state, unless it says otherwise.
    if wants_initial or (wants_initial is None and not asked):
        current = _newest(table, namespace, selection)
        first = [RecordEvent(EventType.ADDED, record, record.version) for record in current]
        first.sort(key=lambda event: event.version)
        asked = version
    if wants_initial and options.allow_bookmarks:
        first.append(RecordEvent(EventType.BOOKMARK, None, version))
    return table.watch(
        asked or version,
        matches=selection.matches,
        index=selection.index,
        first=first,
        bookmark_s=BOOKMARK_S if options.allow_bookmarks else None,
    )


def _check_watch(options: ListOptions) -> None:
    if options.send_initial_events is None:
        if options.resource_version_match:
            raise _bad_match(
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            )
        return
    if options.resource_version_match != "NotOlderThan":
        raise _bad_match("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")


class ShownWatch:
    """A watch whose records are shown in another version than the stored one."""

    def __init__(
        self, watch: StoreWatch, show: Callable[[ObjectRecord, Resource], ObjectRecord], resource: Resource
    ) -> None:
        self._watch = watch
        self._show = show
        self._resource = resource

    def __aiter__(self) -> "ShownWatch":
        return self

    async def __anext__(self) -> Sequence[RecordEvent]:
        return [self._shown(event) for event in await self._watch.__anext__()]

    def close(self) -> None:
        self._watch.close()

    def _shown(self, event: RecordEvent) -> RecordEvent:
        if event.record is None:
            return event
        return RecordEvent(event.type, self._show(event.record, self._resource), event.version)
