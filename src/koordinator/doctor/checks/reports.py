"""Do all nodes report how busy they are, and is what they say believable?"""

from collections.abc import Iterable, Iterator

from koordinator.api import node_metric, quantity
from koordinator.api.core import Node, Pod
from koordinator.api.node_metric import NodeMetric
from koordinator.api.quantity import QuantityError
from koordinator.api.slo import NodeSLO
from koordinator.doctor.checks.components import pod_trouble
from koordinator.doctor.finding import Finding, FindingSeverity, some_of
from koordinator.doctor.installation import ComponentName
from koordinator.doctor.snapshot import ClusterSnapshot, seconds
from koordinator.manager.noderesource import rows

NEW_NODE_S = 120.0
"""What a new node has time for until its first report (the report interval comes on top)."""
SKEW_S_MAX = 30.0
MISSED_REPORTS_MAX = 3
AGENT_INTERVAL_S_MIN = 30
TIMES_CAPACITY_MAX = 2.0
"""Usage above that many times the capacity was not measured, it is nonsense."""

_NO_REPORT = "without a recent report a node lends no Batch resources, and load-aware scheduling guesses"


def check(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Yield nodes without NodeMetric or report, with an old one, with one from the future, with absurd figures."""
    missing, silent, late, early, absurd = [], [], [], [], []
    for node in snapshot.nodes:
        name = node.metadata.name
        metric = snapshot.find(NodeMetric, name)
        is_new = snapshot.age_s(node) < NEW_NODE_S + interval_s(metric)
        reported_s = seconds(metric.status.update_time) if metric is not None else None
        if metric is None:
            if not is_new:
                missing.append(name)
        elif reported_s is None:
            if not is_new and snapshot.age_s(metric) > NEW_NODE_S + interval_s(metric):
                silent.append(node)
        elif reported_s > snapshot.now_s + SKEW_S_MAX:
            early.append(name)
        elif snapshot.now_s - reported_s > MISSED_REPORTS_MAX * interval_s(metric):
            late.append(node)
        if metric is not None and (problem := nonsense(metric, node)):
            absurd.append((name, problem))
    if missing:
        yield Finding.error(
            ("Node", missing),
            "no NodeMetric",
            why=_NO_REPORT,
            do=("koordinator doctor --check components --check leases    # the manager creates them",),
        )
    yield from _by_cause(snapshot, FindingSeverity.ERROR, silent, "never reported")
    yield from _by_cause(snapshot, FindingSeverity.WARNING, late, "does not report any more")
    if early:
        yield Finding.warning(
            ("NodeMetric", early),
            "its report is from the future",
            why="the node's clock is ahead, or this machine's is behind: how old reports are cannot be told, "
            "so a node that falls silent keeps lending for longer",
            do=(f"synchronise the clock of {some_of(early)} (chronyc tracking)",),
        )
    for problem in sorted({problem for _, problem in absurd}):
        yield Finding.warning(
            ("NodeMetric", [name for name, each in absurd if each == problem]),
            problem,
            why="what the manager does not believe withdraws the node's Batch resources; what it does believe "
            "decides how much the node lends",
            do=("kubectl get nodemetric NAME -o yaml", _logs(snapshot)),
        )
    yield from _policies(snapshot)


def interval_s(metric: NodeMetric | None) -> float:
    """Return how often the node agent reports: as it is asked to, but not more often than it lets itself be asked."""
    policy = metric.spec.metric_collect_policy if metric is not None else None
    asked = policy.report_interval_seconds if policy is not None else None
    return float(max(asked or node_metric.REPORT_INTERVAL_S, AGENT_INTERVAL_S_MIN))


def _by_cause(
    snapshot: ClusterSnapshot, severity: FindingSeverity, nodes: Iterable[Node], problem: str
) -> Iterator[Finding]:
    """Yield one finding per cause, with the remedy of that cause."""
    causes: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        causes.setdefault(_cause(snapshot, node), []).append(node.metadata.name)
    for (cause, step), names in sorted(causes.items()):
        yield Finding.of(
            severity,
            ("Node", names),
            f"{problem}: {cause}" if cause else problem,
            why=_NO_REPORT,
            do=(step.replace("NODE", sorted(names)[0]),),
        )


def _cause(snapshot: ClusterSnapshot, node: Node) -> tuple[str, str]:
    """Return why a node does not report, as far as objects tell, and what to do."""
    ready = next((each for each in node.status.conditions if each.type == "Ready"), None)
    if ready is not None and ready.status != "True":
        return "the node is not ready", "kubectl describe node NODE"
    agents = snapshot.installation.get(ComponentName.KOORDLET)
    if agents is None:
        return "", _logs(snapshot)
    here = [pod for pod in agents.pods if pod.spec.node_name == node.metadata.name]
    if not here:
        return _why_no_agent(node), f"kubectl -n {snapshot.namespace} describe daemonset koordlet"
    trouble = next((words for pod in here if (words := pod_trouble(pod))), "")
    if trouble:
        return f"its koordlet does not run: {trouble}", _logs(snapshot)
    return "although a koordlet runs there", _logs(snapshot, here[0])


def _why_no_agent(node: Node) -> str:
    taints = [f"{each.key}:{each.effect}" for each in node.spec.taints]
    words = f" (taints: {some_of(taints)})" if taints else ""
    return (
        f"no koordlet pod is on the node{words}; see nodeSelector, affinity and tolerations of the DaemonSet"
    )


def _logs(snapshot: ClusterSnapshot, pod: Pod | None = None) -> str:
    which = pod.metadata.name if pod is not None else "-l koord-app=koordlet"
    return f"kubectl -n {snapshot.namespace} logs {which} --tail=50"


def nonsense(metric: NodeMetric, node: Node) -> str:
    """Return what no node can measure: what the manager rejects, and usage far above the node's capacity."""
    if problem := rows.reading_of(metric.status).problem:
        return f"the report cannot be true: {problem}"
    info = metric.status.node_metric
    if info is None:
        return "the report has no usage of the node" if metric.status.update_time else ""
    for name, text in sorted(info.node_usage.resources.items()):
        try:
            used = quantity.of(text).milli
            capacity = quantity.of(node.status.capacity.get(name, "0")).milli
        except QuantityError as error:
            return f"usage of {name} is no amount: {error}"
        if capacity and used > TIMES_CAPACITY_MAX * capacity:
            return f"usage of {name} is above {TIMES_CAPACITY_MAX:g} times what the node has"
    return ""


def _policies(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    if not snapshot.knows(NodeSLO):
        return
    missing = [
        node.metadata.name
        for node in snapshot.nodes
        if snapshot.find(NodeSLO, node.metadata.name) is None and snapshot.age_s(node) > NEW_NODE_S
    ]
    if missing:
        yield Finding.error(
            ("Node", missing),
            "no NodeSLO",
            why="the node agent protects services by its built-in policy only, without suppression of batch pods",
            do=("koordinator doctor --check components --check leases    # the manager creates them",),
        )
