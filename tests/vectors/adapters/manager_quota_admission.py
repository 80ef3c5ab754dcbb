"""Areas `quota-webhook` and `elasticquota-webhook`: what may be done with quotas, and by pods with them."""

from collections.abc import Sequence
from typing import Any

import msgspec

from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.sigs import ElasticQuota
from koordinator.manager.quota import evaluation, validation
from koordinator.manager.quota.evaluation import PodQuotaRules, QuotaUseVerdict
from koordinator.manager.quota.tree import QuotaTree, quota_info
from koordinator.manager.quota.validation import QuotaRules, QuotaVerdict
from koordinator.manager.webhooks import quota_admission
from koordinator.manager.webhooks.quota_admission import DefaultingError
from tests.vectors import compare

_NAMESPACE = "kube-system"


class _Pods:
    """The pods of a case."""

    def __init__(self, found: Sequence[dict[str, Any]]) -> None:
        self._pods = [from_builtins(pod, Pod) for pod in found]

    def labelled(self, quota: str) -> Sequence[str]:
        return [p.metadata.name for p in self._pods if p.metadata.labels.get(labels.QUOTA_NAME) == quota]

    def is_any_in(self, namespace: str) -> bool:
        return any(pod.metadata.namespace == namespace for pod in self._pods)


def _rules(gates: Sequence[str]) -> QuotaRules:
    return QuotaRules(
        child_keys_may_be_fewer="ElasticQuotaEnableUpdateResourceKey" in gates,
        guarantees_usage="ElasticQuotaGuaranteeUsage" in gates,
    )


def _pod_rules(gates: Sequence[str]) -> PodQuotaRules:
    return PodQuotaRules(
        label_only="DisableDefaultQuota" in gates,
        allows_parents="SupportParentQuotaSubmitPod" in gates,
    )


def quota_webhook(case: dict[str, Any]) -> Any:
    tree = QuotaTree()
    current: dict[str, dict[str, Any]] = {}
    return {"results": [_step(tree, current, step, case["gates"]) for step in case["steps"]]}


def _step(tree: QuotaTree, current: dict[str, Any], step: dict[str, Any], gates: Sequence[str]) -> Any:
    if step["op"] in ("podCreate", "podUpdate"):
        old = from_builtins(step["oldPod"], Pod) if step["op"] == "podUpdate" else None
        pod = from_builtins(step["pod"], Pod)
        return _shown(evaluation.check_quota_use(tree, pod, old, pod.metadata.namespace, _pod_rules(gates)))
    body = step["quota"]
    name = body["metadata"]["name"]
    if step["op"] == "delete":
        verdict = validation.check_delete(tree, name, _Pods(step.get("pods") or []))
        if verdict.allowed:
            tree.remove(name)
            current.pop(name, None)
        return _shown(verdict)
    result: dict[str, Any] = {}
    if step["op"] == "create":
        try:
            body = quota_admission.complete(body, tree)
        except DefaultingError as error:
            return {"allowed": False, "reason": error.refusal.value}
        verdict = validation.check_create(tree, from_builtins(body, ElasticQuota), _rules(gates))
        result = _mutated(body, "treeID")
    else:
        old_body = step.get("old") or current.get(name) or body
        verdict = validation.check_update(
            tree,
            from_builtins(old_body, ElasticQuota),
            from_builtins(body, ElasticQuota),
            _rules(gates),
            _Pods(step.get("pods") or []),
        )
        if validation.is_same(from_builtins(old_body, ElasticQuota), from_builtins(body, ElasticQuota)):
            if tree.get(name) is not None:
                current[name] = body
            return _shown(verdict)  # the tree stays as it is
    if not verdict.allowed:
        return _shown(verdict)
    current[name] = body
    tree.put(quota_info(from_builtins(body, ElasticQuota)))
    return {"allowed": True, **result}


def _mutated(body: dict[str, Any], tree_id_name: str) -> dict[str, Any]:
    metadata = body["metadata"]
    return {
        "parent": metadata["labels"].get(labels.QUOTA_PARENT, ""),
        tree_id_name: metadata["labels"].get(labels.QUOTA_TREE_ID, ""),
        "sharedWeight": msgspec.json.decode(metadata["annotations"].get(labels.QUOTA_SHARED_WEIGHT, "{}")),
    }


