"""Containers of other runtimes are measured as pods are, and count where best-effort pods share a limit."""

from pathlib import Path

from koordinator.api.copilot import ContainerInfo
from koordinator.api.decode import from_builtins
from koordinator.clock import Clock
from koordinator.host import cgroup_layout
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet import node_pods
from koordinator.koordlet.collect.pod_usage import BestEffortUsage, ForeignUsage
from tests.host import host_tree
from tests.koordlet.collect.collecting_node import BEST_EFFORT, NS, CollectingNode, life, make_pod, rounds
from tests.koordlet.copilot_double import told, yarn_id

GROUP = f"{BEST_EFFORT}/hadoop-yarn/{yarn_id(2)}"


def know(node: CollectingNode, cpu: str) -> None:
    container = from_builtins(told(2, cpu=cpu), ContainerInfo)
    driver = cgroup_layout.Driver.CGROUPFS
    node.shared.view.foreign = {yarn_id(2): node_pods.foreign(container, driver, GROUP, "")}


def test_use_of_a_container_is_known_from_the_second_round_on(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock)
        host_tree.group(tmp_path, node.version, f"{BEST_EFFORT}/hadoop-yarn")
        host_tree.group(tmp_path, node.version, GROUP)
        know(node, "1")
        await rounds(
            ForeignUsage(node.shared, node.scan),
            lambda: node.counters(GROUP, usage_ns=1 * NS, anon=300),
            lambda: node.counters(GROUP, usage_ns=int(1.5 * NS), anon=300),
        )
        assert node.values(kinds.FOREIGN_CPU, container_id=yarn_id(2)) == [0.5]
        assert node.values(kinds.FOREIGN_MEMORY, container_id=yarn_id(2)) == [300]

    life(main)


def test_what_yarn_gave_out_is_among_what_the_best_effort_class_asks_for(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock)
        node.pods(make_pod("a", qos_class="BestEffort", qos="BE", batch_cpu="1500"))
        used = [lambda i=i: node.counters(BEST_EFFORT, usage_ns=i * NS) for i in range(1, 4)]

        def come() -> None:
            used[2]()
            know(node, "2")

        await rounds(BestEffortUsage(node.shared), used[0], used[1], come)
        assert node.values(kinds.NODE_BE, be_allocation="request") == [1500, 3500]

    life(main)
