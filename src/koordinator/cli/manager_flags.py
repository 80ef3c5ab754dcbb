"""The flags of `koord-manager`, by the field of `ManagerOptions` that each sets. Source: behaviour/manager 2.1;
behaviour/api 13.1."""

from collections.abc import Mapping, Sequence
from typing import Any

import click
import msgspec

from koordinator.api import duration
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.scalars import ScalarError
from koordinator.cli import flag_kinds, flag_settings
from koordinator.cli.flag_kinds import Decorate
from koordinator.cli.flag_settings import FlagError, Setting
from koordinator.cluster.backoff import Rate
from koordinator.cluster.leader import ElectionConfig
from koordinator.manager.metrics import LEASE
from koordinator.manager.options import CONTROLLERS, NODE_RESOURCE_PLUGINS, RESYNC_S, ManagerOptions

CLIENT_RATE = Rate(per_s=20.0, burst=30)
"""What upstream's client keeps to where the flags say nothing (0 or less)."""
LEASES = "leases"
OFF = ("", "0")
"""Addresses that mean: do not serve."""


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
    verbosity: int = 0
    module_verbosity: str = ""
    logs_as_json: bool = False
    remarks: tuple[str, ...] = ()
    """What the log says about flags that were understood in a way that may surprise."""


_LIST = (
    "A list of *, NAME and -NAME: the first entry that names one decides, * otherwise; all others are off."
)

SETTINGS: Mapping[str, Setting] = {
    "namespace": flag_settings.text(
        "namespace",
        "Look at pods and other namespaced objects of this namespace only. The rest of the cluster is then as if it "
        "were empty: nodes seem to have less on them than they have. For tests; leave it out.",
    ),
    "config-namespace": flag_settings.text("config_namespace", "Namespace of --slo-config-name."),
    "slo-config-name": flag_settings.text(
        "slo_config_name",
        "The ConfigMap with co-location, thresholds, QoS, burst and the like (docs/run-the-manager.md).",
    ),
    "controllers": flag_settings.listed("controllers", f"Controllers that run. {_LIST}"),
    "noderesource-plugins": flag_settings.listed(
        "node_resource_plugins",
        f"Which resources the controller noderesource takes care of. {_LIST} What is off stays on nodes as it is.",
    ),
    # pods that wait already
    "colocation-profile-reconcile-by-default": flag_settings.switch(
        "profile_controller.reconcile_by_default",
        "Bring changed ClusterColocationProfiles to pods that wait already (gate ColocationProfileController), also "
        "those of profiles that do not say so by label.",
    ),
    "colocation-profile-reconcile-interval": flag_settings.time(
        "profile_controller.reconcile_interval_s", "How often profiles are looked at."
    ),
    "colocation-profile-force-update-pod-duration": flag_settings.time(
        "profile_controller.force_update_pod_s", "A pod is brought in line again after so long."
    ),
    "colocation-profile-expire-pod-cache-duration": flag_settings.time(
        "profile_controller.expire_pod_cache_s", "How long it is remembered what was done to a pod."
    ),
    "colocation-profile-update-pod-qps": Setting(
        "profile_controller.update_pod_qps",
        "Pods changed per second, in the long run.",
        lambda name, default, words: click.option(
            f"--{name}",
            type=click.FloatRange(0, min_open=True),
            default=default,
            show_default=True,
            help=words,
        ),
    ),
    # rules for labels of pods
    "pod-enhanced-validator-config-namespace": flag_settings.text(
        "enhanced_validator.config_namespace", "Namespace of --pod-enhanced-validator-config-name."
    ),
    "pod-enhanced-validator-config-name": flag_settings.text(
        "enhanced_validator.config_name",
        "The ConfigMap with rules for labels of pods (gate EnablePodEnhancedValidator).",
    ),
    "pod-enhanced-validator-reconcile-interval": flag_settings.time(
        "enhanced_validator.reconcile_interval_s", "How often it is read at least."
    ),
    # quota evaluation
    "quota-update-max-retries": flag_settings.number(
        "quota_update.max_retries",
        "Tries after conflicting writes of a quota's use (gate EnableQuotaAdmission).",
    ),
    "quota-update-retry-jitter": flag_settings.time(
        "quota_update.retry_jitter_s", "Pause between them at most, drawn by chance; 0: none."
    ),
    "quota-update-max-total-jitter": flag_settings.time(
        "quota_update.max_total_jitter_s", "All these pauses together at most."
    ),
    "quota-update-conflict-fresh-get": flag_settings.switch(
        "quota_update.conflict_fresh_get",
        "Read the quota from the API server after a conflict instead of from the cache.",
    ),
    # who may bind pods
    "binding-admission-user-name": flag_settings.listed(
        "binding_admission.user_names",
        "Users that may bind pods, by parts of their names (gate BindingAdmissionWebhook); empty: everybody.",
    ),
    "binding-admission-dry-run": flag_settings.switch(
        "binding_admission.dry_run", "Count what would be refused, and allow it."
    ),
    "binding-admission-namespaces": flag_settings.listed(
        "binding_admission.namespaces", "Namespaces where it counts; * for all, empty for none."
    ),
    "binding-admission-exclude-namespaces": flag_settings.listed(
        "binding_admission.exclude_namespaces", "Namespaces where it never counts."
    ),
    "binding-admission-bypass-labels": flag_settings.listed(
        "binding_admission.bypass_labels", "Pods with one of these labels may be bound by everybody."
    ),
    "binding-admission-bypass-annotations": flag_settings.listed(
        "binding_admission.bypass_annotations",
        "Pods with one of these annotations may be bound by everybody.",
    ),
}
"""Flags that set a field of `ManagerOptions`, by name. Defaults are those of the field."""

