"""Evictions: whether the disruption budgets let a pod go. Pure.

Source: `EvictionREST` of the API server (policy/v1).
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from koordinator.api import label_selector
from koordinator.api.affinity import LabelSelector
from koordinator.api.errors import KoordinatorError
from koordinator.api.meta import Resource
from koordinator.cluster import errors
from koordinator.cluster.errors import StatusCause, StatusDetails
from koordinator.local.registry import refusals
from koordinator.local.registry.binding import with_condition

DISRUPTED_PODS_MAX = 2_000
"""Evictions that a budget's controller has not seen yet; more means that it does not run."""

PROCESSING_RETRY_S = 10

_VIOLATION = "Cannot evict pod as it would violate the pod's disruption budget."
_FREE_PHASES = ("Succeeded", "Failed", "Pending")
_BUDGETS = Resource(group="policy", version="v1", kind="PodDisruptionBudget", plural="poddisruptionbudgets")


class EvictionApproval(msgspec.Struct, frozen=True):
    """The pod may go. `budget` is the budget after it paid for that; None when nothing has to pay."""

    budget: dict[str, Any] | None = None
    reason: str = ""


def judge(pod: dict[str, Any], budgets: Iterable[dict[str, Any]], now: str) -> EvictionApproval:
    """May the pod be evicted? `budgets` are those of its namespace; `now` is the time as text.

    Raises: TooManyRequests (a budget forbids it, or is not counted yet), InternalError (several budgets
    apply), Forbidden (a budget is out of order).
    """
    if "deletionTimestamp" in pod["metadata"] or (pod.get("status") or {}).get("phase") in _FREE_PHASES:
        return EvictionApproval(reason="the pod serves nobody")
    matching = [budget for budget in budgets if _covers(budget, pod)]
    if not matching:
        return EvictionApproval(reason="no budget covers the pod")
    if len(matching) > 1:
        raise errors.InternalError(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        )
    budget = matching[0]
    if not _is_ready(pod) and _lets_unready_go(budget):
        return EvictionApproval(reason="the pod is not ready, and its budget does not need it")
    return EvictionApproval(_paid(budget, pod["metadata"]["name"], now), "the budget allows a disruption")


def _covers(budget: dict[str, Any], pod: dict[str, Any]) -> bool:
    selector = (budget.get("spec") or {}).get("selector")
    if selector is None:
        return False
    try:
        parsed = msgspec.convert(selector, LabelSelector)
        return label_selector.matches(parsed, pod["metadata"].get("labels") or {})
    except (msgspec.ValidationError, KoordinatorError):
        return False  # a selector that nobody can read covers nothing, as in the API server


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


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
