"""`koordinator quota tree`: who has which share of the cluster, who uses it, who borrows from whom."""

from typing import Any

import click

from koordinator.cli import options, running


@click.group(context_settings=options.HELP)
def main() -> None:
    """Quotas: who has which share of the cluster, and who uses it."""


@main.command(context_settings=options.HELP)
@click.argument("root", default="")
@click.option("--tree", "tree_id", help='Only the tree of this id; "" is the default tree.')
@click.option(
    "--resource",
    "names",
    multiple=True,
    metavar="NAME",
    help="Only this resource. May be given several times.",
)
@click.option("--depth", type=click.IntRange(1), help="Only so many levels.")
@options.dump("`kubectl get elasticquotas,nodes -A -o json`")
@click.option("-w", "--watch", is_flag=True, help="Draw anew whenever something changes, until interrupted.")
@options.on_a_cluster
@options.output("table", "json", "yaml")
def tree(**asked: Any) -> None:
    """The tree of quotas, or the part below the quota ROOT: used, runtime, min and max, and loans.

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
