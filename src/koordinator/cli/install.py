"""`koordinator install` and `koordinator uninstall`: the objects of an installation, printed, applied, taken away."""

from typing import Any

import click

from koordinator.cli import options, running


@click.command(context_settings=options.HELP)
@click.option("--dry-run", is_flag=True, help="Print all objects as YAML, without a cluster.")
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
    help="YAML file of values, as for the Helm chart; may be given several times, the last wins.",
)
@click.option("--set", "settings", multiple=True, metavar="A.B=C", help="Set one value; overrides files.")
@options.text_option("-n", "--namespace", words="Short for --set installation.namespace=…")
@click.option("--force-conflicts", is_flag=True, help="Overwrite fields that other clients own.")
@click.option(
    "--prune", is_flag=True, help="Delete objects of an earlier installation that are no longer part of it."
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
@click.option("--dry-run", is_flag=True, help="Print what would be deleted.")
@click.option("--apply", "do_apply", is_flag=True, help="Delete the objects.")
@click.option(
    "--everything",
    is_flag=True,
    help="Also delete CRDs (with all custom objects!), priority classes and the namespace; your objects may need them.",
)
@options.on_a_cluster
def uninstall(**asked: Any) -> None:
    """Remove Koordinator from a cluster, whether `koordinator install` or kubectl installed it.

    \b
    Switch co-location off first ({"enable": false} in colocation-config) and wait until no node offers
    kubernetes.io/batch-cpu: without the manager, nodes keep the batch resources that they offered last.
      koordinator uninstall --dry-run
      koordinator uninstall --apply
    """
    running.work_of("koordinator.cli.install_run", "uninstall", asked)
