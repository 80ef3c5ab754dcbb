"""Carry out `koordinator dump` once its command line is read."""

import asyncio
import contextlib
import gzip
import io
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import click
from rich.console import Console

from koordinator.cli.prometheus_asked import PrometheusAsked, used_before
from koordinator.cluster import connect
from koordinator.cluster.kube import KubeCluster
from koordinator.scheduler.config.default_plugins import read_config
from koordinator.simulate import dump as dumps
from koordinator.simulate import dump_write
from koordinator.simulate.whatif import series
from koordinator.simulate.whatif.series import PodSeries

PACKED = ".gz"
LEVEL = 5
READABLE_BY_OWNER = 0o600


def dump(
    kubeconfig: str,
    context: str,
    output_file: Path,
    step: float,
    cpu_history: Path | None,
    memory_history: Path | None,
    **prometheus: Any,
) -> None:
    """Write the files; the parameters are the command's options. Raises: KoordinatorError, OSError, UsageError."""
    asked = PrometheusAsked(**prometheus)
    if not asked.prometheus_url and (cpu_history or memory_history):
        raise click.UsageError(
            "--cpu-history and --memory-history go with --prometheus, which knows the past"
        )
    notes = Console(stderr=True, highlight=False)
    counts = asyncio.run(_objects(kubeconfig, context, output_file))
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(counts.items()))
    notes.print(f"{output_file}: {kinds}.")
    if not asked.prometheus_url:
        return
    used = used_before(asked, step, notes)
    for warning in used.warnings:
        notes.print(f"Prometheus warns: {warning}", style="yellow")
    for file, found, what in (
        (cpu_history or beside(output_file, "cpu"), used.cpu, "CPU"),
        (memory_history or beside(output_file, "memory"), used.memory, "memory"),
    ):
        _series(file, found)
        notes.print(f"{file}: {what} of {len(found.names):,} pods, {found.steps:,} values each.")


def beside(dump_file: Path, what: str) -> Path:
    """Return `cluster.cpu.csv.gz` for `cluster.json.gz`."""
    return dump_file.with_name(f"{dump_file.name.partition('.')[0]}.{what}.csv{PACKED}")


async def _objects(kubeconfig: str, context: str, file: Path) -> Counter[str]:
    counts: Counter[str] = Counter()
    client = connect.load(kubeconfig_file=kubeconfig, context=context)
    async with KubeCluster(client, rng=random.Random(0), component="koordinator") as cluster:
        kinds = dump_write.views(dumps.views_of(read_config(None)))
        with _created(file) as out:
            async for found in dump_write.objects(cluster, kinds):
                out.write(found.line)
                counts[found.kind] += 1
    return counts


def _series(file: Path, found: PodSeries) -> None:
    with _created(file) as out, io.TextIOWrapper(out, encoding="utf-8", write_through=True) as text:
        series.write(text, found)


@contextlib.contextmanager
def _created(file: Path) -> Iterator[IO[bytes]]:
    """Open a new file that only its owner may read; it takes its name when all is written."""
    draft = file.with_name(f"{file.name}.part")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, READABLE_BY_OWNER)
    try:
        with os.fdopen(descriptor, "wb") as plain:
            if file.name.endswith(PACKED):
                with gzip.GzipFile(fileobj=plain, mode="wb", compresslevel=LEVEL, mtime=0) as packed:
                    yield packed  # type: ignore[misc]
            else:
                yield plain
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
