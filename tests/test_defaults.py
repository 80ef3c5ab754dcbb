"""What holds where nobody says anything: the figures that users know from the documentation."""

import importlib
import math
import pkgutil
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from koordinator.api import kinds
from koordinator.api.config_text import LeaderElection
from koordinator.descheduler.config.checks import MovingArgs
from koordinator.descheduler.config.low_node_load import LowNodeLoadArgs
from koordinator.descheduler.config.migration import ArbitrationArgs, MigrationControllerArgs
from koordinator.descheduler.config.node_plugins import FragmentationAwareArgs
from koordinator.descheduler.configuration import ClientConnection as DeschedulerClientConnection
from koordinator.descheduler.configuration import DeschedulerConfig
from koordinator.descheduler.plugins.stock.pod_state import RemoveFailedPodsArgs
from koordinator.descheduler.plugins.stock.spread import SpreadArgs
from koordinator.koordlet.config import (
    AgentConfig,
    AuditConfig,
    CollectConfig,
    HookConfig,
    KubeletClientConfig,
    PredictConfig,
    QoSConfig,
)
from koordinator.koordlet.device_daemon.daemon import DaemonConfig
from koordinator.local.nodes.behaviour import Behaviour
from koordinator.local.nodes.fleet import FleetPolicy, NodeShape
from koordinator.local.nodes.hollow import HollowConfig
from koordinator.manager.config.colocation_config import MidPolicy, ReclaimPolicy
from koordinator.manager.config.validation_rules import ValueBounds
from koordinator.manager.options import (
    EnhancedValidatorOptions,
    ManagerOptions,
    ProfileControllerOptions,
    QuotaUpdateOptions,
)
from koordinator.manager.tidal.target import LoadRule, PoolFacts
from koordinator.manager.webhooks.configuration import WebhookService, WebhookSettings
from koordinator.scheduler.auditor.history import AuditLimits
from koordinator.scheduler.config.config import ClientConnection, SchedulerConfig
from koordinator.scheduler.config.default_plugins import (
    CoschedulingArgs,
    ElasticQuotaArgs,
    ReservationArgs,
)
from koordinator.scheduler.loop.caches import BarrierOptions
from koordinator.scheduler.observe.debugging import DumpOptions
from koordinator.scheduler.observe.observer import MonitorOptions
from koordinator.scheduler.plugin.percent import ScoredResource
from koordinator.scheduler.plugins.coscheduling.config import GangDefaults
from koordinator.scheduler.plugins.inter_pod_affinity.plugin import PodAffinityArgs
from koordinator.scheduler.plugins.load_aware.args import LoadAwareArgs
from koordinator.scheduler.plugins.node_numa_resource.score import NodeUsage
from koordinator.scheduler.plugins.node_resources_fit import WeightedResource
from koordinator.scheduler.plugins.pod_rules import SchedulingHintArgs
from koordinator.scheduler.plugins.preemption.plugin import PreemptionArgs
from koordinator.scheduler.plugins.volumes.binding import VolumeBindingArgs
from koordinator.scheduler.queue.scheduling_queue import QueuePolicy
from tests.api.walk import structs

