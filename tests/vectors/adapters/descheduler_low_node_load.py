"""Areas of the descheduler about LowNodeLoad."""

from typing import Any

import msgspec

from koordinator.api import quantity
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.node_metric import NodeMetric
from koordinator.descheduler.config.low_node_load import AnomalyCondition, NodePool
from koordinator.descheduler.measurements import Observation, measured
from koordinator.descheduler.plugin import CycleLimiter, CycleLimits, EvictAction
from koordinator.descheduler.plugins.built_in import BUILT_IN
from koordinator.descheduler.plugins.low_node_load import usage
from koordinator.descheduler.plugins.low_node_load.cycle import (
    Detector,
    LowNodeLoad,
    PoolReport,
)
from koordinator.descheduler.plugins.low_node_load.evict import reason_text
from koordinator.descheduler.plugins.low_node_load.usage import Classified, NodeClass, classify
from tests.descheduler.builders import handle
from tests.vectors.adapters.descheduler_plugins import drive
from tests.vectors.adapters.descheduler_small import ORIGIN_S, amounts, nodes_of, on_node, pods_of, with_times
from tests.vectors.compare import exact

CLASS_NAMES = {
    "low": NodeClass.LOW,
    "high": NodeClass.HIGH,
    "prodLow": NodeClass.PROD_LOW,
    "prodHigh": NodeClass.PROD_HIGH,
    "bothLow": NodeClass.BOTH_LOW,
}


def anomaly(case: dict[str, Any]) -> Any:
    given_s = case["timeout_seconds"]
    condition = AnomalyCondition(
        timeout=f"{given_s}s" if given_s else None,
        consecutive_abnormalities=case["consecutive_abnormalities"],
        consecutive_normalities=case["consecutive_normalities"],
    )
    detector = Detector(condition)
    states = []
    for one in case["operations"]:
        now_s = float(one["at"])
        if one["op"] == "abnormal":
            detector.mark_abnormal(now_s)
        elif one["op"] == "normal":
            detector.mark_normal(now_s)
        elif one["op"] == "reset":
            detector.reset(now_s)
        states.append("anomaly" if detector.is_anomalous(now_s) else "ok")
    return {"state_after_each": states}


def pool_of(raw: dict[str, Any]) -> NodePool:
    members = dict(raw)
    condition = dict(members.pop("anomalyCondition", None) or {})
    if "timeoutSeconds" in condition:
        condition["timeout"] = f"{condition.pop('timeoutSeconds')}s"
    if condition:
        members["anomalyCondition"] = condition
    return from_builtins(members, NodePool)


def observation(now: float, nodes: list[Node], pods: list[Pod], metrics: dict[str, Any]) -> Observation:
    return Observation(
        now_s=ORIGIN_S + now,
        nodes=nodes,
        pods_of={node.metadata.name: on_node(node, pods) for node in nodes},
        metrics={name: measured(from_builtins(with_times(one), NodeMetric)) for name, one in metrics.items()},
    )


def class_names(found: Classified) -> dict[str, list[str]]:
    return {name: sorted(found.names(cls)) for name, cls in CLASS_NAMES.items()}


def classes(case: dict[str, Any]) -> Any:
    nodes = nodes_of(case["nodes"])
    seen = observation(case["now"], nodes, pods_of(case["pods"]), case["node_metrics"])
    filled = usage.fill(pool_of(case["pool"]))
    expiration_s = case.get("node_metric_expiration_seconds") or 0
    loads = usage.loads(seen.nodes, seen.pods_of, seen.metrics, filled.names, seen.now_s, expiration_s)
    found = classify(loads, filled)
    names = class_names(found)
    names["normal"] = sorted(found.names(NodeClass.NORMAL))
    names["skipped"] = sorted({n.metadata.name for n in nodes} - {load.name for load in loads})

    def limits(columns: Any, row: int) -> dict[str, int]:
        return dict(zip(filled.names, columns[row].tolist(), strict=True))

    def whole(own: dict[str, int]) -> dict[str, int]:
        return {name: usage.rounded_up(name, nanos) for name, nanos in own.items()}

    detail = {
        load.name: {
            "usage": whole(load.usage),
            "prod_usage": whole(load.prod_usage),
            "low": limits(found.limits.low, row),
            "high": limits(found.limits.high, row),
            "prod_low": limits(found.limits.prod_low, row),
            "prod_high": limits(found.limits.prod_high, row),
        }
        for row, load in enumerate(loads)
    }
    return {"classes": names, "detail": detail}


