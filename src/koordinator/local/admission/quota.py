"""Keep the books of ResourceQuotas: what objects use of them, by the names that quotas have for it, and which quotas
they count in. A write is charged in the same step in which the object is stored, so that writes at the same time never
go over.

`status.used` is the book. A quota whose status does not say (it is new, or its `hard` changed) is counted at once, so
it holds from its first moment; Kubernetes refuses writes until its controller has counted.

Scopes say which pods a quota is about. Sources: Kubernetes, "Resource Quotas", quota scopes; the quota evaluators of
Kubernetes (pods, services, claims, and counts of everything else).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from koordinator import clock
from koordinator.api import core, decode, pod_resources, qos, quantity, resource_list
from koordinator.api.meta import Resource
from koordinator.api.quantity import Quantity, QuantityError
from koordinator.api.resource_list import Amounts
from koordinator.clock import Clock
from koordinator.cluster.backend import ObjectRecord
from koordinator.cluster.errors import Forbidden, StatusDetails
from koordinator.local.schema.builtin.checks.common import is_native
from koordinator.local.store import ObjectStore

Json = dict[str, Any]

_ONE, _ZERO = Quantity.of_value(1), Quantity.of_value(0)
_COUNTED_PLAINLY = frozenset({"configmaps", "replicationcontrollers", "resourcequotas", "secrets"})
"""Kinds that quotas may also name without `count/`."""
_COMPUTE = ("cpu", "memory", "ephemeral-storage")
_MUST_BE_SET = frozenset(("cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"))
"""Resources that every container of a pod must state where a quota names them."""
_SERVICE_NAMES = frozenset(("count/services", "services", "services.nodeports", "services.loadbalancers"))
_CLAIM_NAMES = frozenset(("persistentvolumeclaims", "requests.storage"))
_OF_CLASS = ".storageclass.storage.k8s.io/"
_HUGE = "hugepages-"
_REQUESTS = "requests."
_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"


def names_for(resource: Resource, names: Iterable[str]) -> list[str]:
    """Return the quota's names that speak of objects of this resource."""
    return [name for name in names if counted_kinds(name) == resource.qualified]


def counted_kinds(name: str) -> str:
    """Return the qualified resource whose objects a quota's name counts."""
    if name.startswith("count/"):
        return name.removeprefix("count/")
    if name in _COUNTED_PLAINLY:
        return name
    if name in _SERVICE_NAMES:
        return "services"
    return "persistentvolumeclaims" if _is_of_claims(name) else "pods"


def _is_of_claims(name: str) -> bool:
    return name in _CLAIM_NAMES or any(name.endswith(_OF_CLASS + own) for own in _CLAIM_NAMES)


def of(resource: Resource, obj: Json, now_s: float) -> Amounts:
    """Return what an object uses at a time (a pod that has ended uses its place in storage only).

    Raises: QuantityError, msgspec.ValidationError.
    """
    match resource.qualified:
        case "pods":
            return _of_pod(obj, now_s)
        case "services":
            return _of_service(obj.get("spec") or {})
        case "persistentvolumeclaims":
            return _of_claim(obj)
        case qualified:
            plain = {qualified: _ONE} if qualified in _COUNTED_PLAINLY else {}
            return {f"count/{qualified}": _ONE, **plain}


def _of_pod(obj: Json, now_s: float) -> Amounts:
    found: Amounts = {"count/pods": _ONE}
    if not _is_active(obj, now_s):
        return found
    pod = decode.from_builtins(
        {"metadata": {}, "spec": obj["spec"], "status": obj.get("status") or {}}, core.Pod
    )
    requests = pod_resources.requests(pod)
    limits = resource_list.of(pod_resources.wire_limits(pod))
    return {**found, **_of_amounts(requests, limits)}


