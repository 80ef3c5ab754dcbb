"""The flags of `koordlet`, by the field of the configuration that each sets. Source: behaviour/koordlet-observe 2.1 and
2.2; behaviour/koordlet-act 2.1, 3.1 and 13.2."""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from koordinator.api.feature_gates import FeatureGates
from koordinator.cli import flag_kinds, flag_settings
from koordinator.cli.flag_settings import FlagError, InertFlags, Setting
from koordinator.cli.options import FiniteRange, together
from koordinator.host.files import HOST_MODE, HostRoots
from koordinator.koordlet.config import AgentConfig, HookServerConfig, QoSConfig
from koordinator.koordlet.qos import evictions

NODE_NAME, AGENT_MODE = "NODE_NAME", "agent_mode"


class KoordletSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The command line, understood."""

    config: AgentConfig
    roots: HostRoots
    gates: FeatureGates
    kubeconfig: str = ""
    server: str = ""
    qps: float = 20.0
    burst: int = 30
    client_certificate: Path | None = None
    client_key: Path | None = None
    kubelet_authority: Path | None = None
    is_dry_run: bool = False


_time, _switch, _text = flag_settings.time, flag_settings.switch, flag_settings.text
_seconds, _number, _natural = flag_settings.whole_seconds, flag_settings.number, flag_settings.natural


def _policy(name: str, default: str, words: str) -> flag_kinds.Decorate:
    return click.option(
        f"--{name}", type=click.Choice(("Ignore", "Fail")), default=default, show_default=True, help=words
    )


SETTINGS: Mapping[str, Setting] = {
    # serving
    "addr": _text("http.address", "Address (host:port) of metrics, health and audit events."),
    "enable-pprof": _switch("http.profiling", "Serve profiles at --pprof-addr."),
    "pprof-addr": _text("http.profiling_address", "Address of /debug/pprof."),
    # collecting
    "collect-res-used-interval": _time(
        "collect.used_interval_s",
        "Interval between samples of node, pods and host applications. Below 1s nothing is collected and no "
        "strategy runs.",
    ),
    "collect-sys-metric-outdated-interval": _time(
        "collect.system_outdated_s", "Maximum age of the samples from which system usage is computed."
    ),
    "collect-node-cpu-info-interval": _time(
        "collect.node_info_interval_s", "Interval between reads of CPU topology and NUMA nodes."
    ),
    "collect-node-storage-info-interval": _time(
        "collect.storage_interval_s", "Interval between reads of disks and mounts."
    ),
    "cpi-collector-interval": _time(
        "collect.cpi_interval_s", "Interval between measurements of cycles per instruction."
    ),
    "collect-cpi-timewindow": _time(
        "collect.cpi_window_s", "Length of one measurement of cycles per instruction."
    ),
    "psi-collector-interval": _time(
        "collect.psi_interval_s", "Interval between reads of pressure stall information (PSI)."
    ),
    "coldpage-collector-interval": _time(
        "collect.cold_page_interval_s", "Interval between reads of cold memory."
    ),
    "resctrl-collector-interval": _time(
        "collect.resctrl_interval_s", "Interval between reads of cache and memory bandwidth."
    ),
    "enable-pagecache-collector": _switch("collect.page_cache", "Measure memory including page cache."),
    "enable-resctrl-collector": _switch(
        "collect.resctrl", "Measure cache and memory bandwidth (with its gate)."
    ),
    "xpu-enforce-collect-from-device-infos": _switch(
        "collect.xpu_only_files", "Read accelerators from files only, never from the GPU driver's library."
    ),
    "xpu-device-infos-dir": _text(
        "collect.xpu_directory", "Directory of the files that describe accelerators."
    ),
    "tsdb-retention-duration": _time("series_retention_s", "Maximum age of samples in memory."),
    # the kubelet
    "kubelet-preferred-address-type": _text(
        "kubelet.address_type",
        "Type of the Node address at which to call the kubelet; InternalIP if the Node has none of this type.",
    ),
    "kubelet-sync-interval": _time(
        "kubelet.sync_interval_s", "Interval between reads of the kubelet's pods; 0: never."
    ),
    "kubelet-sync-timeout": _time("kubelet.timeout_s", "Timeout of requests to the kubelet."),
    "kubelet-insecure-tls": _switch("kubelet.insecure", "Use plain HTTP to --kubelet-read-only-port."),
    "kubelet-read-only-port": Setting(
        "kubelet.read_only_port",
        "The kubelet's read-only port.",
        partial(flag_kinds.count, kind=flag_kinds.PORT),
    ),
    "node-topology-sync-interval": _time(
        "kubelet.topology_interval_s", "Interval between reports of the node's topology; 0: never."
    ),
    "disable-query-kubelet-config": _switch(
        "kubelet.no_config", "Read neither the kubelet's /configz nor its CPU manager's state."
    ),
    "enable-node-metric-report": _switch("kubelet.report_node_metric", "Report NodeMetric."),
    "pod-resources-proxy-path": _text(
        "kubelet.pod_resources_proxy", "Directory of the socket of gate PodResourcesProxy."
    ),
    # prediction
    "prediction-checkpoint-filepath": _text("predict.checkpoints", "Directory of the models' checkpoints."),
    "prediction-cold-start-duration": _time("predict.cold_start_s", "Minimum age of a pod to be predicted."),
    "prediction-safety-margin-percent": _number(
        "predict.safety_margin_percent", "Margin added to each predicted peak, in percent."
    ),
    "prediction-cpu-histogram-decay-halflife": _time(
        "predict.cpu_half_life_s", "Age at which a CPU sample has half its weight."
    ),
    "prediction-memory-histogram-decay-halflife": _time(
        "predict.memory_half_life_s", "Age at which a memory sample has half its weight."
    ),
    "prediction-training-interval": _time("predict.training_interval_s", "Interval between training steps."),
    "prediction-model-expiration-duration": _time(
        "predict.expiration_s", "Age at which unused models are deleted."
    ),
    "prediction-model-checkpoint-interval": _time(
        "predict.checkpoint_interval_s", "Interval between checkpoints of models."
    ),
    "prediction-model-checkpoint-max-per-step": _natural(
        "predict.checkpoints_per_step", "Models saved per step."
    ),
    # strategies
    "reconcile-interval-seconds": _seconds(
        "qos.reconcile_interval_s",
        "Interval of CPU burst, memory QoS, resctrl, block I/O and system settings, in seconds; 0: off.",
    ),
    "cpu-suppress-interval-seconds": _seconds(
        "qos.suppress_interval_s", "Interval of CPU suppression, in seconds; 0: off."
    ),
    "only-evict-by-api": _switch(
        "qos.only_evict_by_api",
        "Evict through the API server only; otherwise containers are stopped in the runtime.",
    ),
    "resource-force-update-seconds": _seconds(
        "qos.force_update_s",
        "Check a file again after this many seconds, even if the target value has not changed.",
    ),
    "containerd-endpoint": _text("qos.containerd_endpoint", "Socket of containerd; empty: detected."),
    "docker-endpoint": _text("qos.docker_endpoint", "Socket of docker; empty: detected."),
    "pouch-endpoint": _text("qos.pouch_endpoint", "Socket of pouch; empty: detected."),
    "restore-on-exit": _switch(
        "qos.restore_on_exit", "Restore all changed files of the node on exit (not in the reference)."
    ),
    # hooks
    "runtime-hooks-reconcile-interval": _time(
        "hooks.reconcile_interval_s", "Interval between reconciliations of QoS groups and host applications."
    ),
    "runtime-hooks-plugin-failure-policy": Setting(
        "hooks.plugin_failure_policy",
        "After a hook fails: Ignore runs the next hook, Fail skips the remaining ones.",
        _policy,
    ),
    "runtime-hooks-host-endpoint": _text(
        "hook_server.host_endpoint", "Socket of the hook server as the runtime proxy on the host sees it."
    ),
    "runtime-hooks-failure-policy": Setting(
        "hook_server.failure_policy",
        "What the runtime proxy does when the hook server does not answer: Ignore goes on, Fail refuses the call.",
        _policy,
    ),
    "runtime-hooks-disable-stages": flag_settings.listed(
        "hook_server.disabled_stages", "Stages for which the runtime proxy is not to ask."
    ),
    "enable-nri-runtime-hook": _switch(
        "nri.is_enabled",
        "Join the container runtime as an NRI plugin, so that containers start with their limits.",
    ),
    "runtime-hooks-nri-socket-path": _text(
        "nri.socket", "Socket of the runtime for NRI plugins; a relative path begins at the host's /var/run."
    ),
    "runtime-hooks-nri-plugin-name": _text("nri.name", "Name of the NRI plugin."),
    "runtime-hooks-nri-plugin-index": _text("nri.index", "Place among NRI plugins, two digits."),
    "runtime-hooks-nri-connect-timeout": _time(
        "nri.connect_timeout_s", "How long registering may take; longer than the runtime's own limit."
    ),
    "runtime-hooks-nri-backoff-duration": _time(
        "nri.backoff_s", "Pause before the runtime is tried again; a new socket is tried at once."
    ),
    "runtime-hooks-nri-backoff-factor": Setting(
        "nri.backoff_factor",
        "Growth of that pause with each failure.",
        partial(flag_kinds.count, kind=FiniteRange(1)),
    ),
    "runtime-hooks-nri-backoff-cap": _time("nri.backoff_max_s", "The longest such pause."),
    "default-runtime-type": _text(
        "hook_server.runtime_type", "Runtime of container ids that the runtime proxy gives without one."
    ),
    "disable-unset-cpu-quota": _switch(
        "hooks.keep_cpu_quota", "Keep the CPU quota of pods with exclusive CPUs."
    ),
    "hami-core-library-directory-path": _text(
        "hooks.hami_core_library", "Path of the HAMi-core library, which limits GPU shares."
    ),
    # audit
    "audit-log-dir": _text("audit.directory", "Directory of the audit log."),
    "audit-verbose": _number("audit.verbose", "Audit level; events above it are dropped."),
    "audit-max-disk-space-mb": _natural("audit.disk_mb_max", "Maximum size of the audit log, in MB."),
    "audit-max-concurrent-readers": _natural(
        "audit.readers_max", "Maximum number of concurrent readers of the audit log."
    ),
    "audit-max-events-limit": _natural("audit.events_max", "Maximum number of events per page."),
}
"""Flags that set a field of `AgentConfig`, by name. Defaults are those of the field."""

_SOCKET = HookServerConfig().host_endpoint
ROOTS: Mapping[str, tuple[str, str]] = {
    "cgroup-root-dir": ("cgroup", "cgroup file systems"),
    "proc-root-dir": ("proc", "/proc"),
    "sys-root-dir": ("sys", "/sys"),
    "sys-fs-root-dir": ("sys_fs", "/sys/fs"),
    "var-run-root-dir": ("var_run", "/var/run"),
    "run-root-dir": ("run", "/run"),
    "var-lib-kubelet-dir": ("kubelet", "/var/lib/kubelet"),
}
"""Flags for the mount points of the host, by name: field of `HostRoots`, description."""

HOOK_SERVER: Mapping[str, tuple[str, str, str]] = {
    "runtime-hooks-addr": (
        "address",
        "Socket of the hook server, for the runtime proxy; empty: none.",
        _SOCKET,
    ),
    "runtime-hooks-config-path": (
        "directory",
        "Directory in which the runtime proxy looks for hook servers.",
        "/etc/runtime/hookserver.d",
    ),
}
"""Flags whose default is another one in host mode, by name: field of `HookServerConfig`, description, that default."""

_MEMORY = "samples are kept in memory, in ring buffers"
INERT = InertFlags(
    {
        "configmap-name": "settings come from NodeSLO; the reference does not read it either",
        "configmap-namespace": "settings come from NodeSLO; the reference does not read it either",
        "report-interval": "the NodeMetric sets the report interval",
        "metric-gc-interval-seconds": "the reference does not use it either",
        "metric-expire-seconds": "the reference does not use it either",
        "tsdb-path": _MEMORY,
        "tsdb-max-bytes": _MEMORY,
        "tsdb-stripe-size": _MEMORY,
        "tsdb-wal-segment-size": _MEMORY,
        "tsdb-max-block-chunk-segment-size": _MEMORY,
        "tsdb-min-block-duration": _MEMORY,
        "tsdb-max-block-duration": _MEMORY,
        "tsdb-head-chunks-write-buffer-size": _MEMORY,
        "qos-extension-plugins": "there are no extension strategies",
        "runtime-hooks-nri-backoff-steps": "the runtime is looked for as long as the agent runs",
        **flag_settings.LOG_FLAGS,
    },
    {
        "tsdb-enable-prometheus-metric": _MEMORY,
        "enable-pod-taskids": "strategies that place threads read thread ids themselves",
        **flag_settings.LOG_SWITCHES,
    },
)

_CLIENT = (
    flag_kinds.text("kubeconfig", "", "Path of the kubeconfig file; not needed in a pod."),
    flag_kinds.text("master", "", "URL of the API server; overrides the kubeconfig."),
    flag_kinds.count("kube-api-qps", 20.0, "Sustained rate of API requests per second.", flag_kinds.RATE),
    flag_kinds.count("kube-api-burst", 30, "Burst of API requests."),
    flag_kinds.file(
        "kubelet-client-certificate",
        "Client certificate (PEM) for the kubelet, instead of a token (not in the reference).",
    ),
    flag_kinds.file("kubelet-client-key", "Private key (PEM) of --kubelet-client-certificate."),
    flag_kinds.file(
        "kubelet-certificate-authority",
        "CA certificate (PEM) that verifies the kubelet; without it the kubelet's certificate, usually self-signed, "
        "is not verified (not in the reference).",
    ),
    flag_kinds.text(
        "kubelet-cgroup-root",
        "",
        "The kubelet's cgroupRoot: the parent cgroup of kubepods (not in the reference).",
    ),
    flag_kinds.text("feature-gates", "", "Gate=true,Other=false; AllAlpha and AllBeta for all of a stage."),
    flag_kinds.switch(
        "dry-run",
        False,
        "Change nothing on the node or in the cluster; print each write and its reason (not in the reference).",
    ),
    *flag_settings.LOGGING,
)


_SHOWN = "DaemonSet: {}; host mode: {}"
_ROOTS = tuple(
    flag_kinds.text(
        name,
        None,
        f"Mount point of the host's {what}. "
        f"[{_SHOWN.format(getattr(HostRoots(), field), getattr(HostRoots.below(''), field))}]",
    )
    for name, (field, what) in ROOTS.items()
)
_HOOK_SERVER = tuple(
    flag_kinds.text(name, None, f"{words} [{_SHOWN.format(getattr(HookServerConfig(), field), on_host)}]")
    for name, (field, words, on_host) in HOOK_SERVER.items()
)
_NETWORK = click.option(
    "--runtime-hooks-network",
    type=click.Choice(("unix",)),
    default="unix",
    show_default=True,
    help="Kind of the hook server's socket.",
)


def options(command: Any) -> Any:
    """Put all flags on a command."""
    evicting = [
        flag_kinds.count(flag.name, flag.default_s, flag.words, click.IntRange(min=0))
        for flag in evictions.flags()
    ]
    settings = flag_settings.options(SETTINGS, AgentConfig(node_name=""))
    return together(*_CLIENT, *_ROOTS, *settings, _NETWORK, *_HOOK_SERVER, *evicting, *INERT.options())(
        command
    )


def of(values: Mapping[str, Any], environment: Mapping[str, str]) -> KoordletSettings:
    """Return the settings of the command line.

    Raises: FlagError, FeatureGateError, QuantityError and the like for what cannot be used.
    """
    node_name = environment.get(NODE_NAME, "")
    if not node_name:
        reason = "the environment variable must hold the name of this node (in a pod: fieldRef spec.nodeName)"
        raise FlagError(NODE_NAME, reason)
    from koordinator.koordlet import gates  # imports all hooks, which --help does not need

    mode = environment.get(AGENT_MODE, "")
    defaults = AgentConfig(node_name=node_name, qos=_evicting(values), hook_server=_hook_server(mode, values))
    settings = KoordletSettings(
        config=flag_settings.read(SETTINGS, defaults, values),
        roots=_roots(mode, values),
        gates=gates.of(values["feature_gates"]),
        kubeconfig=values["kubeconfig"],
        server=values["master"],
        qps=values["kube_api_qps"],
        burst=values["kube_api_burst"],
        client_certificate=values["kubelet_client_certificate"],
        client_key=values["kubelet_client_key"],
        kubelet_authority=values["kubelet_certificate_authority"],
        is_dry_run=values["dry_run"],
    )
    _check(settings)
    return settings


def _evicting(values: Mapping[str, Any]) -> QoSConfig:
    given = {flag: values[flag.name.replace("-", "_")] for flag in evictions.flags()}
    return QoSConfig(
        evictions={flag.name: float(value) for flag, value in given.items() if value != flag.default_s}
    )


def _roots(agent_mode: str, values: Mapping[str, Any]) -> HostRoots:
    given = {
        field: value.rstrip("/") or "/"
        for name, (field, _) in ROOTS.items()
        if (value := values[name.replace("-", "_")]) is not None
    }
    below = values["kubelet_cgroup_root"].strip("/")
    return msgspec.structs.replace(HostRoots.of_mode(agent_mode), kubepods_below=below, **given)


def _hook_server(agent_mode: str, values: Mapping[str, Any]) -> HookServerConfig:
    found: dict[str, Any] = {}
    for name, (field, _, on_host) in HOOK_SERVER.items():
        given = values[name.replace("-", "_")]
        if given is not None or agent_mode == HOST_MODE:
            found[field] = on_host if given is None else given
    return HookServerConfig(**found)


def _check(settings: KoordletSettings) -> None:
    if re.fullmatch("[0-9]{2}", settings.config.nri.index) is None:
        raise FlagError("runtime-hooks-nri-plugin-index", f"{settings.config.nri.index!r} must be two digits")
    kubelet, predict = settings.config.kubelet, settings.config.predict
    if kubelet.insecure and not kubelet.no_config:
        reason = "requires --disable-query-kubelet-config: the read-only port has no /configz"
        raise FlagError("kubelet-insecure-tls", reason)
    if kubelet.timeout_s <= 0:
        raise FlagError("kubelet-sync-timeout", "must be above 0")
    positive = {
        "prediction-cpu-histogram-decay-halflife": predict.cpu_half_life_s,
        "prediction-memory-histogram-decay-halflife": predict.memory_half_life_s,
        "prediction-training-interval": predict.training_interval_s,
        "prediction-model-checkpoint-interval": predict.checkpoint_interval_s,
        "collect-cpi-timewindow": settings.config.collect.cpi_window_s,
        "tsdb-retention-duration": settings.config.series_retention_s,
        "runtime-hooks-reconcile-interval": settings.config.hooks.reconcile_interval_s,
    }
    for name, value in positive.items():
        if value <= 0:
            raise FlagError(name, "must be above 0")
    if (settings.client_certificate is None) != (settings.client_key is None):
        raise FlagError("kubelet-client-certificate", "must be given together with --kubelet-client-key")
    for name, text in (
        ("addr", settings.config.http.address),
        ("pprof-addr", settings.config.http.profiling_address),
    ):
        flag_settings.host_and_port(name, text)
