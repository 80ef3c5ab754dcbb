"""Area `colocationprofile-mutate`: what colocation profiles make of a pod."""

from typing import Any

from koordinator.api.config_group import ClusterColocationProfile
from koordinator.api.decode import from_builtins
from koordinator.api.scheduling import PriorityClass
from koordinator.manager import colocation_profile
from tests.vectors import compare


def profile_mutate(case: dict[str, Any]) -> Any:
    if case["op"] == "reconcilePendingPod":
        profile = from_builtins(case["profile"], ClusterColocationProfile)
        outcome = colocation_profile.reconcile_pending(case["pod"], profile, draw=lambda: case["random"])
        return {"pod": _without_empty(outcome)}
    namespaces = case.get("namespaces") or {}
    outcome = colocation_profile.mutate(
        case["pod"],
        [from_builtins(profile, ClusterColocationProfile) for profile in case["profiles"]],
        namespace_labels=namespaces.get(case["pod"]["metadata"].get("namespace")),
        priority_classes={
            name: from_builtins({"metadata": {"name": name}, **body}, PriorityClass)
            for name, body in (case.get("priorityClasses") or {}).items()
        },
        draw=lambda: case["random"],
        skip_resources=case.get("skipResourcesGate", False),
    ).pod
    return {"pod": _without_empty(outcome)}


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        members = {key: _without_empty(member) for key, member in value.items()}
        return {key: member for key, member in members.items() if member != {}}
    return [_without_empty(item) for item in value] if isinstance(value, list) else value


def _same(expected: Any, actual: Any) -> bool:
    return compare.quantities(_without_empty(expected), actual)


ADAPTERS = {"colocationprofile-mutate": profile_mutate}
COMPARE = {"colocationprofile-mutate": _same}
