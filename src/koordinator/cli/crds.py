"""`koordinator crds`: the CustomResourceDefinitions as YAML."""

from pathlib import Path
from typing import Any

import click

from koordinator.api import crd
from koordinator.install.text import documents, text


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--output-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write one file per CRD into this directory instead of printing them.",
)
def crds(names: tuple[str, ...], output_dir: Path | None) -> None:
    """Print the CustomResourceDefinitions, all of them or those that are named.

    NAME is a kind, a plural, a short name or a full name such as nodeslos.slo.koordinator.sh.

    \b
      koordinator crds | kubectl apply --server-side -f -
    """
    chosen = select(crd.manifests(), names)
    if output_dir is None:
        click.echo(documents(chosen), nl=False)
        return
    output_dir.mkdir(parents=True, exist_ok=True)
    for manifest in chosen:
        (output_dir / crd.file_name(manifest)).write_text(text(manifest), encoding="utf-8")


def select(manifests: list[dict[str, Any]], names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the manifests that a name stands for, in the order of the names; all when there is none. Raises:
    BadParameter for an unknown name."""
    if not names:
        return manifests
    by_name = {alias.lower(): manifest for manifest in manifests for alias in _aliases(manifest)}
    chosen: list[dict[str, Any]] = []
    for name in names:
        manifest = by_name.get(name.lower())
        if manifest is None:
            known = ", ".join(sorted(manifest["spec"]["names"]["plural"] for manifest in manifests))
            raise click.BadParameter(f"no CRD is called {name!r}; there are {known}", param_hint="NAME")
        if manifest not in chosen:
            chosen.append(manifest)
    return chosen


def _aliases(manifest: dict[str, Any]) -> list[str]:
    names = manifest["spec"]["names"]
    return [manifest["metadata"]["name"], names["kind"], names["plural"], *names.get("shortNames", [])]
