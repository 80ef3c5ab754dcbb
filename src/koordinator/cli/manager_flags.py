"""The flags of `koord-manager`, by the field of `ManagerOptions` that each sets. Source: behaviour/manager 2.1;
behaviour/api 13.1."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import click
import msgspec

from koordinator.api import duration
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.scalars import ScalarError
from koordinator.cli import flag_kinds, flag_settings
from koordinator.cli.flag_settings import FlagError, InertFlags, Setting
from koordinator.cli.options import together
from koordinator.cluster.backoff import Rate
from koordinator.cluster.leader import ElectionConfig
from koordinator.manager.metrics import LEASE
from koordinator.manager.options import CONTROLLERS, NODE_RESOURCE_PLUGINS, RESYNC_S, ManagerOptions

LEASES = "leases"


class ManagerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The command line, understood. Addresses are (host, port); None: not served."""

    options: ManagerOptions
    gates: FeatureGates
    metrics: tuple[str, int] | None
    health: tuple[str, int] | None
    profiling: tuple[str, int] | None
    election: ElectionConfig | None
    """Its identity is for the process to choose; None: this is the only instance."""
    rate: Rate
    linger_s: float = 0.0
    kubeconfig: str = ""
    server: str = ""
    remarks: tuple[str, ...] = ()
    """Warnings for the log about flag values that were interpreted unexpectedly."""


_LIST = (
    "A list of *, NAME and -NAME: NAME enables, -NAME disables, * enables all others; the first match wins."
)

SETTINGS: Mapping[str, Setting] = {
    "namespace": flag_settings.text(
        "namespace",
        "Watch pods and other namespaced objects of this namespace only; the rest of the cluster then counts as "
        "empty, so nodes appear less used than they are. For tests only.",
    ),
    "config-namespace": flag_settings.text("config_namespace", "Namespace of --slo-config-name."),
    "slo-config-name": flag_settings.text(
        "slo_config_name",
        "Name of the ConfigMap with colocation, threshold, QoS and burst settings (docs/run-the-manager.md).",
    ),
    "controllers": flag_settings.listed("controllers", f"Controllers to run. {_LIST}"),
    "noderesource-plugins": flag_settings.listed(
        "node_resource_plugins",
        f"Resources that the controller noderesource manages. {_LIST} Disabled resources stay on nodes unchanged.",
    ),
    "lent-ledger-hours": flag_settings.number(
        "lent_ledger_hours",
        "For so many hours the leader remembers, minute by minute, where what nodes lent came from "
        "(koordinator explain lent --at); 0: not at all (not in the reference).",
    ),
    "lent-ledger-mebibytes": flag_settings.number(
        "lent_ledger_mebibytes",
        "Memory for that, at most: some 32 bytes per node and minute; the oldest hours go first "
        "(not in the reference).",
    ),
    "scheduler-url": flag_settings.text(
        "scheduler_url",
        "Address of koord-scheduler, which is asked whether the pods of a node that a tidal pool lends would be placed "
        "elsewhere; without it their requests decide (gate TidalPool; not in the reference).",
    ),
    "scheduler-ca-file": flag_settings.text(
        "scheduler_ca_file",
        "File of the authorities that its certificate is checked by; without it those of the system.",
    ),
    # pods that wait already
    "colocation-profile-reconcile-by-default": flag_settings.switch(
        "profile_controller.reconcile_by_default",
        "Apply changed ClusterColocationProfiles to pods that are already pending (gate ColocationProfileController), "
        "even when the profile's label does not ask for it.",
    ),
    "colocation-profile-reconcile-interval": flag_settings.time(
        "profile_controller.reconcile_interval_s", "How often profiles are reconciled."
    ),
    "colocation-profile-force-update-pod-duration": flag_settings.time(
        "profile_controller.force_update_pod_s", "A pod is reconciled again after this long."
    ),
    "colocation-profile-expire-pod-cache-duration": flag_settings.time(
        "profile_controller.expire_pod_cache_s", "How long the cache keeps the result for a pod."
    ),
    "colocation-profile-update-pod-qps": Setting(
        "profile_controller.update_pod_qps",
        "Sustained rate of pod updates per second.",
        partial(flag_kinds.count, kind=flag_kinds.RATE),
    ),
    # rules for labels of pods
    "pod-enhanced-validator-config-namespace": flag_settings.text(
        "enhanced_validator.config_namespace", "Namespace of --pod-enhanced-validator-config-name."
    ),
    "pod-enhanced-validator-config-name": flag_settings.text(
        "enhanced_validator.config_name",
        "Name of the ConfigMap with rules for pod labels (gate EnablePodEnhancedValidator).",
    ),
    "pod-enhanced-validator-reconcile-interval": flag_settings.time(
        "enhanced_validator.reconcile_interval_s", "Longest interval between two reads of that ConfigMap."
    ),
    # quota evaluation
    "quota-update-max-retries": flag_settings.number(
        "quota_update.max_retries",
        "Retries after conflicting updates of a quota's usage (gate EnableQuotaAdmission).",
    ),
    "quota-update-retry-jitter": flag_settings.time(
        "quota_update.retry_jitter_s", "Longest random pause before a retry; 0: none."
    ),
    "quota-update-max-total-jitter": flag_settings.time(
        "quota_update.max_total_jitter_s", "Longest total of these pauses."
    ),
    "quota-update-conflict-fresh-get": flag_settings.switch(
        "quota_update.conflict_fresh_get",
        "Read the quota from the API server after a conflict instead of from the cache.",
    ),
    # who may bind pods
    "binding-admission-user-name": flag_settings.listed(
        "binding_admission.user_names",
        "Users that may bind pods, by substrings of their names (gate BindingAdmissionWebhook); empty: all users.",
    ),
    "binding-admission-dry-run": flag_settings.switch(
        "binding_admission.dry_run", "Allow all bindings, and count those that would be denied."
    ),
    "binding-admission-namespaces": flag_settings.listed(
        "binding_admission.namespaces", "Namespaces in which bindings are checked; * for all, empty for none."
    ),
    "binding-admission-exclude-namespaces": flag_settings.listed(
        "binding_admission.exclude_namespaces", "Namespaces in which bindings are never checked."
    ),
    "binding-admission-bypass-labels": flag_settings.listed(
        "binding_admission.bypass_labels", "Any user may bind pods with one of these labels."
    ),
    "binding-admission-bypass-annotations": flag_settings.listed(
        "binding_admission.bypass_annotations",
        "Any user may bind pods with one of these annotations.",
    ),
}
"""Flags that set a field of `ManagerOptions`, by name. Defaults are those of the field."""

