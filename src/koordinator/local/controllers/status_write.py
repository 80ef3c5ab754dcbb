"""Writing the status of a workload: exactly the fields that changed."""

from collections.abc import Container, Iterable, Sequence
from typing import Any

import msgspec

from koordinator.api.meta import Condition, Object, ViewPart
from koordinator.cluster import errors
from koordinator.cluster.protocol import Cluster


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
        elif value != getattr(old, field.name):
            patch[name] = wire.get(name)
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
    meta = obj.metadata
    guard = {"uid": meta.uid}
    if guarded:
        guard["resourceVersion"] = meta.resource_version
    try:
        await cluster.patch(
            type(obj),
            meta.name,
            {"metadata": guard, "status": patch},
            meta.namespace,
            subresource="status",
        )
    except errors.NotFound:
        return False
    return True


def find(conditions: Iterable[Condition], kind: str) -> Condition | None:
    """Return the condition of a type."""
    return next((condition for condition in conditions if condition.type == kind), None)


def is_true(conditions: Iterable[Condition], kind: str) -> bool:
    condition = find(conditions, kind)
    return condition is not None and condition.status == "True"


def with_condition(conditions: Sequence[Condition], new: Condition) -> list[Condition]:
    """Return the conditions with one set anew; it keeps its transition time while its status stays."""
    old = find(conditions, new.type)
    if old is not None and (old.status, old.reason, old.message) == (new.status, new.reason, new.message):
        return list(conditions)
    if old is not None and old.status == new.status:
        new = msgspec.structs.replace(new, last_transition_time=old.last_transition_time)
    return [*without_condition(conditions, new.type), new]


def without_condition(conditions: Iterable[Condition], kind: str) -> list[Condition]:
    return [condition for condition in conditions if condition.type != kind]
