"""Count what an object uses of a ResourceQuota, by the names that quotas have for it. Pure.

Source: the quota evaluators of Kubernetes (pods, services, claims, and counts of everything else).
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from koordinator import clock
from koordinator.api import core, decode, pod_resources, quantity, resource_list
from koordinator.api.meta import Resource
from koordinator.api.quantity import Quantity, QuantityError
from koordinator.api.resource_list import Amounts

Json = dict[str, Any]

_ONE, _ZERO = Quantity.of_value(1), Quantity.of_value(0)
_COUNTED_PLAINLY = frozenset({"configmaps", "replicationcontrollers", "resourcequotas", "secrets"})
"""Kinds that quotas may also name without `count/`."""
_COMPUTE = ("cpu", "memory", "ephemeral-storage")
_POD_NAMES = frozenset(
    (
        "count/pods",
        "pods",
        *_COMPUTE,
        *(f"requests.{name}" for name in _COMPUTE),
        *(f"limits.{name}" for name in _COMPUTE),
    )
)
_MUST_BE_SET = frozenset(("cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"))
"""What every container of a pod must say where a quota names it."""
_SERVICE_NAMES = frozenset(("count/services", "services", "services.nodeports", "services.loadbalancers"))
_CLAIM_NAMES = frozenset(("persistentvolumeclaims", "requests.storage"))
_OF_CLASS = ".storageclass.storage.k8s.io/"
_HUGE = "hugepages-"
_REQUESTS = "requests."
_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"


def names_for(resource: Resource, names: Iterable[str]) -> list[str]:
    """Return the quota's names that speak of objects of this resource."""
    match resource.qualified:
        case "pods":
            return [name for name in names if name in _POD_NAMES or _is_other_of_pods(name)]
        case "services":
            return [name for name in names if name in _SERVICE_NAMES]
        case "persistentvolumeclaims":
            return [name for name in names if name == "count/persistentvolumeclaims" or _is_of_claims(name)]
        case qualified:
            own = {f"count/{qualified}", *({qualified} & _COUNTED_PLAINLY)}
            return [name for name in names if name in own]


def counted_kinds(name: str) -> str:
    """Return the qualified resource whose objects a quota's name counts."""
    if name.startswith("count/"):
        return name.removeprefix("count/")
    if name in _COUNTED_PLAINLY or name == "services":
        return name
    if name in _SERVICE_NAMES:
        return "services"
    return "persistentvolumeclaims" if _is_of_claims(name) else "pods"


def _is_other_of_pods(name: str) -> bool:
    """Huge pages, and `requests.` of extended resources."""
    if name.startswith((_HUGE, _REQUESTS + _HUGE)):
        return True
    return name.startswith(_REQUESTS) and _is_extended(name.removeprefix(_REQUESTS))


def _is_extended(name: str) -> bool:
    return "/" in name and "kubernetes.io/" not in name


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
        elif _is_extended(name):
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
    """Return what containers of a pod do not say although quotas name it: `cpu for: a,b; memory for: a`; or
    nothing.
    """
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
"""What reading amounts of an object that nobody has checked may raise."""
