"""Typed views of the group `slo.koordinator.sh`: NodeMetric, NodeSLO and the strategies that a NodeSLO holds.

The same strategies are the values of the ConfigMap `slo-controller-config`. A member that is None is not
set: a lower layer or the default counts. The `DEFAULT_*` values are what the manager writes when nothing is
configured, and what the node agent falls back to. Source: behaviour/crds 2; behaviour/manager 11.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec

from koordinator.api.meta import Object, Resource, ViewPart
from koordinator.api.quantity import RawQuantity
from koordinator.api.schema import INT32, between
from koordinator.api.slo_qos import NotNegative, Percent, ResourceQOSStrategy


class ResourceThresholdStrategy(ViewPart, frozen=True, kw_only=True):
    """The thresholds at which best-effort pods are suppressed and evicted to protect services."""

    enable: Annotated[bool | None, "Whether the strategy runs; false when absent."] = None
    cpu_suppress_threshold_percent: Annotated[
        Percent, "Share of the node's CPU that services and best-effort pods may use together."
    ] = None
    cpu_suppress_min_percent: Annotated[
        Percent, "Share of the node's CPU that best-effort pods always keep."
    ] = None
    cpu_suppress_policy: Annotated[
        str | None, "How best-effort pods are held back: cpuset (when absent) or cfsQuota."
    ] = None
    memory_evict_threshold_percent: Annotated[
        Percent, "Share of the node's memory in use from which best-effort pods are evicted."
    ] = None
    memory_evict_lower_percent: Annotated[
        Percent, "Eviction ends below this share; the threshold less 2 when absent."
    ] = None
    memory_allocatable_evict_threshold_percent: Annotated[
        NotNegative, "Requests over allocatable memory from which pods are evicted; 110 when absent."
    ] = None
    memory_allocatable_evict_lower_percent: Annotated[
        NotNegative, "Eviction for allocatable memory ends below this share; 100 when absent."
    ] = None
    cpu_evict_be_satisfaction_upper_percent: Annotated[
        int | None, "Eviction for starved CPU ends above this share of what best-effort pods asked for."
    ] = None
    cpu_evict_be_satisfaction_lower_percent: Annotated[
        int | None, "Best-effort pods are evicted when they get less than this share of what they asked for."
    ] = None
    cpu_evict_be_usage_threshold_percent: Annotated[
        int | None, "Only when best-effort pods use more than this share of what they are given."
    ] = None
    cpu_evict_time_window_seconds: Annotated[int | None, "Window over which CPU is averaged."] = None
    cpu_evict_threshold_percent: Annotated[
        Percent, "Share of the node's CPU in use from which pods are evicted."
    ] = None
    cpu_evict_lower_percent: Annotated[
        Percent, "Eviction for CPU ends below this share; the threshold less 2 when absent."
    ] = None
    cpu_allocatable_evict_threshold_percent: Annotated[
        NotNegative, "Requests over allocatable CPU from which pods are evicted; 110 when absent."
    ] = None
    cpu_allocatable_evict_lower_percent: Annotated[
        NotNegative, "Eviction for allocatable CPU ends below this share; 100 when absent."
    ] = None
    cpu_evict_policy: Annotated[
        str | None,
        "What satisfaction is measured against: evictByRealLimit (when absent) or evictByAllocatable.",
    ] = None
    evict_enabled_priority_threshold: Annotated[
        int | None, INT32, "Only pods of this priority or lower are evicted."
    ] = None
    allocatable_evict_priority_threshold: Annotated[
        int | None, INT32, "Only pods of this priority or lower are evicted for allocatable, up to 7999."
    ] = None


class CPUBurstStrategy(ViewPart, frozen=True, kw_only=True):
    """The rules by which containers may exceed their CPU limit for a short time."""

    policy: Annotated[str | None, "none (when absent), cpuBurstOnly, cfsQuotaBurstOnly or auto (both)."] = (
        None
    )
    cpu_burst_percent: Annotated[
        int | None, between(0, 10000), "CPU time that a container may save up, as a share of its limit."
    ] = None
    cfs_quota_burst_percent: Annotated[
        int | None, "How far the quota may be raised, as a share of the limit, from 100."
    ] = None
    cfs_quota_burst_period_seconds: Annotated[
        int | None, "How long a container may use a raised quota; -1 is without end."
    ] = None
    share_pool_threshold_percent: Annotated[
        int | None, "Use of the shared CPUs above which quotas are taken back, 0 to 100."
    ] = None


class SystemStrategy(ViewPart, frozen=True, kw_only=True):
    """Settings of the node's kernel."""

    min_free_kbytes_factor: Annotated[
        int | None, "Free memory that the kernel keeps, in 1/10000 of all memory, above 0."
    ] = None
    watermark_scale_factor: Annotated[
        int | None, "Distance of the memory watermarks, in 1/10000 of all memory, 1 to 400."
    ] = None
    memcg_reap_back_ground: Annotated[int | None, "1 reaps dead memory cgroups in the background."] = None
    sched_group_identity_enabled: Annotated[int | None, "1 turns group identity on."] = None
    sched_idle_saver_wmark: Annotated[
        int | None, "How long a CPU must be idle before lower classes may use it, in ns."
    ] = None
    sched_features: Annotated[dict[str, bool], "Features of the CPU scheduler, on or off."] = {}
    page_cache_limit_enabled: Annotated[int | None, "1 turns page cache limits on."] = None
    total_network_bandwidth: Annotated[
        RawQuantity | None, "Bandwidth of the node in bits per second; 0 is unknown."
    ] = None


