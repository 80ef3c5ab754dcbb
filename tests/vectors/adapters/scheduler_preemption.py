"""Areas `stock-preemption-*`: dry runs on a node table, with the filters of the case."""

from types import SimpleNamespace
from typing import Any

from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.groups import PodDisruptionBudget
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.clock import rfc3339
from koordinator.scheduler.config import config
from koordinator.scheduler.plugin.status import SUCCESS, Code, Status
from koordinator.scheduler.plugins.preemption.plugin import DefaultPreemption
from koordinator.scheduler.plugins.preemption.victims import Candidate, Victim, choose
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.small_cluster import NOW_S, SmallCluster

Case = dict[str, Any]


def candidates(case: Case) -> list[Candidate]:
    """What the dry runs on all nodes find."""
    filters = case.get("filters") or ["NodeResourcesFit"]
    enabled = [{"name": name} for name in (*filters, "PrioritySort", "DefaultBinder", "DefaultPreemption")]
    plugins = {"multiPoint": {"enabled": enabled, "disabled": [{"name": "*"}]}}
    profile = {"plugins": plugins, "percentageOfNodesToScore": 0}
    cluster = SmallCluster(config.decode({"profiles": [profile]}))
    preemptor = cluster.plugin(DefaultPreemption).preemptor
    for budget in case.get("pdbs") or ():
        preemptor.budgets.set(from_builtins(budget, PodDisruptionBudget))
    for each in case["nodes"]:
        cluster.node(each)
    for each in case["pods"]:
        cluster.pod(each)
    pod = cluster.pod(case["pod"])
    return [
        option.candidate()
        for option in preemptor.dry_run(pod, cluster.table.rows, cluster.refused(pod)).options
    ]


def _victims(found: Candidate) -> list[str]:
    return sorted(victim.pod.pod.metadata.name for victim in found.victims)


def victims(case: Case) -> Any:
    found = {
        each.node_name: {"victims": _victims(each), "pdbViolations": each.violations}
        for each in candidates(case)
    }
    return {"candidates": found}


def node(case: Case) -> Any:
    best = choose(candidates(case))
    return {"node": best.node_name if best is not None else None}


def basic_victims(case: Case) -> Any:
    """`kube-scheduler-basics`: one node that has nothing but CPUs."""
    pods = [
        {
            "metadata": {
                "name": pod["name"],
                "namespace": "default",
                "labels": {f"pdb-{name}": "" for name in pod.get("pdbs", ())},
            },
            "spec": {**_asks(pod["cpu"], pod["priority"]), "nodeName": "n"},
            "status": {"startTime": rfc3339(NOW_S - pod["ageSeconds"])},
        }
        for pod in case["pods"]
    ]
    budgets = [
        {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"selector": {"matchLabels": {f"pdb-{name}": ""}}},
            "status": {"disruptionsAllowed": allowed},
        }
        for name, allowed in case["pdbsAllowed"].items()
    ]
    full = {
        "nodes": [
            {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": case["nodeCPU"], "pods": 1000}}}
        ],
        "pods": pods,
        "pod": {
            "metadata": {"name": "preemptor", "namespace": "default"},
            "spec": _asks(case["podCPU"], case["podPriority"]),
        },
        "pdbs": budgets,
    }
    for found in candidates(full):
        return {"victims": _victims(found), "pdbViolations": found.violations}
    return {"victims": None}


def _asks(cpu: int, priority: int) -> Case:
    return {"priority": priority, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}


def basic_node(case: Case) -> Any:
    found = [
        Candidate(
            each["node"],
            tuple(_victim(victim["priority"], victim["ageSeconds"]) for victim in each["victims"]),
            each["pdbViolations"],
        )
        for each in case["candidates"]
    ]
    best = choose(found)
    return {"node": best.node_name if best is not None else None}


def _victim(priority: int, age_s: float) -> Victim:
    body = {"metadata": {"name": "v"}, "spec": {"priority": priority}}
    info = PodInfo.of(from_builtins(body, Pod), ResourceRegistry())
    return Victim(info, priority, NOW_S - age_s)


def eligible(case: Case) -> Any:
    cluster = SmallCluster.shipped()
    cluster.node({"metadata": {"name": "n"}, "status": {"allocatable": {"pods": "1000"}}})
    for number, each in enumerate(case["podsOnNominatedNode"]):
        cluster.pod(_pod(f"other-{number}", each, "n"))
    body = _pod("preemptor", case) | {"status": {"nominatedNodeName": "n" if case["nominatedNode"] else ""}}
    codes = {code.word: code for code in Code}
    status = Status(codes[case["nominatedNodeStatus"]]) if case["nominatedNode"] else SUCCESS
    diagnosis: Any = SimpleNamespace(status_of=lambda row: status)
    message = cluster.plugin(DefaultPreemption).preemptor.objection(cluster.pod(body), diagnosis)
    return {"eligible": not message, "message": message}


def _pod(name: str, case: Case, node: str = "") -> Case:
    meta: Case = {"name": name, "namespace": "default"}
    if case.get("terminating"):
        meta["deletionTimestamp"] = rfc3339(NOW_S)
    conditions = []
    if case.get("preemptionCondition"):
        conditions.append({"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"})
    spec = {
        "nodeName": node,
        "priority": case["priority"],
        "preemptionPolicy": case.get("preemptionPolicy"),
    }
    return {"metadata": meta, "spec": spec, "status": {"conditions": conditions}}


ADAPTERS = {
    "stock-preemption-eligible": eligible,
    "stock-preemption-victims": victims,
    "stock-preemption-node": node,
}
