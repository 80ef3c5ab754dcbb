"""The flags of `koord-scheduler`: kube-scheduler's and Koordinator's. Source: behaviour/scheduler A2."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from koordinator.cli import flag_kinds, flag_settings, serving_flags
from koordinator.cli.flag_kinds import Decorate, count, file, listed, switch, text, time
from koordinator.cli.flag_settings import InertFlags
from koordinator.cli.options import together
from koordinator.cli.serving_flags import ServingFlags


class Flags(ServingFlags, frozen=True, kw_only=True):
    """The parsed command line; fields are named like the flags. None: the flag was not given."""

    config: Path | None
    write_config_to: Path | None
    kubeconfig: str
    master: str
    seed: int
    # insecure serving
    address: str
    port: int
    # deprecated upstream in favour of the configuration file
    pod_max_in_unschedulable_pods_duration: str
    kube_api_qps: float | None
    kube_api_burst: int | None
    profiling: bool | None
    # gates, metrics
    feature_gates: str
    disabled_metrics: tuple[str, ...]
    # Koordinator
    scheduler_monitor_period: str
    scheduling_timeout: str
    scheduling_drop_unhandled_timeout: str
    debug_scores: int
    debug_filters: bool
    debug_diagnosis: bool
    debug_diagnosis_blocking: bool
    debug_diagnosis_queue_size: int
    debug_diagnosis_worker_count: int
    controller_plugins: tuple[str, ...]
    sync_barrier_pod_namespace: str
    sync_barrier_pod_name: str
    sync_hard_timeout: str
    enable_network_topology_manager: bool
    enable_workload_auditor: bool
    workload_auditor_metric_labels: tuple[str, ...]
    workload_auditor_victim_reschedule_duration: str
    workload_auditor_victim_deletion_duration: str
    workload_auditor_victim_deleting_retries: int
    workload_auditor_scheduling_event_interval: str


OPTIONS: tuple[Decorate, ...] = (
    file("config", "Path of the configuration file (KubeSchedulerConfiguration)."),
    click.option(
        "--write-config-to",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write the effective configuration, with all defaults, to this file and exit.",
    ),
    text(
        "kubeconfig",
        "",
        "Path of the kubeconfig file; not needed in a pod. clientConnection in --config overrides it.",
    ),
    text("master", "", "URL of the API server; overrides the kubeconfig."),
    count(
        "seed",
        0,
        "Seed for choosing among nodes with equal scores; equal seeds give equal choices.",
        click.INT,
    ),
    text("address", "0.0.0.0", "Address of insecure HTTP."),
    count("port", 10_251, "Port of insecure HTTP (health, metrics, debugging); 0: none.", flag_kinds.PORT),
    *serving_flags.options(secure_port=10259),
    *serving_flags.ELECTION,
    time(
        "pod-max-in-unschedulable-pods-duration",
        "5m",
        "Longest time that an unschedulable pod waits for an event before it is retried.",
    ),
    click.option("--kube-api-qps", type=float, help="Ignored with --config, which has clientConnection.qps."),
    click.option("--kube-api-burst", type=int, help="Ignored with --config (clientConnection.burst)."),
    switch("profiling", None, "Serve /debug/pprof. Ignored with --config (enableProfiling)."),
    text(
        "feature-gates",
        "",
        "Gate=true,Other=false: Koordinator's gates. A gate of Kubernetes that cannot be set is logged.",
    ),
    *flag_settings.LOGGING,
    listed("disabled-metrics", "", "Names of metrics to hide."),
    time("scheduler-monitor-period", "10s", "Interval between scans for scheduling attempts that hang."),
    time("scheduling-timeout", "30s", "Scheduling attempts that take longer are reported."),
    time(
        "scheduling-drop-unhandled-timeout",
        "5s",
        "Pods whose attempt has not begun after this long are no longer monitored.",
    ),
    click.option(
        "-s",
        "--debug-scores",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Log a table of the N best nodes for each pod.",
    ),
    switch("debug-filters", False, "Log every node that a filter rejects.", "-f"),
    switch("debug-diagnosis", False, "Log a diagnosis (JSON) of each pod that fits no node.", "-d"),
    switch("debug-diagnosis-blocking", False, "Write each diagnosis before the next pod is scheduled."),
    count("debug-diagnosis-queue-size", 1000, "Length of the queue of diagnoses; further ones are dropped."),
    count("debug-diagnosis-worker-count", 10, "Diagnoses written per batch."),
    listed("controller-plugins", "*", "Plugins whose controllers run: *, Name, or -Name to disable one."),
    text("sync-barrier-pod-namespace", "kube-system", "Namespace of the pod that SyncBarrier annotates."),
    text("sync-barrier-pod-name", "koord-scheduler-sync-barrier", "Name of that pod."),
    time("sync-hard-timeout", "1m", "Longest time that a new leader waits for its caches."),
    switch(
        "enable-network-topology-manager",
        False,
        "Watch ClusterNetworkTopology `default`, for topology-aware placement of gangs (plugin argument "
        "awareNetworkTopology).",
    ),
    switch(
        "enable-workload-auditor", False, "Record pending workloads and report anomalies in logs and metrics."
    ),
    listed("workload-auditor-metric-labels", "", "Pod labels to add to the auditor's metrics."),
    time(
        "workload-auditor-victim-reschedule-duration",
        "10s",
        "Victims that are scheduled again sooner are reported.",
    ),
    time(
        "workload-auditor-victim-deletion-duration",
        "30s",
        "Victims that take longer to terminate are reported.",
    ),
    count(
        "workload-auditor-victim-deleting-retries",
        3,
        "Failed attempts while victims terminate after which the pod is reported.",
    ),
    time(
        "workload-auditor-scheduling-event-interval",
        "5m",
        "Workloads without a scheduling event for longer are reported.",
    ),
)

INERT = InertFlags(
    {
        "emulated-version": "there is one version",
        "emulation-forward-compatible": "there is one version",
        "min-compatibility-version": "there is one version",
        "async-log-queue-length": "lines are written at once",
        "kube-api-content-type": "requests are always JSON",
        **flag_settings.LOG_FLAGS,
        **flag_settings.COMPONENT_BASE_FLAGS,
    },
    {
        "async-log": "lines are written at once",
        "contention-profiling": "a single thread has no contention",
        **flag_settings.LOG_SWITCHES,
    },
)

options = together(*OPTIONS, *INERT.options())


def of(values: Mapping[str, Any]) -> Flags:
    """Return the flags."""
    return Flags(**{field: values[field] for field in Flags.__struct_fields__})
