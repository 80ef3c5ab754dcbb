"""POSTs to subresources that act on a pod: `binding` and `eviction`."""

from typing import Any

import msgspec

from koordinator.api.meta import Resource
from koordinator.cluster import errors
from koordinator.cluster.backend import DeleteOptions, Record, WriteOptions
from koordinator.local import eviction
from koordinator.local.registry import binding, metadata, refusals
from koordinator.local.registry.kinds import Kind
from koordinator.local.registry.writing import Writer

BUDGETS = "poddisruptionbudgets.policy"


def success() -> dict[str, Any]:
    """The answer to an action that was carried out."""
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def bind(
    writer: Writer, kind: Kind, resource: Resource, pod: Record, body: dict[str, Any], options: WriteOptions
) -> dict[str, Any]:
    """Put a pod on a node. Raises: Invalid, Conflict."""
    _check_name("Binding", body, pod)
    changed = binding.bound(pod.obj, resource, body, writer.now_text())
    if not options.dry_run:
        writer.overwrite(kind, pod, changed)
    return success()


class _EvictionDelete(msgspec.Struct, frozen=True, rename="camel"):
    """`deleteOptions` of an Eviction, as far as they matter here."""

    grace_period_seconds: int | None = None
    propagation_policy: str = ""
    preconditions: dict[str, str] | None = None
    dry_run: list[str] | None = None


def evict(
    writer: Writer, kind: Kind, resource: Resource, pod: Record, body: dict[str, Any], options: WriteOptions
) -> dict[str, Any]:
    """Delete a pod if its disruption budget allows it.

    Raises: BadRequest, TooManyRequests, InternalError (several budgets), Conflict (preconditions).
    """
    _check_name("Eviction", body, pod)
    delete = _delete_options(body, options)
    budgets = writer.store.table(BUDGETS)
    namespace, now = pod.obj["metadata"]["namespace"], writer.now_text()
    verdict = eviction.judge(pod.obj, [one.obj for one in budgets.in_namespace(namespace)], now)
    if delete.dry_run:
        writer.delete(kind, resource, pod, delete)
        return success()
    writer.check_preconditions(resource, pod, delete)
    if verdict.budget is not None:
        budgets.put(namespace, verdict.budget["metadata"]["name"], verdict.budget)
    if "deletionTimestamp" not in pod.obj["metadata"]:
        pod = writer.overwrite(kind, pod, eviction.doomed(pod.obj, now))
        delete = msgspec.structs.replace(delete, resource_version="")  # the condition made a new version
    writer.delete(kind, resource, pod, delete)
    return success()


def _check_name(what: str, body: dict[str, Any], pod: Record) -> None:
    name = metadata.name_of(metadata.of(body))
    if name and name != pod.obj["metadata"]["name"]:
        raise errors.BadRequest(f"name in URL does not match name in {what} object")


def _delete_options(body: dict[str, Any], options: WriteOptions) -> DeleteOptions:
    try:
        asked = msgspec.convert(body.get("deleteOptions") or {}, _EvictionDelete)
    except msgspec.ValidationError as error:
        raise errors.BadRequest(f"Eviction: deleteOptions: {error}") from None
    guards = asked.preconditions or {}
    return DeleteOptions(
        grace_period_s=asked.grace_period_seconds,
        propagation=asked.propagation_policy,
        uid=guards.get("uid", ""),
        resource_version=guards.get("resourceVersion", ""),
        dry_run=options.dry_run or bool(asked.dry_run),
        user=options.user,
        groups=options.groups,
    )


ACTIONS = {("pods", "binding"): bind, ("pods", "eviction"): evict}
"""By qualified name and subresource."""


def find(resource: Resource, subresource: str) -> Any:
    """The action behind a POST. Raises: NotFound (no such subresource), MethodNotSupported (not by POST)."""
    action = ACTIONS.get((resource.qualified, subresource))
    if action is not None:
        return action
    if subresource in resource.subresources:
        raise refusals.not_allowed(resource, "create")
    raise refusals.not_served()
