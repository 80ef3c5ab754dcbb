"""Areas `prod-reclaimable` and `nodemetric-report`."""

from typing import Any

from koordinator.api import priority, qos, quantity, resources
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.node_metric import NodeMetricSpec, NodeMetricStatus, ResourceMap
from koordinator.api.slo import HostApplicationSpec
from koordinator.host.gpu import GPUDevice
from koordinator.koordlet.predict import reclaimable
from koordinator.koordlet.predict.reclaimable import NOTHING, ProdPods, ReclaimableAmount
from koordinator.koordlet.report import node_metric
from koordinator.koordlet.report.node_metric import CollectPolicy, ReportSubjects
from koordinator.koordlet.series import SeriesSample, SeriesStore


def prod_reclaimable(case: dict[str, Any]) -> Any:
    listed = [from_builtins(raw, Pod) for raw in case["pods"]]
    ages_s = {pod.metadata.uid: raw["ageSeconds"] for pod, raw in zip(listed, case["pods"], strict=True)}
    predictions = case["predictions"]
    peaks = {uid: _peak(raw) for uid, raw in predictions["pods"].items()}
    prod = ProdPods.on_one_node(reclaimable.prod_pods(listed, peaks, ages_s))
    allocatable = reclaimable.rows((reclaimable.allocatable_of(from_builtins(case["node"], Node)),))
    margin = case["safetyMarginPercent"]
    learnt = predictions.get("classes", {})
    common = [predictions["system"], *(learnt[name] for name in ("koord-prod", "none") if name in learnt)]
    peak = reclaimable.rows((sum(map(_peak, common), NOTHING),))
    by_pods = reclaimable.by_pods_of(allocatable, prod, margin, case["coldStartSeconds"])
    by_class = reclaimable.by_class_of(allocatable, prod, peak, margin)
    pods, classes, both = (
        each.of(0) for each in (by_pods, by_class, reclaimable.cautious_of(by_pods, by_class))
    )
    return {
        "byPods": _amount(pods.reclaimable),
        "byClass": _amount(classes.reclaimable),
        "reclaimable": _amount(both.reclaimable),
        "peakByPods": _amount(pods.peak),
        "peakByClass": _amount(classes.peak),
        "peak": _amount(both.peak),
    }


def _peak(raw: dict[str, Any]) -> ReclaimableAmount:
    return ReclaimableAmount(raw["p95"]["cpuMilli"], raw["p98"]["memoryBytes"])


def _amount(amount: ReclaimableAmount) -> dict[str, int]:
    return {"cpuMilli": amount.cpu_milli, "memoryBytes": amount.memory_bytes}


def nodemetric_report(case: dict[str, Any]) -> Any:
    if case["op"] == "class":
        pod = from_builtins(case["pod"], Pod)
        return {"priority": priority.default(pod).value, "qos": qos.default(pod).value}
    policy = node_metric.collect_policy(from_builtins(case.get("nodeMetricSpec") or {}, NodeMetricSpec))
    if case["op"] == "policy":
        return {
            "reportIntervalSeconds": policy.report_interval_s,
            "aggregateDurationSeconds": policy.aggregate_duration_s,
            "durations": list(policy.durations),
            "nodeMemoryCollectPolicy": policy.memory_policy,
        }
    status = node_metric.status_of(_store(case), _known(case), policy, case["nowMs"], "")
    parts = _parts(status, policy, bool(case.get("gpus")))
    return {name: parts[name] for name in case["read"]}


def _store(case: dict[str, Any]) -> SeriesStore:
    store = SeriesStore()
    for each in case["series"]:
        properties = each.get("properties", {})
        store.append(SeriesSample(each["kind"], at_ms, value, properties) for at_ms, value in each["points"])
    return store


def _known(case: dict[str, Any]) -> ReportSubjects:
    return ReportSubjects(
        pods=[from_builtins(raw, Pod) for raw in case.get("pods", [])],
        host_applications=[
            from_builtins(raw, HostApplicationSpec) for raw in case.get("hostApplications", [])
        ],
        gpus=[GPUDevice(raw["uuid"], raw["minor"], "", raw["memoryTotal"]) for raw in case.get("gpus", [])],
        numa_nodes=case.get("numaNodes", []),
        has_cold_pages=case.get("kidledStarted", False),
    )


def _parts(status: NodeMetricStatus, policy: CollectPolicy, has_gpus: bool) -> dict[str, Any]:
    node = status.node_metric
    assert node is not None

    def usage(found: ResourceMap, with_devices: bool = False) -> dict[str, Any]:
        return _usage(found, with_devices and has_gpus)

    def aggregated(found: Any, with_devices: bool) -> list[dict[str, Any]]:
        return [
            {
                "duration": text,
                "usage": {name: usage(each, with_devices) for name, each in entry.usage.items()},
            }
            for text, entry in zip(policy.durations, found, strict=True)
        ]

    return {
        "nodeUsage": usage(node.node_usage, True),
        "systemUsage": usage(node.system_usage),
        "aggregatedNodeUsages": aggregated(node.aggregated_node_usages, True),
        "aggregatedSystemUsages": aggregated(node.aggregated_system_usages, False),
        "numaUsages": [
            {
                "numaNodeID": each.numa_node_id,
                "nodeUsage": usage(each.node_usage),
                "systemUsage": usage(each.system_usage),
            }
            for each in node.numa_usages
        ],
        "podsMetric": [
            {
                "namespace": each.namespace,
                "name": each.name,
                "podUsage": usage(each.pod_usage, True),
                "priority": each.priority,
                "qos": each.qos,
            }
            for each in status.pods_metric
        ],
        "hostApplicationMetric": [
            {"name": each.name, "usage": usage(each.usage), "priority": each.priority, "qos": each.qos}
            for each in status.host_application_metric
        ],
    }


def _usage(found: ResourceMap, with_devices: bool) -> dict[str, Any]:
    if not found.resources and not found.devices:
        return {}
    usage: dict[str, Any] = {}
    if found.resources:
        usage["cpuMilli"] = quantity.milli(found.resources[resources.CPU])
        usage["memoryBytes"] = quantity.value(found.resources[resources.MEMORY])
    if with_devices:
        usage["devices"] = [
            {
                "uuid": device.id,
                "minor": device.minor,
                "gpuCore": quantity.value(device.resources[resources.GPU_CORE]),
                "gpuMemoryBytes": quantity.value(device.resources[resources.GPU_MEMORY]),
                "gpuMemoryRatio": quantity.value(device.resources[resources.GPU_MEMORY_RATIO]),
            }
            for device in found.devices
        ]
    return usage


ADAPTERS = {"prod-reclaimable": prod_reclaimable, "nodemetric-report": nodemetric_report}
