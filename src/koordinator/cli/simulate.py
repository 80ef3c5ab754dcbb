"""`koordinator simulate`: place a list of pods on a list of nodes, or plan which pods should move off hot ones."""

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
    type=click.FloatRange(0.01, 100),
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