class CgroupPath(ViewPart, frozen=True, kw_only=True):
    """The place of an application's cgroup."""

    base: Annotated[str, "CgroupRoot, Kubepods, KubepodsBurstable or KubepodsBesteffort."] = ""
    parent_dir: Annotated[str, "Directory below the base."] = ""
    relative_path: Annotated[str, "Directory below the parent directory."] = ""


class HostApplicationStrategy(ViewPart, frozen=True, kw_only=True):
    """Nothing can be set yet."""


class HostApplicationSpec(ViewPart, frozen=True, kw_only=True):
    """An application that runs on the node outside of pods."""

    name: Annotated[str, "Name of the application."] = ""
    priority: Annotated[str, "Priority class of the application."] = ""
    qos: Annotated[str, "QoS class of the application."] = ""
    cgroup_path: Annotated[
        CgroupPath | None, "Where its cgroup is; by priority and QoS class when absent."
    ] = None
    strategy: Annotated[HostApplicationStrategy | None, "Reserved."] = None


class NodeSLOSpec(ViewPart, frozen=True, kw_only=True):
    """The policies that the node runs."""

    resource_used_threshold_with_be: Annotated[
        ResourceThresholdStrategy | None,
        "When best-effort pods are suppressed and evicted to protect services.",
    ] = None
    resource_qos_strategy: Annotated[
        ResourceQOSStrategy | None, "How the kernel treats pods of each QoS class."
    ] = None
    cpu_burst_strategy: Annotated[
        CPUBurstStrategy | None, "How containers may exceed their CPU limit for a short time."
    ] = None
    system_strategy: Annotated[SystemStrategy | None, "Settings of the node's kernel."] = None
    host_applications: Annotated[
        list[HostApplicationSpec], "Applications that run on the node outside of pods."
    ] = []
    extensions: Annotated[dict[str, Any], "Policies of add-ons."] = {}


class NodeSLOStatus(ViewPart, frozen=True, kw_only=True):
    """Nothing is reported yet."""


class NodeSLO(Object, frozen=True, kw_only=True):
    """Policies of the node of the same name, written by the manager, carried out by the node agent."""

    resource: ClassVar[Resource] = Resource(
        group="slo.koordinator.sh",
        version="v1alpha1",
        kind="NodeSLO",
        plural="nodeslos",
        namespaced=False,
        subresources=("status",),
    )

    spec: NodeSLOSpec = NodeSLOSpec()
    status: NodeSLOStatus = NodeSLOStatus()


