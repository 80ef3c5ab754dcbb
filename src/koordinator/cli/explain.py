"""`koordinator explain`: why a pod, a gang or a reservation is pending or where it is, and what would change that."""

from typing import Any

import click

from koordinator.cli import options, running
from koordinator.scheduler.explain.answer import BEST_NODES

WORKLOADS = ("deployment", "replicaset", "statefulset", "daemonset", "job")
"""Kinds whose pods `koordinator explain KIND/NAME` tells about."""
SCHEDULER_URL = "http://127.0.0.1:10251"
"""Address of a scheduler on its own machine."""

MANAGER_URL = "http://127.0.0.1:8080"
"""Address of a manager on its own machine."""


class KindSlashName(click.Group):
    """Takes `pod/web-0`, too, as kubectl writes it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        kind, slash, name = args[0].partition("/") if args else ("", "", "")
        if slash and kind in self.commands:
            args = [kind, name, *args[1:]]
        return super().parse_args(ctx, args)


@click.group(cls=KindSlashName, context_settings=options.HELP)
def main() -> None:
    """Say why: decisions of the scheduler in words and figures."""


asking = options.together(
    options.text_option(
        "-n", "--namespace", words="Namespace of the pod or gang; default: the kubeconfig's, or `default`."
    ),
    options.dump(
        "`kubectl get nodes,pods,podgroups,elasticquotas,reservations -A -o json` or `kubectl cluster-info dump`",
        "Ask",
    ),
    options.scheduler_config(", for --dump"),
    click.option("--seed", default=0, help="The scheduler's seed, for --dump."),
    options.kubeconfig,
    options.text_option(
        "--scheduler-url",
        words="The scheduler's HTTP address; default: the one that `koordinator up` wrote into the kubeconfig, or "
        f"{SCHEDULER_URL}.",
    ),
    options.output("text", "json", "yaml"),
)


@main.command(context_settings=options.HELP)
@click.argument("name")
@asking
@click.option(
    "--node", "nodes", multiple=True, metavar="NODE", help="Show every plugin's answer for this node."
)
@click.option("-v", "--verbose", is_flag=True, help="Show every plugin's answer for every node.")
@click.option(
    "--best", default=BEST_NODES, type=click.IntRange(0), help="Number of nodes in the score table."
)
def pod(**asked: Any) -> None:
    """Explain why a pod is pending, or why it is on its node, and what would have to change.

    \b
    Try:
      koordinator explain pod web-0 -n shop
      koordinator explain pod web-0 -n shop --node node-7
      kubectl get nodes,pods -A -o json | koordinator explain pod web-0 -n shop --dump -

    Ends with 0 when the pod has a node or would get one, 3 when it cannot be placed now, 1 when there is no
    answer, 2 when the command line is wrong.
    """
    running.work_of("koordinator.cli.explain_run", "pod", asked)


@main.command(context_settings=options.HELP)
@click.argument("name")
@asking
def gang(**asked: Any) -> None:
    """Explain why a gang does not start, or how far it is, and what would have to change.

    All members are tried together, as the scheduler tries them. NAME is that of the PodGroup, or of the
    annotation on the pods; gangs of the same gang group are explained, too.

    \b
    Try:
      koordinator explain gang train -n ai
      koordinator explain podgroup/train -n ai
      kubectl get nodes,pods,podgroups -A -o json | koordinator explain gang ai/train --dump -

    Ends with 0 when the gang is placed or would be, 3 when it cannot start now, 1 when there is no answer, 2 when
    the command line is wrong.
    """
    running.work_of("koordinator.cli.explain_run", "gang", asked)


main.add_command(gang, "podgroup")


@main.command(context_settings=options.HELP)
@click.argument("name")
@asking
@options.text_option("--pod", "pod_name", words="Why this pod (NAMESPACE/NAME) does not use it.")
def reservation(**asked: Any) -> None:
    """Explain where a Reservation is or why it has no node, who may use it, who does, and why other pods do not.

    \b
    Try:
      koordinator explain reservation room
      koordinator explain reservation room --pod shop/web-0
      kubectl get nodes,pods,reservations -A -o json | koordinator explain reservation room --dump -

    Ends with 0 when it has a node, would get one or is over, 3 when it cannot be placed now, 1 when there is no
    answer, 2 when the command line is wrong.
    """
    running.work_of("koordinator.cli.explain_run", "reservation", asked)


@main.command(context_settings=options.HELP)
@click.argument("kind", type=click.Choice(("pod", "job", "node")))
@click.argument("name")
@options.text_option("-n", "--namespace", words="Namespace of the pod; default: the kubeconfig's.")
@options.kubeconfig
@options.text_option(
    "--descheduler-url",
    words="The descheduler's HTTP address; default: the one that `koordinator up` wrote into the kubeconfig, or "
    f"{SCHEDULER_URL}.",
)
@options.output("text", "json", "yaml")
def eviction(**asked: Any) -> None:
    """Explain why the descheduler evicts a pod or not, what a migration job waits for, or how it sees a node.

    \b
    Try:
      koordinator explain eviction pod web-0 -n shop
      koordinator explain eviction job move-web-0
      koordinator explain eviction node node-7

    Ends with 0, 1 when there is no answer, 2 when the command line is wrong.
    """
    running.work_of("koordinator.cli.explain_eviction", "explain", asked)


@main.command(context_settings=options.HELP)
@click.argument("name")
@options.kubeconfig
@options.output("text", "json", "yaml")
def tidalpool(**asked: Any) -> None:
    """Explain how many nodes a TidalPool lends and why, what each node waits for, and what the next pass does.

    \b
    Try:
      koordinator explain tidalpool night
      koordinator explain tp/night -o yaml

    Ends with 0, 1 when there is no answer, 2 when the command line is wrong.
    """
    running.work_of("koordinator.cli.explain_tidal", "explain", asked)


main.add_command(tidalpool, "tp")


@main.command(context_settings=options.HELP)
@click.argument("name")
@options.text_option("-n", "--namespace", words="Default: the kubeconfig's.")
@options.kubeconfig
@options.text_option(
    "--koordlet-url",
    words="Ask the agent of the pod's node, too, such as http://NODE:9316; default: only what it reported.",
)
@options.output("text", "json", "yaml")
def slow(**asked: Any) -> None:
    """Explain whether a service suffers from its neighbours, by which sense, and which pod was named for it.

    \b
    Try:
      koordinator explain slow web-0 -n shop
      koordinator explain slow web-0 -n shop --koordlet-url http://node-7:9316

    Ends with 0, 1 when there is no answer, 2 when the command line is wrong.
    """
    running.work_of("koordinator.cli.explain_slow", "explain", asked)


@main.command(context_settings=options.HELP)
@click.argument("node", default="")
@click.option(
    "--config-namespace",
    "namespace",
    default="koordinator-system",
    help="Namespace of the ConfigMap slo-controller-config.",
)
@options.text_option(
    "--at",
    words="A minute of the last day (03:15, local time, or RFC 3339): asks the manager, which remembers.",
)
@options.text_option("--pool", words="Sums over the nodes with these labels, as for kubectl get -l.")
@options.text_option(
    "--manager-url",
    words="The leading manager's HTTP address, for --at; default: the one that `koordinator up` wrote into the "
    f"kubeconfig, or {MANAGER_URL}.",
)
@options.kubeconfig
@options.output("text", "json", "yaml", "html")
@click.option("--output-file", type=options.FILE, help="The file to write a page to; else standard output.")
def lent(**asked: Any) -> None:
    """Explain where the Batch and Mid resources of a node come from, term by term, or what all nodes lend.

    \b
    Try:
      koordinator explain lent
      koordinator explain lent node-7
      koordinator explain lent node-7 --at 03:15
      koordinator explain lent --pool pool=db --at 2026-11-24T03:15:00Z
      koordinator explain lent --manager-url http://localhost:8080 -o html --output-file lent.html

    Ends with 0, 1 when there is no answer, 2 when the command line is wrong.
    """
    running.work_of("koordinator.cli.explain_lent", "explain", asked)


@main.command(context_settings=options.HELP)
@click.argument("node", default="")
@options.kubeconfig
@options.output("text", "json", "yaml")
def shadow(**asked: Any) -> None:
    """Explain what strategies in shadow mode would have done, on a node hour by hour or in the cluster.

    \b
    Try:
      koordinator explain shadow
      koordinator explain shadow node-7

    Ends with 0, 1 when there is no answer, 2 when the command line is wrong.
    """
    running.work_of("koordinator.cli.explain_shadow", "explain", asked)


@main.command(context_settings=options.HELP)
@click.argument("node", default="")
@options.kubeconfig
@options.output("text", "json", "yaml")
def hooks(**asked: Any) -> None:
    """Explain in which mode runtime hooks reach containers (NRI, runtime proxy, reconciler), on a node or on all.

    \b
    Try:
      koordinator explain hooks
      koordinator explain hooks node-7

    Ends with 0, 1 when there is no answer, 2 when the command line is wrong.
    """
    running.work_of("koordinator.cli.explain_hooks", "explain", asked)


_several = click.option(
    "--limit",
    default=200,
    type=click.IntRange(1, 10_000),
    help="Number of pods to explain; further ones are only counted.",
)


@main.command(context_settings=options.HELP)
@asking
@click.option("--pending", is_flag=True, help="Explain only pods without a node.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Explain pods of all namespaces.")
@options.text_option("-l", "--selector", words="Explain only pods with these labels, as for kubectl get.")
@_several
def pods(**asked: Any) -> None:
    """Explain why pods are pending. Pods with the same answer share a line.

    \b
    Try:
      koordinator explain pods --pending -A
      koordinator explain pods --pending -n shop -l app=web

    Ends with 0 when each pod has a node or would get one, 3 when one cannot be placed now, 1 when there is no answer, 2
    when the command line is wrong.
    """
    running.work_of("koordinator.cli.explain_run", "pods", asked)


def _workload(kind: str) -> click.Command:
    @click.command(kind, context_settings=options.HELP, short_help=f"Explain why pods of this {kind} wait.")
    @click.argument("name")
    @asking
    @_several
    def command(**asked: Any) -> None:
        running.work_of("koordinator.cli.explain_run", "workload", {"kind": kind, **asked})

    command.help = (
        f"Show where the pods of this {kind} are, and explain why others wait. Pods with the same answer share "
        f"a line.\n\n\b\nTry:\n  koordinator explain {kind}/NAME -n shop"
    )
    return command


for _kind in WORKLOADS:
    main.add_command(_workload(_kind))
