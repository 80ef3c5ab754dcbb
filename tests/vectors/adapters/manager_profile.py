"""Area `colocationprofile-mutate`: what colocation profiles make of a pod."""

import contextlib
from typing import Any

from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.groups import ClusterColocationProfile, PriorityClass
from koordinator.manager.profiles import colocation_profile, profile_matching
from koordinator.manager.profiles.colocation_profile import ProfileError
from koordinator.manager.profiles.profile_matching import Profiles
from tests.vectors import compare


def profile_mutate(case: dict[str, Any]) -> Any:
    if case["op"] == "reconcilePendingPod":
        return {"pod": without_empty(_reconcile(case))}
    classes = {
        name: from_builtins({"metadata": {"name": name}, **body}, PriorityClass)
        for name, body in (case.get("priorityClasses") or {}).items()
    }
    found = [from_builtins(profile, ClusterColocationProfile) for profile in case["profiles"]]
    profiles = Profiles(map(profile_matching.compile_profile, found))
    metadata = case["pod"]["metadata"]
    namespace = metadata.get("namespace", "")
    namespace_labels = (case.get("namespaces") or {}).get(namespace)
    outcome = colocation_profile.mutate(
        case["pod"],
        profiles.matching(metadata.get("labels") or {}, namespace, namespace_labels),
        priority_class=classes.get,
        draw=lambda: case["random"],
        skip_resources=case.get("skipResourcesGate", False),
    ).pod
    return {"pod": without_empty(outcome)}


def _reconcile(case: dict[str, Any]) -> dict[str, Any]:
    profile = profile_matching.compile_profile(from_builtins(case["profile"], ClusterColocationProfile))
    pod: dict[str, Any] = case["pod"]
    view = from_builtins(pod, Pod)
    with contextlib.suppress(ProfileError):  # the controller tells, and goes on with the next pod
        if (
            colocation_profile.waits(view)
            and colocation_profile.matches(profile, view.metadata.labels, None)
            and colocation_profile.is_drawn(profile, lambda: case["random"])
        ):
            return colocation_profile.applied(pod, profile)
    return pod


def without_empty(value: Any) -> Any:
    """Maps and lists without members are dropped."""
    if isinstance(value, dict):
        members = {key: without_empty(member) for key, member in value.items()}
        return {key: member for key, member in members.items() if member not in ({}, [])}
    return [without_empty(item) for item in value] if isinstance(value, list) else value


def _same(expected: Any, actual: Any) -> bool:
    return compare.quantities(without_empty(expected), actual)


ADAPTERS = {"colocationprofile-mutate": profile_mutate}
COMPARE = {"colocationprofile-mutate": _same}
