"""`koordinator virtual-node`: the idle nodes of one cluster as nodes of another one."""

from typing import Any

import click

from koordinator.cli import flag_kinds, options, running
from koordinator.cli.flag_kinds import count, listed, text, time

_PERCENT = click.IntRange(0, 100)

_LENDING = options.together(
    text("node-name", None, "Name of the virtual node; default: tidal-SOURCE."),
    text("node-selector", "", "Labels of nodes that may be lent, such as pool=web; default: all."),
    text("node-per", "", "Register one virtual node for each value of this label of the lender's nodes."),
    text("scheduler-name", "koord-scheduler", "Scheduler of borrowed pods in the lender."),
    time("idle-for", "10m", "How long a node must be idle before it is offered."),
    count("idle-request-percent", 10, "CPU that online pods of an idle node request at most.", _PERCENT),
    count("idle-usage-percent", 15, "p95 of the CPU that an idle node uses at most.", _PERCENT),
    count(
        "reclaim-usage-percent",
        50,
        "p95 of a node's own CPU usage above which borrowed pods leave.",
        _PERCENT,
    ),
    count("safety-percent", 10, "Part of each node that is never offered.", _PERCENT),
    time("report-max-age", "5m", "A node whose last usage report is older is not offered."),
    listed("allow-secrets", "", "Secrets of the borrower that may be copied: namespace/name with * and ?."),
    listed(
        "allow-config-maps", "", "ConfigMaps of the borrower that may be copied: namespace/name with * and ?."
    ),
    time(
        "refuse-after", "5m", "How long a pod waits that no idle node can hold, until it fails; 0s: for ever."
    ),
)
_PROCESS = options.together(
    text("address", "0.0.0.0", "Where to serve health and metrics."),
    count("port", 10260, "Port of health and metrics; 0: none.", flag_kinds.PORT),
    text(
        "kubelet-address",
        None,
        "Host at which the borrower's API server reaches this process for logs and exec; default: $POD_IP.",
    ),
    count("kubelet-port", 10250, "Port of logs and exec; 0: none.", flag_kinds.PORT),
    flag_kinds.file("tls-cert-file", "Certificate of that port; default: one of its own."),
    flag_kinds.file("tls-private-key-file", "Its key."),
    flag_kinds.switch("leader-elect", True, "Stand by while another instance works."),
    text("lease-namespace", "koordinator-system", "Namespace of the lease, in the lender."),
    flag_kinds.verbosity(),
)


@click.command(context_settings=options.HELP)
@click.option("--source", required=True, help="What the borrower calls the lender, such as web.")
@options.text_option("--kubeconfig", words="Kubeconfig of the lender; a pod there needs none.")
@options.text_option("--context", words="Context of that kubeconfig.")
@click.option("--borrower-kubeconfig", required=True, help="Kubeconfig of the borrower.")
@options.text_option("--borrower-context", words="Context of the borrower's kubeconfig.")
@_LENDING
@_PROCESS
def main(**asked: Any) -> None:
    """Offer the idle nodes of a cluster (the lender) to another one (the borrower) as a virtual node, and take them
    back at once when the lender's own pods need them.

    \b
    Try:
      koordinator virtual-node --source web --kubeconfig web.yaml --borrower-kubeconfig batch.yaml

    Runs until it is stopped; the node, and the pods on it, stay as those of a kubelet that is restarted.
    """
    running.work_of("koordinator.cli.virtual_node_process", "start", {"asked": asked})
