"""`koordinator simulate`: what co-location would bring, where a list of pods would go, which should move."""

from typing import Any

import click

from koordinator.cli import options, running
from koordinator.simulate.replay_options import PODS_PER_NODE, Gpu, GpuScore, Order


@click.group(context_settings=options.HELP)
def main() -> None:
    """Try decisions on your own data, without a cluster."""


@main.command(context_settings=options.HELP)
@click.option(
    "--nodes",
    "node_files",
    multiple=True,
    required=True,
    metavar="FILE",
    help="Nodes: a table (CSV, may be gzipped) or a dump (`kubectl get nodes -o json|yaml`). Repeatable.",
)
@click.option(
    "--pods", "pod_files", multiple=True, required=True, metavar="FILE", help="Pods, likewise. Repeatable."
)
@options.scheduler_config()
@click.option("--seed", default=0, help="Decides ties between nodes.")
@click.option(
    "--order",
    type=click.Choice([each.value for each in Order]),
    default=Order.GIVEN.value,
    help="The order of pods: as in the file, as the queue sorts them, or by creation time.",
)
@click.option(
    "--timeline",
    is_flag=True,
    help="Pods come and go at their creation and deletion times; those that wait are tried again.",
)
@click.option(
    "--gpu",
    type=click.Choice([each.value for each in Gpu]),
    default=Gpu.SKIP_PODS.value,
    help="GPU columns of tables: leave pods with GPUs out (and nodes, too), ignore GPUs, count whole ones "
    "as nvidia.com/gpu, or share cards.",
)
@click.option(
    "--score",
    type=click.Choice([each.value for each in GpuScore]),
    help="With --gpu share: the score by which nodes and cards are chosen, instead of a configuration.  "
    "[default: FragmentationGradient]",
)
@click.option(
    "--arrivals",
    type=options.FiniteRange(0.01, 100),
    metavar="TIMES",
    help="Pods come in random order (--seed), and again, until they have requested so many times the GPUs of the "
    "nodes; nobody leaves.",
)
@click.option(
    "--pods-per-node",
    default=PODS_PER_NODE,
    type=click.IntRange(1, 100_000),
    help="The number of pods that a node of a table takes.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json", "html"]),
    default="text",
    help="The report to write: one screen, all figures, or a page with plots.",
)
@click.option("--output-file", type=options.FILE, help="The file to write; else standard output.")
def scheduling(**asked: Any) -> None:
    """Place a list of pods on a list of nodes with the real scheduler, at full speed.

    Says what was placed and what was not and why, how full and how fragmented the nodes are, and how long a
    placement took. Nothing is preempted.

    \b
    Try:
      kubectl get nodes -o json > nodes.json; kubectl get pods -A -o json > pods.json
      koordinator simulate scheduling --nodes nodes.json --pods pods.json
      koordinator simulate scheduling --nodes nodes.csv.gz --pods pods.csv.gz --timeline
      koordinator simulate scheduling --nodes nodes.csv.gz --pods pods.csv.gz --gpu share --arrivals 1.3
    """
    running.work_of("koordinator.cli.simulate_run", "scheduling", asked)


@main.command(context_settings=options.HELP)
@options.dump("`koordinator dump`, or `kubectl get nodes,pods,nodemetrics -A -o json`", "Answer for")
@options.kubeconfig
@click.option(
    "--history",
    "history_file",
    type=options.EXISTING_FILE,
    metavar="FILE",
    help="CPU use over time: lines of name,v0,v1,… for each node in percent of it, or for each pod "
    "(namespace/name) in cores; may be gzipped.",
)
@click.option(
    "--memory-history",
    "memory_file",
    type=options.EXISTING_FILE,
    metavar="FILE",
    help="With a --history of pods: their memory in bytes, likewise; fewer values stand for longer times.",
)
@options.prometheus
@click.option(
    "--trace",
    type=options.EXISTING_FILE,
    metavar="FILE",
    help="CPU use of other machines, such lines: each node follows one of them, drawn by --seed.",
)
@click.option(
    "--step",
    type=options.FiniteRange(60, 3600),
    default=300.0,
    help="Seconds that one value of a file stands for.",
)
@click.option(
    "--hours",
    type=options.FiniteRange(0.1, 24 * 366),
    help="How long to look, from the beginning; a shorter history starts over.  [default: all of it; a day without]",
    show_default=False,
)
@click.option(
    "--strategy",
    "strategies",
    multiple=True,
    metavar="NAME|FILE",
    help="What to try, repeatable, side by side: installed, conservative, aggressive, closed-loop, current (the "
    "cluster's own configuration), or a file (docs/what-if.md).  [default: installed, and current where it is known]",
    show_default=False,
)
@click.option(
    "--batch-demand",
    default="max",
    metavar="max|RATIO",
    help="Batch work that arrives: always more than fits, or a share of all CPUs.",
)
@click.option(
    "--price-per-core-hour", "price", type=options.FiniteRange(0), help="What a core-hour is worth to you."
)
@click.option(
    "--seed", default=0, help="Decides what is drawn: batch tasks, and who follows which line of a trace."
)
@options.output("text", "json", "html")
@click.option("--output-file", type=options.FILE, help="The file to write; else standard output.")
def colocation(**asked: Any) -> None:
    """Show what co-location would bring to a cluster: cores lent and used, and what services feel of it.

    The cluster's past is run again, step by step, with batch beside it: what the manager would have lent, the scheduler
    placed and the node agents held back, by the functions of these components.

    \b
    Try:
      koordinator simulate colocation                                    the cluster as it is now
      koordinator simulate colocation --prometheus http://localhost:9090 -o html --output-file what-if.html
      koordinator simulate colocation --dump cluster.json.gz --history cpu.csv.gz
      koordinator simulate colocation --strategy conservative --strategy aggressive --price-per-core-hour 0.03
    """
    running.work_of("koordinator.cli.simulate_colocation", "colocation", asked)


@main.command(context_settings=options.HELP)
@options.dump(
    "`kubectl get nodes,nodemetrics,pods,replicasets,deployments,statefulsets,poddisruptionbudgets,podmigrationjobs "
    "-A -o json`",
    "Plan for",
)
@options.kubeconfig
@options.descheduler_config
@options.scheduler_config()
@click.option("--seed", default=0, help="Decides ties between nodes.")
@options.output("text", "json", "yaml")
def descheduling(**asked: Any) -> None:
    """Show which pods should move so that no node is hot, where each would go, and whom that disturbs.

    Nothing is evicted. Every destination is the scheduler's own choice after all earlier moves, among nodes that the
    pod does not push over their thresholds; disruption budgets and limits of the descheduler are kept.

    \b
    Try:
      koordinator simulate descheduling
      kubectl get nodes,nodemetrics,pods,rs,deploy,sts,pdb,podmigrationjobs -A -o json > all.json
      koordinator simulate descheduling --dump all.json --descheduler-config descheduler.yaml

    Ends with 0 when no node stays hot, 3 when some do, 1 when there is no answer, 2 when the command line is wrong.
    """
    running.work_of("koordinator.cli.simulate_descheduling", "descheduling", asked)
