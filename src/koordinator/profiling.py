"""`/debug/pprof`: where the time goes, what the memory holds, what the tasks wait for, in Python's terms."""

import asyncio
import cProfile
import gc
import io
import marshal
import pstats
import sys
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

PROFILE_S_DEFAULT, PROFILE_S_MAX = 30.0, 300.0
LINES_MAX = 60

INDEX = """/debug/pprof/
profile?seconds=N         where CPU time went during N seconds (format=pstats: a file for pstats, snakeviz)
goroutine                 every asyncio task and what it waits for
heap                      memory by line of code; needs PYTHONTRACEMALLOC=1 in the environment
objects                   live Python objects by type
cmdline                   how this process was started
"""


def application() -> web.Application:
    """Return what serves nothing else."""
    app = web.Application()
    add_routes(app)
    return app


def add_routes(app: web.Application) -> None:
    """Serve profiles below /debug/pprof/."""
    for path, page in PAGES.items():
        app.router.add_get(path, page)


async def _index(_: web.BaseRequest) -> web.Response:
    return web.Response(text=INDEX)


async def _profile(request: web.BaseRequest) -> web.Response:
    text = request.query.get("seconds", "")
    try:
        seconds = float(text) if text else PROFILE_S_DEFAULT
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= PROFILE_S_MAX:
        return web.Response(text=f"seconds: {text!r} is not between 0 and {PROFILE_S_MAX:g}", status=400)
    profile = cProfile.Profile()
    try:
        profile.enable()
    except ValueError:
        return web.Response(text="another profile is being taken", status=409)
    try:
        await asyncio.sleep(seconds)
    finally:
        profile.disable()
    if request.query.get("format") == "pstats":
        profile.create_stats()
        # What pstats.Stats reads back (profile.dump_stats writes the same to a file).
        data = marshal.dumps(profile.stats)
        return web.Response(body=data, content_type="application/octet-stream")
    out = io.StringIO()
    pstats.Stats(profile, stream=out).sort_stats("tottime").print_stats(LINES_MAX)
    return web.Response(text=out.getvalue())


async def _tasks(_: web.BaseRequest) -> web.Response:
    out = io.StringIO()
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    out.write(f"{len(tasks)} tasks\n")
    for task in tasks:
        out.write(f"\n{task.get_name()}\n")
        for frame in task.get_stack(limit=5):
            out.write(f"  {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}\n")
    return web.Response(text=out.getvalue())


async def _heap(_: web.BaseRequest) -> web.Response:
    if not tracemalloc.is_tracing():
        reason = "memory is not traced: start with PYTHONTRACEMALLOC=1 (slows it down by half)"
        return web.Response(text=reason, status=501)
    statistics = tracemalloc.take_snapshot().statistics("lineno")
    lines = [str(each) for each in statistics[:LINES_MAX]]
    return web.Response(text="\n".join(lines) + "\n")


async def _objects(_: web.BaseRequest) -> web.Response:
    counts = Counter(type(each).__qualname__ for each in gc.get_objects())
    lines = [f"{count:10d} {name}" for name, count in counts.most_common(LINES_MAX)]
    return web.Response(text="\n".join(lines) + "\n")


async def _command_line(_: web.BaseRequest) -> web.Response:
    return web.Response(text="\x00".join(sys.argv))


PAGES: Mapping[str, Callable[[web.BaseRequest], Awaitable[web.Response]]] = {
    "/debug/pprof/": _index,
    "/debug/pprof/profile": _profile,
    "/debug/pprof/goroutine": _tasks,
    "/debug/pprof/heap": _heap,
    "/debug/pprof/objects": _objects,
    "/debug/pprof/cmdline": _command_line,
}
"""Handlers of GET, by path."""
