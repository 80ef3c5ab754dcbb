"""The webhooks of one manager: server, certificates and configurations together (behaviour/manager 12)."""

import asyncio
import random
import ssl

from koordinator.api.errors import KoordinatorError
from koordinator.cluster.gatekeeper import AccessReviewer, Authorities, Gatekeeper, TokenReviewer
from koordinator.manager.parts import ManagerContext
from koordinator.manager.webhooks.all import AdmissionHandlers
from koordinator.manager.webhooks.certificates import CertificateSet
from koordinator.manager.webhooks.server import HEALTH_PATH, WebhookServer
from koordinator.manager.webhooks.settings import WebhookSettings
from koordinator.manager.webhooks.sync import WebhookSync

START_S = 20.0
"""For the first round of certificates and configurations; then the process had better say what is wrong."""
CHECK_S = 5.0
DRAIN_S = 2.0
"""A process that was told to stop answers so long still: API servers learn late that its address is gone."""


class WebhookStartError(KoordinatorError):
    """The webhooks could not be set up in time; the text says what was in the way."""


class Webhooks:
    """Build before the informers of `shared.factory` are started, then `run` beside them.

    `synced` is set when the handlers' caches are filled. Pages are for those whom the API server knows and lets.
    `host` None listens where the settings say. With
    `drain_s` requests are answered for so long after `run` was cancelled, while `check` says that it stops.
    """

    def __init__(
        self,
        shared: ManagerContext,
        admission: AdmissionHandlers,
        settings: WebhookSettings,
        *,
        synced: asyncio.Event,
        host: str | None = None,
        drain_s: float = 0.0,
    ) -> None:
        self.ready = asyncio.Event()
        """Set when certificates are presented and the configurations name them."""
        self._synced = synced
        self._drain_s = drain_s
        self._is_stopping = False
        self._certs: CertificateSet | None = None
        self._check_host = host or settings.listen_host or "localhost"
        self._server: WebhookServer | None = None
        handlers = admission.handlers
        if handlers:
            gatekeeper = Gatekeeper(
                Authorities(), TokenReviewer(shared.cluster), AccessReviewer(shared.cluster), (HEALTH_PATH,)
            )
            self._server = WebhookServer(
                handlers,
                synced=synced,
                host=host or settings.listen_host,
                port=settings.port,
                pages=admission.pages,
                refusal=gatekeeper.refusal,
            )
        self._sync = WebhookSync(
            shared.cluster,
            shared.factory,
            settings,
            handlers.keys(),
            self._present,
            rng=random.Random(shared.rng.getrandbits(64)),
        )

    @property
    def port(self) -> int:
        """Return where the server listens; only when `ready`, and with any handler at all."""
        assert self._server is not None, "no webhook is on"
        return self._server.port

    async def run(self) -> None:
        """Serve and keep certificates and configurations until cancelled.

        Raises: WebhookStartError, OSError when the port is taken.
        """
        server = self._server
        try:
            if server is not None:
                await server.start()
                self._sync.serve_at(server.port)
            async with asyncio.TaskGroup() as group:
                syncing = group.create_task(self._sync.run(), name="webhook sync")
                try:
                    async with asyncio.timeout(START_S):
                        await self._sync.done.wait()
                except TimeoutError:
                    syncing.cancel()
                    why = self._sync.guard.last_error or "the API server does not answer"
                    raise WebhookStartError(f"webhooks not set up after {START_S:g} s: {why}") from None
                self.ready.set()
        except ExceptionGroup as problems:
            raise problems.exceptions[0] from None
        finally:
            self._is_stopping = True
            if server is not None:
                try:
                    if self.ready.is_set() and self._drain_s > 0:
                        await asyncio.sleep(self._drain_s)
                finally:
                    await server.stop()

    async def check(self) -> str:
        """Return the check `webhook-ready`: why requests cannot be answered now, empty when they can."""
        if self._is_stopping:
            return "stopping"
        if self._server is None:
            return "" if self.ready.is_set() else "webhook configurations are not in order yet"
        if not self.ready.is_set() or self._certs is None:
            return f"certificates or configurations are not in order yet: {self._sync.guard.last_error or 'starting'}"
        if not self._synced.is_set():
            return "caches are not filled yet"
        try:
            async with asyncio.timeout(CHECK_S):
                return await _problem_at(self._check_host, self._server.port, self._certs.ca_cert)
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError) as error:
            return f"GET https://{self._check_host}:{self._server.port}{HEALTH_PATH}: {error or type(error).__name__}"

    def _present(self, certs: CertificateSet) -> None:
        assert self._server is not None, "certificates without a server"
        self._server.present(certs)
        self._certs = certs


async def _problem_at(host: str, port: int, ca_cert: bytes) -> str:
    """Return what is wrong with the server on this machine, seen by a client that trusts the CA only."""
    context = ssl.create_default_context(cadata=ca_cert.decode("ascii"))
    reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname="localhost")
    try:
        writer.write(f"GET {HEALTH_PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        status = (await reader.readuntil(b"\r\n")).strip().decode("latin-1")
        return "" if status.partition(" ")[2].startswith("200") else f"{HEALTH_PATH} answers {status}"
    finally:
        writer.close()
