"""Questions about pods and quotas at admission."""

import copy
import json
from typing import Any

from tests.reference.compare import KEPT
from tests.reference.webhooks import draws, quota_draws
from tests.vectors.runner import find_areas

Json = dict[str, Any]

NAMESPACES = "quota.scheduling.koordinator.sh/namespaces"
TREE_ID = "quota.scheduling.koordinator.sh/tree-id"
_RUNTIME_HOOKS = (
    "GroupIdentity",
    "CPUSetAllocator",
    "GPUEnvInject",
    "RDMADeviceInject",
    "BatchResource",
    "CPUNormalization",
    "CoreSched",
    "TerwayQoS",
    "TCNetworkQoS",
    "Resctrl",
    "OOMScoreAdj",
)
"""Gates of a package that needs C."""
_LATER_GATES = ("GangPendingPodsConditionPatch", "EnableBatchScheduleNodeSnapshot")


def _pod_validate(asked: Json) -> Json | None:
    """Binding admission came after the release; an update has an old pod; API servers refuse negative amounts."""
    if asked["op"] == "binding" or ': "-' in json.dumps(asked):
        return None
    if asked.get("operation") == "UPDATE" and "oldPod" in asked and asked["oldPod"] is None:
        return {**asked, "operation": "CREATE"}
    return asked


def _profile_mutate(asked: Json) -> Json | None:
    """Containers of a pod have names of their own."""
    spec = asked["pod"].get("spec") or {}
    names = [
        each.get("name") for each in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
    ]
    return asked if len(set(names)) == len(names) else None


def _quota_evaluate(asked: Json) -> Json | None:
    """How often a batch is tried again depended on nothing."""
    return None if asked["op"] == "retries" else asked


def _gates(asked: Json) -> Json | None:
    """kube-scheduler knows gates that need others, which `AllBeta=false` switches off."""
    if asked["op"] == "disabledByNodeSLO":
        return asked if asked["query"] else None
    if asked["component"] == "scheduler" and "AllAlpha" in asked["flag"] and "AllBeta" in asked["flag"]:
        return None
    words = (*asked["query"], asked["flag"])
    absent = (*_LATER_GATES, *_RUNTIME_HOOKS) if asked["component"] in ("scheduler", "koordlet") else ()
    return None if any(name in word for name in absent for word in words) else asked


def _pod_inject(asked: Json) -> Json | None:
    """One profile makes a tree, a namespace has one quota. The release took GPUs without a ratio for none."""
    if asked["op"] == "quotaTreeAffinity":
        by_tree = {(each["metadata"].get("labels") or {}).get(TREE_ID): each for each in asked["profiles"]}
        profiles = {each["metadata"].get("name"): each for each in by_tree.values()}
        by_name = {each["metadata"].get("name"): each for each in asked["quotas"]}
        quotas = {
            (each["metadata"].get("annotations") or {}).get(NAMESPACES) or name: each
            for name, each in by_name.items()
        }
        return {**asked, "profiles": list(profiles.values()), "quotas": list(quotas.values())}
    requests = (asked.get("resources") or {}).get("requests") or {}
    is_mistaken = "koordinator.sh/gpu-core" in requests and "koordinator.sh/gpu-memory-ratio" not in requests
    return None if is_mistaken else asked


def _quota_webhook(asked: Json) -> Json | None:
    """Steps have what they are about. A root quota with a malformed weight has none to show."""
    whole = all(
        ("pod" in step and ("oldPod" in step or step["op"] == "podCreate"))
        if step["op"].startswith("pod")
        else "quota" in step
        for step in asked["steps"]
    )
    return asked if whole else None


def _elasticquota_webhook(asked: Json) -> Json | None:
    """Quotas have names of their own."""
    existing = {each["name"]: each for each in asked["existing"]}
    shared = {"old": {}, "operation": "create"} if asked["kind"] == "pod" else {}
    return {**shared, **asked, "existing": list(existing.values())}


MEND = {
    "api-feature-gates": _gates,
    "colocationprofile-mutate": _profile_mutate,
    "elasticquota-webhook": _elasticquota_webhook,
    "pod-inject": _pod_inject,
    "pod-validate": _pod_validate,
    "quota-evaluate": _quota_evaluate,
    "quota-webhook": _quota_webhook,
}
_WHY = {
    "api-feature-gates": "gates that came later, or that are registered by a package that needs C",
    "pod-inject": "whole GPUs were counted by the memory ratio, also where only cores are asked for",
    "pod-validate": "binding admission came later",
    "quota-evaluate": "retries by the number of pods came later",
}


def _outdated() -> dict[str, dict[str, str]]:
    """The kept cases that cannot be asked."""
    return {
        area.name: {
            case["name"]: _WHY[area.name]
            for case in area.cases
            if MEND[area.name](copy.deepcopy(case["input"])) is None
        }
        for area in find_areas(KEPT)
        if area.name in _WHY
    }


OUTDATED = _outdated()
DRAW = {
    "api-feature-gates": lambda chance: _gates(quota_draws.feature_gates(chance)),
    "colocationprofile-mutate": draws.profile_mutate,
    "elasticquota-webhook": quota_draws.elasticquota_webhook,
    "pod-inject": draws.pod_inject,
    "pod-transform": draws.pod_transform,
    "pod-validate": draws.pod_validate,
    "quota-evaluate": quota_draws.quota_evaluate,
    "quota-profile": quota_draws.quota_profile,
    "quota-webhook": quota_draws.quota_webhook,
}
