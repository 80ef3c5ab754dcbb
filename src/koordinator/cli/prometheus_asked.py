"""Ask a Prometheus for the past of pods, as the command line says."""

import asyncio
import ssl
from pathlib import Path

import aiohttp
import msgspec
from rich.console import Console

from koordinator.api import user_files
from koordinator.cli.tables import progress_bar
from koordinator.clock import SystemClock
from koordinator.simulate.whatif import prometheus
from koordinator.simulate.whatif.prometheus import PrometheusHistory, PrometheusServer, Span, UsedBefore


class PrometheusAsked(msgspec.Struct, frozen=True):
    """The options of `prometheus_options`, as given."""

    url: str
    days: float
    selector: str
    token_file: Path | None
    ca_file: Path | None


def used_before(asked: PrometheusAsked, step_s: float, notes: Console) -> UsedBefore:
    """Return what pods used, with a bar on a terminal. Raises: WhatIfError, FileError."""
    headers = {}
    if asked.token_file is not None:
        headers["Authorization"] = f"Bearer {user_files.read_text(asked.token_file).strip()}"
    tls = None if asked.ca_file is None else ssl.create_default_context(cafile=str(asked.ca_file))
    server = PrometheusServer(asked.url, headers, tls, asked.selector)
    steps = max(int(asked.days * 86_400 / step_s), 1)
    end_s = SystemClock().now() // step_s * step_s
    with progress_bar(notes, "asking Prometheus") as progress:
        return asyncio.run(_fetch(server, Span(end_s, step_s, steps), progress))


async def _fetch(server: PrometheusServer, span: Span, progress: prometheus.Progress) -> UsedBefore:
    async with aiohttp.ClientSession() as session:
        return await PrometheusHistory(server, session).fetch(span, progress)