def _of_amounts(requests: Amounts, limits: Amounts) -> Amounts:
    found: Amounts = {"pods": _ONE}
    for name, amount in requests.items():
        if name in _COMPUTE or name.startswith(_HUGE):
            found[name] = found[_REQUESTS + name] = amount
        elif not is_native(name):
            found[_REQUESTS + name] = amount
    found.update({f"limits.{name}": limits[name] for name in _COMPUTE if name in limits})
    return found


def _is_active(obj: Json, now_s: float) -> bool:
    """Return whether a pod still has what it asked for: neither ended, nor deleted for longer than its grace."""
    meta = obj["metadata"]
    if (obj.get("status") or {}).get("phase") in ("Failed", "Succeeded"):
        return False
    deleted, grace_s = meta.get("deletionTimestamp"), meta.get("deletionGracePeriodSeconds")
    return not (deleted and grace_s is not None and now_s > clock.parse_rfc3339(deleted) + grace_s)


def _of_service(spec: Json) -> Amounts:
    ports = spec.get("ports") or []
    kind = spec.get("type")
    node_ports = len(ports) if kind in ("NodePort", "LoadBalancer") else 0
    if kind == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts") is False:
        node_ports = sum(1 for port in ports if port.get("nodePort"))
    return {
        "count/services": _ONE,
        "services": _ONE,
        "services.nodeports": Quantity.of_value(node_ports),
        "services.loadbalancers": _ONE if kind == "LoadBalancer" else _ZERO,
    }


def _of_claim(obj: Json) -> Amounts:
    spec = obj.get("spec") or {}
    own: Amounts = {"persistentvolumeclaims": _ONE}
    asked = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    if asked is not None:
        own["requests.storage"] = quantity.of(asked)
    annotations = obj["metadata"].get("annotations") or {}
    storage_class = annotations.get(_CLASS_ANNOTATION) or spec.get("storageClassName")
    of_class = {f"{storage_class}{_OF_CLASS}{name}": amount for name, amount in own.items()}
    return {"count/persistentvolumeclaims": _ONE, **own, **(of_class if storage_class else {})}


def unset(names: Iterable[str], spec: Json) -> str:
    """Return what containers of a pod do not say although quotas name it: `cpu for: a,b; memory for: a`; or nothing."""
    required = _MUST_BE_SET.intersection(names)
    if not required or spec.get("resources"):
        return ""
    lacking: dict[str, set[str]] = {}
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        resources = container.get("resources") or {}
        said = _of_amounts(_amounts(resources.get("requests")), _amounts(resources.get("limits")))
        for name in required - said.keys():
            lacking.setdefault(name, set()).add(container.get("name", ""))
    return "; ".join(f"{name} for: {','.join(sorted(lacking[name]))}" for name in sorted(lacking))


def _amounts(raw: Json | None) -> Amounts:
    return resource_list.of(raw or {})


UNREADABLE = (QuantityError, msgspec.ValidationError)
"""Errors that reading amounts of an unchecked object may raise."""


_TERMS = ("requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution")


def selectors(spec: Json) -> list[Json]:
    """Return all scopes of a quota as requirements: `scopes`, and those of `scopeSelector`."""
    plain = [{"scopeName": scope, "operator": "Exists"} for scope in spec.get("scopes") or ()]
    return plain + list((spec.get("scopeSelector") or {}).get("matchExpressions") or ())


def match_pod(required: list[Json], pod: Json) -> bool:
    """Return whether a pod is in all of the scopes."""
    return all(_matches(each, pod) for each in required)


def _matches(required: Json, pod: Json) -> bool:
    spec = pod.get("spec") or {}
    match required.get("scopeName"):
        case "Terminating":
            return is_terminating(spec)
        case "NotTerminating":
            return not is_terminating(spec)
        case "BestEffort":
            return _is_best_effort(pod)
        case "NotBestEffort":
            return not _is_best_effort(pod)
        case "PriorityClass":
            return _selects(required, spec.get("priorityClassName") or "")
        case "CrossNamespacePodAffinity":
            return _crosses_namespaces(spec.get("affinity") or {})
    return False


