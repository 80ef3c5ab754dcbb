"""POSTs to subresources that act: `binding` and `eviction` of pods, `token` of ServiceAccounts."""

from typing import Any

import msgspec

from koordinator import clock
from koordinator.api.meta import Resource
from koordinator.cluster import errors
from koordinator.cluster.backend import DeleteRequest, ObjectRecord, WriteOptions
from koordinator.local import service_account_tokens
from koordinator.local.registry import binding, eviction, metadata, refusals
from koordinator.local.registry.kinds import ServedKind
from koordinator.local.registry.writing import ObjectWriter
from koordinator.local.schema import errors as fields
from koordinator.local.schema.catalog import SUBRESOURCE_KINDS
from koordinator.local.service_account_tokens import Account, Reference

BUDGETS = "poddisruptionbudgets.policy"


def success() -> dict[str, Any]:
    """Return the answer to an action that was carried out."""
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def bind(
    writer: ObjectWriter,
    kind: ServedKind,
    resource: Resource,
    pod: ObjectRecord,
    body: dict[str, Any],
    options: WriteOptions,
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
    writer: ObjectWriter,
    kind: ServedKind,
    resource: Resource,
    pod: ObjectRecord,
    body: dict[str, Any],
    options: WriteOptions,
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


def _check_name(what: str, body: dict[str, Any], pod: ObjectRecord) -> None:
    name = metadata.name_of(metadata.of(body))
    if name and name != pod.obj["metadata"]["name"]:
        raise errors.BadRequest(f"name in URL does not match name in {what} object")


def _delete_options(body: dict[str, Any], options: WriteOptions) -> DeleteRequest:
    try:
        asked = msgspec.convert(body.get("deleteOptions") or {}, _EvictionDelete)
    except msgspec.ValidationError as error:
        raise errors.BadRequest(f"Eviction: deleteOptions: {error}") from None
    guards = asked.preconditions or {}
    return DeleteRequest(
        grace_period_s=asked.grace_period_seconds,
        propagation=asked.propagation_policy,
        uid=guards.get("uid", ""),
        resource_version=guards.get("resourceVersion", ""),
        dry_run=options.dry_run or bool(asked.dry_run),
        user=options.user,
        groups=options.groups,
    )


_TOKEN_REQUEST = Resource(
    group="authentication.k8s.io", version="v1", kind="TokenRequest", plural="tokenrequests"
)
_BOUND_KINDS = {
    "Pod": ("pod", "pods"),
    "Secret": ("secret", "secrets"),
    "Node": ("node", "nodes"),
}
"""What a token can be bound to: its claim and its table."""


def issue_token(
    writer: ObjectWriter,
    kind: ServedKind,
    resource: Resource,
    account: ObjectRecord,
    body: dict[str, Any],
    options: WriteOptions,
) -> dict[str, Any]:
    """Return a token of a ServiceAccount. Raises: Invalid, Conflict (another uid), NotFound, BadRequest."""
    own, meta = account.obj["metadata"], dict(metadata.of(body))
    spec = dict(body.get("spec") or {})
    life_s = spec.setdefault("expirationSeconds", service_account_tokens.LIFE_S_DEFAULT)
    _check_token_request(own, meta, life_s)
    bound = _bound_to(writer, own, spec.get("boundObjectRef") or {})
    audiences = spec["audiences"] = spec.get("audiences") or [service_account_tokens.ISSUER]
    owner = Account(own["namespace"], Reference(own["name"], own["uid"]), bound)
    token, expires_s = writer.tokens.issue(owner, audiences, life_s)
    return {
        "apiVersion": _TOKEN_REQUEST.api_version,
        "kind": _TOKEN_REQUEST.kind,
        "metadata": {
            **meta,
            "name": own["name"],
            "namespace": own["namespace"],
            "uid": own["uid"],
            "creationTimestamp": writer.now_text(),
        },
        "spec": spec,
        "status": {"token": token, "expirationTimestamp": clock.rfc3339(expires_s)},
    }


def _check_token_request(own: dict[str, Any], meta: dict[str, Any], life_s: int) -> None:
    for field in ("name", "namespace"):
        sent = metadata.name_of(meta, field)
        if sent and sent != own[field]:
            why = f"must match the service account {field} if specified"
            cause = fields.invalid(f"metadata.{field}", sent, why)
            raise fields.invalid_object(_TOKEN_REQUEST, own["name"], [cause])
    uid = metadata.name_of(meta, "uid")
    if uid and uid != own["uid"]:
        why = f"the UID in the token request ({uid}) does not match the UID of the service account ({own['uid']})"
        raise refusals.conflict(_TOKEN_REQUEST, own["name"], why)
    field = "spec.expirationSeconds"
    causes = []
    if life_s < service_account_tokens.LIFE_S_MIN:
        causes.append(fields.invalid(field, life_s, "may not specify a duration less than 10 minutes"))
    if life_s > service_account_tokens.LIFE_S_MAX:
        causes.append(fields.invalid(field, life_s, "may not specify a duration larger than 2^32 seconds"))
    if causes:
        raise fields.invalid_object(_TOKEN_REQUEST, "", causes)


def _bound_to(
    writer: ObjectWriter, account: dict[str, Any], reference: dict[str, Any]
) -> dict[str, Reference]:
    """Return the objects that a token is bound to, by claim; a pod's node is named beside it."""
    if not reference:
        return {}
    kind, name, store = reference.get("kind", ""), reference.get("name", ""), writer.store
    if reference.get("apiVersion", "v1") != "v1" or kind not in _BOUND_KINDS:
        group, _, version = reference.get("apiVersion", "").rpartition("/")
        raise errors.BadRequest(f"cannot bind token to object of type {group}/{version}, Kind={kind}")
    claim, table = _BOUND_KINDS[kind]
    target = Resource(group="", version="v1", kind=kind, plural=table)
    record = store.table(table).get("" if kind == "Node" else account["namespace"], name)
    if record is None:
        raise refusals.not_found(target, name)
    uid = record.obj["metadata"]["uid"]
    if reference.get("uid") and reference["uid"] != uid:
        why = (
            f"the UID in the bound object reference ({reference['uid']}) does not match the UID in record. "
            "The object might have been deleted and then recreated"
        )
        raise refusals.conflict(target, name, why)
    bound = {claim: Reference(name, uid)}
    if kind == "Pod":
        spec = record.obj["spec"]
        if spec.get("serviceAccountName") != account["name"]:
            raise errors.BadRequest(
                f'cannot bind token for serviceaccount "{account["name"]}" to pod running with different '
                "serviceaccount name."
            )
        node = spec.get("nodeName")
        if node:
            found = store.table("nodes").get("", node)
            bound["node"] = Reference(node, "" if found is None else found.obj["metadata"]["uid"])
    return bound


ACTIONS = {
    ("pods", "binding"): bind,
    ("pods", "eviction"): evict,
    ("serviceaccounts", "token"): issue_token,
}
"""By qualified name and subresource."""


def find(resource: Resource, subresource: str) -> Any:
    """Return the action behind a POST. Raises: NotFound (no such subresource), MethodNotSupported (not by POST)."""
    action = ACTIONS.get((resource.qualified, subresource))
    if action is not None:
        return action
    if subresource in resource.subresources:
        raise refusals.not_allowed(resource, "create")
    raise refusals.not_served()


def body_of(subresource: str) -> Resource:
    """Return the kind that a POST to an acting subresource carries."""
    group, version, kind = SUBRESOURCE_KINDS[subresource]
    return Resource(group=group, version=version, kind=kind, plural=f"{kind.lower()}s")