WITHOUT_EFFECT: Mapping[str, str] = {**flag_settings.LOG_FLAGS}
SWITCHES_WITHOUT_EFFECT: Mapping[str, str] = {
    "disable-no-deepcopy": "objects of the caches are immutable and never copied",
    **flag_settings.LOG_SWITCHES,
}
"""Flags of the reference's command line that are read so that it works, each with why it changes nothing."""

_PROCESS = (
    flag_kinds.text("kubeconfig", "", "Kubeconfig file; a pod needs none."),
    flag_kinds.text("master", "", "URL of the API server, instead of the one in a kubeconfig."),
    flag_kinds.text(
        "metrics-addr",
        ":8080",
        "The address of metrics, as host:port: /metrics (process, client, queues), /internal-metrics (decisions), "
        "/external-metrics, /all-metrics; 0: nowhere.",
    ),
    flag_kinds.text(
        "health-probe-addr",
        ":8000",
        "The address of /healthz and /readyz, each with its checks (?verbose, /readyz/NAME); 0: nowhere.",
    ),
    flag_kinds.switch("enable-pprof", True, "Serve profiles at --pprof-addr."),
    flag_kinds.text("pprof-addr", ":8090", "Where /debug/pprof is served."),
    flag_kinds.switch(
        "enable-leader-election",
        True,
        "Of several instances, one runs the controllers; webhooks and caches run on all. With false every instance "
        "believes that it is alone.",
    ),
    flag_kinds.text(
        "leader-election-namespace", "koordinator-system", "Namespace of the lease koordinator-manager."
    ),
    flag_kinds.text("leader-elect-resource-lock", LEASES, "Only leases."),
    flag_kinds.time(
        "leader-elect-lease-duration",
        "15s",
        "When another instance takes over after the last renewal that it saw (ours).",
    ),
    flag_kinds.time(
        "leader-elect-renew-deadline", "10s", "When a leader that could not renew ends its process (ours)."
    ),
    flag_kinds.time("leader-elect-retry-period", "2s", "Between tries to get or to renew the lease (ours)."),
    flag_kinds.time(
        "shutdown-delay-duration",
        "0s",
        "When told to stop: give the lease up at once, be unready, but go on answering webhooks for so long, since API "
        "servers and Services learn of it later (ours).",
    ),
    flag_kinds.text(
        "sync-period",
        "",
        "Interval of looking at everything again although nothing changed (30m; 0: never; default 10h). "
        "A text that is no duration is told in the log, and the default counts.",
    ),
    flag_kinds.count(
        "rest-config-qps",
        30,
        "Requests to the API server per second, in the long run; 0 or less: 20. Renewals of the lease never wait.",
        click.INT,
    ),
    flag_kinds.count(
        "rest-config-burst", 50, "Requests to the API server at once; 0 or less: 30.", click.INT
    ),
    flag_kinds.text(
        "node-strategy-name-need-check",
        "false",
        "true: the ConfigMap webhook asks for a name of its own for each node strategy. Only the word true counts.",
    ),
    click.option(
        "--colocation-profile-update-pod-qps-burst",
        "--colocation-profile-update-pod-burst",
        "colocation_profile_update_pod_burst",
        type=flag_kinds.COUNT,
        default=ManagerOptions().profile_controller.update_pod_burst,
        show_default=True,
        help="Pods changed at once.",
    ),
    flag_kinds.text(
        "feature-gates", "", "Gate=true,Other=false; AllAlpha and AllBeta for all gates of a stage."
    ),
    *flag_settings.LOGGING,
)


