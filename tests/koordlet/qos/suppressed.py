"""A node on which batch is suppressed, and rounds of that with what services use."""

from pathlib import Path

import pytest

from koordinator.host.cgroup_knobs import V1
from koordinator.koordlet.qos.cpu_suppress_run import CPUSuppress
from tests.host import host_tree
from tests.koordlet.qos.pods import BE, LS, pod_object
from tests.koordlet.qos.qos_node import QoSNode

both_versions = pytest.mark.parametrize("version", host_tree.VERSIONS)
BATCH = f"{BE}/podb"
BATCH_CONTAINER = f"{BATCH}/b-c0"
WEB = f"{LS}/podw"


def busy_node(root: Path, version: int = V1, *, policy: str = "cpuset", gates: str = "") -> QoSNode:
    """8 CPUs, a service and a batch pod; suppression up to 50 %."""
    node = QoSNode(root, version, gates=gates)
    node.add(pod_object("w", "LS"))
    node.add(pod_object("b", "BE", "BestEffort"))
    say(node, policy)
    return node


def say(node: QoSNode, policy: str = "cpuset", *, enable: bool = True, **more: object) -> None:
    threshold = {"enable": enable, "cpuSuppressPolicy": policy, "cpuSuppressThresholdPercent": 50, **more}
    node.say(resourceUsedThresholdWithBE=threshold)


def round_with(node: QoSNode, suppress: CPUSuppress, service_cores: float, batch_cores: float = 0.0) -> None:
    """A second passes, everything is measured, a round."""
    node.clock.now_s += 1
    node.use(service_cores + batch_cores, w=service_cores, b=batch_cores)
    suppress.run()
