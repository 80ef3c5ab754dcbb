"""`koord-scheduler`: the scheduler against a real API server, with the flags that upstream's has."""

import asyncio
import contextlib
import logging
import os
import random
import signal
import socket
import sys
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import click
import msgspec
from aiohttp import web

from koordinator import __version__
from koordinator.api import duration
from koordinator.api.errors import KoordinatorError
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.cli import logs
from koordinator.clock import SystemClock
from koordinator.cluster import connect
from koordinator.cluster.kube import KubeCluster
from koordinator.cluster.leader import ElectionConfig, LeaderElection, LeaseLost
from koordinator.cluster.rate_limit import Rate
from koordinator.scheduler import config, default_plugins, http
from koordinator.scheduler.config import SchedulerConfig
from koordinator.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)

INFO_VERBOSITY = 1
DEBUG_VERBOSITY = 4


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", "config_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--kubeconfig", default="", help="kubeconfig file; in a cluster none is needed.")
@click.option("--master", default="", help="URL of the API server, instead of a kubeconfig.")
@click.option("--address", default="127.0.0.1", show_default=True, help="Where to serve HTTP.")
@click.option("--port", default=10251, show_default=True, help="Port of HTTP; 0 serves none.")
@click.option("--leader-elect", is_flag=False, flag_value="true", type=bool, default=None)
@click.option("--leader-elect-lease-duration", default=None, help="Text such as 15s.")
@click.option("--leader-elect-renew-deadline", default=None, help="Text such as 10s.")
@click.option("--leader-elect-retry-period", default=None, help="Text such as 2s.")
@click.option("--leader-elect-resource-name", default=None)
@click.option("--leader-elect-resource-namespace", default=None)
@click.option("--feature-gates", default="", help="Gate=true,Other=false")
@click.option("--seed", default=0, show_default=True, help="Decides ties between nodes.")
@click.option("-v", "--v", "verbosity", default=0, show_default=True, help="1: changes, 4: decisions too.")
@click.version_option(__version__, prog_name="koord-scheduler")
def main(
    config_file: Path | None,
    kubeconfig: str,
    master: str,
    address: str,
    port: int,
    feature_gates: str,
    seed: int,
    verbosity: int,
    **leader_elect: str | bool | None,
) -> None:
    """Place pods on nodes: the Koordinator scheduler.

    Without --config it runs the profile that an installation brings, for pods with
    `schedulerName: koord-scheduler`.
    """
    level = logging.DEBUG if verbosity >= DEBUG_VERBOSITY else logging.INFO
    logs.set_up(level if verbosity >= INFO_VERBOSITY else logging.WARNING)
    try:
        settings = read_config(config_file, leader_elect)
        gates = FeatureGates.of(Component.SCHEDULER, feature_gates)
        client = connect.load(
            server=master, kubeconfig_file=kubeconfig or settings.client_connection.kubeconfig
        )
    except KoordinatorError as error:
        raise click.ClickException(str(error)) from error

    async def run() -> None:
        rng = random.Random(seed)
        wanted = settings.client_connection
        rate = Rate(per_s=wanted.qps, burst=wanted.burst) if wanted.qps and wanted.qps > 0 else None
        async with KubeCluster(
            client, rng=random.Random(rng.getrandbits(64)), component="koord-scheduler", rate=rate
        ) as cluster:
            scheduler = Scheduler(cluster, settings, clock=SystemClock(), seed=seed, gates=gates)
            await serve_and_schedule(scheduler, cluster, rng, address, port)

    try:
        asyncio.run(_until_signal(run()))
    except LeaseLost as error:
        raise click.ClickException(str(error)) from error


def read_config(config_file: Path | None, leader_elect: dict[str, str | bool | None]) -> SchedulerConfig:
    """The configuration file (or the shipped configuration) with the leader election of the flags.

    Raises: ConfigError.
    """
    settings = default_plugins.shipped_config()
    if config_file is not None:
        settings = config.parse(config_file.read_bytes())
    election = settings.leader_election
    flags = {name: value for name, value in leader_elect.items() if value is not None}
    if "leader_elect" in flags:
        election = msgspec.structs.replace(election, leader_elect=flags.pop("leader_elect"))
    changed = {name.removeprefix("leader_elect_"): value for name, value in flags.items()}
    election = msgspec.structs.replace(election, **changed)
    return msgspec.structs.replace(settings, leader_election=election)


async def serve_and_schedule(
    scheduler: Scheduler, cluster: KubeCluster, rng: random.Random, address: str, port: int
) -> None:
    """Serve HTTP, fill the caches, wait to lead if that is asked for, schedule."""
    elected = scheduler.config.leader_election
    if not elected.leader_elect:
        async with _served(http.application(scheduler, lambda: True), address, port):
            await scheduler.run()
        return
    identity = f"{socket.gethostname()}_{os.getpid()}_{rng.getrandbits(32):08x}"
    election = LeaderElection(
        cluster,
        ElectionConfig(
            name=elected.resource_name,
            namespace=elected.resource_namespace,
            identity=identity,
            lease_duration_s=int(duration.parse(elected.lease_duration)),
            renew_deadline_s=duration.parse(elected.renew_deadline),
            retry_period_s=duration.parse(elected.retry_period),
        ),
        rng=random.Random(rng.getrandbits(64)),
    )
    async with _served(http.application(scheduler, lambda: election.is_leader), address, port):
        if scheduler.config.delay_cache_until_active:
            await election.run(scheduler.run)
            return
        async with scheduler.following():
            await election.run(scheduler.schedule)


@contextlib.asynccontextmanager
async def _served(app: web.Application, address: str, port: int) -> AsyncIterator[None]:
    if port == 0:
        yield
        return
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, address, port).start()
        log.info("serving HTTP", extra={"address": address, "port": port})
        yield
    finally:
        await runner.cleanup()


async def _until_signal(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


if __name__ == "__main__":
    sys.exit(main())
