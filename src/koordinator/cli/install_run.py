"""Carry out `koordinator install` and `uninstall` once their command lines are read."""

import asyncio
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import click

from koordinator.api import user_files
from koordinator.cluster import connect
from koordinator.cluster.config import ClientConfig
from koordinator.cluster.kube import KubeCluster
from koordinator.install import manifests, objects, steps
from koordinator.install.steps import Api, ApplyOutcome, ApplyStep
from koordinator.install.text import documents
from koordinator.install.values import Values, read, read_file, read_setting

Work = Callable[[Api], AsyncIterator[ApplyStep]]

_COLOURS = {
    ApplyOutcome.CREATED: "green",
    ApplyOutcome.CHANGED: "yellow",
    ApplyOutcome.KEPT: "cyan",
    ApplyOutcome.LEFT_OVER: "yellow",
    ApplyOutcome.DELETED: "red",
    ApplyOutcome.FAILED: "red",
}


def install(
    dry_run: bool,
    do_apply: bool,
    output_dir: Path | None,
    value_files: tuple[Path, ...],
    settings: tuple[str, ...],
    namespace: str,
    force_conflicts: bool,
    prune: bool,
    kubeconfig: str,
    context: str,
) -> None:
    """Carry out `koordinator install`; the parameters are its options. Raises: UsageError when no action is named."""
    if dry_run + do_apply + (output_dir is not None) != 1:
        raise click.UsageError("say what to do: --dry-run, --apply or --output-dir")
    values = read_values(value_files, settings, namespace)
    if dry_run:
        click.echo(documents(objects.objects(values)), nl=False)
    elif output_dir is not None:
        write_folder(output_dir, values)
    else:
        _carry_out(
            kubeconfig, context, lambda api: steps.apply(api, values, force=force_conflicts, prune=prune)
        )
        click.echo("Next: koordinator doctor tells whether everything works.", err=True)


def uninstall(dry_run: bool, do_apply: bool, everything: bool, kubeconfig: str, context: str) -> None:
    """Carry out `koordinator uninstall`; the parameters are its options. Raises: UsageError when no action is named."""
    if dry_run == do_apply:
        raise click.UsageError("say what to do: --dry-run or --apply")
    _carry_out(
        kubeconfig, context, lambda api: steps.remove(api, everything=everything, dry_run=dry_run), dry_run
    )


def read_values(value_files: tuple[Path, ...], settings: tuple[str, ...], namespace: str) -> Values:
    """Return what files and flags say. Raises: ClickException, which names file or flag, and the field."""
    layers: list[tuple[str, dict[str, Any]]] = []
    for path in value_files:
        layers.append((str(path), read_file(str(path), user_files.read_text(path))))
    layers += [(f"--set {text}", read_setting(text)) for text in settings]
    if namespace:
        layers.append((f"--namespace {namespace}", {"installation": {"namespace": namespace}}))
    return read(layers)


def write_folder(directory: Path, values: Values) -> None:
    """Write the objects as files below `directory`. Raises: OSError."""
    for name, text in manifests.folder(values).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _carry_out(kubeconfig: str, context: str, work: Work, dry_run: bool = False) -> None:
    """Tell each step as it is done; the exit status is 1 when one failed. Raises: ClickException."""
    client = connect.load(kubeconfig_file=kubeconfig, context=context)
    counts = asyncio.run(_report_progress(client, work, " (dry run)" if dry_run else ""))
    summary = ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items())
    click.echo(f"{counts.total()} objects: {summary or 'nothing to do'}.", err=True)
    if counts[ApplyOutcome.FAILED]:
        sys.exit(1)


async def _report_progress(client: ClientConfig, work: Work, suffix: str) -> Counter[ApplyOutcome]:
    counts: Counter[ApplyOutcome] = Counter()
    async with KubeCluster(client, rng=random.Random(), component="koordinator-install") as cluster:
        async for step in work(Api(cluster.transport)):
            counts[step.outcome] += 1
            label = click.style(f"{step.outcome.value:<10}", fg=_COLOURS.get(step.outcome))
            click.echo(f"{label} {step.name}{f': {step.why}' if step.why else ''}{suffix}")
    return counts
