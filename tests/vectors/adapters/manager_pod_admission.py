"""Areas `pod-inject` and `pod-validate`."""

from typing import Any

import msgspec

from koordinator.api import labels, quota_labels
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.errors import ProtocolError
from koordinator.api.groups import ElasticQuotaProfile
from koordinator.api.sigs import ElasticQuota
from koordinator.cli import flag_kinds
from koordinator.manager.options import BindingAdmissionOptions
from koordinator.manager.profiles import extended_resources
from koordinator.manager.quota.tree import QuotaTree, quota_info
from koordinator.manager.webhooks import pod_quotas, pod_rules, pod_validating
from tests.vectors import compare
from tests.vectors.adapters.manager_profile import without_empty


def pod_inject(case: dict[str, Any]) -> Any:
    match case["op"]:
        case "extendedResourceSpec":
            return _extended_resources(case)
        case "gpuResources":
            pod = {"spec": {"containers": [{"name": "c", "resources": case["resources"]}]}}
            return {"resources": pod_quotas.normalize_gpus(pod)["spec"]["containers"][0]["resources"]}
        case "quotaTreeAffinity":
            return {"affinity": (_in_quota_tree(case).get("spec") or {}).get("affinity")}
    raise AssertionError(case["op"])


def _extended_resources(case: dict[str, Any]) -> Any:
    annotation = case["annotation"]
    annotations = {} if annotation is None else {labels.EXTENDED_RESOURCE_SPEC: annotation}
    pod = {"metadata": {"annotations": annotations}, "spec": {"containers": case["containers"]}}
    try:
        result = extended_resources.annotate_pod(pod)
    except ValueError:
        return {"error": True}
    text = result["metadata"]["annotations"].get(labels.EXTENDED_RESOURCE_SPEC)
    return {"spec": None if text is None else msgspec.json.decode(text)}


def _in_quota_tree(case: dict[str, Any]) -> Any:
    if not case["gate"]:
        return case["pod"]
    tree = QuotaTree()
    for quota in case["quotas"]:
        tree.put(quota_info(from_builtins(quota, ElasticQuota)))
    profiles = [from_builtins(profile, ElasticQuotaProfile) for profile in case["profiles"]]
    metadata = case["pod"]["metadata"]
    nodes = pod_quotas.nodes_of_quota(
        tree,
        metadata.get("labels") or {},
        metadata.get("namespace", ""),
        lambda tree_id: [
            profile for profile in profiles if quota_labels.tree_id(profile.metadata.labels) == tree_id
        ],
    )
    return pod_quotas.inject_nodes(case["pod"], nodes)


def pod_validate(case: dict[str, Any]) -> Any:
    match case["op"]:
        case "colocation":
            old = None if case["oldPod"] is None else from_builtins(case["oldPod"], Pod)
            found = pod_rules.colocation(
                from_builtins(case["newPod"], Pod),
                old if case["operation"] == "UPDATE" else None,
                skip_sub_priority=case["skipPriorityGate"],
            )
            return {"allowed": not found, "violations": [violation.rule.value for violation in found]}
        case "annotations":
            pod = from_builtins({"metadata": {"annotations": case["annotations"] or {}}}, Pod)
            return {"allowed": not pod_rules.reserved_annotations(pod)}
        case "device":
            violations = pod_rules.devices(from_builtins(case["pod"], Pod)) if case["gate"] else []
            return {"allowed": not violations}
        case "enhanced":
            rules = _label_rules(case["configMapData"])
            pod = from_builtins(case["pod"], Pod)
            metadata = pod.metadata
            return {"allowed": not pod_rules.violation(rules, metadata.namespace, metadata.labels)}
        case "binding":
            return {"allowed": _may_bind(case)}
    raise AssertionError(case["op"])


def _label_rules(data: dict[str, str] | None) -> list[pod_rules.LabelRule]:
    try:
        return pod_rules.label_rules(data or {}, "")
    except ProtocolError:
        return []  # none before were understood


def _may_bind(case: dict[str, Any]) -> bool:
    config, request = case["config"], case["request"]
    is_binding = request["resource"] == "pods" and request["subResource"] == "binding"
    if not config["gate"] or not is_binding or request["operation"] != "CREATE":
        return True
    flags = {
        "user_names": "userName",
        "namespaces": "namespaces",
        "exclude_namespaces": "excludeNamespaces",
        "bypass_labels": "bypassLabels",
        "bypass_annotations": "bypassAnnotations",
    }
    split = flag_kinds.CommaList().convert
    given = {field: split(config[flag], None, None) for field, flag in flags.items() if flag in config}
    rules = msgspec.structs.replace(BindingAdmissionOptions(dry_run=config.get("dryRun", False)), **given)
    pod = None if case["pod"] is None else from_builtins(case["pod"], Pod)
    return pod_validating.decide(rules, request["user"], request["namespace"], lambda: pod).allowed


def _same_injected(expected: Any, actual: Any) -> bool:
    return compare.quantities(
        *({key: without_empty(each[key]) for key in each} for each in (expected, actual))
    )


ADAPTERS = {"pod-inject": pod_inject, "pod-validate": pod_validate}
COMPARE = {"pod-inject": _same_injected}
