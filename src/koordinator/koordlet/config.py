"""The node agent's options: what its flags say, with the reference's defaults.

Source: behaviour/koordlet-observe 2.2; behaviour/koordlet-act 2.1 and 13.2. Durations in seconds.
"""

from collections.abc import Mapping

import msgspec


class CollectConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The intervals of the collectors."""

    used_interval_s: float = 1.0
    """Node, pods, host applications, best-effort tier, system, throttling. Below 1 all collectors are off."""
    system_outdated_s: float = 10.0
    node_info_interval_s: float = 60.0
    storage_interval_s: float = 1.0
    cpi_interval_s: float = 60.0
    cpi_window_s: float = 10.0
    psi_interval_s: float = 10.0
    cold_page_interval_s: float = 5.0
    resctrl_interval_s: float = 10.0
    page_cache: bool = False
    resctrl: bool = False
    xpu_only_files: bool = False
    """Never ask the GPU driver's library."""
    xpu_directory: str = "/var/run/koordlet/xpu-device-infos/"


class KubeletClientConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The options for reaching the kubelet."""

    address_type: str = "InternalIP"
    sync_interval_s: float = 10.0
    timeout_s: float = 3.0
    insecure: bool = False
    """Plain HTTP to the read-only port."""
    read_only_port: int = 10255
    no_config: bool = False
    """Do not read `/configz` nor the CPU manager's state."""
    topology_interval_s: float = 3.0
    report_node_metric: bool = True
    pod_resources_proxy: str = "/var/run/koordlet/pod-resources"
    """Directory of the proxy's socket; empty: no proxy."""


class PredictConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Peak prediction."""

    checkpoints: str = "/prediction-checkpoints"
    """Directory of the models' files; empty: none are kept."""
    cold_start_s: float = 24 * 3600.0
    safety_margin_percent: int = 10
    cpu_half_life_s: float = 12 * 3600.0
    memory_half_life_s: float = 24 * 3600.0
    training_interval_s: float = 60.0
    expiration_s: float = 30 * 60.0
    checkpoint_interval_s: float = 10 * 60.0
    checkpoints_per_step: int = 12


class QoSConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The intervals of the strategies."""

    reconcile_interval_s: float = 1.0
    suppress_interval_s: float = 1.0
    evictions: Mapping[str, float] = {}
    """Values of flags of eviction strategies, by name, where they are not the default
    (`qos.eviction_strategy.Flag`)."""
    only_evict_by_api: bool = False
    force_update_s: float = 60.0
    containerd_endpoint: str = ""
    docker_endpoint: str = ""
    pouch_endpoint: str = ""
    restore_on_exit: bool = False
    """Ours: put back what strategies changed when the agent stops."""


class HookServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The server that the runtime proxy asks. `host_endpoint` is its socket as the proxy sees it."""

    address: str = "/host-var-run-koordlet/koordlet.sock"
    host_endpoint: str = "/var/run/koordlet/koordlet.sock"
    failure_policy: str = "Ignore"
    directory: str = "/host-etc-hookserver/"
    """Directory in which the proxy looks for hook servers."""
    disabled_stages: tuple[str, ...] = ()
    runtime_type: str = "containerd"
    """The runtime of container ids that do not name theirs."""


class NRIConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The plugin of the container runtime. A relative `socket` lies below the host's /var/run."""

    is_enabled: bool = True
    socket: str = "nri/nri.sock"
    name: str = "koordlet_nri"
    index: str = "00"
    """Two digits: the place among plugins."""
    connect_timeout_s: float = 6.0
    """Longer than containerd's time limit for registration, 5 s."""
    backoff_s: float = 1.0
    backoff_factor: float = 2.0
    backoff_max_s: float = 10.0
    """The reference has no limit: after a long outage of the runtime its next containers would start unprotected."""
    backoff_jitter_ratio: float = 0.1


class HookConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Runtime hooks."""

    reconcile_interval_s: float = 10.0
    keep_cpu_quota: bool = False
    """`disable-unset-cpu-quota`: pods with CPUs of their own keep their quota."""
    plugin_failure_policy: str = "Ignore"
    hami_core_library: str = "/usr/local/vgpu/libvgpu.so"


class AuditConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The audit log."""

    directory: str = "/var/log/koordlet"
    verbose: int = 3
    disk_mb_max: int = 16
    readers_max: int = 4
    events_max: int = 2048


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The options for what the agent serves. An address is `host:port`, as Go has it; an empty host is any."""

    address: str = ":9316"
    profiling: bool = False
    profiling_address: str = ":9317"


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything; `node_name` comes from the environment variable NODE_NAME."""

    node_name: str
    collect: CollectConfig = CollectConfig()
    kubelet: KubeletClientConfig = KubeletClientConfig()
    predict: PredictConfig = PredictConfig()
    qos: QoSConfig = QoSConfig()
    hooks: HookConfig = HookConfig()
    hook_server: HookServerConfig = HookServerConfig()
    nri: NRIConfig = NRIConfig()
    audit: AuditConfig = AuditConfig()
    http: HttpConfig = HttpConfig()
    series_retention_s: float = 12 * 3600.0
    """Longest time that samples are kept."""
