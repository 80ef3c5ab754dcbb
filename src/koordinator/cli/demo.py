"""`koordinator demo`: the gain of co-location, in one table and one report."""

from typing import Any

import click

from koordinator.cli import options, running
from koordinator.local.nodes.contention import Protection
from koordinator.simulate.scenario import HOURS_MAX, NODES_MAX, PARTS


@click.command(context_settings=options.HELP)
@click.option("--nodes", type=click.IntRange(2, NODES_MAX), default=100, help="Nodes to simulate.")
@click.option("--hours", type=options.FiniteRange(0.5, HOURS_MAX), default=24.0, help="Length of the day.")
@click.option(
    "--trace",
    type=options.FILE,
    metavar="FILE",
    help="CPU use of real machines instead of the generator: lines of name,v0,v1,… in percent per 5 minutes, "
    "plain or gzipped. Each node follows a machine drawn from the file.",
)
@click.option("--seed", type=int, default=1, help="Seed of the generator; equal seeds give equal figures.")
@click.option(
    "--no-colocation",
    is_flag=True,
    help="Switch co-location off in the second run, too; both runs must then agree.",
)
@click.option(
    "--closed-loop/--no-closed-loop",
    default=True,
    help="Node agents follow the latency of services, and lend more while it is well; off: the shipped agent with its "
    "fixed threshold, and the shipped amounts.",
)
@click.option(
    "--without",
    multiple=True,
    type=click.Choice(sorted(PARTS)),
    help="Switch a part of the protection off, to see what it is worth; may be repeated.",
)
@click.option("--no-load-aware", is_flag=True, help="Place batch without looking at the real load of nodes.")
@click.option(
    "--protection",
    type=click.Choice([p.value for p in Protection]),
    default=Protection.SUPPRESS.value,
    help="The protection of services from batch on a node: the node agent's CPU suppression, cpu.idle, cpu.shares, "
    "or nothing.",
)
@click.option(
    "--lend-ahead",
    "lend_ahead_minutes",
    type=click.IntRange(0, 24 * 60),
    default=0,
    metavar="MINUTES",
    help="Let batch yield to what agents predict by hour of the day, so far ahead (lendAheadMinutes).",
)
@options.figures("report.html")
@click.option(
    "--figures", type=options.FILE, metavar="FILE", help="Write the table as JSON, for texts that quote it."
)
@options.quiet
def demo(**asked: Any) -> None:
    """Simulate a day of a cluster, without and with co-location, and compare.

    Starts two clusters in memory, each with the real scheduler on virtual time: services that request most of
    the CPUs and use little of them, and a stream of batch jobs. In the first, batch runs as ordinary pods on
    what services have not requested. In the second, the manager lends batch what services requested but do
    not use, and node agents take it back by what services feel. Ends with one table and one HTML report.

    \b
    Try:
      koordinator demo                            a day of 100 nodes
      koordinator demo --nodes 20 --hours 6       smaller and sooner
      koordinator demo --trace usage.csv          with the CPU use of your own machines
      koordinator demo --protection none          what happens to services if nobody protects them
      koordinator demo --no-closed-loop           what an installation does that nobody has configured
      koordinator demo --without suppression      what a part of the protection is worth
      koordinator demo --no-load-aware            batch piles up on busy nodes
    """
    running.work_of("koordinator.cli.demo_run", "demo", asked)
