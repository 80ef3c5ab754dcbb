"""Areas `bvt`, `cpuset-hook`, `batchresource`, `cpunorm-quota` and `runtime-hooks-misc`."""

from collections.abc import Callable
from typing import Any

from koordinator.api import labels, node_labels, qos
from koordinator.api.annotations.koordlet import ContainerResources
from koordinator.api.annotations.node import CPUSharedPool
from koordinator.api.decode import from_builtins
from koordinator.api.errors import KoordinatorError
from koordinator.api.qos import KubeQoS
from koordinator.api.slo import ResourceThresholdStrategy
from koordinator.api.slo_qos import ResourceQOSStrategy
from koordinator.koordlet.hooks import (
    batch_resource,
    core_sched,
    cpuset_allocator,
    device_inject,
    group_identity,
    oom_score,
    tc,
)
from koordinator.koordlet.hooks.batch_resource import BatchRule
from koordinator.koordlet.hooks.contexts import GroupResources
from koordinator.koordlet.hooks.cpuset_allocator import NodeCPUPools
from koordinator.koordlet.hooks.group_identity import Kernel
from koordinator.koordlet.qos import cpu_burst


def errors_alike(expected: Any, actual: Any) -> bool:
    """Equality, but an expected error only asks for an error."""
    if isinstance(expected, dict) and expected.get("error"):
        return bool(isinstance(actual, dict) and actual.get("error"))
    return bool(expected == actual)


