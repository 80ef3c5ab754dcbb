"""Arguments of plugins that configurations may name although this version does not run them.

They are checked like all others, so that a file with a mistake does not become valid by leaving a plugin
out. Source: behaviour/scheduler A3; behaviour/gangs 2.3; behaviour/elastic-quota 3; behaviour/reservations 13 and 14;
behaviour/devices.
"""

from typing import Annotated, Any, Literal

import msgspec

from koordinator.api import duration, quantity
from koordinator.api.quantity import RawQuantity
from koordinator.scheduler.config.reader import Duration

NonNegative = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
Weight = Annotated[int, msgspec.Meta(ge=0, le=100)]

_NATIVE = ("cpu", "memory", "ephemeral-storage", "storage", "pods")


class _Args(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Base of the structs."""


class DynamicResourcesArgs(_Args, frozen=True):
    """The arguments of the stock plugin DynamicResources."""

    filter_timeout: Duration = "10s"
    binding_timeout: Duration = "600s"


class CoschedulingArgs(_Args, frozen=True):
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


class HookPlugin(_Args, frozen=True):
    """An extension of the quota plugin."""

    key: str
    factory_key: str
    factory_args: str = ""


_UNLIMITED = (2**63 - 1) // 5


def _unlimited() -> dict[str, RawQuantity]:
    return {"cpu": str(_UNLIMITED), "memory": str(_UNLIMITED)}


class ElasticQuotaArgs(_Args, frozen=True):
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


class PreAllocationConfig(_Args, frozen=True):
    """Reservations on top of pods that run already."""

    enable_cluster_mode: bool = False
    cluster_label_key: str = ""
    cluster_priority_annotation_key: str = ""
    prefer_no_pre_allocated_pods: bool = False


class ReservationArgs(_Args, frozen=True):
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
    reservation_selector_index: Any = None

    def __post_init__(self) -> None:
        for name in self.ignored_resources:
            if name in _NATIVE or "/" not in name or name.partition("/")[0] == "kubernetes.io":
                raise ValueError(f"ignoredResources: {name!r} is no extended resource")
        for group in self.ignored_resource_groups:
            if "/" in group or group == "kubernetes.io":
                raise ValueError(f"ignoredResourceGroups: {group!r} is no group of extended resources")


class DeviceWeight(_Args, frozen=True):
    """A resource in the score of devices."""

    name: str
    weight: Weight = 1


class DeviceScoring(_Args, frozen=True):
    """The score of full devices."""

    type: Literal["LeastAllocated", "MostAllocated"] = "LeastAllocated"
    resources: list[DeviceWeight] = []


class GPUTemplates(_Args, frozen=True):
    """The place of templates for shared GPUs."""

    config_map_namespace: str = ""
    config_map_name: str = ""
    matched_resources: list[str] = []


class GPUModel(_Args, frozen=True):
    """A card that cannot be shared."""

    vendor: str = ""
    model: str = ""


class DeviceShareArgs(_Args, frozen=True):
    """GPUs, RDMA and FPGAs; `allocator` has no effect, as in upstream."""

    allocator: str = ""
    scoring_strategy: DeviceScoring = DeviceScoring()
    disable_device_numa_topology_alignment: bool = msgspec.field(
        default=False, name="disableDeviceNUMATopologyAlignment"
    )
    gpu_shared_resource_templates_config: GPUTemplates | None = None
    gpu_share_unsupported_models: list[GPUModel] = []


ARGS: dict[str, type[msgspec.Struct]] = {
    "DynamicResources": DynamicResourcesArgs,
    "Coscheduling": CoschedulingArgs,
    "ElasticQuota": ElasticQuotaArgs,
    "Reservation": ReservationArgs,
    "DeviceShare": DeviceShareArgs,
}
"""By plugin name."""