DEFAULTS: dict[type[msgspec.Struct], dict[str, Any]] = {
    MovingArgs: {"node_fit": True},
    FragmentationAwareArgs: {"imbalance_threshold": 0.15, "min_improvement_threshold": 0.02},
    LowNodeLoadArgs: {"node_metric_expiration_seconds": 180},
    ArbitrationArgs: {"enabled": True},
    MigrationControllerArgs: {
        "max_concurrent_reconciles": 1,
        "max_migrating_per_node": 2,
        "evict_qps": 10,
        "evict_burst": 1,
    },
    SpreadArgs: {"topology_balance_node_fit": True},
    RemoveFailedPodsArgs: {"min_pod_lifetime_seconds": 3600},
    AgentConfig: {"series_retention_s": 43200.0},
    AuditConfig: {"verbose": 3, "disk_mb_max": 16, "readers_max": 4, "events_max": 2048},
    CollectConfig: {
        "used_interval_s": 1.0,
        "system_outdated_s": 10.0,
        "node_info_interval_s": 60.0,
        "storage_interval_s": 1.0,
        "cpi_interval_s": 60.0,
        "cpi_window_s": 10.0,
        "psi_interval_s": 10.0,
        "cold_page_interval_s": 5.0,
        "resctrl_interval_s": 10.0,
    },
    HookConfig: {"reconcile_interval_s": 10.0},
    KubeletClientConfig: {
        "sync_interval_s": 10.0,
        "timeout_s": 3.0,
        "read_only_port": 10255,
        "topology_interval_s": 3.0,
        "report_node_metric": True,
    },
    PredictConfig: {
        "cold_start_s": 86400.0,
        "safety_margin_percent": 10,
        "cpu_half_life_s": 43200.0,
        "memory_half_life_s": 86400.0,
        "training_interval_s": 60.0,
        "expiration_s": 1800.0,
        "checkpoint_interval_s": 600.0,
        "checkpoints_per_step": 12,
    },
    QoSConfig: {"reconcile_interval_s": 1.0, "suppress_interval_s": 1.0, "force_update_s": 60.0},
    DaemonConfig: {"sleep_s": 900.0},
    Behaviour: {"peak_hour": 14.0},
    FleetPolicy: {
        "system_base_milli": 100.0,
        "system_share_of_use": 0.01,
        "system_memory_bytes": 2684354560.0,
        "sample_s": 15.0,
        "history_s": 1800.0,
        "pod_history_s": 300.0,
    },
    NodeShape: {
        "cpu_milli": 32000,
        "memory_bytes": 137438953472,
        "reserved_milli": 500,
        "reserved_bytes": 2147483648,
        "pods": 110,
    },
    HollowConfig: {
        "tick_s": 1.0,
        "lease_interval_s": 10.0,
        "lease_duration_s": 40,
        "status_interval_s": 300.0,
        "start_s_min": 0.5,
        "start_s_max": 3.0,
        "stop_s_max": 2.0,
        "first_report_s": math.inf,
    },
    MidPolicy: {"cpu_cap_percent": 100, "memory_cap_percent": 100},
    ReclaimPolicy: {"cpu_percent": 60, "memory_percent": 65},
    ValueBounds: {"high": 9223372036854775807},
    NodeUsage: {"cpu_ratio": 1.0},
    EnhancedValidatorOptions: {"reconcile_interval_s": 300.0},
    ManagerOptions: {"resync_s": 36000.0, "lent_ledger_hours": 24, "lent_ledger_mebibytes": 256},
    ProfileControllerOptions: {
        "reconcile_interval_s": 30.0,
        "force_update_pod_s": 300.0,
        "expire_pod_cache_s": 600.0,
        "update_pod_qps": 10.0,
        "update_pod_burst": 100,
    },
    QuotaUpdateOptions: {"max_retries": 3, "max_total_jitter_s": 1.0},
    LoadRule: {"lend_below_percent": 45.0, "return_above_percent": 65.0},
    PoolFacts: {"lead_s": 1800.0},
    WebhookService: {"port": 443},
    WebhookSettings: {"port": 9876},
    AuditLimits: {
        "victim_reschedule_s": 10.0,
        "victim_deletion_s": 30.0,
        "deleting_retries": 3,
        "event_interval_s": 300.0,
    },
    ClientConnection: {"burst": 100},
    LeaderElection: {"leader_elect": True},
    DeschedulerClientConnection: {"qps": 50.0, "burst": 100},
    DeschedulerConfig: {"enable_profiling": True, "enable_contention_profiling": True},
    SchedulerConfig: {
        "parallelism": 16,
        "pod_initial_backoff_seconds": 1,
        "pod_max_backoff_seconds": 10,
        "enable_profiling": True,
        "enable_contention_profiling": True,
    },
    CoschedulingArgs: {"controller_workers": 1},
    ElasticQuotaArgs: {
        "enable_runtime_quota": True,
        "enable_min_quota_scale": True,
        "disable_default_quota_preemption": True,
    },
    ReservationArgs: {
        "min_candidate_nodes_percentage": 10,
        "min_candidate_nodes_absolute": 100,
        "controller_workers": 1,
        "gc_duration_seconds": 86400,
        "gc_interval_seconds": 60,
        "resync_interval_seconds": 60,
    },
    BarrierOptions: {"timeout_s": 60.0},
    DumpOptions: {"queue_size": 1000, "worker_count": 10},
    MonitorOptions: {"period_s": 10.0, "timeout_s": 30.0, "drop_unhandled_s": 5.0},
    GangDefaults: {"timeout_s": 600.0},
    PodAffinityArgs: {"hard_pod_affinity_weight": 1},
    LoadAwareArgs: {"filter_expired_node_metrics": True, "node_metric_expiration_seconds": 180},
    ScoredResource: {"weight": 1},
    WeightedResource: {"weight": 1},
    PreemptionArgs: {"min_candidate_nodes_percentage": 10, "min_candidate_nodes_absolute": 100},
    SchedulingHintArgs: {"max_hint_nodes": 100},
    VolumeBindingArgs: {"bind_timeout_seconds": 600},
    QueuePolicy: {"unschedulable_s_max": 300.0},
}
"""Fields that are anything but zero, false or empty where they are left out."""
ROOMS = ("scheduler.config", "descheduler.config", "descheduler.plugins.stock", "manager.config")
"""All structs of their modules, of which most fields are zero."""
REPLICATED = ("ReplicationControllerSpec", "ReplicaSetSpec", "DeploymentSpec", "StatefulSetSpec")


def configurations() -> Iterator[Any]:
    """All structs of the rooms, and those of the table that live elsewhere."""
    found = dict.fromkeys(DEFAULTS)
    for room in ROOMS:
        package = importlib.import_module(f"koordinator.{room}")
        for each in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(each.name)
            for struct in vars(module).values():
                is_own = isinstance(struct, type) and struct.__module__ == each.name
                if is_own and issubclass(struct, msgspec.Struct) and not struct.__name__.startswith("_"):
                    found[struct] = None
    for struct in found:
        yield pytest.param(struct, DEFAULTS.get(struct, {}), id=f"{struct.__module__}.{struct.__name__}")


def numbers(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Fields of the struct itself whose default is a number or a switch that is not zero or off."""
    return {
        field.name: field.default
        for field in msgspec.structs.fields(struct)
        if field.name in struct.__annotations__ and isinstance(field.default, int | float) and field.default
    }


@pytest.mark.parametrize(("struct", "expected"), list(configurations()))
def test_a_setting_that_is_left_out_is_what_is_documented(
    struct: type[msgspec.Struct], expected: dict[str, Any]
) -> None:
    assert numbers(struct) == expected


def test_what_an_object_does_not_say_is_zero_as_on_the_wire() -> None:
    found = {
        struct.__name__: numbers(struct)
        for kind in kinds.ALL
        for struct in structs(kinds.view_of(kind))
        if numbers(struct)
    }
    assert found == {name: {"replicas": 1} for name in REPLICATED}
