"""LimitRanges: what containers get that ask for nothing, and between which bounds pods and claims must stay.

Source: Kubernetes' LimitRanger admission plugin.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from koordinator.api import core, decode, pod_resources, resource_list
from koordinator.api.meta import Resource
from koordinator.api.quantity import Quantity
from koordinator.api.resource_list import Amounts
from koordinator.local.interfaces import AdmissionAttributes
from koordinator.local.store import ObjectStore

Json = dict[str, Any]

ANNOTATION = "kubernetes.io/limit-ranger"


class LimitRanges:
    """The plugin (`admission.chain.Plugin`)."""

    def __init__(self, store: ObjectStore) -> None:
        self._ranges = store.table("limitranges")

    def wants(self, resource: Resource, operation: str, subresource: str, namespace: str) -> bool:
        """See `Plugin`."""
        if not len(self._ranges) or resource.group:
            return False
        if resource.plural == "pods":
            concerned = (operation, subresource) in (("CREATE", ""), ("UPDATE", "resize"))
        else:
            concerned = resource.plural == "persistentvolumeclaims" and not subresource
        return (
            concerned
            and operation != "DELETE"
            and next(self._ranges.in_namespace(namespace), None) is not None
        )

    def mutate(self, asked: AdmissionAttributes, obj: Json) -> Json:
        """Return the pod with defaults for its containers."""
        if asked.resource.plural == "pods" and not _is_deleted(asked.old):
            for limits in self._limits(asked.namespace):
                obj = with_defaults(obj, limits)
        return obj

    def validate(self, asked: AdmissionAttributes, obj: Json | None) -> None:
        """Raises: Forbidden with all bounds that are crossed."""
        if obj is None or _is_deleted(asked.old):
            return
        for limits in self._limits(asked.namespace):
            problems = violations(obj, limits, is_pod=asked.resource.plural == "pods")
            if problems:
                text = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
                raise asked.forbidden(text, obj)

    def _limits(self, namespace: str) -> list[list[Json]]:
        ranges = sorted(
            self._ranges.in_namespace(namespace), key=lambda one: str(one.obj["metadata"]["name"])
        )
        return [(one.obj.get("spec") or {}).get("limits") or [] for one in ranges]


def _is_deleted(old: Json | None) -> bool:
    return old is not None and bool(old["metadata"].get("deletionTimestamp"))


# Defaults


def with_defaults(pod: Json, limits: Iterable[Json]) -> Json:
    """Return the pod with the requests and limits that its containers leave out, and an annotation that says so."""
    defaults: dict[str, Json] = {"limits": {}, "requests": {}}
    for limit in limits:
        if limit.get("type") == "Container":
            defaults["limits"].update(limit.get("default") or {})
            defaults["requests"].update(limit.get("defaultRequest") or {})
    notes: list[str] = []
    spec = dict(pod.get("spec") or {})
    for field, what in (("containers", "container"), ("initContainers", "init container")):
        if spec.get(field):
            spec[field] = [_filled(one, defaults, what, notes) for one in spec[field]]
    if not notes:
        return pod
    meta = dict(pod["metadata"])
    said = f"LimitRanger plugin set: {'; '.join(notes)}"
    meta["annotations"] = {**(meta.get("annotations") or {}), ANNOTATION: said}
    return {**pod, "metadata": meta, "spec": spec}


def _filled(container: Json, defaults: Mapping[str, Json], what: str, notes: list[str]) -> Json:
    resources = dict(container.get("resources") or {})
    for part, word in (("requests", "request"), ("limits", "limit")):
        own = resources.get(part) or {}
        added = {name: amount for name, amount in defaults[part].items() if name not in own}
        if added:
            resources[part] = {**own, **added}
            notes.append(f"{', '.join(sorted(added))} {word} for {what} {container.get('name', '')}")
    return {**container, "resources": resources} if resources else container


# Bounds


def violations(obj: Json, limits: Iterable[Json], *, is_pod: bool) -> list[str]:
    """Return the bounds that a pod or a claim crosses, in the API server's words."""
    problems: list[str] = []
    for limit in limits:
        kind = limit.get("type", "")
        if not is_pod:
            if kind == "PersistentVolumeClaim":
                problems += _of_claim(obj, limit)
        elif kind == "Container":
            for container in _containers(obj):
                resources = container.get("resources") or {}
                asked = resource_list.of(resources.get("requests") or {})
                problems += _crossed(kind, limit, asked, resource_list.of(resources.get("limits") or {}))
        elif kind == "Pod":
            problems += _crossed(kind, limit, *_of_whole(obj))
    return problems


