"""Run `koord-descheduler` once its command line is read: the descheduler as a process."""

import contextlib
import functools
import logging
import random

import msgspec
import yaml

from koordinator.api import config_text
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.cli import component, logs, running, serving
from koordinator.cli.descheduler_flags import Flags
from koordinator.cluster import connect, garbage
from koordinator.cluster.backoff import Rate, new_rng
from koordinator.cluster.config import ClientConfig
from koordinator.cluster.leader import LeaderElector, lease_check
from koordinator.cluster.plugin_registry import PluginRegistry
from koordinator.descheduler import configuration, http
from koordinator.descheduler.configuration import DeschedulerConfig, DeschedulerConfigError
from koordinator.descheduler.descheduler import Descheduler
from koordinator.descheduler.http import HttpOptions
from koordinator.descheduler.plugin import Plugin
from koordinator.descheduler.plugins.built_in import installed_plugins

log = logging.getLogger(__name__)

USER_AGENT = "koord-descheduler"


def start(flags: Flags) -> None:
    """Deschedule until a signal asks to stop, or write the configuration where that is asked for.

    Raises: KoordinatorError, OSError, ExceptionGroup.
    """
    registry = installed_plugins()
    settings = read_config(flags, registry)
    gates = FeatureGates.of(Component.DESCHEDULER, flags.feature_gates)
    if flags.write_config_to is not None:
        text = yaml.safe_dump(http.effective(settings, registry), sort_keys=False)
        flags.write_config_to.write_text(text)
        return
    connection = settings.client_connection
    client = connect.load(server=flags.master, kubeconfig_file=connection.kubeconfig or flags.kubeconfig)
    with garbage.collected_rarely():
        running.run(_main(flags, settings, registry, gates, client))


def read_config(flags: Flags, registry: PluginRegistry[Plugin]) -> DeschedulerConfig:
    """Return the configuration file (or the defaults) with what flags say besides. Raises: DeschedulerConfigError."""
    if flags.config is not None:
        settings = configuration.read(flags.config, registry)
        for name in ("address", "port"):
            if getattr(flags, name) is not None:
                log.warning("flag ignored: the configuration file says it", extra={"flag": f"--{name}"})
    else:
        port = configuration.HEALTH_PORT if flags.port is None else flags.port
        host = flags.address or "0.0.0.0"
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        settings = DeschedulerConfig(healthz_bind_address=where, metrics_bind_address=where)
    elected = msgspec.structs.replace(settings.leader_election, **flags.elected())
    if problems := list(config_text.election_problems(elected)):
        raise DeschedulerConfigError.of(problems)
    return msgspec.structs.replace(
        settings, leader_election=elected, dry_run=settings.dry_run or flags.dry_run
    )


async def _main(
    flags: Flags,
    settings: DeschedulerConfig,
    registry: PluginRegistry[Plugin],
    gates: FeatureGates,
    client: ClientConfig,
) -> None:
    # Jitter and names must differ between instances.
    rng = random.Random()
    connection = settings.client_connection
    rate = Rate(per_s=connection.qps, burst=max(1, connection.burst)) if connection.qps > 0 else None
    async with component.clients(client, rng, USER_AGENT, rate) as (cluster, lease_cluster):
        descheduler = Descheduler(
            cluster, settings, registry, gates=gates, rng=rng, credentials=client.credentials
        )
        metrics = descheduler.metrics
        for each in (cluster, lease_cluster):
            metrics.client.count(each.transport, client.server)
        component.add_to(metrics.registry, cluster.clock.now())
        component.add_gates(metrics.registry, gates)
        for name in flags.disabled_metrics:
            if not metrics.registry.remove(name):
                log.warning("no such metric to disable", extra={"metric": name})
        election: LeaderElector | None = None
        if settings.leader_election.leader_elect:
            config = serving.election_config(settings.leader_election, rng)
            election = LeaderElector(lease_cluster, config, rng=new_rng(rng))
        async with _served(descheduler, election, flags):
            await descheduler.run(election)


def _served(
    descheduler: Descheduler, election: LeaderElector | None, flags: Flags
) -> contextlib.AbstractAsyncContextManager[None]:
    """Serve the addresses of health and metrics, and the secure port, where they are on. Raises: OSError, FlagError."""
    options = HttpOptions(lease=lease_check(election), set_verbosity=logs.set_verbosity)
    application = functools.partial(http.application, descheduler, options)
    config = descheduler.config
    plain = dict.fromkeys(
        configuration.socket_address(text)
        for text in (config.healthz_bind_address, config.metrics_bind_address)
    )
    return serving.ports(flags, plain, application, descheduler.clock, USER_AGENT)
