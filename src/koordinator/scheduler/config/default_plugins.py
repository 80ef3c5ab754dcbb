"""List which plugins run where unless the configuration says otherwise, and the shipped profile; and the arguments of
plugins that have many.

Source: behaviour/scheduler A3 (the shipped profile) and B1 (the stock plugins, in the stock order); behaviour/gangs
2.3; behaviour/elastic-quota 3; behaviour/reservations 13 and 14; behaviour/devices.
"""

from pathlib import Path

import msgspec

from koordinator.api import duration, quantity
from koordinator.api.config_text import ConfigPart, Duration
from koordinator.api.quantity import RawQuantity
from koordinator.scheduler.config import config
from koordinator.scheduler.config.config import (
    DEFAULT_SCHEDULER_NAME,
    STOCK_SCHEDULER_NAME,
    LeaderElection,
    NonNegative,
    Percent,
    PluginConfig,
    PluginRef,
    Plugins,
    PluginSet,
    Positive,
    ProfileConfig,
    SchedulerConfig,
)

FIT = "NodeResourcesFit"

MULTI_POINT = (
    PluginRef(name="SchedulingGates"),
    PluginRef(name="PrioritySort"),
    PluginRef(name="NodeUnschedulable"),
    PluginRef(name="NodeName"),
    PluginRef(name="TaintToleration", weight=3),
    PluginRef(name="NodeAffinity", weight=2),
    PluginRef(name="NodePorts"),
    PluginRef(name=FIT, weight=1),
    PluginRef(name="VolumeRestrictions"),
    PluginRef(name="NodeVolumeLimits"),
    PluginRef(name="VolumeBinding"),
    PluginRef(name="VolumeZone"),
    PluginRef(name="PodTopologySpread", weight=2),
    PluginRef(name="InterPodAffinity", weight=2),
    PluginRef(name="DynamicResources", weight=2),
    PluginRef(name="DefaultPreemption"),
    PluginRef(name="NodeResourcesBalancedAllocation", weight=1),
    PluginRef(name="ImageLocality", weight=1),
    PluginRef(name="DefaultBinder"),
)
"""The stock default plugins."""


def _on(*names: str, only: bool = False) -> PluginSet:
    return _weighted(*((name, 0) for name in names), only=only)


def _weighted(*plugins: tuple[str, int], only: bool = False) -> PluginSet:
    """These plugins, of those that there are."""
    disabled = [PluginRef(name="*")] if only else []
    enabled = [PluginRef(name=name, weight=weight) for name, weight in plugins]
    return PluginSet(enabled=enabled, disabled=disabled)


SHIPPED_PLUGINS = Plugins(
    pre_enqueue=_on("Coscheduling"),
    queue_sort=_on("PrioritySort", only=True),
    pre_filter=_on(
        "SchedulingHint", "Reservation", "NodeNUMAResource", "DeviceShare", "Coscheduling", "ElasticQuota"
    ),
    filter=_on("LoadAwareScheduling", "NodeNUMAResource", "DeviceShare", "Reservation"),
    # The reference leaves DynamicResources out here, and with it what frees devices on the wrong nodes.
    post_filter=_on(
        "Reservation", "Coscheduling", "ElasticQuota", "DynamicResources", "DefaultPreemption", only=True
    ),
    pre_score=_on("Reservation", "Coscheduling", "BatchDuration"),
    score=_weighted(
        ("LoadAwareScheduling", 1),
        ("NodeNUMAResource", 1),
        ("DeviceShare", 1),
        ("Reservation", 5000),
        ("Coscheduling", 1),
        ("BatchDuration", 2),
    ),
    reserve=_on(
        "LoadAwareScheduling",
        "NodeNUMAResource",
        "DeviceShare",
        "Reservation",
        "Coscheduling",
        "ElasticQuota",
    ),
    permit=_on("Coscheduling"),
    pre_bind=_on("NodeNUMAResource", "DeviceShare", "Reservation", "Coscheduling", "DefaultPreBind"),
    bind=_on("Reservation", "DefaultBinder", only=True),
    post_bind=_on("Coscheduling"),
)

