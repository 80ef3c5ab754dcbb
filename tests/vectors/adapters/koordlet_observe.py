"""Areas of observing: `usage-rates`, `series-aggregate`, `histogram-percentile`, `kubelet-reserved-cpus`."""

from typing import Any

import numpy as np

from koordinator.api import cpuset
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.host import perf_events, sysfs
from koordinator.host.cgroup_values import MemoryStat, Throttling
from koordinator.host.sysfs import HostCPUTopology, Processor
from koordinator.koordlet.collect import rates
from koordinator.koordlet.collect.rates import Aged, HostApplicationUsage, MeasuredUsage
from koordinator.koordlet.errors import ModelError
from koordinator.koordlet.predict import histogram
from koordinator.koordlet.predict.histogram import HistogramCheckpoint, HistogramTable
from koordinator.koordlet.report import reserved_cpus
from koordinator.koordlet.report.reserved_cpus import KubeletConfig
from koordinator.koordlet.series import Aggregation, SeriesSample, SeriesStore
from tests.koordlet.predict.scalar_histogram import Histogram, linear_buckets
from tests.vectors.compare import tolerant

_KIB = 1024


def usage_rates(case: dict[str, Any]) -> Any:
    match case["op"]:
        case "node-cpu":
            hz = case["clockTicksPerSecond"]
            return {"cores": rates.node_cores(case["lastTicks"], case["ticks"], case["elapsedMs"], hz)}
        case "numa-cpu":
            last, now, numa = (_by_int(case[name]) for name in ("last", "now", "cpuToNUMA"))
            cores = rates.numa_cores(last, now, numa, case["elapsedMs"], case["clockTicksPerSecond"])
            return {"cores": _by_text(cores)}
        case "cgroup-cpu":
            return {"cores": rates.cgroup_cores(case["lastNs"], case["nowNs"], case["elapsedNs"])}
        case "be-usage":
            return {"milliCores": rates.be_usage_milli(case["lastNs"], case["nowNs"], case["elapsedMs"])}
        case "be-limit":
            smallest = cpuset.parse(case["smallestCpuset"])
            return {"milliCores": rates.be_limit_milli(smallest, case["quotaUs"], case["periodUs"])}
        case "be-request":
            pods = [from_builtins(pod, Pod) for pod in case["pods"]]
            return {"milliCores": rates.be_request_milli(pods)}
        case "throttled-ratio":
            last_reading = Throttling(case["lastPeriods"], case["lastThrottled"], 0)
            reading = Throttling(case["periods"], case["throttled"], 0)
            return {"ratio": rates.throttled_ratio(last_reading, reading)}
        case "system-usage":
            return {"sample": _system_usage(case)}
        case "system-numa":
            return _system_numa(case)
        case "hot-page-memory":
            return {"bytes": _hot_bytes(case)}
        case "host-app-total":
            known = [
                HostApplicationUsage(app["cores"], app["memoryStatUsageBytes"], app["memoryUsageBytes"])
                for app in case["apps"]
            ]
            total = rates.host_applications_total(known, case["policy"])
            return {"cores": total.cores, "bytes": total.memory_bytes}
        case "perf-scale":
            counts = [
                perf_events.scaled(each["value"], each["enabledNs"], each["runningNs"])
                for each in case["readings"]
            ]
            return {"count": sum(counts)}
    raise AssertionError(case["op"])


def _by_int(values: dict[str, int]) -> dict[int, int]:
    return {int(key): value for key, value in values.items()}


def _by_text(values: dict[int, float]) -> dict[str, float]:
    return {str(key): value for key, value in values.items()}


def _usage(raw: dict[str, Any] | None) -> MeasuredUsage | None:
    return None if raw is None else MeasuredUsage(raw["cores"], raw["bytes"], raw["ageMs"])


def _system_usage(case: dict[str, Any]) -> Any:
    pods = [MeasuredUsage(each["cores"], each["bytes"], each["ageMs"]) for each in case["pods"]]
    node, host_apps = _usage(case["node"]), _usage(case["hostApps"])
    found = rates.system_usage(node, pods, host_apps, case["outdatedMs"])
    return None if found is None else {"cores": found.cores, "bytes": found.memory_bytes}


def _aged(raw: dict[str, Any], field: str) -> dict[int, Aged]:
    return {int(numa): Aged(each[field], each["ageMs"]) for numa, each in raw.items()}


def _system_numa(case: dict[str, Any]) -> Any:
    pods = None if case["podsMemory"] is None else _aged(case["podsMemory"], "bytes")
    node_cpu, node_memory = _aged(case["nodeCPU"], "cores"), _aged(case["nodeMemory"], "bytes")
    found = rates.system_numa_usage(case["systemCores"], node_cpu, node_memory, pods, case["outdatedMs"])
    return {"cores": _by_text(found.cores), "bytes": _by_text(found.memory_bytes)}


