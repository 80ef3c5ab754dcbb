"""Areas `quota-admission`, `quota-preemption`, `quota-overuse-revoke`, `quota-requeue-hint`."""

import json
from collections.abc import Sequence
from typing import Any

from koordinator.api import labels, resource_list
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.groups import PodDisruptionBudget
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.api.sigs import ElasticQuota
from koordinator.clock import FixedClock, rfc3339
from koordinator.scheduler.config import config
from koordinator.scheduler.config.default_plugins import ElasticQuotaArgs
from koordinator.scheduler.plugin.status import Code, Status
from koordinator.scheduler.plugins.elastic_quota import evictions, hints
from koordinator.scheduler.plugins.elastic_quota.admission import AdmissionReason, admit, fits
from koordinator.scheduler.plugins.elastic_quota.book import QuotaBook
from koordinator.scheduler.plugins.elastic_quota.checks import place_in
from koordinator.scheduler.plugins.elastic_quota.evictions import QuotaPod
from koordinator.scheduler.plugins.elastic_quota.forest import QuotaRef
from koordinator.scheduler.plugins.elastic_quota.quota import (
    QuotaPodRequest,
    above,
    accumulate_in_place,
    nanos_of,
    negated,
)
from koordinator.scheduler.plugins.elastic_quota.tree import GroupQuotaTree
from koordinator.scheduler.plugins.preemption import victims as stock
from koordinator.scheduler.plugins.preemption.search import NO_VICTIMS, try_without
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.small_cluster import NOW_S, SmallCluster
from tests.vectors.adapters.scheduler_quota_tree import RESERVED, Play, spec_of

Case = dict[str, Any]

ADMISSION = {
    AdmissionReason.OK: "Success",
    AdmissionReason.ANCESTOR_MISSING: "Error",
}
REASONS = {
    AdmissionReason.QUOTA: "quota",
    AdmissionReason.NON_PREEMPTIBLE: "non-preemptible",
    AdmissionReason.ANCESTOR: "ancestor",
    AdmissionReason.ANCESTOR_MISSING: "parent-missing",
}


def admission(case: Case) -> Any:
    args, pod = case["args"], case["pod"]
    has_runtime = args.get("enableRuntimeQuota", True)
    play = Play(case.get("options") or {})
    if case["kind"] == "snapshot":
        for each in case["quotas"]:
            _take_over(play.tree, each)
    else:
        play.run(case["steps"])
        if has_runtime:
            play.tree.refresh(pod["quota"])
    place = place_in(
        play.tree,
        QuotaRef(pod["quota"], ""),
        has_runtime=has_runtime,
        asks_ancestors=args.get("enableCheckParentQuota", False),
    )
    if isinstance(place, Status):
        return {"status": place.code.word}
    decision = admit(
        resource_list.of(pod["request"]),
        place.quota,
        has_runtime=has_runtime,
        is_preemptible=not pod.get("nonPreemptible", False),
        ancestors=place.ancestors,
    )
    status = ADMISSION.get(decision.reason, "Unschedulable")
    if status == "Success":
        return {"status": status}
    return {
        "status": status,
        "reason": REASONS[decision.reason],
        "quota": decision.quota,
        "exceed": list(decision.exceeded),
    }


def _take_over(tree: GroupQuotaTree, reported: Case) -> None:
    """Figures of a quota as they are told, instead of those that pods make."""
    tree.set_quota(spec_of(reported))
    quota = tree.get(reported["name"])
    assert quota is not None
    quota.below.used = nanos_of(resource_list.of(reported.get("used") or {}))
    quota.below.non_preemptible_used = nanos_of(resource_list.of(reported.get("nonPreemptibleUsed") or {}))
    quota.runtime = nanos_of(resource_list.of(reported.get("runtime") or {}))


def preemption(case: Case) -> Any:
    return {
        "resolve": _resolve,
        "canPreempt": _can_preempt,
        "eligible": _eligible,
        "pdbSplit": _pdb_split,
        "victims": _victims,
    }[case["kind"]](case)


def _resolve(case: Case) -> Any:
    found = _ref(case["pod"], case["elasticQuotas"], case.get("gates") or ())
    return {"quota": found.name, "tree": found.tree_id}