def options(command: Any) -> Any:
    """Put all flags on a command."""
    inert = flag_settings.inert(WITHOUT_EFFECT, SWITCHES_WITHOUT_EFFECT)
    found: list[Decorate] = [*_PROCESS, *flag_settings.options(SETTINGS, ManagerOptions()), *inert]
    for option in reversed(found):
        command = option(command)
    return command


def of(values: Mapping[str, Any]) -> tuple[ManagerSettings, list[str]]:
    """Return the settings of the command line, and the flags that were given although they have no effect.
    Raises: FlagError, FeatureGateError for what cannot be used."""
    inert = flag_settings.given((*WITHOUT_EFFECT, *SWITCHES_WITHOUT_EFFECT), values)
    remarks: list[str] = []
    settings = ManagerSettings(
        options=_options(values, remarks),
        gates=FeatureGates.of(Component.MANAGER, values["feature_gates"]),
        metrics=_address("metrics-addr", values),
        health=_address("health-probe-addr", values),
        profiling=_address("pprof-addr", values) if values["enable_pprof"] else None,
        election=_election(values),
        rate=_rate(values["rest_config_qps"], values["rest_config_burst"]),
        linger_s=max(0.0, duration.parse(values["shutdown_delay_duration"])),
        kubeconfig=values["kubeconfig"],
        server=values["master"],
        verbosity=values["v"],
        module_verbosity=values["vmodule"],
        logs_as_json=values["logging_format"] == "json",
        remarks=tuple(remarks),
    )
    return settings, inert


def _election(values: Mapping[str, Any]) -> ElectionConfig | None:
    lock, namespace = values["leader_elect_resource_lock"], values["leader_election_namespace"]
    if lock != LEASES:
        raise FlagError(
            "--leader-elect-resource-lock", f"{lock!r}: API servers have nothing but {LEASES} any more"
        )
    if not namespace:
        raise FlagError("--leader-election-namespace", "is empty: the lease must be somewhere")
    lease_s = duration.parse(values["leader_elect_lease_duration"])
    if lease_s < 1 or lease_s != int(lease_s):
        text = values["leader_elect_lease_duration"]
        raise FlagError("--leader-elect-lease-duration", f"{text} is not whole seconds, from 1s on")
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
            f"--node-strategy-name-need-check: {check_names!r} is not the word true, so names are not checked"
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
        raise FlagError(flag, f"unknown: {', '.join(unknown)}; there are {', '.join(sorted(known))}, and *")


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


def _rate(per_s: int, burst: int) -> Rate:
    return Rate(
        per_s=float(per_s) if per_s > 0 else CLIENT_RATE.per_s,
        burst=burst if burst > 0 else CLIENT_RATE.burst,
    )


def _address(flag: str, values: Mapping[str, Any]) -> tuple[str, int] | None:
    text = values[flag.replace("-", "_")]
    return None if text in OFF else flag_settings.host_and_port(f"--{flag}", text)