_ADDED_BY_WEBHOOK = ("koordinator.sh/gpu.shared",)
"""The webhook adds it to pods that ask for GPUs, but nodes have it only with a gate that is off by default."""
SHIPPED_ARGS = [
    PluginConfig(
        name=FIT,
        args={
            "ignoredResources": [*_ADDED_BY_WEBHOOK],
            "scoringStrategy": {
                "type": "LeastAllocated",
                "resources": [
                    {"name": "cpu", "weight": 1},
                    {"name": "memory", "weight": 1},
                    {"name": "kubernetes.io/batch-cpu", "weight": 1},
                    {"name": "kubernetes.io/batch-memory", "weight": 1},
                ],
            },
        },
    ),
    PluginConfig(
        name="LoadAwareScheduling",
        args={
            "filterExpiredNodeMetrics": False,
            "nodeMetricExpirationSeconds": 300,
            "resourceWeights": {"cpu": 1, "memory": 1},
            "usageThresholds": {"cpu": 0, "memory": 0},
            "estimatedScalingFactors": {"cpu": 85, "memory": 70},
        },
    ),
    PluginConfig(name="Reservation", args={"ignoredResources": [*_ADDED_BY_WEBHOOK]}),
]


def shipped_profile(scheduler_name: str = DEFAULT_SCHEDULER_NAME) -> ProfileConfig:
    """Return the profile that an installation brings."""
    return ProfileConfig(scheduler_name=scheduler_name, plugins=SHIPPED_PLUGINS, plugin_config=SHIPPED_ARGS)


def shipped_config(*scheduler_names: str) -> SchedulerConfig:
    """Return the configuration that an installation brings, serving each of the names."""
    return SchedulerConfig(
        leader_election=LeaderElection(
            resource_name="koord-scheduler", resource_namespace="koordinator-system"
        ),
        profiles=[shipped_profile(name) for name in scheduler_names or (DEFAULT_SCHEDULER_NAME,)],
    )


def without_managed_resources(config: SchedulerConfig) -> SchedulerConfig:
    """Return the configuration in which NodeResourcesFit leaves to extenders what they alone look after."""
    names = {
        resource.name
        for extender in config.extenders
        for resource in extender.managed_resources
        if resource.ignored_by_scheduler
    }
    if not names:
        return config
    profiles = []
    for profile in config.profiles or [shipped_profile()]:
        others = [each for each in profile.plugin_config if each.name != FIT]
        args = next((dict(each.args) for each in profile.plugin_config if each.name == FIT), {})
        args["ignoredResources"] = sorted({*args.get("ignoredResources", []), *names})
        fit = PluginConfig(name=FIT, args=args)
        profiles.append(msgspec.structs.replace(profile, plugin_config=[*others, fit]))
    return msgspec.structs.replace(config, profiles=profiles)


_NATIVE = ("cpu", "memory", "ephemeral-storage", "storage", "pods")


class DynamicResourcesArgs(ConfigPart, frozen=True):
    """The arguments of the stock plugin DynamicResources."""

    filter_timeout: Duration = "10s"
    binding_timeout: Duration = "600s"

    def __post_init__(self) -> None:
        if duration.parse(self.filter_timeout) < 0:
            raise ValueError(f"filterTimeout: {self.filter_timeout} is negative")
        if duration.parse(self.binding_timeout) < 1:
            raise ValueError(f"bindingTimeout: {self.binding_timeout} is less than a second")


class CoschedulingArgs(ConfigPart, frozen=True):
    """Gangs. `skip_check_schedule_cycle` has had no effect for long."""

    default_timeout: Duration = "600s"
    controller_workers: Positive = 1
    skip_check_schedule_cycle: bool = False
    enable_preemption: bool = False
    aware_network_topology: bool = False
    default_match_policy: str = "once-satisfied"

    def __post_init__(self) -> None:
        if duration.parse(self.default_timeout) < 0:
            raise ValueError("defaultTimeout: coeSchedulingArgs DefaultTimeoutSeconds invalid")