def _hot_bytes(case: dict[str, Any]) -> int:
    if case["level"] == "node":
        total, free = case["memTotalKiB"] * _KIB, case["memFreeKiB"] * _KIB
        return rates.node_hot_bytes(total, free, case["coldBytes"])
    raw = case["memoryStat"]
    stat = MemoryStat(
        cache=0,
        rss=0,
        inactive_file=raw["inactiveFile"],
        active_file=raw["activeFile"],
        inactive_anon=raw["inactiveAnon"],
        active_anon=raw["activeAnon"],
        unevictable=raw["unevictable"],
    )
    return rates.cgroup_hot_bytes(stat, case["coldBytes"])


def series_aggregate(case: dict[str, Any]) -> Any:
    store = SeriesStore()
    for each in case["series"]:
        properties = each.get("properties", {})
        store.append(SeriesSample(each["kind"], at_ms, value, properties) for at_ms, value in each["points"])
    query = case["query"]
    points = store.query(query["kind"], query["startMs"], query["endMs"], query.get("properties", {}))
    values = {}
    for name in case["aggregations"]:
        value = points.aggregate(Aggregation.__members__.get(name.upper(), Aggregation.AVG))
        values[name] = "error" if value is None else value
    count = points.aggregate(Aggregation.COUNT)
    return {"count": count, "spanMs": points.span_ms, "values": values}


def histogram_percentile(case: dict[str, Any]) -> Any:
    options = case["histogram"]
    if options["scheme"] == "linear":
        buckets = linear_buckets(options["max"], options["size"])
    else:
        buckets = histogram.exponential_buckets(options["max"], options["first"], options["ratio"])
    half_life_s = options.get("halfLifeSeconds")

    def empty() -> Histogram:
        return Histogram(buckets, epsilon=options["epsilon"], half_life_s=half_life_s)

    if case["op"] == "scheme":
        empty()  # refuses what no histogram can be made with
        starts = {str(index): buckets.starts[index] for index in case["starts"]}
        found = {str(value): buckets.index_of(value) for value in case["find"]}
        return {"buckets": buckets.count, "starts": starts, "find": found}
    steps = case["steps"]
    if options["scheme"] == "exponential" and half_life_s and all(map(_is_a_sample, steps)):
        return _asked(case, _Row(HistogramTable(buckets, half_life_s), steps))
    return _asked(case, _play(empty(), steps, empty))


def _asked(case: dict[str, Any], played: "Histogram | _Row") -> dict[str, Any]:
    result: dict[str, Any] = {
        "empty": played.is_empty,
        "percentiles": {str(share): played.percentile(share) for share in case["percentiles"]},
    }
    if case.get("save"):
        saved = played.checkpoint()
        weights = {str(index): weight for index, weight in saved.bucket_weights.items()}
        result["checkpoint"] = {"totalWeight": saved.total_weight, "bucketWeights": weights}
    return result


def _is_a_sample(step: dict[str, Any]) -> bool:
    return step["do"] == "add" and step["weight"] == 1.0


class _Row:
    """A row of the table that the predictor keeps, after these samples."""

    def __init__(self, table: HistogramTable, steps: list[dict[str, Any]]) -> None:
        self._table, self._rows = table, np.array([0])
        table.grow(1)
        for step in steps:
            table.add(self._rows, [step["value"]], step["at"])
        self.is_empty = not self.checkpoint().bucket_weights

    def percentile(self, share: float) -> float:
        return float(self._table.percentile(self._rows, share)[0])

    def checkpoint(self) -> HistogramCheckpoint:
        return self._table.checkpoint(0)


def _play(target: Histogram, steps: list[dict[str, Any]], empty: Any) -> Histogram:
    for step in steps:
        match step["do"]:
            case "add":
                target.add(step["value"], step["weight"], step.get("at", 0))
            case "subtract":
                target.subtract(step["value"], step["weight"], step.get("at", 0))
            case "merge":
                target.merge(_play(empty(), step["other"], empty))
            case "load":
                target.load(_checkpoint(step["checkpoint"]))
    return target


def _checkpoint(raw: dict[str, Any] | None) -> HistogramCheckpoint:
    if raw is None:
        raise ModelError("checkpoint", "there is none")
    weights = {int(index): weight for index, weight in (raw.get("bucketWeights") or {}).items()}
    return HistogramCheckpoint(raw["totalWeight"], weights, raw.get("referenceSeconds"))


def kubelet_reserved_cpus(case: dict[str, Any]) -> Any:
    topology = _topology(case["topology"])
    if case["op"] == "take":
        cpus = reserved_cpus.take(topology, cpuset.parse(case["available"]), case["count"])
    else:
        config = from_builtins(case["kubeletConfig"], KubeletConfig)
        cpus = reserved_cpus.kubelet_reserved(topology, config)
    return {"cpus": cpuset.text_of(cpus)}


def _topology(rows: list[list[int]]) -> HostCPUTopology:
    return sysfs.topology_of(
        Processor(node=node, socket=socket, core=core, cpu=cpu) for cpu, core, socket, node in rows
    )


ADAPTERS = {
    "usage-rates": usage_rates,
    "series-aggregate": series_aggregate,
    "histogram-percentile": histogram_percentile,
    "kubelet-reserved-cpus": kubelet_reserved_cpus,
}
COMPARE = dict.fromkeys(ADAPTERS, tolerant(1e-9))
