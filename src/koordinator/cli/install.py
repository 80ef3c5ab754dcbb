"""`koordinator install` and `koordinator uninstall`: the objects of an installation, printed, applied, taken away."""

from typing import Any

import click

from koordinator.cli import options, running


@click.command(context_settings=options.HELP)
@click.option("--dry-run", is_flag=True, help="Print all objects as YAML; no cluster is asked.")
@click.option("--apply", "do_apply", is_flag=True, help="Apply all objects to the cluster of the kubeconfig.")
@click.option(
    "--output-dir", type=options.FOLDER, help="Write the objects as a folder for `kubectl apply -k`."
)
@click.option(
    "-f",
    "--values",
    "value_files",
    multiple=True,
    type=options.EXISTING_FILE,
    help="YAML file of values (those of the Helm chart); may be given several times, the last wins.",
)
@click.option("--set", "settings", multiple=True, metavar="A.B=C", help="One value; wins over files.")
@click.option(
    "-n", "--namespace", default="", show_default=False, help="Short for --set installation.namespace=…"
)
@click.option("--force-conflicts", is_flag=True, help="Overwrite fields that others changed on the cluster.")
@click.option(
    "--prune", is_flag=True, help="Delete objects of an earlier installation that are no longer wanted."
)
@options.on_a_cluster
def install(**asked: Any) -> None:
    """Install or upgrade Koordinator.

    \b
      koordinator install --dry-run                                  # what would be applied
      koordinator install --apply                                    # to the cluster of the kubeconfig
      koordinator install --apply --set manager.replicas=3 -f values.yaml
    """
    running.work_of("koordinator.cli.install_run", "install", asked)


@click.command(context_settings=options.HELP)
@click.option("--dry-run", is_flag=True, help="Tell what would be deleted.")
@click.option("--apply", "do_apply", is_flag=True, help="Delete it.")
@click.option(
    "--everything",
    is_flag=True,
    help="Also what objects of yours may need: CRDs (with all custom objects!), priority classes, the namespace.",
)
@options.on_a_cluster
def uninstall(**asked: Any) -> None:
    """Take Koordinator off a cluster, whether `koordinator install` or kubectl brought it.

    \b
    Switch co-location off first ({"enable": false} in colocation-config) and wait until no node offers
    kubernetes.io/batch-cpu: what nodes offered last stays when the manager is gone.
      koordinator uninstall --dry-run
      koordinator uninstall --apply
    """
    running.work_of("koordinator.cli.install_run", "uninstall", asked)