INERT = InertFlags(
    flag_settings.LOG_FLAGS,
    {
        "disable-no-deepcopy": "objects of the caches are immutable and never copied",
        **flag_settings.LOG_SWITCHES,
    },
)

_PROCESS = (
    flag_kinds.text("kubeconfig", "", "Path of the kubeconfig file; not needed in a pod."),
    flag_kinds.text("master", "", "URL of the API server; overrides the kubeconfig."),
    flag_kinds.text(
        "metrics-addr",
        ":8080",
        "Address (host:port) of metrics: /metrics (process, client, queues), /internal-metrics (decisions), "
        "/external-metrics, /all-metrics; 0: off.",
    ),
    flag_kinds.text(
        "health-probe-addr",
        ":8000",
        "Address of /healthz and /readyz (?verbose lists the checks, /readyz/NAME runs one); 0: off.",
    ),
    flag_kinds.switch("enable-pprof", True, "Serve profiles at --pprof-addr."),
    flag_kinds.text("pprof-addr", ":8090", "Address of /debug/pprof."),
    flag_kinds.switch(
        "enable-leader-election",
        True,
        "Only the leader runs controllers; webhooks and caches run on every instance. With false, every instance "
        "runs controllers: use false for a single instance only.",
    ),
    flag_kinds.text(
        "leader-election-namespace", "koordinator-system", "Namespace of the Lease koordinator-manager."
    ),
    flag_kinds.text("leader-elect-resource-lock", LEASES, "Type of the lock; only leases is supported."),
    flag_kinds.time(
        "leader-elect-lease-duration",
        "15s",
        "How long other instances wait after the last renewal before they take over (not in the reference).",
    ),
    flag_kinds.time(
        "leader-elect-renew-deadline",
        "10s",
        "A leader that cannot renew for this long exits (not in the reference).",
    ),
    flag_kinds.time(
        "leader-elect-retry-period",
        "2s",
        "Interval between attempts to acquire or renew the lease (not in the reference).",
    ),
    flag_kinds.time(
        "shutdown-delay-duration",
        "0s",
        "On SIGTERM, release the lease and become unready at once, but serve webhooks for this long, because API "
        "servers and Services notice the change late (not in the reference).",
    ),
    flag_kinds.text(
        "sync-period",
        "",
        "Interval between full resyncs, for example 30m; 0: never; default 10h. "
        "An invalid duration is logged and the default is used.",
    ),
    flag_kinds.count(
        "rest-config-qps",
        30,
        "Sustained rate of API requests per second; 0 or less: 20. Lease renewals are never throttled.",
        click.INT,
    ),
    flag_kinds.count("rest-config-burst", 50, "Burst of API requests; 0 or less: 30.", click.INT),
    flag_kinds.text(
        "node-strategy-name-need-check",
        "false",
        "true: the ConfigMap webhook requires a unique name for each node strategy. Any other value means false.",
    ),
    click.option(
        "--colocation-profile-update-pod-qps-burst",
        "--colocation-profile-update-pod-burst",
        "colocation_profile_update_pod_burst",
        type=flag_kinds.COUNT,
        default=ManagerOptions().profile_controller.update_pod_burst,
        show_default=True,
        help="Burst of pod updates.",
    ),
    flag_kinds.text(
        "feature-gates", "", "Gate=true,Other=false; AllAlpha and AllBeta for all gates of a stage."
    ),
    *flag_settings.LOGGING,
)


options = together(*_PROCESS, *flag_settings.options(SETTINGS, ManagerOptions()), *INERT.options())


