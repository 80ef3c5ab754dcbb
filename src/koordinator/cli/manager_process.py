"""Run `koord-manager` once its command line is read: the manager as a process."""

import asyncio
import contextlib
import logging
import os
import random

import msgspec

from koordinator import endpoints, health, profiling
from koordinator.cli import component, running
from koordinator.cli.manager_flags import ManagerSettings
from koordinator.cluster import connect, garbage
from koordinator.cluster.backoff import new_rng
from koordinator.cluster.config import ClientConfig
from koordinator.cluster.leader import LeaderElector, lease_check, process_identity
from koordinator.endpoints import Check
from koordinator.manager import http
from koordinator.manager.manager import Manager
from koordinator.manager.webhooks.configuration import WebhookSettings
from koordinator.manager.webhooks.serving import DRAIN_S, Webhooks

log = logging.getLogger(__name__)

USER_AGENT = "koordinator-manager"


def start(settings: ManagerSettings) -> None:
    """Manage until a signal asks to stop. Raises: KoordinatorError, OSError, ExceptionGroup."""
    where = WebhookSettings.of(os.environ)
    client = connect.load(server=settings.server, kubeconfig_file=settings.kubeconfig)
    _log_remarks(settings)
    with garbage.collected_rarely():
        running.run(_main(settings, where, client))


def _log_remarks(settings: ManagerSettings) -> None:
    for remark in settings.remarks:
        log.warning("unexpected value of a flag: %s", remark)
    if settings.options.namespace:
        facts = {"flag": "--namespace", "namespace": settings.options.namespace}
        log.warning(
            "pods of other namespaces are not watched: nodes appear less used than they are", extra=facts
        )


async def _main(settings: ManagerSettings, where: WebhookSettings, client: ClientConfig) -> None:
    # Jitter must differ between instances.
    rng = random.Random()
    async with component.clients(client, rng, USER_AGENT, settings.rate) as (cluster, lease_cluster):
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
            election = LeaderElector(lease_cluster, config, rng=new_rng(rng))
        async with _served(manager, webhooks, election, settings), asyncio.TaskGroup() as group:
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


def _served(
    manager: Manager, webhooks: Webhooks, election: LeaderElector | None, settings: ManagerSettings
) -> contextlib.AbstractAsyncContextManager[None]:
    """Serve metrics, health and profiles, where they are asked for. Raises: OSError for an address that is taken."""
    alive: dict[str, Check] = {"ping": health.well, "leaderElection": lease_check(election)}
    ready: dict[str, Check] = {
        "ping": health.well,
        "shutdown": lambda: "stopping" if manager.is_leaving else "",
        "informer-sync": endpoints.filled(manager.synced),
        "webhook-ready": webhooks.check,
    }
    return component.all_served(
        (settings.metrics, http.metrics_application(manager.shared.metrics, manager.lent)),
        (settings.health, http.health_application(alive, ready)),
        (settings.profiling, profiling.application()),
    )
