"""koordlet's own calls of a real containerd: use of pods whose groups it cannot see, and images."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordinator.api.annotations.node import NODE_IMAGES
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.clock import SystemClock
from koordinator.host.cgroup_layout import Runtime
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet import node_pods
from koordinator.koordlet.collect.runtime_usage import RuntimeUsageCollector
from koordinator.koordlet.parts import container_runtimes
from tests.koordlet.collect.collecting_node import CollectingNode
from tests.runtime.agent import RunningAgent, running_agent
from tests.runtime.node import IMAGE, RuntimeNode
from tests.runtime.pods import RunningPod, batch_pod, manifest, start_pod
from tests.runtime.surroundings import NODE


@pytest.fixture(scope="module")
def pod(runtime_node: RuntimeNode) -> Iterator[RunningPod]:
    running = start_pod(runtime_node, batch_pod("measured"))
    running.told()
    yield running
    running.remove()


@pytest.fixture(scope="module")
def agent(runtime_node: RuntimeNode) -> Iterator[RunningAgent]:
    with running_agent(runtime_node, ("-feature-gates=ImageReport=true,RuntimeStats=true",)) as running:
        yield running


@pytest.fixture
def blind(runtime_node: RuntimeNode, tmp_path: Path) -> CollectingNode:
    """An agent that reaches containerd, and has groups of no pod."""
    socket = tmp_path / "run/containerd/containerd.sock"
    socket.parent.mkdir(parents=True)
    socket.symlink_to(runtime_node.run / "containerd/containerd.sock")
    return CollectingNode(tmp_path, SystemClock())


async def test_use_of_a_pod_without_groups_is_known_from_containerd(
    pod: RunningPod, blind: CollectingNode
) -> None:
    record = node_pods.record(
        from_builtins(manifest(pod.shape, pod.container), Pod), blind.shared.view.driver
    )
    blind.shared.view.pods, blind.shared.view.has_pods = {record.uid: record}, True
    collector = RuntimeUsageCollector(blind.shared, blind.known)

    while not blind.values(kinds.POD_CPU, pod_uid=pod.shape.uid):  # containerd looks when it likes
        assert await collector.collect()

    assert blind.values(kinds.POD_CPU, pod_uid=pod.shape.uid)[0] >= 0
    assert blind.values(kinds.POD_MEMORY, pod_uid=pod.shape.uid)[0] > 0
    assert blind.values(kinds.CONTAINER_CPU, container_id=f"containerd://{pod.container}")[0] >= 0
    assert blind.known.unseen_pods is not None and blind.known.unseen_pods.memory_bytes > 0


async def test_what_containerd_tells_of_a_pod_is_what_its_group_says(
    pod: RunningPod, blind: CollectingNode
) -> None:
    usage = await container_runtimes(blind.shared).used(Runtime.CONTAINERD)

    [own] = [each for each in usage.containers if each.attributes and each.attributes.id == pod.container]
    group = pod.node.group("cpuacct", f"{pod.shape.parent}/{pod.container}")
    assert own.cpu is not None
    assert 0 < (own.cpu.usage_core_nano_seconds or 0) <= int((group / "cpuacct.usage").read_text())


async def test_images_are_listed_with_names_and_sizes(blind: CollectingNode) -> None:
    images = await container_runtimes(blind.shared).images(Runtime.CONTAINERD)

    assert [each.size > 0 for each in images if IMAGE in each.repo_tags] == [True]


def test_the_running_agent_tells_the_cluster_of_images(
    runtime_node: RuntimeNode, agent: RunningAgent
) -> None:
    def told() -> bool:
        with urllib.request.urlopen(f"{agent.api}/api/v1/nodes/{NODE}", timeout=5) as answer:
            annotations = json.loads(answer.read())["metadata"].get("annotations") or {}
        found = NODE_IMAGES.read(annotations)
        return found is not None and any(IMAGE in each.names for each in found.images)

    runtime_node.until(told, "koordlet")
