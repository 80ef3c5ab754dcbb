"""Is batch capacity shared with YARN: does an operator lead, do NodeManagers say who they are, are nodes lent?"""

from collections.abc import Iterator

from koordinator.api import labels
from koordinator.api.core import Node, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.groups import Lease
from koordinator.doctor.checks.components import LEASES, is_fresh
from koordinator.doctor.finding import Finding
from koordinator.doctor.installation import ComponentName
from koordinator.doctor.snapshot import ClusterSnapshot
from koordinator.yarn import amounts, node_sync

_LAST_LINE = "kubectl annotate pod $HOSTNAME yarn.hadoop.apache.org/node-id=$HOSTNAME:8041"


def check(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Yield what all NodeManagers lack, then pod by pod, then nodes."""
    managers = [
        pod
        for pod in snapshot.of(Pod)
        if node_sync.is_node_manager(pod) and not node_sync.is_finished(pod) and pod.spec.node_name
    ]
    if managers:
        yield from _operator(snapshot, managers)
    for pod in managers:
        if amounts.NODE_ID_ANNOTATION not in pod.metadata.annotations:
            continue  # the check `yarn` says so
        try:
            node_sync.node_id_of(pod)
        except ProtocolError as error:
            yield Finding.warning(
                pod,
                f"{error.field}: {error.reason}",
                why="YARN keeps the total that the NodeManager has registered with",
                do=(f"{_LAST_LINE}    # in its start script, with the address that YARN shows",),
            )
    yield from _nodes(snapshot, {pod.spec.node_name for pod in managers})


def _operator(snapshot: ClusterSnapshot, managers: list[Pod]) -> Iterator[Finding]:
    lease = snapshot.find(Lease, LEASES[ComponentName.YARN_OPERATOR], snapshot.namespace)
    if lease is None or not is_fresh(lease, snapshot.now_s):
        yield Finding.warning(
            ("Pod", [pod.key for pod in managers]),
            "NodeManagers run, but no koord-yarn-operator leads",
            why="YARN and batch pods book the same capacity twice",
            do=("koordinator install --apply --set yarnOperator.enabled=true",),
        )


def _nodes(snapshot: ClusterSnapshot, with_manager: set[str]) -> Iterator[Finding]:
    not_lent, left_over = [], []
    for node in snapshot.of(Node):
        name, annotations = node.metadata.name, node.metadata.annotations
        if name in with_manager and labels.NODE_ORIGIN_EXTENDED_ALLOCATABLE not in annotations:
            not_lent.append(name)
        recorded = amounts.recorded(annotations.get(labels.NODE_THIRD_PARTY_ALLOCATIONS))
        if name not in with_manager and recorded not in (None, amounts.BatchAmount()):
            left_over.append(name)
    if not_lent:
        yield Finding.warning(
            ("Node", not_lent),
            "run a NodeManager, but koord-manager lends nothing of them",
            why="YARN is offered what the node says in allocatable, which may be nothing",
            do=("koordinator explain node NODE    # why nothing is lent",),
        )
    if left_over:
        yield Finding.warning(
            ("Node", left_over),
            "say that YARN uses them, but run no NodeManager",
            why="until the operator's --nm-lost-hold ends, batch pods cannot have it",
            do=("kubectl annotate node NODE node.koordinator.sh/thirdPartyAllocations-",),
        )