def _ref(pod: Case, quotas: Sequence[Case], gates: Sequence[str] = ()) -> QuotaRef:
    """Where a book with these quotas counts the pod."""
    switches = FeatureGates.of(Component.SCHEDULER, ",".join(f"{gate}=true" for gate in gates))
    book = QuotaBook(ElasticQuotaArgs(), switches, FixedClock())
    for each in quotas:
        meta = {
            "name": each["name"],
            "namespace": each.get("namespace", "quotas"),
            "labels": {labels.QUOTA_TREE_ID: each.get("treeId", "")},
            "annotations": {labels.QUOTA_NAMESPACES: json.dumps(each.get("namespaces") or [])},
        }
        book.set_quota(from_builtins({"metadata": meta}, ElasticQuota))
    own = {labels.QUOTA_NAME: pod["quotaLabel"]} if pod.get("quotaLabel") else {}
    meta = {"name": "p", "namespace": pod.get("namespace", "elsewhere"), "labels": own}
    return book.quota_of(from_builtins({"metadata": meta}, Pod))


def _rival(pod: Case, known: Sequence[str] = ()) -> QuotaPod:
    quota = pod.get("quota") or _ref(pod, [{"name": name} for name in known]).name
    return QuotaPod(
        name=pod.get("name", ""),
        quota=quota,
        priority=pod.get("priority", 0),
        start_s=pod.get("start", 0),
        request=resource_list.of(pod.get("request") or {}),
        is_preemptible=not pod.get("nonPreemptible", False),
        is_terminating=pod.get("terminating", False),
    )


def _can_preempt(case: Case) -> Any:
    known = case.get("knownQuotas") or []
    allowed = evictions.may_evict(
        _rival(case["pod"], known),
        _rival(case["victim"], known),
        protects_default=case["args"].get("disableDefaultQuotaPreemption", True),
    )
    return {"allowed": allowed}


def _eligible(case: Case) -> Any:
    known = case.get("knownQuotas") or []
    pod, codes = case["pod"], {code.word: code for code in Code}
    is_nominated = bool(pod.get("nominatedNode"))
    message = evictions.objection(
        _rival(pod, known),
        never=pod.get("preemptionPolicy") == "Never",
        nominated_code=codes[case.get("nominatedNodeStatus", "Success")],
        on_nominated_node=[_rival(each, known) for each in case.get("nodePods") or () if is_nominated],
    )
    return {"eligible": not message, "message": message}


def _pdb_split(case: Case) -> Any:
    registry = ResourceRegistry()
    victims = [
        stock.Victim(PodInfo.of(from_builtins({"metadata": each}, Pod), registry), 0, 0.0)
        for each in case["pods"]
    ]
    budgets = stock.Budgets()
    for number, each in enumerate(case["pdbs"]):
        disrupted = dict.fromkeys(each.get("disruptedPods") or (), "2026-01-01T00:00:00Z")
        budgets.set(
            from_builtins(
                {
                    "metadata": {"name": f"budget-{number}", "namespace": each["namespace"]},
                    "spec": {"selector": {"matchLabels": each.get("matchLabels") or {}}},
                    "status": {
                        "disruptionsAllowed": each.get("disruptionsAllowed", 0),
                        "disruptedPods": disrupted,
                    },
                },
                PodDisruptionBudget,
            )
        )
    violating, harmless = budgets.split(victims)
    return {
        "violating": [each.pod.pod.metadata.name for each in violating],
        "nonViolating": [each.pod.pod.metadata.name for each in harmless],
    }


