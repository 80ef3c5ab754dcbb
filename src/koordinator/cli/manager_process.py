"""Run `koord-manager` once its command line is read: the manager as a process."""

import asyncio
import contextlib
import logging
import os
import random
from collections.abc import AsyncIterator, Mapping

import msgspec
from aiohttp import web

from koordinator import profiling
from koordinator.cli import component, logs, running
from koordinator.cli.manager_flags import ManagerSettings
from koordinator.cluster import connect, garbage
from koordinator.cluster.config import ClientConfig
from koordinator.cluster.kube import KubeCluster
from koordinator.cluster.leader import LeaderElector, process_identity
from koordinator.manager import http
from koordinator.manager.manager import Manager
from koordinator.manager.webhooks.configuration import WebhookSettings
from koordinator.manager.webhooks.serving import DRAIN_S, Webhooks

log = logging.getLogger(__name__)

USER_AGENT = "koordinator-manager"


def start(settings: ManagerSettings, inert: Mapping[str, str]) -> None:
    """Manage until a signal asks to stop; `inert` has the given flags without effect, each with the reason.
    Raises: KoordinatorError, OSError, ExceptionGroup."""
    logs.set_up(
        logs.level_of(settings.verbosity),
        as_json=settings.logs_as_json,
        modules=logs.modules_of(settings.module_verbosity),
    )
    where = WebhookSettings.of(os.environ)
    client = connect.load(server=settings.server, kubeconfig_file=settings.kubeconfig)
    _log_remarks(settings, inert)
    with garbage.collected_rarely():
        running.run(_main(settings, where, client))


def _log_remarks(settings: ManagerSettings, inert: Mapping[str, str]) -> None:
    for remark in settings.remarks:
        log.warning("unexpected value of a flag: %s", remark)
    for flag, why in inert.items():
        log.info("flag has no effect", extra={"flag": flag, "why": why})
    if settings.options.namespace:
        facts = {"flag": "--namespace", "namespace": settings.options.namespace}
        log.warning(
            "pods of other namespaces are not watched: nodes appear less used than they are", extra=facts
        )


async def _main(settings: ManagerSettings, where: WebhookSettings, client: ClientConfig) -> None:
    # Jitter must differ between instances.
    rng = random.Random()
    async with (
        KubeCluster(
            client, rng=random.Random(rng.getrandbits(64)), component=USER_AGENT, rate=settings.rate
        ) as cluster,
        # The lease has a client of its own: behind a thousand writes that wait for their turn it would be lost.
        KubeCluster(client, rng=random.Random(rng.getrandbits(64)), component=USER_AGENT) as lease_cluster,
    ):
        manager = Manager(cluster, settings.options, settings.gates, credentials=client.credentials)
        webhooks = Webhooks(manager.shared, manager.admission, where, synced=manager.synced, drain_s=DRAIN_S)
        metrics = manager.shared.metrics
        for each in (cluster, lease_cluster):
            metrics.client.count(each.transport, client.server)
        component.add_to(metrics.runtime, cluster.clock.now())
        component.add_gates(metrics.runtime, settings.gates)
        election: LeaderElector | None = None
        if settings.election is not None:
            config = msgspec.structs.replace(settings.election, identity=process_identity(rng))
            election = LeaderElector(lease_cluster, config, rng=random.Random(rng.getrandbits(64)))
        async with served(manager, webhooks, election, settings), asyncio.TaskGroup() as group:
            beside = [
                group.create_task(_tidy(manager), name="garbage"),
                group.create_task(webhooks.run(), name="webhooks"),
            ]
            try:
                await manager.run(election, linger_s=settings.linger_s)
            finally:
                for task in beside:
                    task.cancel()


async def _tidy(manager: Manager) -> None:
    """Objects of full caches are no garbage: the collector need not go through them again."""
    await manager.synced.wait()
    garbage.set_aside()
    log.info("caches filled")


@contextlib.asynccontextmanager
async def served(
    manager: Manager, webhooks: Webhooks, election: LeaderElector | None, settings: ManagerSettings
) -> AsyncIterator[None]:
    """Serve metrics, health and profiles, where they are asked for. Raises: OSError for an address that is taken."""
    alive, ready = health_checks(manager, webhooks, election)
    profiles = web.Application()
    profiling.add_routes(profiles)
    async with contextlib.AsyncExitStack() as stack:
        for address, app in (
            (settings.metrics, http.metrics_application(manager.shared.metrics, manager.lent)),
            (settings.health, http.health_application(alive, ready)),
            (settings.profiling, profiles),
        ):
            if address is not None:
                host, port = address
                await stack.enter_async_context(component.served(app, host or None, port))
        yield


def health_checks(
    manager: Manager, webhooks: Webhooks, election: LeaderElector | None
) -> tuple[Mapping[str, http.Check], Mapping[str, http.Check]]:
    """Return the checks by name: why the process should be restarted, and why it should not be asked."""

    async def lease() -> str:
        return "" if election is None else election.trouble

    async def caches() -> str:
        return "" if manager.synced.is_set() else "caches are not filled yet"

    async def stays() -> str:
        return "stopping" if manager.is_leaving else ""

    ready = {"ping": http.well, "shutdown": stays, "informer-sync": caches, "webhook-ready": webhooks.check}
    return {"ping": http.well, "leaderElection": lease}, ready
