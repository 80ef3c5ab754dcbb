"""An HTTP application on the loopback address, for as long as it is needed."""

import contextlib
from collections.abc import AsyncIterator

from aiohttp import web

HOST = "127.0.0.1"


@contextlib.asynccontextmanager
async def served(app: web.Application, port: int = 0) -> AsyncIterator[str]:
    """Serve; the address is `http://127.0.0.1:<port>`, a free port for 0. Raises: OSError."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, port).start()
        _, chosen = runner.addresses[0][:2]
        yield f"http://{HOST}:{chosen}"
    finally:
        await runner.cleanup()