def text(case: dict[str, Any]) -> Any:
    prod = case["prod"]
    key = "prod_" if prod else ""
    capacity = amounts(case["allocatable"])
    high = case[f"{key}high_thresholds"]
    names = tuple(case[f"{key}usage"])
    used = {name: nanos(raw) for name, raw in case[f"{key}usage"].items()}
    over = [n for n in names if n in high and used[n] > high[n] * 0.01 * capacity[n] * usage.unit(n)]
    return {"reason": reason_text(used, capacity, high, over, prod)}


def nanos(raw: Any) -> int:
    return quantity.of(raw).nanos


def evict(case: dict[str, Any]) -> Any:
    limits = case.get("cycle_limits") or {}
    limiter = CycleLimiter(
        CycleLimits(
            per_node=limits.get("perNode"),
            per_namespace=limits.get("perNamespace"),
            total=limits.get("total"),
        )
    )
    args = dict(case["args"])
    has_expiration = "nodeMetricExpirationSeconds" in args
    decoded = BUILT_IN["LowNodeLoad"].read(args)
    if not has_expiration:
        decoded = msgspec.structs.replace(decoded, node_metric_expiration_seconds=0)
    rejects = set(case["filter_rejects"])
    plugin = LowNodeLoad(decoded, handle(lambda pod: pod.key not in rejects))
    nodes = nodes_of(case["nodes"])
    seen = observation(case["now"], nodes, pods_of(case["pods"]), case["node_metrics"])

    def accept(wanted: EvictAction) -> bool:
        meta, node = wanted.pod.metadata, wanted.pod.spec.node_name
        if limiter.refusal(node, meta.namespace):
            return False
        limiter.count(node, meta.namespace)
        return True

    report: PoolReport = drive(plugin.balance_pool(pool_of(case["pool"]), seen), accept)
    answer: dict[str, Any] = {
        "outcome": str(report.outcome),
        "evicted_count": 0 if decoded.dry_run else len(report.evicted),
        "evicted": [] if decoded.dry_run else [one.pod.key for one in report.evicted],
        "reasons": [] if decoded.dry_run else [one.reason for one in report.evicted],
    }
    if report.found is not None:
        answer["classes"] = class_names(report.found)
    return answer


def same_evictions(expected: Any, actual: Any) -> bool:
    checks = [exact(expected[name], actual.get(name)) for name in ("outcome", "evicted_count", "classes")]
    if "evicted_in_order" in expected:
        checks.append(exact(expected["evicted_in_order"], actual["evicted"]))
    if "evicted_set" in expected:
        checks.append(exact(sorted(expected["evicted_set"]), sorted(actual["evicted"])))
    if "reasons_in_order" in expected:
        checks.append(exact(expected["reasons_in_order"], actual["reasons"]))
    return all(checks)


def cycles(case: dict[str, Any]) -> Any:
    given = dict(case["args"])
    node_pools = [pool_of(raw) for raw in given.pop("nodePools")]
    decoded = BUILT_IN["LowNodeLoad"].read(given)
    decoded = msgspec.structs.replace(
        decoded, detector_cache_timeout=f"{case['detector_cache_ttl_seconds']}s", node_pools=node_pools
    )
    rejects = set(case["filter_rejects"])
    plugin = LowNodeLoad(decoded, handle(lambda pod: pod.key not in rejects))
    nodes, pods = nodes_of(case["nodes"]), pods_of(case["pods"])
    answer = []
    for one in case["cycles"]:
        seen = observation(one["now"], nodes, pods, one["node_metrics"])
        reports = drive(plugin.balance(seen), lambda _: True)
        shown = [
            {
                "pool": report.pool,
                "outcome": str(report.outcome),
                "evicted": [eviction.pod.key for eviction in report.evicted],
            }
            for report in reports[1:]  # the cases leave out the pool that the top level forms
        ]
        answer.append({"now": one["now"], "pools": shown})
    return {"cycles": answer}


ADAPTERS = {
    "descheduler-anomaly-detector": anomaly,
    "descheduler-lownodeload-classify": classes,
    "descheduler-lownodeload-evict": evict,
    "descheduler-lownodeload-cycles": cycles,
    "descheduler-lownodeload-reason": text,
}

COMPARE = {"descheduler-lownodeload-evict": same_evictions}
