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
    """The options `options.prometheus`, as given."""

    prometheus_url: str
    days: float
    prometheus_selector: str
    prometheus_token_file: Path | None
    prometheus_ca_file: Path | None


def used_before(asked: PrometheusAsked, step_s: float, notes: Console) -> UsedBefore:
    """Return what pods used, with a bar on a terminal. Raises: WhatIfError, FileError."""
    token_file, ca_file = asked.prometheus_token_file, asked.prometheus_ca_file
    headers = {}
    if token_file is not None:
        headers["Authorization"] = f"Bearer {user_files.read_text(token_file).strip()}"
    tls = None if ca_file is None else ssl.create_default_context(cafile=str(ca_file))
    server = PrometheusServer(asked.prometheus_url, headers, tls, asked.prometheus_selector)
    steps = max(int(asked.days * 86_400 / step_s), 1)
    end_s = SystemClock().now() // step_s * step_s
    with progress_bar(notes, "asking Prometheus") as progress:
        return asyncio.run(_fetch(server, Span(end_s, step_s, steps), progress))


async def _fetch(server: PrometheusServer, span: Span, progress: prometheus.Progress) -> UsedBefore:
    async with aiohttp.ClientSession() as session:
        return await PrometheusHistory(server, session).fetch(span, progress)
