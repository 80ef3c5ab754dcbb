"""The flags of `koord-yarn-operator`. Source: behaviour/yarn 3.1."""

from collections.abc import Mapping
from typing import Any

import click
import msgspec

from koordinator.api import duration
from koordinator.cli import flag_kinds, flag_settings
from koordinator.cli.flag_kinds import Decorate
from koordinator.cli.flag_settings import FlagError, InertFlags
from koordinator.cli.options import together

_WHOLE = click.IntRange(min=0)


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """The command line; names are those of the flags."""

    kubeconfig: str
    master: str
    metrics_addr: str
    health_probe_addr: str
    enable_pprof: bool
    pprof_addr: str
    enable_leader_election: bool
    leader_election_namespace: str
    namespace: str
    rest_config_qps: int
    rest_config_burst: int
    controllers: tuple[str, ...]
    subtract_kube_batch_requests: bool
    rounding: str
    yarn_share: int
    lend_once: bool
    nm_lost_hold: str
    over_commit_timeout: int
    update_mode: str
    kerberos_principal: str
    kerberos_keytab: str
    diff_threshold_vcores: int
    diff_threshold_mb: int
    resync_interval: str


OPTIONS: tuple[Decorate, ...] = (
    flag_kinds.text("kubeconfig", "", "Path of the kubeconfig file; not needed in a pod."),
    flag_kinds.text("master", "", "URL of the API server; overrides the kubeconfig."),
    flag_kinds.text("metrics-addr", ":8080", "Address (host:port) of /metrics; 0: off."),
    flag_kinds.text("health-probe-addr", ":8000", "Address of /healthz and /readyz; 0: off."),
    flag_kinds.switch("enable-pprof", True, "Serve profiles at --pprof-addr."),
    flag_kinds.text("pprof-addr", ":8090", "Address of /debug/pprof."),
    flag_kinds.switch("enable-leader-election", True, "Only the leader talks to YARN and changes nodes."),
    flag_kinds.text(
        "leader-election-namespace", "koordinator-system", "Namespace of the Lease koordinator-yarn-operator."
    ),
    flag_kinds.text(
        "namespace",
        "",
        "Watch pods of this namespace only: it must have the NodeManagers, and batch pods elsewhere are not "
        "subtracted. Default: all.",
    ),
    flag_kinds.count("rest-config-qps", 30, "API requests per second; 0 or less: 20.", click.INT),
    flag_kinds.count("rest-config-burst", 50, "Burst of API requests; 0 or less: 30.", click.INT),
    flag_kinds.listed("controllers", "yarnresource", "Controllers to run: yarnresource, -yarnresource or *."),
    flag_kinds.switch(
        "subtract-kube-batch-requests",
        True,
        "Take the batch requests of pods off YARN's total; false, as in the reference: both may book the whole pool.",
    ),
    click.option(
        "--rounding",
        type=click.Choice(("exact", "reference")),
        default="exact",
        show_default=True,
        help="exact: never promise more than there is; reference: round up, and count megabytes as mebibytes.",
    ),
    flag_kinds.count(
        "yarn-share",
        100,
        "The most of each node's batch pool that YARN is offered, in percent.",
        click.IntRange(1, 100),
    ),
    flag_kinds.switch(
        "lend-once",
        False,
        "Take all that YARN is offered off what pods may have, used or not: nothing is ever offered to both. Needs "
        "a --yarn-share below 100.",
    ),
    flag_kinds.time("nm-lost-hold", "10m", "How long a NodeManager without reports counts as it did."),
    flag_kinds.count(
        "over-commit-timeout",
        -1,
        "Milliseconds until the ResourceManager kills containers above a lowered total; -1: never.",
        click.IntRange(min=-1, max=2**31 - 1),
    ),
    click.option(
        "--update-mode",
        type=click.Choice(("rpc", "rest", "auto")),
        default="rpc",
        show_default=True,
        help="How totals are told; auto: by REST where the admin port does not answer.",
    ),
    flag_kinds.text(
        "kerberos-principal", "", "Who calls YARN clusters with Kerberos: NAME@REALM, an admin there."
    ),
    flag_kinds.text(
        "kerberos-keytab", "", "File with the key of --kerberos-principal; $KRB5_CONFIG names the realm's."
    ),
    flag_kinds.count("diff-threshold-vcores", 0, "Differences of a total not worth a call.", _WHOLE),
    flag_kinds.count("diff-threshold-mb", 0, "The same for memory.", _WHOLE),
    flag_kinds.time("resync-interval", "60s", "How often all totals are compared, changed or not."),
    *flag_settings.LOGGING,
)

INERT = InertFlags(
    {
        "sync-period": "caches are kept current by watches, and listed again when these fail",
        **flag_settings.LOG_FLAGS,
    },
    flag_settings.LOG_SWITCHES,
)

options = together(*OPTIONS, *INERT.options())


def of(values: Mapping[str, Any]) -> Flags:
    """Return the flags. Raises: FlagError."""
    flags = Flags(**{field: values[field] for field in Flags.__struct_fields__})
    if bool(flags.kerberos_principal) != bool(flags.kerberos_keytab):
        raise FlagError("--kerberos-keytab", "goes together with --kerberos-principal")
    if flags.lend_once and flags.yarn_share == 100:
        raise FlagError(
            "--lend-once", "needs --yarn-share below 100: else pods get nothing that YARN could use"
        )
    if flags.enable_leader_election and not flags.leader_election_namespace:
        raise FlagError("--leader-election-namespace", "is empty: name the namespace of the lease")
    for name in ("nm_lost_hold", "resync_interval"):
        if duration.parse(getattr(flags, name)) <= 0:
            raise FlagError(f"--{name.replace('_', '-')}", "must be above 0")
    return flags
