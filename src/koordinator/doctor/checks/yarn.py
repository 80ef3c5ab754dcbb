"""Do nodes with YARN's NodeManagers know of its containers: is the agent beside them, is their group told of? Is batch
capacity shared with YARN: does an operator lead, do NodeManagers say who they are, are nodes lent?"""

from collections.abc import Iterator

from koordinator.api import labels, pod_labels, qos, slo_config
from koordinator.api.core import Node, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.qos import QoSClass
from koordinator.api.slo_config import HostApplicationConfig
from koordinator.doctor.checks.components import leads
from koordinator.doctor.finding import Finding, edit
from koordinator.doctor.installation import ComponentName
from koordinator.doctor.snapshot import ClusterSnapshot
from koordinator.install.rbac import YARN_COPILOT
from koordinator.install.workloads import APP_LABEL
from koordinator.yarn import amounts, node_sync
from koordinator.yarn.amounts import COMPONENT_LABEL, NODE_ID_ANNOTATION, NODE_MANAGER

_PAGE = "docs/yarn-on-the-node.md"


def check(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Yield what is missing beside NodeManager pods; nothing where there are none."""
    pods = [each for each in snapshot.of(Pod) if each.spec.node_name and each.status.phase == "Running"]
    managers = [each for each in pods if each.metadata.labels.get(COMPONENT_LABEL) == NODE_MANAGER]
    if not managers:
        return
    yield from _agents(managers, pods)
    yield from _group(snapshot)
    unnamed = [each.key for each in managers if not each.metadata.annotations.get(NODE_ID_ANNOTATION)]
    if unnamed:
        yield Finding.warning(
            ("Pod", unnamed),
            f"no annotation {NODE_ID_ANNOTATION}",
            why="the YARN operator does not know which NodeManager it is, and YARN gets nothing of its node",
            do=(f"{_PAGE}: its start script writes it on its own pod",),
        )


def _agents(managers: list[Pod], pods: list[Pod]) -> Iterator[Finding]:
    served = {each.spec.node_name for each in pods if each.metadata.labels.get(APP_LABEL) == YARN_COPILOT}
    bare = sorted({each.spec.node_name for each in managers} - served)
    if bare:
        yield Finding.warning(
            ("Node", bare),
            f"a NodeManager runs there, and no {YARN_COPILOT}",
            why="node agents do not see YARN containers: under pressure batch pods are evicted for what YARN uses",
            do=("koordinator install --apply --set yarnCopilot.enabled=true",),
        )


def _group(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    found = snapshot.slo_config
    if found is None:
        return  # the check of the configuration says so
    try:
        text = found.data.get(slo_config.HOST_APPLICATION.key, "")
        config = slo_config.HOST_APPLICATION.decode(text) if text else HostApplicationConfig()
    except ProtocolError:
        return  # so it does of this
    lists = (config.applications, *(each.applications for each in config.node_configs))
    if not any(qos.of_name(each.qos) is QoSClass.BE for listed in lists for each in listed):
        yield Finding.warning(
            found,
            f"{slo_config.HOST_APPLICATION.key} names no application of QoS BE",
            why="what YARN containers use counts as the system's, and shrinks what nodes lend to them",
            do=(edit(found), _PAGE),
        )


_LAST_LINE = "kubectl annotate pod $HOSTNAME yarn.hadoop.apache.org/node-id=$HOSTNAME:8041"


def check_operator(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Yield what all NodeManagers lack, then pod by pod, then nodes."""
    managers = [
        pod
        for pod in snapshot.of(Pod)
        if node_sync.is_node_manager(pod) and not pod_labels.is_terminated(pod) and pod.spec.node_name
    ]
    if managers:
        yield from _operator(snapshot, managers)
    for pod in managers:
        if amounts.NODE_ID_ANNOTATION not in pod.metadata.annotations:
            continue  # `check` says so
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
    if not leads(snapshot, ComponentName.YARN_OPERATOR):
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