def _shown(verdict: QuotaVerdict | QuotaUseVerdict) -> Any:
    return {"allowed": True} if verdict.allowed else {"allowed": False, "reason": verdict.refusal.value}


_WHY = {
    "shared-weight-negative": "weight-negative",
    "min-sum-brothers": "siblings-min-sum",
    "min-sum-children": "children-min-sum",
    "forbidden": "reserved",
}
"""What this area calls some of the rules."""


def elasticquota_webhook(case: dict[str, Any]) -> Any:
    tree = QuotaTree()
    existing = {body["name"]: whole_quota(body) for body in case["existing"]}
    for body in existing.values():
        tree.put(quota_info(from_builtins(body, ElasticQuota)))
    gates = case.get("gates") or []
    if case["kind"] == "pod":
        old = _pod(case["old"]) if case["operation"] == "update" else None
        return {
            "allowed": evaluation.check_quota_use(
                tree, _pod(case["pod"]), old, "d", _pod_rules(gates)
            ).allowed
        }
    body = whole_quota(case["object"])
    if case["kind"] == "default":
        return _mutated(quota_admission.complete(body, tree), "treeId")
    bound = [
        {"metadata": {"name": pod, "namespace": "d", "labels": {labels.QUOTA_NAME: case["object"]["name"]}}}
        for pod in case.get("boundPods") or []
    ]
    new = from_builtins(body, ElasticQuota)
    match case["kind"]:
        case "create":
            verdict = validation.check_create(tree, new, _rules(gates))
        case "update":
            old_body = from_builtins(existing.get(new.metadata.name) or {}, ElasticQuota)
            verdict = validation.check_update(tree, old_body, new, _rules(gates), _Pods(bound))
        case _:
            verdict = validation.check_delete(tree, new.metadata.name, _Pods(bound))
    why = verdict.refusal.value
    return {"allowed": verdict.allowed, "why": _WHY.get(why, why)}


def whole_quota(short: dict[str, Any]) -> dict[str, Any]:
    """The object that the short form of a case stands for."""
    own = {}
    for key, label in (("parent", labels.QUOTA_PARENT), ("treeId", labels.QUOTA_TREE_ID)):
        if key in short:
            own[label] = short[key]
    for key, label in (
        ("isParent", labels.QUOTA_IS_PARENT),
        ("isTreeRoot", labels.QUOTA_IS_ROOT),
        ("forceUpdate", labels.QUOTA_ALLOW_FORCE_UPDATE),
    ):
        if key in short:
            own[label] = "true" if short[key] else "false"
    annotations = {}
    for key, annotation in (
        ("sharedWeight", labels.QUOTA_SHARED_WEIGHT),
        ("namespaces", labels.QUOTA_NAMESPACES),
        ("guaranteed", labels.QUOTA_GUARANTEED),
        ("maxStrictCheckKeys", labels.QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS),
    ):
        if key in short:
            value = short[key]
            annotations[annotation] = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return {
        "metadata": {
            "name": short["name"],
            "namespace": _NAMESPACE,
            "labels": own,
            "annotations": annotations,
        },
        "spec": {"min": short.get("min") or {}, "max": short.get("max") or {}},
        "status": {"used": short.get("used") or {}},
    }


def _pod(short: dict[str, Any]) -> Pod:
    own = {}
    for key, label in (("quotaLabel", labels.QUOTA_NAME), ("preemptibleLabel", labels.QUOTA_PREEMPTIBLE)):
        if key in short:
            own[label] = short[key]
    return from_builtins({"metadata": {"name": "p", "namespace": "d", "labels": own}}, Pod)


def _same(expected: Any, actual: Any) -> bool:
    """Rules have names of their own there; those that both know must be the same."""
    known = {_WHY.get(refusal.value, refusal.value) for refusal in validation.QuotaRefusal}
    if expected.get("why", "") not in known:
        expected, actual = ({**side, "why": ""} for side in (expected, actual))
    return compare.quantities(expected, actual)


ADAPTERS = {"quota-webhook": quota_webhook, "elasticquota-webhook": elasticquota_webhook}
COMPARE = {"quota-webhook": compare.quantities, "elasticquota-webhook": _same}
