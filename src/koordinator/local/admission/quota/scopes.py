"""Find which pods a quota with scopes is about. Pure. Source: Kubernetes, "Resource Quotas", quota scopes."""

from typing import Any

from koordinator.api import core, decode, qos

Json = dict[str, Any]

_TERMS = ("requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution")


def selectors(spec: Json) -> list[Json]:
    """All scopes of a quota as requirements: `scopes`, and those of `scopeSelector`."""
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


__all__ = ["is_terminating", "match_pod", "selectors"]
