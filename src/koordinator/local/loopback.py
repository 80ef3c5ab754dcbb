"""An HTTP application on the loopback address, for as long as it is needed."""

import contextlib
from collections.abc import AsyncIterator

from aiohttp import web

from koordinator.local.apiserver.tls import ServerTls

HOST = "127.0.0.1"


@contextlib.asynccontextmanager
async def served(app: web.Application, port: int = 0, tls: ServerTls | None = None) -> AsyncIterator[str]:
    """Serve; the address is `http://127.0.0.1:<port>` (https with `tls`), a free port for 0. Raises: OSError."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, auto_decompress=False)
    await runner.setup()
    try:
        context = None if tls is None else tls.context()
        await web.TCPSite(runner, HOST, port, ssl_context=context).start()
        _, chosen = runner.addresses[0][:2]
        yield f"{'http' if tls is None else 'https'}://{HOST}:{chosen}"
    finally:
        await runner.cleanup()
