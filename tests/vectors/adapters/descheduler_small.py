"""Areas of the descheduler about pods, order, limits and configuration."""

from typing import Any

import msgspec
import numpy as np

from koordinator import clock
from koordinator.api import duration
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.errors import ProtocolError
from koordinator.api.meta import controller_of
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.api.resource_vector import exact_amount
from koordinator.descheduler import configuration, facts, node_fit, plugin, pod_filter
from koordinator.descheduler.config.low_node_load import pools
from koordinator.descheduler.migration import arbitration, gates, jobs, object_limiter
from koordinator.descheduler.node_fit import NodeFree
from koordinator.descheduler.plugins.built_in import BUILT_IN
from koordinator.descheduler.plugins.low_node_load import evict
from koordinator.descheduler.pod_filter import EvictableOptions
from tests.vectors.compare import subset, tolerant

ORIGIN_S = 1_700_000_000.0
DURATIONS = ("defaultJobTTL", "detectorCacheTimeout", "duration", "interval", "timeout")
TIMES = ("creationTimestamp", "deletionTimestamp", "lastTransitionTime", "updateTime", "startTime")


def with_times(obj: Any) -> Any:
    """`obj` with seconds on the cases' clock turned into texts."""
    if isinstance(obj, list):
        return [with_times(one) for one in obj]
    if not isinstance(obj, dict):
        return obj
    return {
        name: clock.rfc3339_micro(ORIGIN_S + member)
        if name in TIMES and isinstance(member, int | float)
        else with_times(member)
        for name, member in obj.items()
    }


def pod_of(obj: Any) -> Pod:
    return from_builtins(with_times(obj), Pod)


def pods_of(objs: Any) -> list[Pod]:
    return [pod_of(obj) for obj in objs]


def nodes_of(objs: Any) -> list[Node]:
    return [from_builtins(with_times(obj), Node) for obj in objs]


def rooms_of(nodes: list[Node], pods: list[Pod]) -> list[NodeFree]:
    return [node_fit.room_of(node, on_node(node, pods)) for node in nodes]


def on_node(node: Node, pods: list[Pod]) -> list[Pod]:
    return [pod for pod in pods if pod.spec.node_name == node.metadata.name]


def amounts(raw: dict[str, Any]) -> dict[str, int]:
    return {name: exact_amount(name, amount) for name, amount in raw.items()}


def fit(case: dict[str, Any]) -> Any:
    pod = pod_of(case["pod"])
    rooms = rooms_of(nodes_of(case["nodes"]), pods_of(case["other_pods"]))
    return {
        "fits": {room.node.metadata.name: node_fit.fits(pod, room) for room in rooms},
        "fits_any_other_node": node_fit.fits_any_other(pod, rooms),
    }


def is_evictable(case: dict[str, Any]) -> Any:
    options = dict(case["options"])
    needs_fit = options.pop("nodeFit", False)
    pod = pod_of(case["pod"])
    refused = pod_filter.refusal(from_builtins(options, EvictableOptions))(pod)
    if not refused and needs_fit and not facts.has_evict_annotation(pod):
        rooms = rooms_of(nodes_of(case["nodes"]), pods_of(case.get("other_pods", [])))
        refused = "" if node_fit.fits_any_other(pod, rooms) else "it fits no other node"
    return {"evictable": not refused}


def limiter(case: dict[str, Any]) -> Any:
    given = case["limits"]
    limits = plugin.CycleLimits(
        per_node=given.get("perNode"), per_namespace=given.get("perNamespace"), total=given.get("total")
    )
    counter = plugin.CycleLimiter(limits)
    allowed = []
    for index, one in enumerate(case["evictions"]):
        if index == case.get("reset_before_index"):
            counter = plugin.CycleLimiter(limits)
        node = one.get("node") or ""
        allowed.append(not counter.refusal(node, one["namespace"]))
        if allowed[-1]:
            counter.count(node, one["namespace"])
    return {
        "allowed": allowed,
        "node_counts": dict(+counter.per_node),
        "namespace_counts": dict(+counter.per_namespace),
        "total": counter.total,
    }


