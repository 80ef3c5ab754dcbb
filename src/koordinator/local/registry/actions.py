"""POSTs to subresources that act: `binding` and `eviction` of pods, `token` of ServiceAccounts.

Source: `BindingREST` and `EvictionREST` (policy/v1) of the API server.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from koordinator import clock
from koordinator.api.meta import Resource
from koordinator.cluster import errors
from koordinator.cluster.backend import DeleteRequest, ObjectRecord, WriteOptions
from koordinator.cluster.errors import StatusCause, StatusDetails
from koordinator.local import service_account_tokens
from koordinator.local.registry import metadata, pods, refusals
from koordinator.local.registry.kinds import ServedKind, is_condition_true
from koordinator.local.registry.writing import ObjectWriter
from koordinator.local.schema import errors as fields
from koordinator.local.schema.builtin.checks.common import selects
from koordinator.local.schema.catalog import SUBRESOURCE_KINDS
from koordinator.local.service_account_tokens import Account, Reference

_BINDING = Resource(group="", version="v1", kind="Binding", plural="bindings")


def _bound(
    pod: dict[str, Any], resource: Resource, node: str, sent: dict[str, Any], now: str
) -> dict[str, Any]:
    """Return the pod on the node, nominated no more, with labels and annotations of the binding (`sent`) merged in.

    Raises: Conflict (the pod is another one, going away or taken).
    """
    meta, name = dict(pod["metadata"]), pod["metadata"]["name"]
    why = _objection(pod, metadata.name_of(sent, "uid"), metadata.name_of(sent, "resourceVersion"))
    if why:
        raise refusals.conflict(resource, name, why, "binding")
    for field in ("labels", "annotations"):
        if sent.get(field):
            meta[field] = {**(meta.get(field) or {}), **sent[field]}
    status = dict(pod.get("status") or {})
    status.pop("nominatedNodeName", None)
    status["conditions"] = with_condition(
        status.get("conditions") or [],
        {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now},
    )
    return {**pod, "metadata": meta, "spec": {**pod["spec"], "nodeName": node}, "status": status}


def _target(binding: dict[str, Any]) -> str:
    target = binding.get("target")
    target = target if isinstance(target, dict) else {}
    name = metadata.name_of(metadata.of(binding))
    causes = []
    if target.get("kind") not in (None, "", "Node"):
        causes.append(fields.not_supported("target.kind", target["kind"], ("Node", "<empty>")))
    node = target.get("name")
    if not isinstance(node, str) or not node:
        causes.append(fields.required("target.name", ""))
    if causes:
        raise fields.invalid_object(_BINDING, name, causes)
    return str(node)


def _objection(pod: dict[str, Any], uid: str, version: str) -> str:
    meta, spec, name = pod["metadata"], pod.get("spec") or {}, pod["metadata"]["name"]
    if uid and uid != meta["uid"]:
        return f"Precondition failed: UID in precondition: {uid}, UID in object meta: {meta['uid']}"
    if version and version != meta["resourceVersion"]:
        return (
            f"Precondition failed: ResourceVersion in precondition: {version}, ResourceVersion in object "
            f"meta: {meta['resourceVersion']}"
        )
    if "deletionTimestamp" in meta:
        return f"pod {name} is being deleted, cannot be assigned to a host"
    if spec.get("nodeName"):
        return f'pod {name} is already assigned to node "{spec["nodeName"]}"'
    if spec.get("schedulingGates"):
        return f"pod {name} has non-empty .spec.schedulingGates"
    return ""


def with_condition(conditions: list[dict[str, Any]], condition: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the conditions with one of them set; its transition time moves only with its status."""
    kept = [one for one in conditions if one.get("type") != condition["type"]]
    was = next((one for one in conditions if one.get("type") == condition["type"]), None)
    if was is not None and was.get("status") == condition["status"] and "lastTransitionTime" in was:
        condition = {**condition, "lastTransitionTime": was["lastTransitionTime"]}
    return [*kept, condition]


DISRUPTED_PODS_MAX = 2_000
"""Evictions that a budget's controller has not seen yet; more means that it does not run."""

PROCESSING_RETRY_S = 10

_VIOLATION = "Cannot evict pod as it would violate the pod's disruption budget."
_FREE_PHASES = ("Succeeded", "Failed", "Pending")
_BUDGETS = Resource(group="policy", version="v1", kind="PodDisruptionBudget", plural="poddisruptionbudgets")


