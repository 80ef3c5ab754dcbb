"""Do nodes with YARN's NodeManagers know of its containers: is the agent beside them, is their group told of?"""

from collections.abc import Iterator

from koordinator.api import qos, slo_config
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.qos import QoSClass
from koordinator.api.slo_config import HostApplicationConfig
from koordinator.doctor.finding import Finding
from koordinator.doctor.snapshot import ClusterSnapshot
from koordinator.install.rbac import YARN_COPILOT
from koordinator.install.workloads import APP_LABEL
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
            do=(f"kubectl -n {found.metadata.namespace} edit configmap {found.metadata.name}", _PAGE),
        )
