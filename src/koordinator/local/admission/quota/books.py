"""The books of ResourceQuotas: what is asked for is charged in the same step in which the object is stored, so that
writes at the same time never go over.

`status.used` is the book. A quota whose status does not say (it is new, or its `hard` changed) is counted at once,
so it holds from its first moment; Kubernetes refuses writes until its controller has counted.

Scopes say which pods a quota is about. Source: Kubernetes, "Resource Quotas", quota scopes.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from koordinator.api import core, decode, qos, resource_list
from koordinator.api.meta import Resource
from koordinator.api.quantity import Quantity
from koordinator.api.resource_list import Amounts
from koordinator.clock import Clock
from koordinator.cluster.backend import ObjectRecord
from koordinator.cluster.errors import Forbidden, StatusDetails
from koordinator.local.admission.quota import usage
from koordinator.local.store import ObjectStore

Json = dict[str, Any]

_ZERO = Quantity.of_value(0)


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


class Bill(msgspec.Struct, frozen=True):
    """The charge of a write to one quota: the quota, and what is used of it afterwards."""

    quota: ObjectRecord
    used: Amounts


class QuotaBooks:
    """The ResourceQuotas of a store."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._quotas = store.table("resourcequotas")
        self._known: dict[tuple[str, str], dict[str, tuple[ObjectRecord, Amounts]]] = {}

    def bills(self, resource: Resource, obj: Json, old: Json | None, subresource: str = "") -> Sequence[Bill]:
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
            bill = self._bill(quota, resource, obj, old)
            if bill is not None:
                found.append(bill)
        return found

    def book(self, bills: Iterable[Bill]) -> None:
        """Write down what was charged; in the same step as the object."""
        for bill in bills:
            self._write(bill.quota, bill.used)

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

    def _bill(self, quota: ObjectRecord, resource: Resource, obj: Json, old: Json | None) -> Bill | None:
        hard = _hard(quota.obj)
        names = usage.names_for(resource, hard)
        required = selectors(quota.obj.get("spec") or {})
        if not names or not _is_in_scope(required, resource, obj):
            return None
        if resource.qualified == "pods":
            lacking = usage.unset(names, obj["spec"])
            if lacking:
                raise _forbidden(
                    resource, obj, f"failed quota: {quota.obj['metadata']['name']}: must specify {lacking}"
                )
        now_s = self._clock.now()
        asked = usage.of(resource, obj, now_s)
        if old is not None and _is_in_scope(required, resource, old):
            before = usage.of(resource, old, now_s)
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
        return Bill(quota, after)

    def _counted(self, quota: Json) -> Amounts:
        """Return what the objects in storage use of a quota, after a look at all objects of the kinds that it
        counts.
        """
        hard = _hard(quota)
        required, namespace = selectors(quota.get("spec") or {}), quota["metadata"]["namespace"]
        total = dict.fromkeys(hard, _ZERO)
        now_s = self._clock.now()
        for qualified in sorted({usage.counted_kinds(name) for name in hard}):
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
                    known = record, usage.of(resource, record.obj, now_s)
                except usage.UNREADABLE:
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
