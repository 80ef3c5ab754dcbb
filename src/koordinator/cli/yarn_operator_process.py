"""Run `koord-yarn-operator` once its command line is read: the operator as a process."""

import asyncio
import contextlib
import getpass
import logging
import os
import random
import secrets
from collections.abc import Callable
from pathlib import Path

import aiohttp
from aiohttp import web

from koordinator import endpoints, profiling
from koordinator.api import duration, user_files
from koordinator.cli import component, flag_settings, running
from koordinator.cli.flag_settings import FlagError
from koordinator.cli.yarn_operator_flags import Flags
from koordinator.cluster import connect, garbage
from koordinator.cluster.backoff import new_rng
from koordinator.cluster.config import ClientConfig
from koordinator.cluster.controller import is_controller_enabled
from koordinator.cluster.leader import ElectionConfig, LeaderElector, lease_check, process_identity
from koordinator.yarn import tokens
from koordinator.yarn.amounts import Rounding
from koordinator.yarn.cluster_loop import SyncRules
from koordinator.yarn.connection import Login
from koordinator.yarn.hadoop_config import YarnCluster
from koordinator.yarn.handover import Thresholds
from koordinator.yarn.kerberos import EXTRA, GssapiMechanism, KerberosLogin, is_installed
from koordinator.yarn.node_sync import Policy
from koordinator.yarn.operator import OperatorConfig, YarnOperator
from koordinator.yarn.resource_managers import MODES, Observe, ResourceManagers
from koordinator.yarn.rest import RestClient
from koordinator.yarn.sasl import Mechanism, TokenMechanism
from koordinator.yarn.tokens import TokenFileError

log = logging.getLogger(__name__)

USER_AGENT = "koordinator-yarn-operator"
LEASE = "koordinator-yarn-operator"
CONTROLLER = "yarnresource"


def start(flags: Flags) -> None:
    """Operate until a signal asks to stop. Raises: KoordinatorError, OSError, ExceptionGroup."""
    client = connect.load(server=flags.master, kubeconfig_file=flags.kubeconfig)
    with garbage.collected_rarely():
        running.run(_main(flags, client))


def config_of(flags: Flags) -> OperatorConfig:
    """Return the operator's settings."""
    return OperatorConfig(
        folder=Path(os.environ.get("HADOOP_CONF_DIR", "")),
        environment=dict(os.environ),
        namespace=flags.namespace,
        has_keytab=bool(flags.kerberos_keytab),
        rules=SyncRules(
            policy=Policy(
                rounding=Rounding(flags.rounding),
                is_kube_subtracted=flags.subtract_kube_batch_requests,
                yarn_percent=flags.yarn_share,
                lends_once=flags.lend_once,
            ),
            thresholds=Thresholds(flags.diff_threshold_vcores, flags.diff_threshold_mb),
            hold_s=duration.parse(flags.nm_lost_hold),
            over_commit_timeout_ms=flags.over_commit_timeout,
            resync_s=duration.parse(flags.resync_interval),
        ),
    )


def mechanisms_of(token_file: str) -> Callable[[str, str], Mechanism | None]:
    """Return how the caller is proven to a server: by the token in the file that is for it, else not at all.

    Raises: FlagError when there is a file that cannot be read.
    """
    if not token_file:
        return lambda server, protocol: None
    try:
        found = tokens.parse(user_files.read(token_file))
    except (OSError, user_files.FileError, TokenFileError) as error:
        raise FlagError("HADOOP_TOKEN_FILE_LOCATION", f"{token_file}: {error}") from error

    def mechanism(server: str, protocol: str) -> Mechanism | None:
        token = tokens.token_for(found, server)
        return None if token is None else TokenMechanism(token, secrets.token_urlsafe(30))

    return mechanism


def login_to(cluster: YarnCluster, login: Login, kerberos: KerberosLogin | None) -> Login:
    """Return who calls a cluster, with the proof that it wants."""
    if kerberos is None or not cluster.is_kerberos:
        return login
    return Login(login.user, lambda server, protocol: GssapiMechanism(kerberos, server, cluster.principal))


def kerberos_of(flags: Flags) -> KerberosLogin | None:
    """Return the principal and its key, None where none is given. Raises: FlagError when they cannot be used."""
    if not flags.kerberos_keytab:
        return None
    if not is_installed():
        raise FlagError("--kerberos-keytab", EXTRA)
    if not os.access(flags.kerberos_keytab, os.R_OK):
        raise FlagError("--kerberos-keytab", f"{flags.kerberos_keytab} cannot be read")
    return KerberosLogin(flags.kerberos_principal, flags.kerberos_keytab)


async def _main(flags: Flags, client: ClientConfig) -> None:
    # Jitter and names must differ between instances.
    rng = random.Random()
    rate = flag_settings.client_rate(flags.rest_config_qps, flags.rest_config_burst)
    user = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    kerberos = kerberos_of(flags)
    login = Login(user, mechanisms_of(os.environ.get("HADOOP_TOKEN_FILE_LOCATION", "")))
    async with (
        component.clients(client, rng, USER_AGENT, rate) as (cluster, lease_cluster),
        aiohttp.ClientSession() as session,
    ):

        def connected(wanted: YarnCluster, observe: Observe) -> ResourceManagers:
            rest = RestClient(session, user, wanted.web_scheme)
            return ResourceManagers(
                wanted, login_to(wanted, login, kerberos), rest, MODES[flags.update_mode], observe
            )

        operator = YarnOperator(cluster, config_of(flags), connected, rng)
        for each in (cluster, lease_cluster):
            operator.metrics.client.count(each.transport, client.server)
        component.add_to(operator.metrics.registry, cluster.clock.now())
        election = None
        if flags.enable_leader_election:
            candidate = ElectionConfig(
                name=LEASE,
                namespace=flags.leader_election_namespace,
                identity=process_identity(rng),
            )
            election = LeaderElector(lease_cluster, candidate, rng=new_rng(rng))
        async with _served(flags, operator, election):
            if is_controller_enabled(CONTROLLER, flags.controllers):
                await operator.run(election)
            else:
                log.warning("no controller is enabled", extra={"controllers": ",".join(flags.controllers)})
                operator.synced.set()  # it reads nothing, so it is ready
                await asyncio.Event().wait()


def _served(
    flags: Flags, operator: YarnOperator, election: LeaderElector | None
) -> contextlib.AbstractAsyncContextManager[None]:
    """Serve metrics, health and profiles, where they are asked for. Raises: OSError, FlagError."""
    measured, probed = web.Application(), web.Application()
    measured.router.add_get("/metrics", endpoints.metrics(operator.metrics.registry))
    endpoints.add_health(probed, operator.synced, lease_check(election))
    profiled_at = flag_settings.served_at("--pprof-addr", flags.pprof_addr) if flags.enable_pprof else None
    return component.all_served(
        (flag_settings.served_at("--metrics-addr", flags.metrics_addr), measured),
        (flag_settings.served_at("--health-probe-addr", flags.health_probe_addr), probed),
        (profiled_at, profiling.application()),
    )