def of(values: Mapping[str, Any]) -> ManagerSettings:
    """Return the settings of the command line. Raises: FlagError, FeatureGateError for what cannot be used."""
    remarks: list[str] = []
    return ManagerSettings(
        options=_options(values, remarks),
        gates=FeatureGates.of(Component.MANAGER, values["feature_gates"]),
        metrics=flag_settings.served_at("--metrics-addr", values["metrics_addr"]),
        health=flag_settings.served_at("--health-probe-addr", values["health_probe_addr"]),
        profiling=flag_settings.served_at("--pprof-addr", values["pprof_addr"])
        if values["enable_pprof"]
        else None,
        election=_election(values),
        rate=flag_settings.client_rate(values["rest_config_qps"], values["rest_config_burst"]),
        linger_s=max(0.0, duration.parse(values["shutdown_delay_duration"])),
        kubeconfig=values["kubeconfig"],
        server=values["master"],
        remarks=tuple(remarks),
    )


def _election(values: Mapping[str, Any]) -> ElectionConfig | None:
    lock, namespace = values["leader_elect_resource_lock"], values["leader_election_namespace"]
    if lock != LEASES:
        raise FlagError("--leader-elect-resource-lock", f"{lock!r}: API servers support only {LEASES}")
    if not namespace:
        raise FlagError("--leader-election-namespace", "is empty: name the namespace of the lease")
    lease_s = duration.parse(values["leader_elect_lease_duration"])
    if lease_s < 1 or lease_s != int(lease_s):
        text = values["leader_elect_lease_duration"]
        raise FlagError("--leader-elect-lease-duration", f"{text} must be whole seconds, at least 1s")
    try:
        config = ElectionConfig(
            name=LEASE,
            namespace=namespace,
            identity=LEASE,
            lease_duration_s=int(lease_s),
            renew_deadline_s=duration.parse(values["leader_elect_renew_deadline"]),
            retry_period_s=duration.parse(values["leader_elect_retry_period"]),
        )
    except ValueError as error:
        raise FlagError("--leader-elect-renew-deadline", str(error)) from error
    if config.retry_period_s <= 0:
        raise FlagError("--leader-elect-retry-period", "must be above 0")
    return config if values["enable_leader_election"] else None


def _options(values: Mapping[str, Any], remarks: list[str]) -> ManagerOptions:
    options = flag_settings.read(SETTINGS, ManagerOptions(), values)
    burst = values["colocation_profile_update_pod_burst"]
    options = flag_settings.put(options, "profile_controller.update_pod_burst", burst)
    _check_list("--controllers", options.controllers, CONTROLLERS)
    _check_list("--noderesource-plugins", options.node_resource_plugins, NODE_RESOURCE_PLUGINS)
    _check(options)
    check_names = values["node_strategy_name_need_check"]
    if check_names not in ("true", "false"):
        remarks.append(
            f"--node-strategy-name-need-check: {check_names!r} is not true or false, so names are not checked"
        )
    return msgspec.structs.replace(
        options,
        node_strategy_name_need_check=check_names == "true",
        resync_s=_resync_s(values["sync_period"], remarks),
    )


def _check(options: ManagerOptions) -> None:
    for flag, text in (
        ("--config-namespace", options.config_namespace),
        ("--slo-config-name", options.slo_config_name),
        ("--pod-enhanced-validator-config-namespace", options.enhanced_validator.config_namespace),
        ("--pod-enhanced-validator-config-name", options.enhanced_validator.config_name),
    ):
        if not text:
            raise FlagError(flag, "is empty: name the ConfigMap")
    profiles, quotas = options.profile_controller, options.quota_update
    for flag, seconds in (
        ("--colocation-profile-reconcile-interval", profiles.reconcile_interval_s),
        ("--colocation-profile-force-update-pod-duration", profiles.force_update_pod_s),
        ("--colocation-profile-expire-pod-cache-duration", profiles.expire_pod_cache_s),
        ("--pod-enhanced-validator-reconcile-interval", options.enhanced_validator.reconcile_interval_s),
    ):
        if seconds <= 0:
            raise FlagError(flag, f"{duration.text_of(seconds)} must be above 0")
    for flag, seconds in (
        ("--quota-update-retry-jitter", quotas.retry_jitter_s),
        ("--quota-update-max-total-jitter", quotas.max_total_jitter_s),
    ):
        if seconds < 0:
            raise FlagError(flag, f"{duration.text_of(seconds)} must not be below 0")


def _check_list(flag: str, entries: Sequence[str], known: Sequence[str]) -> None:
    unknown = [entry for entry in entries if entry != "*" and entry.removeprefix("-") not in known]
    if unknown:
        raise FlagError(flag, f"unknown: {', '.join(unknown)}; known: {', '.join(sorted(known))}, and *")


def _resync_s(text: str, remarks: list[str]) -> float:
    if not text:
        return RESYNC_S
    try:
        seconds = duration.parse(text)
    except ScalarError as error:
        remarks.append(f"--sync-period ignored: {error}")
        return RESYNC_S
    if seconds < 0:
        remarks.append(f"--sync-period ignored: {text} is below 0")
        return RESYNC_S
    return seconds