class HookPlugin(ConfigPart, frozen=True):
    """An extension of the quota plugin."""

    key: str
    factory_key: str
    factory_args: str = ""


_UNLIMITED = (2**63 - 1) // 5


def _unlimited() -> dict[str, RawQuantity]:
    return {"cpu": str(_UNLIMITED), "memory": str(_UNLIMITED)}


class ElasticQuotaArgs(ConfigPart, frozen=True):
    """Quotas."""

    delay_evict_time: Duration = "120s"
    revoke_pod_interval: Duration = "1s"
    default_quota_group_max: dict[str, RawQuantity] = msgspec.field(default_factory=_unlimited)
    system_quota_group_max: dict[str, RawQuantity] = msgspec.field(default_factory=_unlimited)
    quota_group_namespace: str = "koordinator-system"
    monitor_all_quotas: bool = False
    enable_check_parent_quota: bool = False
    enable_runtime_quota: bool = True
    enable_min_quota_scale: bool = True
    disable_default_quota_preemption: bool = True
    enable_queue_hint: bool = False
    quota_snapshot_update_interval: Duration = "120s"
    hook_plugins: list[HookPlugin] = []

    def __post_init__(self) -> None:
        for name, amounts in (
            ("defaultQuotaGroupMax", self.default_quota_group_max),
            ("systemQuotaGroupMax", self.system_quota_group_max),
        ):
            for resource, raw in amounts.items():
                if quantity.value(raw) < 0:
                    raise ValueError(f"{name}.{resource}: {raw} is negative")
        for name, text in (
            ("delayEvictTime", self.delay_evict_time),
            ("revokePodInterval", self.revoke_pod_interval),
        ):
            if duration.parse(text) < 0:
                raise ValueError(f"{name}: {text} is negative")


class PreAllocationConfig(ConfigPart, frozen=True):
    """Reservations on top of pods that run already."""

    enable_cluster_mode: bool = False
    cluster_label_key: str = ""
    cluster_priority_annotation_key: str = ""
    prefer_no_pre_allocated_pods: bool = False


class ReservationSelectorIndex(ConfigPart, frozen=True):
    """Labels of reservations that are indexed, so that a selector that names them looks at few nodes."""

    enabled: bool = False
    key_prefixes: list[str] = []
    keys: list[str] = []


class ReservationArgs(ConfigPart, frozen=True):
    """Reservations."""

    enable_preemption: bool = False
    min_candidate_nodes_percentage: Percent = 10
    min_candidate_nodes_absolute: NonNegative = 100
    controller_workers: Positive = 1
    gc_duration_seconds: NonNegative = 86_400
    gc_interval_seconds: NonNegative = 60
    disable_garbage_collection: bool = False
    resync_interval_seconds: NonNegative = 60
    pre_allocation_config: PreAllocationConfig | None = None
    ignored_resources: list[str] = []
    ignored_resource_groups: list[str] = []
    reservation_selector_index: ReservationSelectorIndex | None = None
    expire_pending: bool = False
    """Reservations end by their time while they wait for a node, too; the reference lets them wait."""

    def __post_init__(self) -> None:
        for name in self.ignored_resources:
            if name in _NATIVE or "/" not in name or name.partition("/")[0] == "kubernetes.io":
                raise ValueError(f"ignoredResources: {name!r} is no extended resource")
        for group in self.ignored_resource_groups:
            if "/" in group or group == "kubernetes.io":
                raise ValueError(f"ignoredResourceGroups: {group!r} is no group of extended resources")


def read_config(config_file: Path | None) -> SchedulerConfig:
    """Return the file, or the shipped profile under its own name and that of the stock scheduler. Raises: ConfigError,
    OSError."""
    if config_file is not None:
        return config.read(config_file)
    return shipped_config(DEFAULT_SCHEDULER_NAME, STOCK_SCHEDULER_NAME)