def answered(area: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    """The area's function, with its refusals as answers: these areas expect more than the bare error."""

    def answer(case: dict[str, Any]) -> Any:
        try:
            return area(case)
        except KoordinatorError:
            return {"error": True}

    return answer


def bvt(case: dict[str, Any]) -> Any:
    rule = group_identity.rule_of(from_builtins(case["strategy"], ResourceQOSStrategy))
    if case["op"] == "rule":
        return {
            "enabled": rule.is_enabled,
            "byQoS": _by_text(rule.by_qos),
            "byKubeGroup": _by_text(rule.by_class_dir),
            "byKubeQoS": _by_text(rule.by_kube_qos),
        }
    kernel = Kernel(case.get("supported", True), case.get("sysctl"))
    if not group_identity.is_written(rule, kernel):
        return {"bvt": None}
    match case["op"]:
        case "pod":
            directory = case["cgroupParent"]
            return {"bvt": group_identity.pod_value(rule, case["labels"], case["annotations"], directory)}
        case "kubeqos":
            return {"bvt": rule.by_class_dir[KubeQoS(case["kubeQOS"])]}
        case "hostapp":
            return {"bvt": group_identity.host_application_value(rule, qos.of_name(case["qos"]))}
    raise AssertionError(case["op"])


def _by_text(values: dict[Any, int]) -> dict[str, int]:
    return {key.value: value for key, value in values.items()}


def cpuset_hook(case: dict[str, Any]) -> Any:
    keeps = case.get("keepQuota", False)
    match case["op"]:
        case "container":
            cpus = cpuset_allocator.decide(
                case["labels"],
                case["annotations"],
                case["cgroupParent"],
                _pools(case["topology"]),
                has_be_manager=case.get("beCPUManager", False),
            )
            quota = cpuset_allocator.quota_us(case["annotations"], keeps_quota=keeps)
            return {"error": False, "cpuset": cpus, "quota": quota}
        case "pod_quota":
            quota = cpuset_allocator.quota_us(case["annotations"], keeps_quota=keeps)
            return {"error": False, "quota": quota}
        case "hostapp":
            shared = _pool_list(case["sharePools"])
            cpus = cpuset_allocator.host_application_cpus(qos.of_name(case["qos"]), shared)
            return {"error": False, "cpuset": cpus}
    raise AssertionError(case["op"])


def _pool_list(raw: list[dict[str, Any]]) -> tuple[CPUSharedPool, ...]:
    return tuple(from_builtins(pool, CPUSharedPool) for pool in raw)


def _pools(raw: dict[str, Any] | None) -> NodeCPUPools | None:
    if raw is None:
        return None
    return NodeCPUPools(
        _pool_list(raw.get("sharePools", [])),
        _pool_list(raw.get("beSharePools", [])),
        raw.get("kubeletPolicy", ""),
        raw.get("systemQOSCPUSet", ""),
    )


def batchresource(case: dict[str, Any]) -> Any:
    if case["op"] == "rule":
        threshold = case["threshold"]
        strategy = None if threshold is None else from_builtins(threshold, ResourceThresholdStrategy)
        return {"quotaUsed": batch_resource.uses_quota(strategy)}
    rule = BatchRule(case.get("quotaUsed", True), case.get("ratio", node_labels.NO_RATIO))
    qos_class, extended = qos.of_name(case["qos"]), case["extended"]
    if case["op"] == "container":
        known = None if extended is None else from_builtins(extended, ContainerResources)
        return _limits(batch_resource.container_limits(qos_class, known, rule))
    by_name = None
    if extended is not None:
        by_name = {name: from_builtins(raw, ContainerResources) for name, raw in extended.items()}
    return _limits(batch_resource.pod_limits(qos_class, by_name, rule))


def _limits(limits: GroupResources) -> Any:
    return {"cpuShares": limits.shares, "cfsQuota": limits.quota_us, "memoryLimit": limits.memory_bytes}


def cpunorm_quota(case: dict[str, Any]) -> Any:
    match case["op"]:
        case "quota":
            pod = (case["labels"], case["annotations"])
            return {"quota": cpu_burst.quota_us(*pod, case["ratio"], case.get("quota"))}
        case "share":
            return {"scaled": cpu_burst.is_scaled(case["labels"], case["annotations"])}
        case "ratio":
            text = case["annotation"]
            annotations = {} if text is None else {labels.NODE_CPU_NORMALIZATION_RATIO: text}
            return {"error": False, "ratio": node_labels.cpu_normalization_ratio(annotations)}
        case "update":
            ratio = cpu_burst.next_ratio(case["old"], case["new"])
            return {"changed": ratio != case["old"], "ratio": ratio}
    raise AssertionError(case["op"])


def runtime_hooks_misc(case: dict[str, Any]) -> Any:
    match case["op"]:
        case "core_group":
            rule = core_sched.rule_of(from_builtins(case["strategy"], ResourceQOSStrategy))
            kube_qos = KubeQoS(case["kubeQOS"])
            group = core_sched.group_of(rule, case["labels"], kube_qos, case["podUID"])
            return {"enabled": group.is_enabled, "group": group.name}
        case "cpu_idle":
            rule = core_sched.rule_of(from_builtins(case["strategy"], ResourceQOSStrategy))
            return {"idle": _by_text(core_sched.idle_by_class_dir(rule))}
        case "oom_score":
            return {"error": False, "value": oom_score.score(case["annotations"], case["container"])}
        case "gpu_env":
            text, provider = case["deviceAllocated"], case.get("isolationProvider")
            annotations = {} if text is None else {labels.DEVICE_ALLOCATED: text}
            pod_labels = {} if provider is None else {labels.GPU_ISOLATION_PROVIDER: provider}
            return {"error": False, "envs": device_inject.environment(pod_labels, annotations)}
        case "net_amount":
            return {"bits": tc.amount_bits(case["value"], case["total"])}
        case "class_id":
            major, minor = (int(str(case[part]), 16) for part in ("major", "minor"))
            return {"id": tc.class_number(major, minor)}
    raise AssertionError(case["op"])


ADAPTERS = {
    "bvt": answered(bvt),
    "cpuset-hook": answered(cpuset_hook),
    "batchresource": answered(batchresource),
    "cpunorm-quota": answered(cpunorm_quota),
    "runtime-hooks-misc": answered(runtime_hooks_misc),
}
COMPARE = dict.fromkeys(ADAPTERS, errors_alike)
