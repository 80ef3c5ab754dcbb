"""`resourceQOSStrategy` of a NodeSLO: how the kernel treats pods of each QoS class.

A member that is not set falls back to the table of defaults at the end, which holds for classes that are
enabled without values. Source: behaviour/crds 2; behaviour/manager 11.3.
"""

from typing import Annotated

import msgspec

from koordinator.api.meta import ViewPart
from koordinator.api.schema import IntOrString, at_least, between, default

Percent = Annotated[int | None, between(0, 100)]
NotNegative = Annotated[int | None, at_least(0)]
Positive = Annotated[int | None, at_least(1)]
Enable = Annotated[bool | None, "Whether the settings apply; false when absent."]


class CPUQOS(ViewPart, frozen=True, kw_only=True):
    """Scheduling of CPU time."""

    enable: Enable = None
    group_identity: Annotated[
        int | None, "Group identity (bvt) of the class, -1 to 2; with CPU policy groupIdentity."
    ] = None
    sched_idle: Annotated[int | None, "1 makes the class SCHED_IDLE; with CPU policy coreSched."] = None
    core_expeller: Annotated[
        bool | None, "Whether the class keeps idle-class pods off its sibling threads; with coreSched."
    ] = None


class MemoryQOS(ViewPart, frozen=True, kw_only=True):
    """Protection and reclaim of memory."""

    enable: Enable = None
    min_limit_percent: Annotated[
        NotNegative, "Share of the request that is never reclaimed (memory.min); 0 is off."
    ] = None
    low_limit_percent: Annotated[
        NotNegative, "Share of the request that is reclaimed last (memory.low); 0 is off."
    ] = None
    throttling_percent: Annotated[
        NotNegative,
        "Share of the span from request to limit above which allocation slows down (memory.high); 0 is off.",
    ] = None
    wmark_ratio: Annotated[
        Percent, "Share of the limit above which the kernel reclaims in the background; 0 is off."
    ] = None
    wmark_scale_permill: Annotated[
        int | None, between(1, 1000), "Distance of the lower background mark, in thousandths."
    ] = None
    wmark_min_adj: Annotated[
        int | None,
        between(-25, 50),
        "Shifts the global low-memory mark for the class: below zero reclaims later, above earlier.",
    ] = None
    priority_enable: Annotated[int | None, "1 makes the out-of-memory killer obey priorities."] = None
    priority: Annotated[int | None, "Out-of-memory priority, 0 to 12; lower is killed first."] = None
    oom_kill_group: Annotated[int | None, "1 kills all tasks of a container together."] = None
    page_cache_enable: Annotated[bool | None, "Whether the page cache is limited."] = None
    page_cache_limit_percent: Annotated[Percent, "Page cache limit as a share of the memory limit."] = None
    page_cache_limit_size: Annotated[int | None, "Page cache limit in bytes; wins over the percentage."] = (
        None
    )
    page_cache_reclaim_sync: Annotated[
        bool | None, "Whether page cache above its limit is reclaimed by who allocates."
    ] = None


class ResctrlQOS(ViewPart, frozen=True, kw_only=True):
    """Share of the last-level cache and of memory bandwidth."""

    enable: Enable = None
    cat_range_start_percent: Annotated[Percent, "Where the class's part of the cache begins."] = None
    cat_range_end_percent: Annotated[Percent, "Where the class's part of the cache ends."] = None
    mba_percent: Annotated[Percent, "Share of the memory bandwidth."] = None


class NetworkQOS(ViewPart, frozen=True, kw_only=True):
    """Bandwidth, as a percentage of the node's total (a number) or as a quantity (a text)."""

    enable: Enable = None
    ingress_request: Annotated[IntOrString | None, default(0), "Incoming bandwidth that is assured."] = None
    ingress_limit: Annotated[IntOrString | None, default(100), "Most incoming bandwidth."] = None
    egress_request: Annotated[IntOrString | None, default(0), "Outgoing bandwidth that is assured."] = None
    egress_limit: Annotated[IntOrString | None, default(100), "Most outgoing bandwidth."] = None


class IOConfig(ViewPart, frozen=True, kw_only=True):
    """Limits and weights of one block device."""

    read_iops: Annotated[NotNegative, "Most reads per second; 0 is off."] = None
    write_iops: Annotated[NotNegative, "Most writes per second; 0 is off."] = None
    read_bps: Annotated[NotNegative, "Most bytes read per second; 0 is off."] = None
    write_bps: Annotated[NotNegative, "Most bytes written per second; 0 is off."] = None
    io_weight_percent: Annotated[int | None, between(1, 100), "Weight of the class; 100 when absent."] = None
    read_latency: Annotated[int | None, "Read latency in microseconds above which the disk is full."] = None
    write_latency: Annotated[int | None, "Write latency in microseconds above which the disk is full."] = None
    read_latency_percent: Annotated[Percent, "Percentile at which read latency is measured."] = None
    write_latency_percent: Annotated[Percent, "Percentile at which write latency is measured."] = None
    enable_user_model: Annotated[bool | None, "Whether the cost model below replaces the kernel's."] = None
    model_read_bps: Annotated[Positive, "Bytes per second that the disk can read."] = None
    model_write_bps: Annotated[Positive, "Bytes per second that the disk can write."] = None
    model_read_seq_iops: Annotated[Positive, "Sequential reads per second."] = None
    model_write_seq_iops: Annotated[Positive, "Sequential writes per second."] = None
    model_read_rand_iops: Annotated[Positive, "Random reads per second."] = None
    model_write_rand_iops: Annotated[Positive, "Random writes per second."] = None


