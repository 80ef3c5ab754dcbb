"""The seam between `MemoryCluster` and whatever serves the API in this process (`local.registry`).

An object in a store is immutable: whoever holds a `ObjectRecord` may keep `obj` but must never change it.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from koordinator.api import decode
from koordinator.api.meta import Object, Resource
from koordinator.clock import Clock
from koordinator.cluster.protocol import EventType, PatchType

T = TypeVar("T", bound=Object)


class ObjectRecord:
    """One version of one object, with its encodings made once and shared by all readers."""

    __slots__ = ("_json", "_views", "obj", "version")

    def __init__(self, obj: dict[str, Any], version: int) -> None:
        self.obj = obj
        self.version = version
        self._json: bytes | None = None
        self._views: dict[type[Object], Object] | None = None

    def json(self) -> bytes:
        """Return the object as JSON text."""
        if self._json is None:
            self._json = msgspec.json.encode(self.obj)
        return self._json

    def view(self, view: type[T]) -> T:
        """Return the object as a typed view.

        Raises: msgspec.ValidationError when the stored object does not fit the view.
        """
        if self._views is None:
            self._views = {}
        found = self._views.get(view)
        if found is None:
            found = decode.from_builtins(self.obj, view)
            self._views[view] = found
        return found  # type: ignore[return-value]


class PackedRecord(ObjectRecord):
    """A record kept as text, a tenth of the memory: whoever asks for the object decodes it anew.

    For what is rarely read: events, and changes long past.
    """

    __slots__ = ()

    def __init__(self, record: ObjectRecord) -> None:
        self.version = record.version
        self._json = record.json()
        self._views = None

    @property
    def obj(self) -> dict[str, Any]:  # type: ignore[override]
        return msgspec.json.decode(self.json(), type=dict[str, Any])

    def view(self, view: type[T]) -> T:
        """See `ObjectRecord.view`."""
        return decode.from_builtins(self.obj, view)


class RecordEvent(msgspec.Struct, frozen=True):
    """A change in the store. For BOOKMARK, `record` is None. For DELETED, it is the last state with the
    resourceVersion of the deletion."""

    type: EventType
    record: ObjectRecord | None
    version: int


class ListOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Query parameters of list and watch, already parsed."""

    label_selector: str = ""
    field_selector: str = ""
    limit: int = 0
    continue_token: str = ""
    resource_version: str = ""
    resource_version_match: str = ""
    send_initial_events: bool | None = None
    allow_bookmarks: bool = False


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Query parameters of writes, already parsed. `user` is who asks (admission reviews); `warn` is told what
    a client should know although the write went through (unknown fields)."""

    dry_run: bool = False
    field_manager: str = ""
    field_validation: str = ""
    force: bool = False
    warn: Callable[[str], None] | None = None
    user: str = "system:admin"
    groups: tuple[str, ...] = ("system:masters", "system:authenticated")


class DeleteRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body and query of a delete."""

    grace_period_s: int | None = None
    propagation: str = ""
    uid: str = ""
    resource_version: str = ""
    dry_run: bool = False
    user: str = "system:admin"
    groups: tuple[str, ...] = ("system:masters", "system:authenticated")


class RecordList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a list."""

    records: list[ObjectRecord]
    version: int
    continue_token: str = ""
    remaining_count: int | None = None


class Subscription(Protocol):
    """An open watch. Iterating yields batches; `close` ends it. A subscriber that falls too far behind is
    cut off: iteration raises `errors.Gone`."""

    def __aiter__(self) -> AsyncIterator[Sequence[RecordEvent]]: ...

    def close(self) -> None: ...


class Backend(Protocol):
    """The Kubernetes API without HTTP: every call does what the API server would, and raises `ApiError`."""

    clock: Clock

    def resources(self) -> Iterable[Resource]:
        """Everything served now, custom resources included (one entry per served version)."""
        ...

    def resolve(self, group: str, version: str, plural: str) -> Resource:
        """Raises: NotFound with the API server's text."""
        ...

    def get(self, resource: Resource, namespace: str, name: str, subresource: str = "") -> ObjectRecord:
        """Return the object, or for the subresource `scale` its `autoscaling/v1` Scale."""
        ...

    def list(self, resource: Resource, namespace: str, options: ListOptions) -> RecordList: ...

    def watch(self, resource: Resource, namespace: str, options: ListOptions) -> Subscription: ...

    async def create(
        self, resource: Resource, namespace: str, obj: dict[str, Any], options: WriteOptions = WriteOptions()
    ) -> ObjectRecord:
        """Takes `obj` over: the caller must not touch it afterwards."""
        ...

    async def update(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        obj: dict[str, Any],
        options: WriteOptions = WriteOptions(),
        subresource: str = "",
    ) -> ObjectRecord: ...

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Any,
        patch_type: PatchType,
        options: WriteOptions = WriteOptions(),
        subresource: str = "",
    ) -> ObjectRecord: ...

    async def delete(
        self, resource: Resource, namespace: str, name: str, options: DeleteRequest = DeleteRequest()
    ) -> tuple[ObjectRecord, bool]:
        """Return the object and whether it is gone now (False: it waits for grace or finalizers)."""
        ...

    async def delete_collection(
        self, resource: Resource, namespace: str, selection: ListOptions, options: DeleteRequest
    ) -> Sequence[ObjectRecord]: ...

    async def connect(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        subresource: str,
        obj: dict[str, Any],
        options: WriteOptions = WriteOptions(),
    ) -> dict[str, Any]:
        """POST to a subresource: `binding`, `eviction`; those of `scale` go through get, update and patch."""
        ...
