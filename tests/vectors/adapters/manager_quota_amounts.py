"""Areas `quota-evaluate` and `quota-profile`."""

from typing import Any

import msgspec

from koordinator.api import labels, quota_labels, resource_list
from koordinator.api.core import Node
from koordinator.api.decode import from_builtins
from koordinator.api.errors import ProtocolError
from koordinator.api.groups import ElasticQuotaProfile
from koordinator.api.resource_list import Amounts
from koordinator.api.sigs import ElasticQuota
from koordinator.manager.quota import evaluation, profile, profile_controller
from tests.vectors import compare


def quota_evaluate(case: dict[str, Any]) -> Any:
    if case["op"] == "retries":
        return {"retries": evaluation.retries(case["changedPods"], case["maxRetries"])}
    quota = _evaluated(case["quota"])
    requests = [resource_list.of(pod["requests"]) for pod in case["pods"]]
    try:
        decisions, used = evaluation.evaluate_batch(evaluation.limit_of(quota), requests)
    except ProtocolError:
        return {
            "allowed": [_may_come(quota, request) for request in requests],
            "childRequest": _as_json(case["quota"].get("childRequest") or {}),
        }
    return {
        "allowed": [decision.allowed for decision in decisions],
        "childRequest": msgspec.json.decode(evaluation.child_request_text(used)),
    }


def _as_json(given: Any) -> Any:
    return msgspec.json.decode(given) if isinstance(given, str) else given


def _may_come(quota: ElasticQuota, request: Amounts) -> bool:
    try:
        return evaluation.decide(quota, request).allowed
    except ProtocolError:
        return False


def _evaluated(short: dict[str, Any]) -> ElasticQuota:
    annotations = {
        annotation: short[key] if isinstance(short[key], str) else msgspec.json.encode(short[key]).decode()
        for key, annotation in (
            ("admission", labels.QUOTA_ADMISSION),
            ("childRequest", labels.QUOTA_CHILD_REQUEST),
        )
        if short.get(key) is not None
    }
    body = {
        "metadata": {"name": "q", "namespace": "ns", "annotations": annotations},
        "spec": {"max": short.get("max") or {}},
    }
    return from_builtins(body, ElasticQuota)


def quota_profile(case: dict[str, Any]) -> Any:
    given = from_builtins(case["profile"], ElasticQuotaProfile)
    nodes = [from_builtins(node, Node) for node in case["nodes"]]
    wanted = profile.wanted_quota(given, *profile_controller.totals_of(nodes, given.spec.node_selector))
    existing = case.get("existingQuota")
    body = profile.new_quota(wanted)
    if existing is not None:
        patch = profile.quota_patch(wanted, from_builtins(existing, ElasticQuota))
        body = _merge_patched(existing, patch)
    noted = profile.profile_patch(given).get("metadata", {}).get("labels", {})
    annotations = body["metadata"]["annotations"]
    return {
        "profileTreeID": {**given.metadata.labels, **noted}[labels.QUOTA_TREE_ID],
        "quota": {
            "name": body["metadata"]["name"],
            "namespace": body["metadata"].get("namespace", ""),
            "labels": body["metadata"]["labels"],
            "min": body["spec"]["min"],
            "max": body["spec"]["max"],
            "totalResource": quota_labels.TOTAL_RESOURCE.read(annotations),
            "unschedulableResource": quota_labels.UNSCHEDULABLE_RESOURCE.read(annotations),
        },
    }


def _merge_patched(value: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(value) if isinstance(value, dict) else {}
    for key, change in patch.items():
        merged[key] = _merge_patched(merged.get(key), change)
    return {key: member for key, member in merged.items() if member is not None}


ADAPTERS = {"quota-evaluate": quota_evaluate, "quota-profile": quota_profile}
COMPARE = {"quota-evaluate": compare.quantities, "quota-profile": compare.quantities}