def is_terminating(spec: Json) -> bool:
    """Return whether a pod ends by itself: it has an active deadline."""
    return spec.get("activeDeadlineSeconds") is not None


def _is_best_effort(pod: Json) -> bool:
    quality = (pod.get("status") or {}).get("qosClass")
    if quality is None:
        quality = qos.computed_kube(decode.from_builtins({"spec": pod["spec"]}, core.Pod)).value
    return bool(quality == "BestEffort")


def _selects(required: Json, value: str) -> bool:
    values = required.get("values") or ()
    match required.get("operator"):
        case "In":
            return bool(value) and value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return bool(value)
        case "DoesNotExist":
            return not value
    return False


def _crosses_namespaces(affinity: Json) -> bool:
    for kind in ("podAffinity", "podAntiAffinity"):
        for field in _TERMS:
            for term in (affinity.get(kind) or {}).get(field) or ():
                inner = term.get("podAffinityTerm") or term
                if inner.get("namespaces") or inner.get("namespaceSelector") is not None:
                    return True
    return False


class QuotaCharge(msgspec.Struct, frozen=True):
    """The charge of a write to one quota: the quota, and what is used of it afterwards."""

    quota: ObjectRecord
    used: Amounts


class QuotaAccounting:
    """The ResourceQuotas of a store."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._quotas = store.table("resourcequotas")
        self._known: dict[tuple[str, str], dict[str, tuple[ObjectRecord, Amounts]]] = {}

    def charges(
        self, resource: Resource, obj: Json, old: Json | None, subresource: str = ""
    ) -> Sequence[QuotaCharge]:
        """Return what to `book` once the object is stored; nothing where no quota is concerned.

        Raises: Forbidden when a quota would be exceeded, or when a pod does not say what a quota counts.
        """
        if (
            not len(self._quotas)
            or not resource.namespaced
            or not _is_charged(resource, obj, old, subresource)
        ):
            return ()
        found = []
        for quota in sorted(
            self._quotas.in_namespace(obj["metadata"].get("namespace", "")),
            key=lambda one: str(one.obj["metadata"]["name"]),
        ):
            charge = self._charge(quota, resource, obj, old)
            if charge is not None:
                found.append(charge)
        return found

    def book(self, charges: Iterable[QuotaCharge]) -> None:
        """Write down what was charged; in the same step as the object."""
        for charge in charges:
            self._write(charge.quota, charge.used)

    def recount(self, namespace: str, name: str) -> bool:
        """Count anew what a quota's objects use; whether that changed its status."""
        quota = self._quotas.get(namespace, name)
        if quota is None:
            return False
        used = self._counted(quota.obj)
        if _said(quota.obj) == (_hard(quota.obj), used):
            return False
        self._write(quota, used)
        return True

    def _charge(
        self, quota: ObjectRecord, resource: Resource, obj: Json, old: Json | None
    ) -> QuotaCharge | None:
        hard = _hard(quota.obj)
        names = names_for(resource, hard)
        required = selectors(quota.obj.get("spec") or {})
        if not names or not _is_in_scope(required, resource, obj):
            return None
        if resource.qualified == "pods":
            lacking = unset(names, obj["spec"])
            if lacking:
                raise _forbidden(
                    resource, obj, f"failed quota: {quota.obj['metadata']['name']}: must specify {lacking}"
                )
        now_s = self._clock.now()
        asked = of(resource, obj, now_s)
        if old is not None and _is_in_scope(required, resource, old):
            before = of(resource, old, now_s)
            asked = {
                name: more
                for name, amount in asked.items()
                if (more := amount - before.get(name, _ZERO)) > _ZERO
            }
        asked = {name: asked[name] for name in names if asked.get(name)}
        if not asked:
            return None
        said = _said(quota.obj)
        used = said[1] if said is not None and said[0] == hard else self._counted(quota.obj)
        after = resource_list.add(used, asked)
        exceeded = [name for name in asked if after[name] > hard[name]]
        if exceeded:
            why = (
                f"exceeded quota: {quota.obj['metadata']['name']}, requested: {_printed(asked, exceeded)}, "
                f"used: {_printed(used, exceeded)}, limited: {_printed(hard, exceeded)}"
            )
            raise _forbidden(resource, obj, why)
        return QuotaCharge(quota, after)

    def _counted(self, quota: Json) -> Amounts:
        """Return what the objects in storage use of a quota, after a look at all objects of the kinds that it
        counts."""
        hard = _hard(quota)
        required, namespace = selectors(quota.get("spec") or {}), quota["metadata"]["namespace"]
        total = dict.fromkeys(hard, _ZERO)
        now_s = self._clock.now()
        for qualified in sorted({counted_kinds(name) for name in hard}):
            plural, _, group = qualified.partition(".")
            resource = Resource(group=group, version="", kind="", plural=plural)
            for record, own in self._each(qualified, resource, namespace, now_s):
                if _is_in_scope(required, resource, record.obj):
                    for name in own.keys() & total.keys():
                        total[name] = total[name] + own[name]
        return total

    def _each(
        self, qualified: str, resource: Resource, namespace: str, now_s: float
    ) -> Iterable[tuple[ObjectRecord, Amounts]]:
        """Yield each object of a kind with what it uses; remembered as long as the object stays as it is."""
        before, after = self._known.get((qualified, namespace), {}), {}
        for record in self._store.table(qualified).in_namespace(namespace):
            meta = record.obj["metadata"]
            known = before.get(meta["name"])
            if known is None or known[0] is not record or "deletionTimestamp" in meta:
                try:
                    known = record, of(resource, record.obj, now_s)
                except UNREADABLE:
                    continue  # stored without checks; nobody could say what it uses
            after[meta["name"]] = known
        if after:
            self._known[qualified, namespace] = after
        else:
            self._known.pop((qualified, namespace), None)
        return after.values()

    def _write(self, quota: ObjectRecord, used: Amounts) -> None:
        meta = quota.obj["metadata"]
        hard = resource_list.to_wire(_hard(quota.obj))
        status = {"hard": hard, "used": resource_list.to_wire({name: used.get(name, _ZERO) for name in hard})}
        changed = {**quota.obj, "metadata": dict(meta), "status": status}
        self._quotas.put(meta["namespace"], meta["name"], changed)


