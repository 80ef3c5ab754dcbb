"""The HTTPS server of the webhooks: routes to `review.review`, a health check, nothing else."""

import logging
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path

from aiohttp import web

from koordinator.manager.webhooks import review
from koordinator.manager.webhooks.certificates import CertificateSet

log = logging.getLogger(__name__)

BODY_BYTES_MAX = 8 * 1024 * 1024  # two copies of the largest object (3 MiB each) and the envelope


class WebhookServer:
    """Serves admission handlers by path over TLS."""

    def __init__(
        self,
        handlers: Mapping[str, review.Handler],
        certs: CertificateSet,
        *,
        host: str = "127.0.0.1",
        port: int = 9876,
    ) -> None:
        self._handlers = dict(handlers)
        self._certs = certs
        self._host, self._port = host, port
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """`https://host:port` as bound; only after `start`."""
        assert self._runner is not None and self._runner.addresses, "the webhook server is not started"
        host, port = self._runner.addresses[0][:2]
        return f"https://{host}:{port}"

    async def start(self) -> None:
        """Bind and serve. Raises: OSError when the port is taken."""
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        for path, handler in self._handlers.items():
            app.router.add_post(path, self._route(handler))
        app.router.add_get("/healthz", self._health)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port, ssl_context=_ssl_context(self._certs)).start()
        log.info("webhook server started", extra={"url": self.url, "paths": sorted(self._handlers)})

    async def stop(self) -> None:
        """Stop serving; may be called twice."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @staticmethod
    def _route(handler: review.Handler):  # type: ignore[no-untyped-def]  # aiohttp names no type for handlers
        async def serve(request: web.Request) -> web.Response:
            answer = await review.review(handler, await request.read())
            return web.Response(body=answer, content_type="application/json")

        return serve

    @staticmethod
    async def _health(_: web.Request) -> web.Response:
        return web.Response(text="ok")


def _ssl_context(certs: CertificateSet) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # The ssl module reads certificates from files only.
    with tempfile.TemporaryDirectory(prefix="koordinator-webhook-") as folder:
        cert, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
        cert.write_bytes(certs.cert)
        key.touch(mode=0o600)
        key.write_bytes(certs.key)
        context.load_cert_chain(cert, key)
    return context