def merge(case: dict[str, Any]) -> Any:
    plugins = from_builtins(case["plugins"] or {}, configuration.Plugins)
    return {"enabled": msgspec.to_builtins(configuration.enabled_plugins(plugins))}


def sort_pods(case: dict[str, Any]) -> Any:
    usage, excess = case["pod_usage"], amounts(case["excess"])

    def key(pod: Pod) -> Any:
        if not case["use_usage_key"]:
            return facts.arbitration_key(pod)
        own = usage.get(pod.key)
        score = None if own is None else evict.pod_score(amounts(own), excess, case["weights"])
        return facts.usage_key(pod, score)

    return {"order": [pod.key for pod in sorted(pods_of(case["pods"]), key=key)]}


def scores(case: dict[str, Any]) -> Any:
    if case["kind"] == "pod":
        found = evict.pod_score(amounts(case["usage"]), amounts(case["excess"]), case["weights"])
        return {"score": found}
    if case["kind"] == "node":
        return {"score": score_of(case["usage"], case["capacity"], case["weights"])}

    def place(node: dict[str, Any]) -> tuple[int, str]:
        return -score_of(node["usage"], node["allocatable"], case["weights"]), node["name"]

    return {"hottest_first": [node["name"] for node in sorted(case["nodes"], key=place)]}


def score_of(usage: dict[str, Any], capacity: dict[str, Any], weights: dict[str, int]) -> int:
    """Only resources that the node uses count, also with their weight."""
    used, most = amounts(usage), amounts(capacity)
    columns = np.array([list(used.values())], np.int64), np.array([[most.get(n, 0) for n in used]], np.int64)
    return int(evict.node_scores(*columns, list(used), weights)[0])


def defaults(case: dict[str, Any]) -> Any:
    args = BUILT_IN[case["plugin"]].completed(case["args"])
    answer = {"args": shown(args)}
    if case["plugin"] == "LowNodeLoad":
        answer["effective_node_pools"] = [shown(pool) for pool in pools(args)]
    return answer


def shown(value: Any) -> Any:
    """All members that are set, defaults included."""
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.fields(value)
        members = {field.encode_name: getattr(value, field.name) for field in fields}
        return {
            name: canonical(member) if name in DURATIONS else shown(member)
            for name, member in members.items()
            if member is not None
        }
    if isinstance(value, list):
        return [shown(one) for one in value]
    if isinstance(value, dict):
        return {name: shown(member) for name, member in value.items()}
    return value


def canonical(text: str) -> str:
    return duration.text_of(duration.parse(text))


def validation(case: dict[str, Any]) -> Any:
    try:
        BUILT_IN[case["plugin"]].read(case["args"])
    except ProtocolError:
        return {"valid": False}
    return {"valid": True}


def max_unavailable(case: dict[str, Any]) -> Any:
    return {"max": object_limiter.limit(case["replicas"], case["limit"])}


def object_limits(case: dict[str, Any]) -> Any:
    allowances = {
        kind: object_limiter.Allowance(
            duration_s=one["durationSeconds"],
            max_migrating=one.get("maxMigrating"),
            burst=one.get("burst", 0),
        )
        for kind, one in case["object_limiters"].items()
    }
    limiter = object_limiter.ObjectLimiter(allowances, case["max_migrating_per_workload"])
    blocked = []
    for event in case["events"]:
        subject = object_limiter.Subject(event["workload"], case["replicas"], event["namespace"])
        if event["op"] == "evicted":
            limiter.evicted(subject, event["at"])
        else:
            blocked.append(bool(limiter.blocking(subject, event["at"])))
    return {"blocked": blocked}


def jobs_of(objs: Any) -> list[PodMigrationJob]:
    return [from_builtins(with_times(obj), PodMigrationJob) for obj in objs]