def judge(pod: dict[str, Any], budgets: Iterable[dict[str, Any]], now: str) -> dict[str, Any] | None:
    """Return the budget after it paid for the eviction of a pod; None when nothing has to pay. `budgets` are those of
    the pod's namespace; `now` is the time as text.

    Raises: TooManyRequests (a budget forbids it, or is not counted yet), InternalError (several budgets
    apply), Forbidden (a budget is out of order).
    """
    if "deletionTimestamp" in pod["metadata"] or (pod.get("status") or {}).get("phase") in _FREE_PHASES:
        return None  # the pod serves nobody
    matching = [budget for budget in budgets if _covers(budget, pod)]
    if not matching:
        return None
    if len(matching) > 1:
        raise errors.InternalError(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        )
    budget = matching[0]
    if not is_condition_true(pod, "Ready") and _lets_unready_go(budget):
        return None
    return _paid(budget, pod["metadata"]["name"], now)


def _covers(budget: dict[str, Any], pod: dict[str, Any]) -> bool:
    selector = (budget.get("spec") or {}).get("selector")
    return selector is not None and selects(selector, pod["metadata"].get("labels") or {})


def _lets_unready_go(budget: dict[str, Any]) -> bool:
    if (budget.get("spec") or {}).get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    status = budget.get("status") or {}
    desired = status.get("desiredHealthy", 0)
    return bool(desired > 0 and status.get("currentHealthy", 0) >= desired)


def _paid(budget: dict[str, Any], pod: str, now: str) -> dict[str, Any]:
    """Return the budget with one disruption less."""
    meta, status = budget["metadata"], dict(budget.get("status") or {})
    name, allowed = meta["name"], status.get("disruptionsAllowed", 0)
    if status.get("observedGeneration", 0) < meta.get("generation", 0):
        message = f"The disruption budget {name} is still being processed by the server."
        raise _too_many(message, PROCESSING_RETRY_S)
    if allowed < 0:
        raise refusals.forbidden(_BUDGETS, name, "pdb disruptions allowed is negative")
    disrupted = dict(status.get("disruptedPods") or {})
    if len(disrupted) > DISRUPTED_PODS_MAX:
        why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        raise refusals.forbidden(_BUDGETS, name, why)
    if allowed == 0:
        message = (
            f"The disruption budget {name} needs {status.get('desiredHealthy', 0)} healthy pods and has "
            f"{status.get('currentHealthy', 0)} currently"
        )
        raise _too_many(message, 0)
    status["disruptionsAllowed"] = allowed - 1
    status["disruptedPods"] = {**disrupted, pod: now}
    if allowed == 1:
        condition = {
            "type": "DisruptionAllowed",
            "status": "False",
            "reason": "InsufficientPods",
            "message": "",
            "observedGeneration": meta.get("generation", 0),
            "lastTransitionTime": now,
        }
        status["conditions"] = with_condition(status.get("conditions") or [], condition)
    return {**budget, "metadata": dict(meta), "status": status}


def _too_many(message: str, retry_after_s: int) -> errors.TooManyRequests:
    cause = StatusCause(reason="DisruptionBudget", message=message)
    return errors.TooManyRequests(
        _VIOLATION, details=StatusDetails(causes=[cause], retry_after_seconds=retry_after_s)
    )


def doomed(pod: dict[str, Any], now: str) -> dict[str, Any]:
    """Return the pod with the condition that says why it will go."""
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
        "lastTransitionTime": now,
    }
    status = dict(pod.get("status") or {})
    status["conditions"] = with_condition(status.get("conditions") or [], condition)
    return {**pod, "metadata": dict(pod["metadata"]), "status": status}


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
    node, meta = _target(body), metadata.of(body)
    if body["target"].get("kind"):
        meta = dict(meta)
        pods.add_topology(meta, writer.store, node)
    changed = _bound(pod.obj, resource, node, meta, writer.now_text())
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
    delete = _delete_options(body, options)
    budgets = writer.store.table(BUDGETS)
    namespace, now = pod.obj["metadata"]["namespace"], writer.now_text()
    paid = judge(pod.obj, [one.obj for one in budgets.in_namespace(namespace)], now)
    if delete.dry_run:
        writer.delete(kind, resource, pod, delete)
        return success()
    writer.check_preconditions(resource, pod, delete)
    if paid is not None:
        budgets.put(namespace, paid["metadata"]["name"], paid)
    if "deletionTimestamp" not in pod.obj["metadata"]:
        pod = writer.overwrite(kind, pod, doomed(pod.obj, now))
        delete = msgspec.structs.replace(delete, resource_version="")  # the condition made a new version
    writer.delete(kind, resource, pod, delete)
    return success()


def check_name(subresource: str, body: dict[str, Any], pod: str) -> None:
    """Raises: BadRequest when the body is about another pod."""
    if subresource in ("binding", "eviction") and metadata.name_of(metadata.of(body)) != pod:
        raise errors.BadRequest(f"name in URL does not match name in {subresource.capitalize()} object")


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
"""Kind that a token can be bound to → its claim and its table."""


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
