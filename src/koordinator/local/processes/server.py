"""Serve the kubelet's HTTP interface of the process node: HTTPS on loopback, with a bearer token where there is one;
`ProcessKubelet` is the node with that interface, which a cluster starts.

An API server beyond this process shows a client certificate, as a kubelet asks for it (`--client-ca-file`).
"""

import hmac
import logging
import random
import ssl
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from aiohttp import web

from koordinator import endpoints
from koordinator.api import quantity
from koordinator.cluster import errors
from koordinator.cluster.delegated_auth import MASTERS, certificate_user
from koordinator.cluster.protocol import Cluster
from koordinator.host.cgroup_layout import Driver
from koordinator.host.host import Host
from koordinator.local.apiserver import pod_streams
from koordinator.local.apiserver.tls import ServerTls
from koordinator.local.processes.cri import CriService
from koordinator.local.processes.node_api import NodeApi, NodeStreams
from koordinator.local.processes.node_object import PODS_MAX, MachineFacts
from koordinator.local.processes.process_node import ProcessNode, ProcessNodeConfig

log = logging.getLogger(__name__)


class KubeletOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the node, and who may ask it. Without `tokens` everybody on this machine may.

    `client_ca` (PEM) has signed the certificates of API servers that ask.
    """

    node: ProcessNodeConfig
    tls: ServerTls
    tokens: tuple[str, ...] = ()
    client_ca: Path | None = None
    port: int = 0
    cri_socket: Path | None = None
    """Socket on which the node speaks CRI; None: it does not."""


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
        self._cri_socket = options.cri_socket
        self._cri = CriService(self.node, host, cluster.clock)

    def streams(self) -> NodeStreams:
        """Logs of this node's pods and commands in them, for an API server."""
        return NodeStreams(self.api, self.node.name)

    async def prepare(self) -> None:
        """Take the groups and listen.

        Raises: ForeignPods when pods of somebody else are there; GroupError, OSError; SocketError, ImportError for CRI.
        """
        await self.node.prepare()
        await self.server.start(self._port)
        self.node.listens_on(self.server.port)
        if self._cri_socket is not None:
            await self._cri.start(self._cri_socket)

    async def run(self) -> NoReturn:
        """Carry out pods until cancelled; then all are killed."""
        await self.node.run()

    async def close(self) -> None:
        """Nothing of ours stays behind; whatever came of `prepare` and `run`."""
        await self.server.stop()
        await self._cri.close()
        await self.node.close()


HOST = "127.0.0.1"


class KubeletServer:
    """Serves `/pods`, `/configz`, `/healthz` and `/containerLogs`.

    With `tokens` one of them is asked for, or a certificate of a master that `client_ca` (a PEM file) has signed.
    """

    def __init__(
        self,
        api: NodeApi,
        config: dict[str, Any],
        tls: ServerTls,
        *,
        tokens: tuple[str, ...] = (),
        client_ca: Path | None = None,
    ) -> None:
        self._api = api
        self._config = config
        self._tls = tls
        self._tokens = tokens
        self._client_ca = client_ca
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self, port: int = 0) -> None:
        """Listen; a free port for 0. Raises: OSError."""
        app = web.Application(middlewares=[self._checked])
        app.router.add_get("/healthz", endpoints.ok)
        app.router.add_get("/pods", self._pods)
        app.router.add_get("/pods/", self._pods)
        app.router.add_get("/configz", self._configz)
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, auto_decompress=False)
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, port, ssl_context=self._context()).start()
        self.port = self._runner.addresses[0][1]
        self._config["kubeletconfig"]["port"] = self.port

    async def stop(self) -> None:
        """Listen no more."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _context(self) -> ssl.SSLContext:
        context = self._tls.context()
        if self._client_ca is not None:
            context.load_verify_locations(self._client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    @web.middleware
    async def _checked(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self._tokens and request.path != "/healthz" and not self._is_known(request):
            return web.Response(status=401, text="Unauthorized")
        try:
            response: web.StreamResponse = await handler(request)
        except errors.ApiError as error:
            return web.Response(status=error.code, text=str(error))
        return response

    def _is_known(self, request: web.Request) -> bool:
        peer = request.get_extra_info("peercert")  # verified, where it is there at all
        if peer and MASTERS in certificate_user(peer).groups:
            return True
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        given = secret.strip().encode("utf-8", "surrogateescape")
        matches = [hmac.compare_digest(token.encode(), given) for token in self._tokens]
        return scheme.lower() == "bearer" and any(matches)

    async def _pods(self, request: web.Request) -> web.Response:
        return web.json_response(self._api.pods())

    async def _configz(self, request: web.Request) -> web.Response:
        return web.json_response(self._config)

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        where = request.match_info
        options = pod_streams.options_of(where["container"], request.query)
        return await pod_streams.send(request, self._api.open_log(where["namespace"], where["pod"], options))


def configuration(facts: MachineFacts, driver: Driver, parent: str) -> dict[str, Any]:
    """Return what `/configz` answers: a kubelet's configuration as far as it means something here."""
    reserved = {
        "cpu": quantity.text_of_milli(facts.reserved_milli),
        "memory": f"{facts.reserved_bytes // 1024}Ki",
    }
    config = {
        "address": HOST,
        "port": 0,
        "readOnlyPort": 0,
        "healthzPort": 0,
        "cgroupRoot": f"/{parent}",
        "cgroupsPerQOS": True,
        "cgroupDriver": driver.value,
        "cpuManagerPolicy": "none",
        "memoryManagerPolicy": "None",
        "topologyManagerPolicy": "none",
        "topologyManagerScope": "container",
        "maxPods": PODS_MAX,
        "podPidsLimit": -1,
        "cpuCFSQuota": True,
        "cpuCFSQuotaPeriod": "100ms",
        "nodeStatusUpdateFrequency": "10s",
        "nodeLeaseDurationSeconds": 40,
        "containerLogMaxSize": "10Mi",
        "containerLogMaxFiles": 2,
        "enforceNodeAllocatable": ["pods"],
        "systemReserved": reserved if facts.reserved_milli or facts.reserved_bytes else {},
        "kubeReserved": {},
        "evictionHard": {},
    }
    return {"kubeletconfig": config}