def _is_charged(resource: Resource, obj: Json, old: Json | None, subresource: str) -> bool:
    """Return whether such a write can use more: creates, resizes, and updates that may change amounts."""
    if old is None:
        return not subresource
    if resource.qualified == "pods":
        if subresource == "resize":
            return True
        if subresource:
            return False
        was, now = (is_terminating(one.get("spec") or {}) for one in (old, obj))
        return was != now
    return not subresource and resource.qualified in ("services", "persistentvolumeclaims")


def _is_in_scope(required: list[Json], resource: Resource, obj: Json) -> bool:
    """Scopes are about pods: a quota that has some counts nothing else."""
    return not required or (resource.qualified == "pods" and match_pod(required, obj))


def _hard(quota: Json) -> Amounts:
    return resource_list.of((quota.get("spec") or {}).get("hard") or {})


def _said(quota: Json) -> tuple[Amounts, Amounts] | None:
    """`hard` and `used` of the status; None when it does not say what is used of each."""
    status = quota.get("status") or {}
    hard, used = resource_list.of(status.get("hard") or {}), resource_list.of(status.get("used") or {})
    return (hard, used) if hard and hard.keys() <= used.keys() else None


def _printed(amounts: Mapping[str, Quantity], names: Iterable[str]) -> str:
    return ",".join(f"{name}={amounts[name].text}" for name in sorted(names) if name in amounts)


def _forbidden(resource: Resource, obj: Json, why: str) -> Forbidden:
    name = obj["metadata"].get("name") or obj["metadata"].get("generateName") or ""
    details = StatusDetails(name=name, group=resource.group, kind=resource.plural)
    return Forbidden(f'{resource.qualified} "{name}" is forbidden: {why}', details=details)
