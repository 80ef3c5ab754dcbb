"""The process node with its HTTP interface: what a cluster starts."""

import random
from pathlib import Path
from typing import NoReturn

import msgspec

from koordinator.cluster.protocol import Cluster
from koordinator.host.host import Host
from koordinator.local.apiserver.tls import ServerTls
from koordinator.local.processes.node_api import NodeApi, NodeStreams
from koordinator.local.processes.process_node import ProcessNode, ProcessNodeConfig
from koordinator.local.processes.server import KubeletServer, configuration


class KubeletOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the node, and who may ask it. Without `tokens` everybody on this machine may.

    `client_ca` (PEM) has signed the certificates of API servers that ask.
    """

    node: ProcessNodeConfig
    tls: ServerTls
    tokens: tuple[str, ...] = ()
    client_ca: Path | None = None
    port: int = 0


class ProcessKubelet:
    """`prepare`, then `run` until cancelled, then `close`."""

    def __init__(self, cluster: Cluster, host: Host, options: KubeletOptions, *, rng: random.Random) -> None:
        self.node = ProcessNode(cluster, host, options.node, rng=rng)
        self.api = NodeApi(self.node)
        config = configuration(self.node.facts, options.node.driver, self.node.groups.parent)
        self.server = KubeletServer(
            self.api, config, options.tls, tokens=options.tokens, client_ca=options.client_ca
        )
        self._port = options.port

    def streams(self) -> NodeStreams:
        """Logs of this node's pods and commands in them, for an API server."""
        return NodeStreams(self.api, self.node.name)

    async def prepare(self) -> None:
        """Take the groups and listen.

        Raises: ForeignPods when pods of somebody else are there; GroupError, OSError.
        """
        await self.node.prepare()
        await self.server.start(self._port)
        self.node.listens_on(self.server.port)

    async def run(self) -> NoReturn:
        """Carry out pods until cancelled; then all are killed."""
        await self.node.run()

    async def close(self) -> None:
        """Nothing of ours stays behind; whatever came of `prepare` and `run`."""
        await self.server.stop()
        await self.node.close()
