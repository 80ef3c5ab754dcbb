"""What holds where nobody says anything: the figures that users know from the documentation."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from koordinator.api import kinds
from tests.api.walk import structs

DEFAULTS: dict[str, dict[str, Any]] = {
    "descheduler.config.custom_priority.CustomPriorityArgs": {"node_fit": True},
    "descheduler.config.fragmentation_aware.FragmentationAwareArgs": {
        "node_fit": True,
        "imbalance_threshold": 0.15,
        "min_improvement_threshold": 0.02,
    },
    "descheduler.config.low_node_load.LowNodeLoadArgs": {
        "node_metric_expiration_seconds": 180,
        "node_fit": True,
    },
    "descheduler.config.migration.ArbitrationArgs": {"enabled": True},
    "descheduler.config.migration.MigrationControllerArgs": {
        "max_concurrent_reconciles": 1,
        "max_migrating_per_node": 2,
        "evict_qps": 10,
        "evict_burst": 1,
    },
    "descheduler.plugins.stock.failed_pods.RemoveFailedPodsArgs": {"min_pod_lifetime_seconds": 3600},
    "koordlet.config.AgentConfig": {"series_retention_s": 43200.0},
    "koordlet.config.AuditConfig": {"verbose": 3, "disk_mb_max": 16, "readers_max": 4, "events_max": 2048},
    "koordlet.config.CollectConfig": {
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
    "koordlet.config.HookConfig": {"reconcile_interval_s": 10.0},
    "koordlet.config.KubeletConfig": {
        "sync_interval_s": 10.0,
        "timeout_s": 3.0,
        "read_only_port": 10255,
        "topology_interval_s": 3.0,
        "report_node_metric": True,
    },
    "koordlet.config.PredictConfig": {
        "cold_start_s": 86400.0,
        "safety_margin_percent": 10,
        "cpu_half_life_s": 43200.0,
        "memory_half_life_s": 86400.0,
        "training_interval_s": 60.0,
        "expiration_s": 1800.0,
        "checkpoint_interval_s": 600.0,
        "checkpoints_per_step": 12,
    },
    "koordlet.config.QoSConfig": {
        "reconcile_interval_s": 1.0,
        "suppress_interval_s": 1.0,
        "force_update_s": 60.0,
    },
    "koordlet.device_daemon.daemon.DaemonConfig": {"sleep_s": 900.0},
    "local.nodes.behaviour.Behaviour": {"peak_hour": 14.0},
    "local.nodes.fleet.FleetPolicy": {
        "system_base_milli": 100.0,
        "system_share_of_use": 0.01,
        "system_memory_bytes": 2684354560.0,
        "sample_s": 15.0,
        "history_s": 1800.0,
        "pod_history_s": 300.0,
    },
    "local.nodes.fleet.NodeShape": {
        "cpu_milli": 32000,
        "memory_bytes": 137438953472,
        "reserved_milli": 500,
        "reserved_bytes": 2147483648,
        "pods": 110,
    },
    "local.nodes.hollow.HollowConfig": {
        "tick_s": 1.0,
        "lease_interval_s": 10.0,
        "lease_duration_s": 40,
        "status_interval_s": 300.0,
        "start_s_min": 0.5,
        "start_s_max": 3.0,
        "stop_s_max": 2.0,
    },
    "manager.config.policies.MidPolicy": {"cpu_cap_percent": 100, "memory_cap_percent": 100},
    "manager.config.policies.ReclaimPolicy": {"cpu_percent": 60, "memory_percent": 65},
    "manager.config.validation_rules.ValueBounds": {"high": 2**63 - 1},
    "scheduler.plugins.node_numa_resource.score.NodeUsage": {"cpu_ratio": 1.0},
    "manager.options.EnhancedValidatorOptions": {"reconcile_interval_s": 300.0},
    "manager.options.ManagerOptions": {"resync_s": 36000.0},
    "manager.options.ProfileControllerOptions": {
        "reconcile_interval_s": 30.0,
        "force_update_pod_s": 300.0,
        "expire_pod_cache_s": 600.0,
        "update_pod_qps": 10.0,
        "update_pod_burst": 100,
    },
    "manager.options.QuotaUpdateOptions": {"max_retries": 3, "max_total_jitter_s": 1.0},
    "manager.tidal.target.LoadRule": {"lend_below_percent": 45.0, "return_above_percent": 65.0},
    "manager.tidal.target.TidalPool": {"lead_s": 1800.0},
    "manager.webhooks.configuration.Service": {"port": 443},
    "manager.webhooks.settings.WebhookSettings": {"port": 9876},
    "scheduler.auditor.history.AuditLimits": {
        "victim_reschedule_s": 10.0,
        "victim_deletion_s": 30.0,
        "deleting_retries": 3,
        "event_interval_s": 300.0,
    },
    "scheduler.config.config.ClientConnection": {"burst": 100},
    "scheduler.config.config.LeaderElection": {"leader_elect": True},
    "scheduler.config.config.SchedulerConfig": {
        "parallelism": 16,
        "pod_initial_backoff_seconds": 1,
        "pod_max_backoff_seconds": 10,
        "enable_profiling": True,
        "enable_contention_profiling": True,
    },
    "scheduler.config.plugin_args.CoschedulingArgs": {"controller_workers": 1},
    "scheduler.config.plugin_args.DeviceWeight": {"weight": 1},
    "scheduler.config.plugin_args.ElasticQuotaArgs": {
        "enable_runtime_quota": True,
        "enable_min_quota_scale": True,
        "disable_default_quota_preemption": True,
    },
    "scheduler.config.plugin_args.ReservationArgs": {
        "min_candidate_nodes_percentage": 10,
        "min_candidate_nodes_absolute": 100,
        "controller_workers": 1,
        "gc_duration_seconds": 86400,
        "gc_interval_seconds": 60,
        "resync_interval_seconds": 60,
    },
    "scheduler.loop.sync_barrier.BarrierOptions": {"timeout_s": 60.0},
    "scheduler.observe.debugging.DumpOptions": {"queue_size": 1000, "worker_count": 10},
    "scheduler.observe.monitor.MonitorOptions": {
        "period_s": 10.0,
        "timeout_s": 30.0,
        "drop_unhandled_s": 5.0,
    },
    "scheduler.plugins.coscheduling.config.GangDefaults": {"timeout_s": 600.0},
    "scheduler.plugins.device_share.score.ScoredDeviceResource": {"weight": 1},
    "scheduler.plugins.inter_pod_affinity.plugin.PodAffinityArgs": {"hard_pod_affinity_weight": 1},
    "scheduler.plugins.load_aware.args.LoadAwareArgs": {
        "filter_expired_node_metrics": True,
        "node_metric_expiration_seconds": 180,
    },
    "scheduler.plugins.node_numa_resource.score.ScoredNUMAResource": {"weight": 1},
    "scheduler.plugins.node_resources_fit.WeightedResource": {"weight": 1},
    "scheduler.plugins.preemption.plugin.PreemptionArgs": {
        "min_candidate_nodes_percentage": 10,
        "min_candidate_nodes_absolute": 100,
    },
    "scheduler.plugins.scheduling_hint.SchedulingHintArgs": {"max_hint_nodes": 100},
    "scheduler.plugins.volumes.binding.VolumeBindingArgs": {"bind_timeout_seconds": 600},
    "scheduler.queue.scheduling_queue.QueuePolicy": {"unschedulable_s_max": 300.0},
}
"""Fields that are anything but zero, false or empty where they are left out."""
ROOMS = ("scheduler.config", "descheduler.config", "descheduler.plugins.stock", "manager.config")
"""All structs of their modules, of which most fields are zero."""
REPLICATED = ("ReplicationControllerSpec", "ReplicaSetSpec", "DeploymentSpec", "StatefulSetSpec")


def modules() -> Iterator[str]:
    for room in ROOMS:
        package = importlib.import_module(f"koordinator.{room}")
        yield from (f"{room}.{found.name}" for found in pkgutil.iter_modules(package.__path__))
    yield from (name.rpartition(".")[0] for name in DEFAULTS)


def configurations() -> Iterator[Any]:
    for module in sorted(set(modules())):
        for name, struct in vars(importlib.import_module(f"koordinator.{module}")).items():
            is_own = isinstance(struct, type) and struct.__module__ == f"koordinator.{module}"
            if is_own and issubclass(struct, msgspec.Struct) and not name.startswith("_"):
                yield pytest.param(struct, DEFAULTS.get(f"{module}.{name}", {}), id=f"{module}.{name}")


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
