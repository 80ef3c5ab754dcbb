"""`koordinator quota tree`: shares, usage and loans of quotas."""

from typing import Any

import click

from koordinator.cli import options, running


@click.group(context_settings=options.HELP)
def main() -> None:
    """Show quotas: their shares of the cluster, and their usage."""


@main.command(context_settings=options.HELP)
@click.argument("root", default="")
@click.option("--tree", "tree_id", help='Show only the tree with this id; "" is the default tree.')
@click.option(
    "--resource",
    "names",
    multiple=True,
    metavar="NAME",
    help="Show only this resource. May be given several times.",
)
@click.option("--depth", type=click.IntRange(1), help="Show only this many levels.")
@options.dump("`kubectl get elasticquotas,nodes -A -o json`")
@click.option("-w", "--watch", is_flag=True, help="Redraw on each change, until interrupted.")
@options.on_a_cluster
@options.output("table", "json", "yaml")
def tree(**asked: Any) -> None:
    """Draw the tree of quotas, or the part below the quota ROOT: used, runtime, min and max, and loans.

    \b
    A bar is as long as max (at most what the tree has):
      █ used   ░ may be used now (runtime)   · beyond the runtime   │ min   ▓ used above the runtime

    \b
    Try:
      koordinator quota tree
      koordinator quota tree ads --resource cpu --watch
      kubectl get elasticquotas,nodes -A -o json | koordinator quota tree --dump -

    Everything comes from the ElasticQuota objects (and the nodes, for what there is in all), so any Koordinator
    scheduler will do. Ends with 0, with 1 when there is no answer, with 2 when the command line is wrong.
    """
    running.work_of("koordinator.cli.quota_run", "tree", asked)
