"""Run `koordinator virtual-node` as a process: clients of both clusters, election, HTTP."""

import contextlib
import logging
import os
import random
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

from aiohttp import web

from koordinator import endpoints
from koordinator.api import duration, label_selector
from koordinator.api.errors import ProtocolError
from koordinator.cli import component, logs, running, serving
from koordinator.cli.flag_settings import FlagError
from koordinator.cluster import connect, delegated_auth, errors
from koordinator.cluster.backoff import new_rng
from koordinator.cluster.config import ClientConfig
from koordinator.cluster.delegated_auth import AccessReviewer, ClientCAs, DelegatedAuth, TokenReviewer
from koordinator.cluster.kube import KubeCluster
from koordinator.cluster.leader import ElectionConfig, LeaderElector, lease_check, process_identity
from koordinator.virtual_node.node import KubeletAddress
from koordinator.virtual_node.offer import LendingPolicy
from koordinator.virtual_node.pods import PodRules
from koordinator.virtual_node.streams import PodStreams
from koordinator.virtual_node.translate import Sharing
from koordinator.virtual_node.virtual_node import VirtualNodeConfig, VirtualNodes, identity_of

log = logging.getLogger(__name__)

USER_AGENT = "koordinator-virtual-node"
SOURCE_CHARS_MAX = 57  # a namespace may have 63, of which tidal- takes six
_SOURCE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def start(asked: Mapping[str, Any]) -> None:
    """Lend until a signal asks to stop. Raises: KoordinatorError, OSError."""
    logs.set_up(logs.level_of(asked["v"]))
    config = config_of(asked)
    lender = connect.load(kubeconfig_file=asked["kubeconfig"], context=asked["context"])
    borrower = connect.load(kubeconfig_file=asked["borrower_kubeconfig"], context=asked["borrower_context"])
    if lender.server == borrower.server:
        raise FlagError("--borrower-kubeconfig", f"{borrower.server} is the lender itself")
    running.run(_main(asked, config, lender, borrower))


def config_of(asked: Mapping[str, Any]) -> VirtualNodeConfig:
    """Return the flags, understood. Raises: FlagError."""
    source = asked["source"]
    if not _SOURCE.fullmatch(source) or len(source) > SOURCE_CHARS_MAX:
        raise FlagError("--source", f"{source!r} is not a name of lower-case letters, digits and -")
    try:
        selector = label_selector.of_text(asked["node_selector"])
    except ProtocolError as error:
        raise FlagError("--node-selector", str(error)) from error
    return VirtualNodeConfig(
        source=source,
        node_name=asked["node_name"] or "",
        selector=selector,
        node_per=asked["node_per"],
        scheduler=asked["scheduler_name"],
        address=_address(asked),
        policy=LendingPolicy(
            idle_for_s=duration.parse(asked["idle_for"]),
            idle_request_percent=asked["idle_request_percent"],
            idle_usage_percent=asked["idle_usage_percent"],
            reclaim_usage_percent=asked["reclaim_usage_percent"],
            safety_percent=asked["safety_percent"],
            report_s_max=duration.parse(asked["report_max_age"]),
        ),
        rules=PodRules(
            sharing=Sharing(config_maps=asked["allow_config_maps"], secrets=asked["allow_secrets"]),
            refuse_after_s=duration.parse(asked["refuse_after"]),
        ),
    )


def _address(asked: Mapping[str, Any]) -> KubeletAddress:
    """Return where the borrower finds logs and commands; nowhere when nobody says at which address."""
    host = asked["kubelet_address"] or os.environ.get("POD_IP", "")
    if asked["kubelet_port"] and not host:
        log.info("no logs and commands: neither --kubelet-address nor POD_IP is set")
    return KubeletAddress(host, asked["kubelet_port"] if host else 0)


async def _main(
    asked: Mapping[str, Any], config: VirtualNodeConfig, lender: ClientConfig, borrower: ClientConfig
) -> None:
    rng = random.Random()  # jitter and names must differ between instances

    def client(where: ClientConfig) -> KubeCluster:
        return KubeCluster(where, rng=new_rng(rng), component=USER_AGENT)

    # The lease has a client of its own: behind many writes that wait for their turn it would be lost.
    async with client(lender) as here, client(borrower) as there, client(lender) as lease_cluster:
        nodes = VirtualNodes(here, there, config, borrower_uid=await identity_of(there), rng=rng)
        for cluster, where in ((here, lender), (there, borrower), (lease_cluster, lender)):
            nodes.metrics.client.count(cluster.transport, where.server)
        component.add_to(nodes.metrics.registry, here.clock.now())
        election = None
        if asked["leader_elect"]:
            candidate = ElectionConfig(
                name=f"koordinator-virtual-node-{config.base_name}",
                namespace=asked["lease_namespace"],
                identity=process_identity(rng),
            )
            election = LeaderElector(lease_cluster, candidate, rng=new_rng(rng))
        async with _served(asked, nodes, election), _streams(asked, nodes, here, there):
            await nodes.run(election)


@contextlib.asynccontextmanager
async def _streams(
    asked: Mapping[str, Any], nodes: VirtualNodes, lender: KubeCluster, borrower: KubeCluster
) -> AsyncIterator[None]:
    """Serve logs and commands of borrowed pods, unless the port is 0. Raises: FlagError, OSError."""
    port = nodes.config.address.port
    if not port:
        yield
        return
    authorities = ClientCAs()
    try:
        authorities = await delegated_auth.look_up(borrower)
    except (errors.ApiError, ValueError) as error:
        log.warning("the borrower's client authorities are not known", extra={"error": str(error)})
    tls = serving.tls_context(asked["tls_cert_file"], asked["tls_private_key_file"], None, borrower.clock)
    delegated_auth.trust_clients(tls, authorities)
    access = AccessReviewer(borrower)
    callers = DelegatedAuth(authorities, TokenReviewer(borrower), access)
    streams = PodStreams(lender.transport, nodes.pods.find, callers, access, nodes.config.base_name)
    async with component.served(streams.application(), asked["address"], port, tls):
        yield


def _served(
    asked: Mapping[str, Any], nodes: VirtualNodes, election: LeaderElector | None
) -> contextlib.AbstractAsyncContextManager[None]:
    """Serve health and metrics, unless the port is 0. Raises: OSError."""
    app = web.Application()
    endpoints.add_component(app, nodes.metrics.registry, nodes.synced, lease_check(election))
    where = (asked["address"], asked["port"]) if asked["port"] else None
    return component.all_served((where, app))
