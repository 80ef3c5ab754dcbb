"""The flags of `koord-scheduler`: kube-scheduler's and Koordinator's. Source: behaviour/scheduler A2."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from koordinator.cli import flag_kinds, serving_flags
from koordinator.cli.flag_kinds import Decorate, count, file, listed, switch, text, time
from koordinator.cli.serving_flags import ServingFlags


class Flags(ServingFlags, frozen=True, kw_only=True):
    """The command line; names are those of the flags. None means that the flag was not given."""

    config: Path | None
    write_config_to: Path | None
    kubeconfig: str
    master: str
    seed: int
    # insecure serving
    address: str
    port: int
    # deprecated upstream: the file says it better
    pod_max_in_unschedulable_pods_duration: str
    kube_api_qps: float | None
    kube_api_burst: int | None
    kube_api_content_type: str | None
    profiling: bool | None
    contention_profiling: bool | None
    # gates, logs, metrics
    feature_gates: str
    v: int
    vmodule: str
    logging_format: str
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
    file("config", "The configuration file (KubeSchedulerConfiguration)."),
    click.option(
        "--write-config-to",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write the configuration in force here, with all defaults, and exit.",
    ),
    text("kubeconfig", "", "Kubeconfig file; a pod needs none. The file's clientConnection wins."),
    text("master", "", "URL of the API server, instead of the one in a kubeconfig."),
    count("seed", 0, "Decides ties between nodes: the same seed, the same choices.", click.INT),
    text("address", "0.0.0.0", "Where to serve insecure HTTP."),
    count("port", 0, "Port of insecure HTTP (health, metrics, debugging); 0: none.", flag_kinds.PORT),
    *serving_flags.options(secure_port=10259),
    *serving_flags.ELECTION,
    time(
        "pod-max-in-unschedulable-pods-duration",
        "5m",
        "A refused pod waits for an event no longer than this.",
    ),
    click.option("--kube-api-qps", type=float, help="Ignored with --config, which has clientConnection.qps."),
    click.option("--kube-api-burst", type=int, help="Ignored with --config (clientConnection.burst)."),
    text("kube-api-content-type", None, "Read for compatibility: we speak JSON."),
    switch("profiling", None, "Serve /debug/pprof. Ignored with --config (enableProfiling)."),
    switch("contention-profiling", None, "Read for compatibility: one thread contends with nobody."),
    text(
        "feature-gates", "", "Gate=true,Other=false: Koordinator's gates. Upstream's are built in, or told."
    ),
    flag_kinds.verbosity(),
    text("vmodule", "", "pattern=N,…: another -v for the modules whose name matches."),
    click.option("--logging-format", type=click.Choice(("text", "json")), default="text", show_default=True),
    listed("disabled-metrics", "", "Names of metrics that are not shown."),
    time("scheduler-monitor-period", "10s", "Between scans for attempts that hang."),
    time("scheduling-timeout", "30s", "A longer scheduling attempt is reported."),
    time("scheduling-drop-unhandled-timeout", "5s", "When pods whose attempt never began are forgotten."),
    click.option(
        "-s",
        "--debug-scores",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Log a table of this many best nodes for each pod.",
    ),
    switch("debug-filters", False, "Log every node that a filter refuses.", "-f"),
    switch("debug-diagnosis", False, "Log a diagnosis (JSON) of each pod that finds no node.", "-d"),
    switch("debug-diagnosis-blocking", False, "Write it before the next pod is scheduled."),
    count("debug-diagnosis-queue-size", 1000, "Diagnoses that wait at most; more are dropped."),
    count("debug-diagnosis-worker-count", 10, "Diagnoses written in one go."),
    listed("controller-plugins", "*", "Plugins whose controllers run; * for all, -Name without one."),
    text("sync-barrier-pod-namespace", "kube-system", "Of the pod that SyncBarrier writes to."),
    text("sync-barrier-pod-name", "koord-scheduler-sync-barrier", "Name of that pod."),
    time("sync-hard-timeout", "1m", "How long a new leader waits for its caches at most."),
    switch(
        "enable-network-topology-manager",
        False,
        "Follow ClusterNetworkTopology `default`, which gangs are placed by (plugin argument "
        "awareNetworkTopology).",
    ),
    switch(
        "enable-workload-auditor", False, "Keep records of waiting workloads and tell what is odd about them."
    ),
    listed("workload-auditor-metric-labels", "", "Labels of pods that the auditor's metrics carry."),
    time(
        "workload-auditor-victim-reschedule-duration",
        "10s",
        "A victim that has a node again sooner is told of.",
    ),
    time("workload-auditor-victim-deletion-duration", "30s", "Victims that take longer to go are told of."),
    count(
        "workload-auditor-victim-deleting-retries",
        3,
        "So many attempts in vain while victims are being deleted are told of.",
    ),
    time(
        "workload-auditor-scheduling-event-interval",
        "5m",
        "A workload to which nothing happens longer is told of.",
    ),
)

WITHOUT_EFFECT: dict[str, str] = {
    "allow-metric-labels": "all labels are shown",
    "allow-metric-labels-manifest": "all labels are shown",
    "disable-http2-serving": "HTTP/1.1 is served",
    "emulated-version": "there is one version",
    "emulation-forward-compatible": "there is one version",
    "http2-max-streams-per-connection": "HTTP/1.1 is served",
    "log-flush-frequency": "lines are written at once",
    "log-json-info-buffer-size": "lines are written at once",
    "log-json-split-stream": "all lines go to standard error",
    "log-text-info-buffer-size": "lines are written at once",
    "log-text-split-stream": "all lines go to standard error",
    "min-compatibility-version": "there is one version",
    "show-hidden-metrics-for-version": "no metric is hidden",
}
"""Flags of others' command lines that are read so that these work, each with why it changes nothing."""


def options(command: Any) -> Any:
    """Put all flags on a command."""
    for name, why in reversed(WITHOUT_EFFECT.items()):
        command = flag_kinds.without_effect(name, why)(command)
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def of(values: Mapping[str, Any]) -> tuple[Flags, list[str]]:
    """Return the flags, and those that were given although they have no effect."""
    given = [name for name in WITHOUT_EFFECT if values[name.replace("-", "_")] is not None]
    return Flags(**{field: values[field] for field in Flags.__struct_fields__}), given