def _victims(case: Case) -> Any:
    """One node without other filters than that for resources; the figures of the quota are those of the case."""
    enabled = [{"name": name} for name in ("NodeResourcesFit", "PrioritySort", "DefaultBinder")]
    plugins = {"multiPoint": {"enabled": enabled, "disabled": [{"name": "*"}]}}
    cluster = SmallCluster(config.decode({"profiles": [{"plugins": plugins}]}))
    table, allocatable = cluster.table, {"pods": "1000", **case["node"]["allocatable"]}
    cluster.node({"metadata": {"name": "n"}, "status": {"allocatable": allocatable}})
    pod, counted = _rival(case["pod"]), set(case.get("inQuotaCache") or ())
    protects = (case.get("args") or {}).get("disableDefaultQuotaPreemption", True)
    removed, in_quota = [], {}
    for each in case["node"]["pods"]:
        info = cluster.pod(_pod(each, "n"))
        if evictions.may_evict(pod, _rival({"quota": "q", **each}), protects_default=protects):
            removed.append(stock.Victim.of(info, NOW_S))
            if each["name"] in counted:
                in_quota[info.uid] = nanos_of(resource_list.of(each["request"]))
    limit = nanos_of(resource_list.of(case["quotaLimit"]))

    def may_stay() -> bool:
        used = nanos_of(resource_list.of(case["quotaUsed"]))
        for uid, amounts in in_quota.items():
            if table.place_of(uid) is None:
                accumulate_in_place(used, negated(amounts))
        return fits(nanos_of(pod.request), limit, used, limit)

    diagnosis = cluster.refused(cluster.pod(_pod({"name": "preemptor", **case["pod"]})))
    found = try_without(removed, table, 0, stock.Budgets(), diagnosis, may_stay)
    if isinstance(found, stock.Candidate):
        gone = [victim.pod.pod.metadata.name for victim in found.victims]
        return {"status": "Success", "victims": gone}
    if found is NO_VICTIMS:
        return {"status": found.code.word, "victims": []}
    # Nobody has to go, or it does not help: the node itself may have said why for good.
    return {"status": "Success" if found.code is Code.ERROR else "Unschedulable", "victims": []}


def _pod(pod: Case, node: str = "") -> Case:
    requests = {"requests": pod.get("request") or {}}
    return {
        "metadata": {"name": pod["name"], "namespace": "default", "uid": pod["name"]},
        "spec": {
            "nodeName": node,
            "priority": pod.get("priority", 0),
            "containers": [{"name": "c", "resources": requests}],
        },
        "status": {"startTime": rfc3339(pod.get("start", 0))},
    }


def overuse_revoke(case: Case) -> Any:
    if case["kind"] == "monitor":
        return {"trigger": _triggers(case)}
    assigned = [_rival({"quota": "q", **each}) for each in case["assignedPods"]]
    evicted = evictions.revoke(resource_list.of(case["used"]), resource_list.of(case["runtime"]), assigned)
    return {"evict": [each.name for each in evicted]}


def _triggers(case: Case) -> list[bool]:
    timer, seen_s, triggers = evictions.OveruseTimer(case["delayEvictSeconds"]), 0.0, []
    for check in case["checks"]:
        is_above = _is_above(check["used"], check["runtime"])
        triggers.append(timer.is_due("q", check["t"], seen_s, is_above=is_above))
        seen_s = check["t"]
    return triggers


def _is_above(used: Case, runtime: Case) -> bool:
    return above(nanos_of(resource_list.of(used)), nanos_of(resource_list.of(runtime)))


def requeue_hint(case: Case) -> Any:
    gates = case.get("gates") or []
    is_multi = "MultiQuotaTree" in gates

    def tree_of(quota: Case) -> str:
        return quota.get("treeId", "") if is_multi else ""

    known = case.get("snapshotQuotas") or []
    waiting = _ref(case["pod"], known, gates)
    tree = GroupQuotaTree(reserved=None if waiting.tree_id else RESERVED)
    for each in known:
        if tree_of(each) == waiting.tree_id:
            tree.set_quota(spec_of(each))
    deleted, checks = case.get("deletedPod"), case.get("enableCheckParentQuota", False)
    gone = _ref(deleted, known, gates) if deleted is not None else None
    if gone is not None and tree.get(gone.name) is not None:
        tree.add_pod(
            gone.name, QuotaPodRequest(key="p", request={}, is_on_node=deleted.get("assigned", False))
        )
    snapshot = hints.TreeSnapshot.of(tree) if case.get("snapshotPresent", True) else None
    if case["kind"] == "podDelete":
        helps = hints.on_pod_delete(waiting, gone, "p", snapshot, checks_ancestors=checks)
    else:
        old, new = case.get("old"), case.get("new")
        helps = hints.on_quota_update(
            waiting,
            spec_of(old) if old else None,
            spec_of(new) if new else None,
            tree_of(new) if new else "",
            snapshot,
            is_tree_known=waiting.tree_id in ("", *map(tree_of, known)),
            checks_ancestors=checks,
            hooks_see_change=False,
        )
    return {"hint": "Queue" if helps else "Skip"}


ADAPTERS = {
    "quota-admission": admission,
    "quota-preemption": preemption,
    "quota-overuse-revoke": overuse_revoke,
    "quota-requeue-hint": requeue_hint,
}
