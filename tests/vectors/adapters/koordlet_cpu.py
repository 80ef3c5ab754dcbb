"""Areas `cpu-suppress`, `cpu-burst` and `sysconfig-blkio`."""

import random
from typing import Any

import msgspec

from koordinator.api import cpuset, labels, qos, quantity
from koordinator.api.annotations.koordlet import CPU_BURST
from koordinator.api.annotations.node import NodeReservation, SystemQOSResource
from koordinator.api.decode import from_builtins
from koordinator.api.errors import ProtocolError
from koordinator.api.qos import KubeQoS
from koordinator.api.slo import CgroupPath, CPUBurstStrategy, HostApplicationSpec, SystemStrategy
from koordinator.api.slo_qos import IOConfig
from koordinator.host.sysfs import Processor
from koordinator.koordlet.qos import blkio, cpu_burst, cpu_suppress, system_config
from koordinator.koordlet.qos.cpu_burst import (
    BurstNodeState,
    BurstTokenBucket,
    ContainerQuota,
    PoolPod,
    QuotaPlan,
)
from koordinator.koordlet.qos.cpu_suppress import CPUHolder, CPUUsage, SuppressPodClass


def cpu_suppress_area(case: dict[str, Any]) -> Any:
    match case["op"]:
        case "amount":
            return {"beMilliCPU": _amount(case)}
        case "pick":
            return {"cpus": cpu_suppress.pick(case["count"], _processors(case))}
        case "cpuset":
            return {"beCPUSet": _suppressed(case)}
        case "recover":
            found = cpu_suppress.recovery_cpus(_processors(case), *_held(case))
            return {"beCPUSet": cpuset.text_of(found)}
        case "quota":
            capacity_milli = quantity.milli(case["capacityCPU"])
            decision = cpu_suppress.decide_quota(case["beMilliCPU"], capacity_milli, case["currentQuota"])
            return {"write": decision.is_written, "quota": decision.quota_us}
    raise AssertionError(case["op"])


def _amount(case: dict[str, Any]) -> int:
    node = case["node"]
    reservation = from_builtins(node.get("reservation", {}), NodeReservation)
    capacity, allocatable = quantity.milli(node["capacityCPU"]), quantity.milli(node["allocatableCPU"])
    pods = {
        pod["uid"]: SuppressPodClass(qos.of_name(pod["qos"]), KubeQoS(pod["kubeQOS"])) for pod in case["pods"]
    }
    applications = [_application(raw) for raw in case["hostApps"]]
    usage = CPUUsage(case["nodeUsedCores"], case["podUsedCores"], case["hostAppUsedCores"])
    return cpu_suppress.suppress_amount(
        cpu_suppress.node_cpu(capacity, allocatable, reservation),
        usage,
        pods,
        applications,
        case["thresholdPercent"],
        case.get("minPercent"),
    ).be_milli


def _application(raw: dict[str, Any]) -> HostApplicationSpec:
    base = raw.get("cgroupBase")
    path = None if base is None else CgroupPath(base=base)
    return HostApplicationSpec(name=raw["name"], qos=raw.get("qos", ""), cgroup_path=path)


def _processors(case: dict[str, Any]) -> list[Processor]:
    return [from_builtins(raw, Processor) for raw in case["processors"]]


def _held(case: dict[str, Any]) -> tuple[list[CPUHolder], cpuset.CPUSet, SystemQOSResource | None]:
    holders = [CPUHolder(qos.of_name(pod["qos"]), cpuset.parse(pod["cpuset"])) for pod in case["pods"]]
    system = case.get("systemQOS")
    resource = None if system is None else from_builtins(system, SystemQOSResource)
    return holders, cpuset.parse(case.get("reservedCPUs") or ""), resource


def _suppressed(case: dict[str, Any]) -> str | None:
    processors, old = _processors(case), cpuset.parse(case["oldCPUSet"])
    usable = cpu_suppress.usable_cpus(processors, *_held(case))
    cpus = cpu_suppress.decide_cpuset(case["beMilliCPU"], old, len(processors), usable)
    return cpuset.text_of(cpus) or None


def cpu_burst_area(case: dict[str, Any]) -> Any:
    return {
        "node_state": _node_state,
        "config": _config,
        "managed": _managed,
        "burst_values": _burst_values,
        "quota_step": _quota_step,
        "limiter": _limiter,
        "sequence": _sequence,
    }[case["op"]](case)


def _node_state(case: dict[str, Any]) -> Any:
    used = case["podUsedCores"]
    pods = [
        PoolPod(qos.of_name(pod["qos"]), quantity.milli(pod["requestCPU"]), used.get(pod["uid"], 0.0))
        for pod in case["pods"]
    ]
    threshold = case["sharePoolThresholdPercent"]
    return {"state": cpu_burst.node_state(case["nodeUsedCores"], case["cpus"], pods, threshold).value}


def _strategy(raw: dict[str, Any] | None) -> CPUBurstStrategy:
    return from_builtins(raw or {}, CPUBurstStrategy)


def _config(case: dict[str, Any]) -> Any:
    node = None if case["nodeConfig"] is None else _strategy(case["nodeConfig"])
    text = case["annotation"]
    annotations = {} if text is None else {labels.CPU_BURST: text}
    try:
        has_own = CPU_BURST.read(annotations) is not None
    except ProtocolError:
        has_own = False
    settings = msgspec.to_builtins(cpu_burst.settings_of(node, annotations))
    return {"config": None if node is None and not has_own else settings}