def _containers(pod: Json) -> list[Json]:
    spec = pod.get("spec") or {}
    return [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]


def _of_whole(pod: Json) -> tuple[Amounts, Amounts]:
    view = decode.from_builtins({"spec": {**pod["spec"], "overhead": {}}}, core.Pod)
    limits = resource_list.of(pod_resources.wire_limits(view))
    return pod_resources.spec_requests(view.spec), limits


def _of_claim(claim: Json, limit: Json) -> list[str]:
    resources = (claim.get("spec") or {}).get("resources") or {}
    asked = resource_list.of(resources.get("requests") or {})
    kind = "PersistentVolumeClaim"
    lows = [_below(kind, name, bound, asked, {}) for name, bound in _bounds(limit, "min")]
    highs = [_above(kind, name, bound, asked, None) for name, bound in _bounds(limit, "max")]
    return [problem for problem in (*lows, *highs) if problem]


def _crossed(kind: str, limit: Json, requests: Amounts, limits: Amounts) -> list[str]:
    found: list[str] = []
    checks: tuple[tuple[str, Callable[[str, str, Quantity, Amounts, Amounts], str]], ...] = (
        ("min", _below),
        ("max", _above),
        ("maxLimitRequestRatio", _stretched),
    )
    for field, check in checks:
        found += [check(kind, name, bound, requests, limits) for name, bound in _bounds(limit, field)]
    return [problem for problem in found if problem]


def _bounds(limit: Json, field: str) -> list[tuple[str, Quantity]]:
    return list(resource_list.of(limit.get(field) or {}).items())


def _below(kind: str, name: str, bound: Quantity, requests: Amounts, limits: Amounts) -> str:
    head = f"minimum {name} usage per {kind} is {bound.text}"
    if name not in requests:
        return f"{head}.  No request is specified"
    if requests[name] < bound:
        return f"{head}, but request is {requests[name].text}"
    if name in limits and limits[name] < bound:
        return f"{head}, but limit is {limits[name].text}"
    return ""


def _above(kind: str, name: str, bound: Quantity, requests: Amounts, limits: Amounts | None) -> str:
    """`limits` None: of a claim, where only requests count."""
    head = f"maximum {name} usage per {kind} is {bound.text}"
    if limits is None:
        if name not in requests:
            return f"{head}.  No request is specified"
    elif name not in limits:
        return f"{head}.  No limit is specified"
    elif limits[name] > bound:
        return f"{head}, but limit is {limits[name].text}"
    if name in requests and requests[name] > bound:
        return f"{head}, but request is {requests[name].text}"
    return ""


def _stretched(kind: str, name: str, bound: Quantity, requests: Amounts, limits: Amounts) -> str:
    head = f"{name} max limit to request ratio per {kind} is {bound.text}"
    if not requests.get(name):
        return f"{head}, but no request is specified or request is 0"
    if not limits.get(name):
        return f"{head}, but no limit is specified or limit is 0"
    ratio = limits[name].nanos / requests[name].nanos
    is_within = ratio <= bound.nanos / Quantity.of_value(1).nanos
    return "" if is_within else f"{head}, but provided ratio is {ratio:.6f}"
