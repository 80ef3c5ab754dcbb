"""`koordinator install`: the objects of an installation, printed, written or applied."""

from pathlib import Path
from typing import Any

import click

from koordinator.install import manifests, objects
from koordinator.install.text import documents
from koordinator.install.values import Values, ValuesError, read, read_file, read_setting


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--dry-run", is_flag=True, help="Print all objects as YAML; no cluster is asked.")
@click.option(
    "--output-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the objects as a folder for `kubectl apply -k`.",
)
@click.option(
    "-f",
    "--values",
    "value_files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="YAML file of values (those of the Helm chart); may be given several times, the last wins.",
)
@click.option("--set", "settings", multiple=True, metavar="A.B=C", help="One value; wins over files.")
@click.option("-n", "--namespace", default="", help="Short for --set installation.namespace=…")
def install(
    dry_run: bool,
    output_dir: Path | None,
    value_files: tuple[Path, ...],
    settings: tuple[str, ...],
    namespace: str,
) -> None:
    """Install or upgrade Koordinator.

    \b
      koordinator install --dry-run                       # what would be applied
      koordinator install --dry-run --set manager.replicas=3 | kubectl apply --server-side -f -
    """
    if dry_run == (output_dir is not None):
        raise click.UsageError("say what to do: --dry-run or --output-dir")
    values = read_values(value_files, settings, namespace)
    if output_dir is None:
        click.echo(documents(objects.objects(values)), nl=False)
        return
    try:
        write_folder(output_dir, values)
    except OSError as error:
        raise click.ClickException(f"cannot write to {output_dir}: {error}") from error


def read_values(value_files: tuple[Path, ...], settings: tuple[str, ...], namespace: str) -> Values:
    """What files and flags say. Raises: ClickException, which names file or flag, and the field."""
    layers: list[tuple[str, dict[str, Any]]] = []
    try:
        for path in value_files:
            layers.append((str(path), read_file(str(path), path.read_text(encoding="utf-8"))))
        layers += [(f"--set {text}", read_setting(text)) for text in settings]
        if namespace:
            layers.append((f"--namespace {namespace}", {"installation": {"namespace": namespace}}))
        return read(layers)
    except (ValuesError, OSError, UnicodeDecodeError) as error:
        raise click.ClickException(str(error)) from error


def write_folder(directory: Path, values: Values) -> None:
    """The objects as files below `directory`. Raises: OSError."""
    for name, text in manifests.folder(values).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
