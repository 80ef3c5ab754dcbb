"""Creating and deleting the pods of a workload, with events about it, and writing its status: exactly the fields that
changed.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.meta import Condition, Object, ViewPart, find_condition, named
from koordinator.cluster import errors
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import Informer, Key
from koordinator.cluster.protocol import Cluster, delete_if_same, patch_if_there
from koordinator.local.controllers.ownership import Expectations, is_deleting, owner_reference
from koordinator.local.registry.metadata import GENERATED_BASE_LENGTH_MAX

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)


def pod_from_template(template: dict[str, Any], owner: Object, *, name: str = "") -> dict[str, Any]:
    """Return the pod that a workload's template asks for; it shares the template's spec, so replace, do not change.

    Without `name` the server makes one from the owner's, which the pod tells in any case.
    Raises: ProtocolError when the template is none.
    """
    spec, meta = template.get("spec"), template.get("metadata") or {}
    if not isinstance(spec, dict) or not isinstance(meta, dict):
        raise ProtocolError(named(owner), "spec.template", "spec and metadata must be objects")
    kept = {
        field: type(meta[field])(meta[field])
        for field in ("labels", "annotations", "finalizers")
        if meta.get(field)
    }
    naming = {"generateName": generate_name(owner.metadata.name), **({"name": name} if name else {})}
    return {"metadata": {**naming, **kept, "ownerReferences": [owner_reference(owner)]}, "spec": spec}


def generate_name(owner: str) -> str:
    """Return the `generateName` of what is made for an object: of a workload's pods, of a Service's slices."""
    return f"{owner[: GENERATED_BASE_LENGTH_MAX - 1]}-"


class PodControl:
    """Writes pods and remembers what the cache has yet to show."""

    def __init__(self, cluster: Cluster, events: EventRecorder, expectations: Expectations[Pod]) -> None:
        self._cluster = cluster
        self._events = events
        self._expectations = expectations

    async def create(self, owner: Object, body: dict[str, Any]) -> Pod | None:
        """Create a pod for `owner`; None when its namespace is going away (nothing is left to do then).

        Raises: ApiError, after an event about it.
        """
        try:
            pod = await self._cluster.create(Pod, body, owner.metadata.namespace)
        except errors.ApiError as error:
            if is_namespace_ending(error):
                return None
            self._events.warning(owner, "FailedCreate", f"Error creating: {error}")
            raise
        self._expectations.created(owner.metadata.uid, pod, self._cluster.clock.now())
        self._events.normal(owner, "SuccessfulCreate", f"Created pod: {pod.metadata.name}")
        return pod

    async def delete(self, owner: Object, pod: Pod) -> None:
        """Delete a pod of `owner`; one that is gone already is fine.

        Raises: ApiError, after an event about it.
        """
        try:
            if not await delete_if_same(self._cluster, pod):
                return
        except errors.ApiError as error:
            self._events.warning(owner, "FailedDelete", f"Error deleting: {error}")
            raise
        self._expectations.deleted(owner.metadata.uid, pod, self._cluster.clock.now())
        self._events.normal(owner, "SuccessfulDelete", f"Deleted pod: {pod.metadata.name}")

    async def delete_all(self, owner: Object, pods: Sequence[Pod]) -> errors.ApiError | None:
        """Delete pods side by side; the first failure."""
        return await all_of([functools.partial(self.delete, owner, pod) for pod in pods])


def is_namespace_ending(error: errors.ApiError) -> bool:
    """Return whether a create was refused because its namespace is being deleted."""
    causes = error.details.causes if error.details is not None else []
    return any(cause.reason == "NamespaceTerminating" for cause in causes)


async def all_of(actions: Sequence[Callable[[], Awaitable[Any]]]) -> errors.ApiError | None:
    """Carry out API calls side by side; the first failure. Anything but an `ApiError` is raised."""
    results = await asyncio.gather(*(action() for action in actions), return_exceptions=True)
    first: errors.ApiError | None = None
    for result in results:
        if isinstance(result, errors.ApiError):
            first = first or result
        elif isinstance(result, BaseException):
            raise result
    return first


async def slow_start(actions: Sequence[Callable[[], Awaitable[Any]]]) -> errors.ApiError | None:
    """Carry out creates in batches of 1, 2, 4, ..., and stop after a batch with a failure, which is returned.

    A template that the API refuses then costs one request, not hundreds.
    """
    done, size = 0, 1
    while done < len(actions):
        error = await all_of(actions[done : done + size])
        if error is not None:
            return error
        done, size = done + size, size * 2
    return None


def reporting_bad_input(
    events: EventRecorder, informer: Informer[T], reconcile: Callable[[Key], Awaitable[float | None]]
) -> Callable[[Key], Awaitable[float | None]]:
    """`reconcile`, where an object that makes no sense gets an event and waits for its next change."""

    async def guarded(key: Key) -> float | None:
        try:
            return await reconcile(key)
        except (ProtocolError, msgspec.ValidationError) as error:
            obj = informer.get(key[1], key[0])
            if obj is not None and not is_deleting(obj):
                events.warning(obj, "InvalidSpec", f"{named(obj)}: {error}")
            log.warning("object invalid", extra={"object": f"{key[0]}/{key[1]}", "error": str(error)})
            return None

    return guarded


def difference(old: ViewPart, new: ViewPart, always: Container[str] = ()) -> dict[str, Any]:
    """Return a merge patch from one status to another of the same view; empty when they are equal.

    Fields at their default are taken out, as the API omits them, but those named in `always` (on the wire)
    are written whatever they are.
    """
    assert type(old) is type(new), (type(old), type(new))
    if old == new:
        return {}
    patch: dict[str, Any] = {}
    wire = msgspec.to_builtins(new)
    for field in msgspec.structs.fields(new):
        name = field.encode_name
        value = getattr(new, field.name)
        if name in always:
            patch[name] = wire.get(name, value)
        elif value != (before := getattr(old, field.name)):
            patch[name] = wire.get(name)
            if isinstance(value, dict):  # a merge patch leaves members alone that it does not name
                patch[name] = dict.fromkeys(before.keys() - value.keys()) | (wire.get(name) or {})
    return patch


async def write(
    cluster: Cluster,
    obj: Object,
    old: ViewPart,
    new: ViewPart,
    always: Container[str] = (),
    *,
    guarded: bool = False,
) -> bool:
    """Bring the status of `obj` from `old` to `new`; whether anything was written.

    `guarded` refuses to write over any version but the one that was read (Conflict).
    """
    patch = difference(old, new, always)
    if not patch:
        return False
    found = await patch_if_there(
        cluster, obj, {"status": patch}, subresource="status", any_version=not guarded
    )
    return found is not None


def with_condition(conditions: Sequence[Condition], new: Condition) -> list[Condition]:
    """Return the conditions with one set: unchanged while status and reason stay, and with its old transition time
    while the status stays."""
    old = find_condition(conditions, new.type)
    if old is not None and (old.status, old.reason) == (new.status, new.reason):
        return list(conditions)
    if old is not None and old.status == new.status:
        new = msgspec.structs.replace(new, last_transition_time=old.last_transition_time)
    return [*without_condition(conditions, new.type), new]


def without_condition(conditions: Iterable[Condition], kind: str) -> list[Condition]:
    return [condition for condition in conditions if condition.type != kind]
