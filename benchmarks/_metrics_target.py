"""A service's metrics as Go's client library has them: 60 KiB, two histograms by handler and code, running counters."""

import asyncio
import itertools

from aiohttp import web

HANDLERS = ("/api/v1/items", "/api/v1/users", "/healthz", "/login")
CODES = ("200", "404", "500")
ENDS = ("0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "+Inf")
OTHERS = 700


def body(scrape: int) -> str:
    """The whole text, ten requests per series after the one before."""
    lines = [f'go_memstats_other_bytes{{place="{number}"}} 1.2345678e+07' for number in range(OTHERS)]
    for name in ("http_request_duration_seconds", "http_response_size_bytes"):
        lines += [f"# HELP {name} What a request takes.", f"# TYPE {name} histogram"]
        for handler in HANDLERS:
            for code in CODES:
                own = f'code="{code}",handler="{handler}",method="GET"'
                counts = (f'{name}_bucket{{{own},le="{end}"}} {10 * scrape}' for end in ENDS)
                lines += [*counts, f"{name}_sum{{{own}}} {scrape}", f"{name}_count{{{own}}} {10 * scrape}"]
    return "\n".join([*lines, ""])


async def serve() -> None:
    scrapes = itertools.count()

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=body(next(scrapes)))

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