def arbitration_sort(case: dict[str, Any]) -> Any:
    waiting, others = jobs_of(case["waiting_jobs"]), jobs_of(case["other_jobs"])
    pods = {pod.key: pod for pod in pods_of(case["pods"])}
    ordered = arbitration.order(
        [arbitration.WaitingJob(job, pods.get(jobs.pod_key(job))) for job in waiting],
        [*waiting, *others],
        pods.get,
    )
    return {"order": [one.job.metadata.name for one in ordered]}


def arbitration_round(case: dict[str, Any]) -> Any:
    def waiting(name: str) -> arbitration.WaitingJob:
        job = from_builtins({"metadata": {"name": name}}, PodMigrationJob)
        pod = None if name in case["pod_missing"] else pod_of({"metadata": {"name": name}})
        return arbitration.WaitingJob(job, pod)

    def refused(names: list[str]) -> Any:
        return lambda pod: "refused" if pod.metadata.name in names else ""

    found = arbitration.judge(
        [waiting(name) for name in case["jobs_in_sorted_order"]],
        refused(case["non_retryable_rejects"]),
        refused(case["retryable_rejects"]),
    )
    return {
        "passed": [one.job.metadata.name for one in found.passed],
        "failed": [one.waiting.job.metadata.name for one in found.failed],
        "still_waiting": [one.waiting.job.metadata.name for one in found.refused],
    }


def arbitration_filter(case: dict[str, Any]) -> Any:
    pod = pod_of(case["pod"])
    pods = pods_of(case["pods"])
    all_jobs = jobs_of(case["jobs"])
    counted = jobs.is_open
    if case["arbitrating"]:
        passed = [job.metadata.uid for job in all_jobs if job.metadata.name in case["arbitrated_jobs"]]
        counted = jobs.counted_in_arbitration(passed)

    def workload_of(_: str, owner: Any) -> gates.Workload | None:
        known = case["workloads"].get(owner.uid, {"replicas": 0})
        members = tuple(p for p in pods if (c := controller_of(p)) is not None and c.uid == owner.uid)
        return None if known.get("error") else gates.Workload.of(known["replicas"], members)

    world = gates.GateState(
        open_jobs=jobs.JobCounts(filter(jobs.is_open, all_jobs)),
        counted_jobs=jobs.JobCounts(filter(counted, all_jobs)),
        pod_of={one.key: one for one in pods}.get,
        pods_of_node=lambda node: [one for one in pods if one.spec.node_name == node],
        workload_of=workload_of,
    )
    gate = gates.Gates(BUILT_IN["MigrationController"].read(case["args"]))
    non_retryable, retryable = not gate.non_retryable(pod, world), not gate.retryable(pod, world)
    return {
        "no_existing_job": not gate.existing_job(pod, world),
        "scheduler_ok": not gate.scheduler(pod),
        "non_retryable": non_retryable,
        "per_gate": {
            "global": not gate.globally(pod, world),
            "node": not gate.node(pod, world),
            "namespace": not gate.namespace(pod, world),
            "workload": not gate.workload(pod, world),
            "expected_replicas": not gate.expected_replicas(pod, world),
        },
        "retryable": retryable,
        "filter": not gate.admission(pod, world),
        "arbitration": "failed" if not non_retryable else "passed" if retryable else "wait",
    }


ADAPTERS = {
    "descheduler-node-fit": fit,
    "descheduler-evictable": is_evictable,
    "descheduler-eviction-limiter": limiter,
    "descheduler-plugin-merge": merge,
    "descheduler-pod-sorter": sort_pods,
    "descheduler-usage-score": scores,
    "descheduler-config-defaults": defaults,
    "descheduler-config-validation": validation,
    "descheduler-max-unavailable": max_unavailable,
    "descheduler-object-limiter": object_limits,
    "descheduler-arbitrate-sort": arbitration_sort,
    "descheduler-arbitrate-round": arbitration_round,
    "descheduler-arbitrate-filter": arbitration_filter,
}

COMPARE = {"descheduler-config-defaults": subset, "descheduler-usage-score": tolerant(1e-9)}
