"""Serving an HTTP application while something else goes on."""

import contextlib
import logging
import ssl
from collections.abc import AsyncIterator

from aiohttp import web

log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def served(
    app: web.Application,
    address: str | None,
    port: int,
    tls: ssl.SSLContext | None = None,
    *,
    share_address: bool = False,
    share_port: bool = False,
) -> AsyncIterator[int]:
    """Serve inside; the port. Raises: OSError when the address is taken."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, auto_decompress=False)
    await runner.setup()
    try:
        site = web.TCPSite(
            runner,
            address,
            port,
            ssl_context=tls,
            reuse_address=share_address or None,
            reuse_port=share_port or None,
        )
        await site.start()
        bound: int = runner.addresses[0][1]
        log.info("serving HTTP", extra={"address": address, "port": bound, "tls": tls is not None})
        yield bound
    finally:
        await runner.cleanup()