class BlockConfig(ViewPart, frozen=True, kw_only=True):
    """A block device and its settings."""

    name: Annotated[str, "Name of the device, volume group or volume."] = ""
    type: Annotated[str, "What the name means: device, volumegroup or podvolume."] = ""
    io_cfg: Annotated[IOConfig, "Limits and weights of the device."] = IOConfig()


class BlkIOQOS(ViewPart, frozen=True, kw_only=True):
    """Disk bandwidth."""

    enable: Enable = None
    blocks: Annotated[list[BlockConfig], "Settings by block device."] = []


class ResourceQOS(ViewPart, frozen=True, kw_only=True):
    """The kernel's treatment of the pods of one QoS class."""

    cpu_qos: CPUQOS | None = None
    memory_qos: MemoryQOS | None = None
    blkio_qos: BlkIOQOS | None = None
    resctrl_qos: ResctrlQOS | None = None
    network_qos: NetworkQOS | None = None


class QOSPolicies(ViewPart, frozen=True, kw_only=True):
    """The mechanisms that carry the settings out."""

    cpu_policy: Annotated[str | None, "groupIdentity (when absent) or coreSched."] = None
    net_qos_policy: Annotated[str | None, "tc (when absent) or terway-qos."] = None


class ResourceQOSStrategy(ViewPart, frozen=True, kw_only=True):
    """The kernel's treatment of pods of each QoS class."""

    policies: Annotated[QOSPolicies | None, "Which mechanism carries the settings out."] = None
    lsr_class: Annotated[ResourceQOS | None, "Settings of LSR and LSE pods."] = None
    ls_class: Annotated[ResourceQOS | None, "Settings of LS pods."] = None
    be_class: Annotated[ResourceQOS | None, "Settings of BE pods."] = None
    system_class: Annotated[ResourceQOS | None, "Settings of SYSTEM pods."] = None
    cgroup_root: Annotated[ResourceQOS | None, "Settings of the whole node; only the disk part is used."] = (
        None
    )


_NO_PROTECTION = MemoryQOS(
    enable=False,
    min_limit_percent=0,
    low_limit_percent=0,
    throttling_percent=0,
    wmark_ratio=0,
    wmark_scale_permill=50,
    wmark_min_adj=0,
    priority_enable=0,
    priority=0,
    oom_kill_group=0,
)
_SERVICE_MEMORY = msgspec.structs.replace(
    _NO_PROTECTION, wmark_ratio=95, wmark_scale_permill=20, wmark_min_adj=-25
)
_FULL_CACHE = ResctrlQOS(enable=False, cat_range_start_percent=0, cat_range_end_percent=100, mba_percent=100)
_NO_BANDWIDTH = NetworkQOS(enable=False, ingress_request=0, ingress_limit=0, egress_request=0, egress_limit=0)
_NO_DISK_LIMITS = BlkIOQOS(enable=False)

NO_QOS = ResourceQOS(
    cpu_qos=CPUQOS(enable=False, group_identity=0, sched_idle=0, core_expeller=False),
    memory_qos=_NO_PROTECTION,
    blkio_qos=_NO_DISK_LIMITS,
    resctrl_qos=_FULL_CACHE,
    network_qos=_NO_BANDWIDTH,
)
"""Settings of a class that has none of its own: the kernel's own behaviour."""

DEFAULT_SYSTEM_QOS = NO_QOS
DEFAULT_LSR_QOS = ResourceQOS(
    cpu_qos=CPUQOS(enable=False, group_identity=2, sched_idle=0, core_expeller=True),
    memory_qos=_SERVICE_MEMORY,
    blkio_qos=_NO_DISK_LIMITS,
    resctrl_qos=_FULL_CACHE,
    network_qos=_NO_BANDWIDTH,
)
DEFAULT_LS_QOS = DEFAULT_LSR_QOS
DEFAULT_BE_QOS = ResourceQOS(
    cpu_qos=CPUQOS(enable=False, group_identity=-1, sched_idle=0, core_expeller=False),
    memory_qos=msgspec.structs.replace(
        _NO_PROTECTION, wmark_ratio=95, wmark_scale_permill=20, wmark_min_adj=50
    ),
    blkio_qos=_NO_DISK_LIMITS,
    resctrl_qos=msgspec.structs.replace(_FULL_CACHE, cat_range_end_percent=30),
    network_qos=_NO_BANDWIDTH,
)
DEFAULT_QOS_STRATEGY = ResourceQOSStrategy(
    policies=QOSPolicies(cpu_policy="groupIdentity", net_qos_policy="tc"),
    lsr_class=DEFAULT_LSR_QOS,
    ls_class=DEFAULT_LS_QOS,
    be_class=DEFAULT_BE_QOS,
    system_class=DEFAULT_SYSTEM_QOS,
    cgroup_root=ResourceQOS(blkio_qos=_NO_DISK_LIMITS),
)
"""Defaults that the node agent lays the configured strategy over."""
