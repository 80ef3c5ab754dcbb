"""`koordinator dump`: a cluster as a file, for all that answers without the cluster."""

from typing import Any

import click

from koordinator.cli import options, running


@click.command(context_settings=options.HELP)
@options.on_a_cluster
@click.option(
    "-o", "--output-file", type=options.FILE, required=True, metavar="FILE", help="The dump; .gz is packed."
)
@options.prometheus
@click.option(
    "--step", type=options.FiniteRange(60, 3600), default=300.0, help="Seconds between two values of usage."
)
@click.option(
    "--cpu-history",
    type=options.FILE,
    metavar="FILE",
    help="With --prometheus: what each pod used over time goes here, as CSV.  [default: beside the dump]",
    show_default=False,
)
@click.option(
    "--memory-history",
    type=options.FILE,
    metavar="FILE",
    help="The same of memory.  [default: beside the dump]",
    show_default=False,
)
def dump(**asked: Any) -> None:
    """Write a cluster's nodes, pods, workloads, reports and configuration into a file.

    `koordinator simulate`, `explain`, `doctor` and others take it with --dump. Values of environment variables, Secrets
    and ConfigMaps other than Koordinator's are left out.

    \b
    Try:
      koordinator dump -o cluster.json.gz
      koordinator dump -o cluster.json.gz --prometheus http://localhost:9090 --days 7
      koordinator simulate colocation --dump cluster.json.gz --history cluster.cpu.csv.gz
    """
    running.work_of("koordinator.cli.dump_run", "dump", asked)
