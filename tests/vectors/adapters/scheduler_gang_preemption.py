"""Area `gang-preemption`: the job preemption of Coscheduling on a small cluster."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from koordinator.api import labels
from koordinator.api.network_topology import NetworkTopologySpec
from koordinator.clock import rfc3339
from koordinator.scheduler.plugin.topology_tree import build
from koordinator.scheduler.plugins.coscheduling.job_preemptor import JobPreemption, PreemptReason
from koordinator.scheduler.plugins.coscheduling.jobs import PreemptorJob
from koordinator.scheduler.plugins.coscheduling.plugin import Coscheduling
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.small_cluster import NOW_S, SmallCluster
from tests.vectors.adapters.scheduler_network_topology import LAYERS

Case = dict[str, Any]
ARGS = {"enablePreemption": True, "awareNetworkTopology": True}
FILLER_CPU = 100_000
UNTOUCHED = (
    PreemptReason.ATTEMPTED,
    PreemptReason.NO_MEMBERS,
    PreemptReason.NEVER,
    PreemptReason.TERMINATING,
)


def preemption(case: Case) -> Any:
    cluster = SmallCluster.shipped(Coscheduling=ARGS)
    for node in case["nodes"]:
        statuses = case.get("nodeStatus")
        cluster.node(_node(node, "" if statuses is None else statuses.get(node["name"])))
        cluster.pod(_pod(_filler(node)))
    for each in case.get("existing") or ():
        cluster.pod(_pod(each), is_assumed=bool(each.get("waitingInPermit")))
    gang = case.get("gang") or {}
    pending = case.get("pending") or ([] if gang else [case["trigger"]])
    members = {each["name"]: cluster.pod(_pod(each, gang)) for each in pending}
    trigger = members.get(case["trigger"]["name"]) or cluster.pod(_pod(case["trigger"], gang))
    waiting = tuple(cluster.pod(_pod(each, gang), is_assumed=True) for each in case.get("waiting") or ())
    plugin = cluster.plugin(Coscheduling)
    if _is_planned(gang):
        cluster.network = build(
            msgspec.convert(gang.get("networkTopologySpec") or LAYERS, list[NetworkTopologySpec]),
            [(node["name"], node.get("labels") or {}) for node in case["nodes"]],
        )
        _begin_round(plugin, gang, trigger, members)
    job = PreemptorJob(
        name=gang.get("id", trigger.key),
        trigger=trigger,
        members={each.key: each for each in members.values()},
        waiting=waiting,
        is_gang=bool(gang),
    )
    found, _ = plugin.preemption.decide(job, cluster.refused(trigger), gang.get("preemptionMessage", ""))
    return _answer(found, job, gang.get("preemptionMessage", ""))


def _is_planned(gang: Case) -> bool:
    return "gatherStrategy" in gang


def _begin_round(plugin: Coscheduling, gang: Case, trigger: PodInfo, members: Mapping[str, PodInfo]) -> None:
    """The trigger is the first that is tried, or comes after as many others as were."""
    for each in members.values():
        plugin.gangs.rounds.on_pod_add(each.pod)
    others = [each for each in members.values() if each.uid != trigger.uid]
    first = trigger if gang.get("attempted", 1) <= 1 or not others else others[-1]
    plugin.gangs.begin(first.pod)


def _filler(node: Case) -> Case:
    """A pod that nobody may evict, for which the node is larger: no pod is larger than a node then, so that nodes
    which do not take it now might do so after evictions, as far as the case does not say otherwise."""
    return {
        "name": f"filler-{node['name']}",
        "node": node["name"],
        "cpu": FILLER_CPU,
        "disablePreemptible": True,
    }


def _node(node: Case, status: str | None) -> Case:
    """`status` of a node that the case does not name is None."""
    return {
        "metadata": {"name": node["name"], "labels": node.get("labels") or {}},
        "spec": {"unschedulable": status in (None, "UnschedulableAndUnresolvable")},
        "status": {"allocatable": {"cpu": str(node["cpu"] + FILLER_CPU), "pods": "1000"}},
    }


def _pod(pod: Case, gang: Case | None = None) -> Case:
    own = {
        labels.QUESTIONED_OBJECT_KEY: pod.get("job"),
        labels.DISABLE_PREEMPTIBLE: "true" if pod.get("disablePreemptible") else None,
        labels.QUOTA_PREEMPTIBLE: "false" if pod.get("quotaNonPreemptible") else None,
    }
    meta: Case = {
        "name": pod["name"],
        "namespace": "default",
        "uid": pod["name"],
        "labels": {name: value for name, value in own.items() if value},
        "annotations": _gang_annotations(gang) if gang and _is_planned(gang) else {},
    }
    conditions = []
    if terminating := pod.get("terminating"):
        meta["deletionTimestamp"] = rfc3339(NOW_S)
    if terminating == "byPreemption":
        conditions.append({"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"})
    return {
        "metadata": meta,
        "spec": {
            "nodeName": pod.get("node", ""),
            "priority": pod.get("priority", 0),
            "preemptionPolicy": pod.get("preemptionPolicy"),
            "schedulerName": "koord-scheduler",
            "containers": [{"name": "c", "resources": {"requests": {"cpu": str(pod.get("cpu", 0))}}}],
        },
        "status": {"nominatedNodeName": pod.get("nominatedNode", ""), "conditions": conditions},
    }


def _gang_annotations(gang: Case) -> dict[str, str]:
    return {
        labels.GANG_NAME: gang["id"].rpartition("/")[2],
        labels.GANG_MIN_AVAILABLE: "1",
        labels.GANG_NETWORK_TOPOLOGY_SPEC: json.dumps({"gatherStrategy": gang["gatherStrategy"]}),
    }


def _answer(found: JobPreemption, job: PreemptorJob, earlier: str) -> Case:
    answer: Case = {
        "outcome": "success" if found.is_success else "unschedulable",
        "message": found.message,
        "groupMessage": earlier or found.kept(job.trigger.key),
        "nominatedNode": "unchanged",
    }
    if found.reason in UNTOUCHED:
        return answer
    nodes = {_name(key): node for key, node in found.nominations.items()}
    kept = {_of(each): each.node_name if found.is_success else "" for each in job.waiting}
    plugin = "JobPreemptionSuccessPlugin" if found.is_success else "JobPreemptionFailurePlugin"
    return {
        **answer,
        "nominatedNode": nodes.get(_of(job.trigger), ""),
        "nominations": {**dict.fromkeys(map(_of, job.members.values()), ""), **nodes, **kept},
        "victims": sorted(_name(each.pod.key) for each in found.evictions),
        "victimActions": {_name(each.pod.key): each.action.value for each in found.evictions},
        "waitingRejectedBy": plugin,
    }


def _of(pod: PodInfo) -> str:
    return pod.pod.metadata.name


def _name(key: str) -> str:
    return key.rpartition("/")[2]


def same(expected: Any, actual: Any) -> bool:
    """What is not listed does not count; victims are a set."""
    wanted = dict(expected)
    if "victims" in wanted:
        wanted["victims"] = sorted(wanted["victims"])
    return all(actual.get(name) == value for name, value in wanted.items())


ADAPTERS = {"gang-preemption": preemption}
COMPARE = {"gang-preemption": same}