def _managed(case: dict[str, Any]) -> Any:
    return {"managed": cpu_burst.is_managed(qos.of_name(case["qos"]), case["phase"])}


def _burst_values(case: dict[str, Any]) -> Any:
    settings = _strategy(case["config"])
    values = {
        each["name"]: cpu_burst.burst_us(settings, quantity.milli(each.get("limitCPU", 0)))
        for each in case["containers"]
        if each.get("hasID", True)
    }
    return {"containers": values, "pod": sum(values.values())}


def _bucket(
    settings: CPUBurstStrategy, old: BurstTokenBucket | None, seconds: float, percent: int
) -> BurstTokenBucket | None:
    capacity = cpu_burst.capacity_of(settings)
    if capacity is None:
        return None
    return cpu_burst.bucket_for(capacity, old, random.Random(0)).step(seconds, percent)


def _quota_step(case: dict[str, Any]) -> Any:
    settings = _strategy(case["config"])
    capacity = cpu_burst.capacity_of(settings)
    containers, untouched = [], {}
    for raw in case["containers"]:
        limit_milli = quantity.milli(raw.get("limitCPU", 0))
        if limit_milli <= 0 or not raw.get("running", True):
            untouched[raw["name"]] = raw["quota"]
            continue
        old = None if "initialTokens" not in raw else BurstTokenBucket(capacity or 0, raw["initialTokens"])
        percent = cpu_burst.usage_percent(raw.get("usedCores"), limit_milli)
        bucket = _bucket(settings, old, raw.get("secondsSinceLast", 0), percent)
        ratio = raw.get("throttledRatio")
        containers.append(ContainerQuota(raw["name"], limit_milli, raw["quota"], ratio, bucket))
    plan = cpu_burst.plan_pod(settings, BurstNodeState(case["nodeState"]), containers, case["podQuota"])
    return {
        "containers": {**plan.containers_us, **untouched},
        "pod": plan.pod_us,
        "operations": _operations(plan),
        "writes": [f"{write.container or 'pod'}={write.quota_us}" for write in plan.writes],
    }


def _operations(plan: QuotaPlan) -> dict[str, str]:
    return {name: operation.value for name, operation in plan.operations.items()}


def _limiter(case: dict[str, Any]) -> Any:
    settings = CPUBurstStrategy(
        cfs_quota_burst_period_seconds=case["periodSeconds"], cfs_quota_burst_percent=case["burstPercent"]
    )
    capacity = cpu_burst.capacity_of(settings)
    if capacity is None:
        return {"allowed": True, "tokens": case["tokens"]}
    bucket = BurstTokenBucket(capacity, case["tokens"]).step(case["seconds"], case["usagePercent"])
    return {"allowed": bucket.allows, "tokens": bucket.tokens}


def _sequence(case: dict[str, Any]) -> Any:
    settings = _strategy(case["config"])
    capacity = cpu_burst.capacity_of(settings)
    limit_milli, quota, pod_quota = quantity.milli(case["limitCPU"]), case["quota"], case["podQuota"]
    bucket = None if "initialTokens" not in case else BurstTokenBucket(capacity or 0, case["initialTokens"])
    has_percent = (
        settings.cfs_quota_burst_percent or 0
    ) >= 100  # below, the reference has no bucket and refuses
    rounds = []
    for each in case["rounds"]:
        percent = cpu_burst.usage_percent(each.get("usedCores"), limit_milli)
        bucket = _bucket(settings, bucket, each.get("seconds", 1), percent)
        container = ContainerQuota("c", limit_milli, quota, each.get("throttledRatio"), bucket)
        plan = cpu_burst.plan_pod(settings, BurstNodeState(each["nodeState"]), [container], pod_quota)
        quota, pod_quota = plan.containers_us["c"], plan.pod_us
        found = {"operation": plan.operations["c"].value, "quota": quota, "podQuota": pod_quota}
        rounds.append({**found, "tokens": bucket.tokens} if bucket is not None and has_percent else found)
    return {"rounds": rounds}


def sysconfig_blkio(case: dict[str, Any]) -> Any:
    match case["op"]:
        case "sysconfig":
            strategy = from_builtins(case["strategy"], SystemStrategy)
            memory_bytes = quantity.value(case["nodeMemory"])
            if memory_bytes <= 0:  # nothing is written while the node's memory is not known
                return {"writes": {}, "schedFeatures": []}
            return {
                "writes": system_config.wanted_files(strategy, memory_bytes),
                "schedFeatures": system_config.wanted_features(strategy, case["currentFeatures"]),
            }
        case "blkio_be":
            texts = blkio.group_texts(case["disk"], from_builtins(case["ioCfg"], IOConfig))
        case "blkio_root":
            texts = blkio.root_texts(case["disk"], from_builtins(case["ioCfg"], IOConfig))
        case "blkio_needs_write":
            return {"write": blkio.needs_write(case["current"], case["value"])}
        case _:
            raise AssertionError(case["op"])
    return {"writes": {knob.value: text for knob, text in texts.items()}}


def _any_order(expected: Any, actual: Any) -> bool:
    def sort(raw: Any) -> Any:
        return {**raw, "schedFeatures": sorted(raw["schedFeatures"])} if "schedFeatures" in raw else raw

    return bool(sort(expected) == sort(actual))


ADAPTERS = {
    "cpu-suppress": cpu_suppress_area,
    "cpu-burst": cpu_burst_area,
    "sysconfig-blkio": sysconfig_blkio,
}
COMPARE = {"sysconfig-blkio": _any_order}
