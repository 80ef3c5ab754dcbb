"""The options that differ between installations of the manager: names, defaults and meaning are those of its flags.

Source: behaviour/manager 2.1 and 2.2.
"""

import msgspec

from koordinator.api import labels, slo_config

CONTROLLERS = (
    "nodemetric",
    "noderesource",
    "nodeslo",
    "quotaprofile",
    "colocationprofile",
    "tidalpool",
    "workloadprofile",
)
NODE_RESOURCE_PLUGINS = (
    "CPUNormalization",
    "ResourceAmplification",
    "MidResource",
    "BatchResource",
    "GPUDeviceResource",
    "RDMADeviceResource",
    "BatchGPUResource",
    "BatchDuration",
)
"""In the order in which they calculate and prepare."""


RESYNC_S = 36_000.0
"""Upstream's, where nothing else is said."""


class ProfileControllerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The controller that brings colocation profiles to pods that wait already (`--colocation-profile-*`)."""

    reconcile_by_default: bool = False
    reconcile_interval_s: float = 30.0
    force_update_pod_s: float = 300.0
    expire_pod_cache_s: float = 600.0
    update_pod_qps: float = 10.0
    update_pod_burst: int = 100


class EnhancedValidatorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The place of the label rules of pods (`--pod-enhanced-validator-*`)."""

    config_namespace: str = "koordinator-system"
    config_name: str = "pod-enhanced-validator-config"
    reconcile_interval_s: float = 300.0


class QuotaUpdateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options for writes of the quota evaluation (`--quota-update-*`)."""

    max_retries: int = 3
    retry_jitter_s: float = 0.0
    max_total_jitter_s: float = 1.0
    conflict_fresh_get: bool = False


class BindingAdmissionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The users who may bind pods (`--binding-admission-*`). Without user names, or without namespaces, nothing is
    checked."""

    user_names: tuple[str, ...] = ()
    """A user may bind when one of these is part of the name."""
    dry_run: bool = False
    namespaces: tuple[str, ...] = ()
    exclude_namespaces: tuple[str, ...] = ("kube-system",)
    bypass_labels: tuple[str, ...] = (labels.BINDING_ADMISSION_BYPASS,)
    bypass_annotations: tuple[str, ...] = ()


class ManagerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that controllers and admission handlers are told.

    `controllers` and `node_resource_plugins` are lists of `*`, `name` and `-name`; the first entry that names
    one decides, `*` otherwise.
    """

    namespace: str = ""
    """Restricts caches of namespaced objects to one namespace; empty for all."""
    resync_s: float = RESYNC_S
    """Interval at which controllers look at everything again although nothing changed; 0: never."""
    config_namespace: str = slo_config.CONFIG_NAMESPACE
    slo_config_name: str = slo_config.CONFIG_NAME
    controllers: tuple[str, ...] = CONTROLLERS
    node_resource_plugins: tuple[str, ...] = NODE_RESOURCE_PLUGINS
    node_strategy_name_need_check: bool = False
    lent_ledger_hours: int = 24
    """For so long the leader remembers where what nodes lent came from; 0: not at all."""
    lent_ledger_mebibytes: int = 256
    scheduler_url: str = ""
    """Address of the scheduler that answers whether pods of a node that a tidal pool lends fit
    elsewhere; empty: nobody is asked, unless the scheduler is in this process."""
    scheduler_ca_file: str = ""
    profile_controller: ProfileControllerOptions = ProfileControllerOptions()
    enhanced_validator: EnhancedValidatorOptions = EnhancedValidatorOptions()
    quota_update: QuotaUpdateOptions = QuotaUpdateOptions()
    binding_admission: BindingAdmissionOptions = BindingAdmissionOptions()
    seed: int = 0