DEFAULT_THRESHOLD_STRATEGY = ResourceThresholdStrategy(
    enable=False,
    cpu_suppress_threshold_percent=65,
    cpu_suppress_policy="cpuset",
    memory_evict_threshold_percent=70,
    cpu_evict_policy="evictByRealLimit",
)
MEMORY_EVICT_LOWER_GAP_PERCENT = 2
CPU_EVICT_LOWER_GAP_PERCENT = 2
"""Distance below its threshold at which an eviction ends when no lower mark is set."""
DEFAULT_CPU_BURST_STRATEGY = CPUBurstStrategy(
    policy="none",
    cpu_burst_percent=1000,
    cfs_quota_burst_percent=300,
    cfs_quota_burst_period_seconds=-1,
    share_pool_threshold_percent=50,
)
DEFAULT_SYSTEM_STRATEGY = SystemStrategy(total_network_bandwidth="0")
"""The bandwidth is always written, zero included."""

DEFAULT_NODE_SLO_SPEC = NodeSLOSpec(
    resource_used_threshold_with_be=DEFAULT_THRESHOLD_STRATEGY,
    resource_qos_strategy=ResourceQOSStrategy(),
    cpu_burst_strategy=DEFAULT_CPU_BURST_STRATEGY,
    system_strategy=DEFAULT_SYSTEM_STRATEGY,
)
"""Spec that the manager writes when nothing is configured; QoS defaults are laid under by the agent."""

EVICTION = "eviction"
"""Key of `extensions`: settings of eviction strategies that the reference does not have, by feature gate."""
_NESTED = "Object"
PSI = "PSIEvict"
_PSIPercent = Annotated[int, msgspec.Meta(ge=1, le=100)]


class PSISettings(ViewPart, frozen=True, kw_only=True):
    """NodeSLO's `extensions.eviction.PSIEvict`. Pressure is the share of time in which tasks stand still."""

    enable: bool = False
    memory_full_avg10_percent: _PSIPercent = 60
    """All tasks of all pods wait for memory, mean of the last 10 s: it goes on …"""
    memory_full_avg60_percent: _PSIPercent = 25
    """… and of the last minute: it lasts."""
    memory_used_percent: _PSIPercent = 80
    """Only while so much of the node's memory is used: evicting does not help a pod that stalls at its own limit."""
    cpu_some_avg10_percent: _PSIPercent | None = None
    """Tasks of a service wait for CPU, for longer than its own limit makes them; not looked at when absent."""
    cpu_duration_seconds: Annotated[int, msgspec.Meta(ge=0)] = 30
    """For so long without a pause."""
    release_percent: _PSIPercent = 5
    """A round is enough when victims give back this share of the node's memory (CPU)."""


EVICTION_SETTINGS: Mapping[str, type[ViewPart]] = {PSI: PSISettings}
"""Types of the sections of `extensions.eviction`, by feature gate."""

SHADOW = "shadow"
"""Key of `extensions`: strategies of the node agent that decide and do nothing (docs/shadow-mode.md)."""
SHADOW_STRATEGIES = (
    "BatchGPUEvict",
    "CPUBurst",
    "CPUEvict",
    "CPUSuppress",
    "InterferenceControl",
    "MemoryEvict",
    "Prediction",
    PSI,
)


class ShadowSettings(ViewPart, frozen=True, kw_only=True):
    """NodeSLO's `extensions.shadow`."""

    strategies: list[str] = []
    """Names of `SHADOW_STRATEGIES`."""


def plain_extensions(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return extensions by key; the reference writes them one level deeper, `{"Object": {...}}`."""
    nested = found.get(_NESTED)
    return dict(nested) if len(found) == 1 and isinstance(nested, dict) else dict(found)
