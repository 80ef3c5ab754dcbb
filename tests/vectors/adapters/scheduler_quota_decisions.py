"""Areas `quota-admission`, `quota-preemption`, `quota-overuse-revoke`, `quota-requeue-hint`."""

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from koordinator.api import labels, resource_list, sigs
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.groups import PodDisruptionBudget
from koordinator.api.resource_vector import ResourceRegistry
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
from koordinator.scheduler.plugins.elastic_quota.plugin import ElasticQuota
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
NODE = "n"

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
        book.set_quota(from_builtins({"metadata": meta}, sigs.ElasticQuota))
    own = {labels.QUOTA_NAME: pod["quotaLabel"]} if pod.get("quotaLabel") else {}
    meta = {"name": "p", "namespace": pod.get("namespace", "elsewhere"), "labels": own}
    return book.quota_of(from_builtins({"metadata": meta}, Pod))


class Scene:
    """The plugin, with nodes and the quotas that a case names."""

    def __init__(self, case: Case, allocatable: Case | None = None) -> None:
        enabled = [
            {"name": name} for name in ("ElasticQuota", "NodeResourcesFit", "PrioritySort", "DefaultBinder")
        ]
        plugins = {"multiPoint": {"enabled": enabled, "disabled": [{"name": "*"}]}}
        own = {"name": "ElasticQuota", "args": case.get("args") or {}}
        settings = {"profiles": [{"plugins": plugins, "pluginConfig": [own]}]}
        self.cluster = SmallCluster(config.decode(settings))
        self.plugin = self.cluster.plugin(ElasticQuota)
        self.preemption = self.plugin._preemption
        self.cluster.node(
            {
                "metadata": {"name": NODE},
                "status": {"allocatable": {"pods": "1000", **(allocatable or {"cpu": "1000"})}},
            }
        )
        for name in case.get("knownQuotas") or ():
            self.quota(name)

    def quota(self, name: str) -> None:
        meta = {"name": name, "namespace": "quotas"}
        self.plugin.book.set_quota(from_builtins({"metadata": meta}, sigs.ElasticQuota))

    def pod(self, name: str, pod: Case, node: str = "") -> PodInfo:
        own = {
            labels.QUOTA_NAME: pod.get("quota") or pod.get("quotaLabel"),
            labels.QUOTA_PREEMPTIBLE: "false" if pod.get("nonPreemptible") else None,
        }
        meta: Case = {"name": name, "namespace": pod.get("namespace", "elsewhere"), "uid": name}
        if pod.get("terminating"):
            meta["deletionTimestamp"] = rfc3339(NOW_S)
        body = {
            "metadata": {**meta, "labels": {key: value for key, value in own.items() if value}},
            "spec": {
                "nodeName": node,
                "priority": pod.get("priority", 0),
                "preemptionPolicy": pod.get("preemptionPolicy"),
                "containers": [{"name": "c", "resources": {"requests": pod.get("request") or {}}}],
            },
            "status": {
                "startTime": rfc3339(pod.get("start", 0)),
                "nominatedNodeName": NODE if pod.get("nominatedNode") else "",
            },
        }
        self.plugin.book.set_pod(from_builtins(body, Pod))
        return self.cluster.pod(body)

    def lesser(self, pod: PodInfo) -> list[PodInfo]:
        """Pods that may go for this one."""
        found = self.preemption.lesser(pod, self.plugin.book.quota_of(pod.pod))
        return [each for pods in found.values() for each in pods]


def _can_preempt(case: Case) -> Any:
    scene = Scene(case)
    victim = scene.pod("victim", case["victim"], NODE)
    return {"allowed": victim.uid in [each.uid for each in scene.lesser(scene.pod("pod", case["pod"]))]}


def _eligible(case: Case) -> Any:
    scene = Scene(case)
    for number, each in enumerate(case.get("nodePods") or ()):
        scene.pod(f"other-{number}", each, NODE)
    pod, codes = scene.pod("pod", case["pod"]), {code.word: code for code in Code}
    status = Status(codes[case.get("nominatedNodeStatus", "Success")])
    diagnosis: Any = SimpleNamespace(status_of=lambda row: status)
    message = scene.preemption.objection(pod, scene.plugin.book.quota_of(pod.pod), diagnosis)
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
    """The figures of the quota are those of the case."""
    scene = Scene(case, case["node"]["allocatable"])
    for name in {each.get("quota", "q") for each in (case["pod"], *case["node"]["pods"])}:
        scene.quota(name)
    sizes = {each["name"]: nanos_of(resource_list.of(each["request"])) for each in case["node"]["pods"]}
    for each in case["node"]["pods"]:
        scene.pod(each["name"], {"quota": "q", **each}, NODE)
    pod = scene.pod("preemptor", {"quota": "q", **case["pod"]})
    request, limit = (nanos_of(resource_list.of(x)) for x in (case["pod"]["request"], case["quotaLimit"]))
    table = scene.cluster.table

    def may_stay() -> bool:
        used = nanos_of(resource_list.of(case["quotaUsed"]))
        for name in case.get("inQuotaCache") or ():
            if table.place_of(name) is None:
                accumulate_in_place(used, negated(sizes[name]))
        return fits(request, limit, used, limit)

    removed = [stock.Victim.of(each, NOW_S) for each in scene.lesser(pod)]
    diagnosis = scene.cluster.refused(pod)
    found = try_without(removed, table, 0, stock.Budgets(), diagnosis, may_stay)
    if isinstance(found, stock.Candidate):
        return {"status": "Success", "victims": [each.pod.uid for each in found.victims]}
    if found is NO_VICTIMS:
        return {"status": found.code.word, "victims": []}
    # Nobody has to go, or it does not help: the node itself may have said why for good.
    return {"status": "Success" if found.code is Code.ERROR else "Unschedulable", "victims": []}


def overuse_revoke(case: Case) -> Any:
    if case["kind"] == "monitor":
        return {"trigger": _triggers(case)}
    assigned = [
        QuotaPod(
            name=each.get("name", ""),
            priority=each.get("priority", 0),
            start_s=each.get("start", 0),
            request=resource_list.of(each.get("request") or {}),
            is_preemptible=not each.get("nonPreemptible", False),
        )
        for each in case["assignedPods"]
    ]
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
