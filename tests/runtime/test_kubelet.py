"""A real kubelet beside koordlet: what one writes the other must not make impossible."""

from collections.abc import Iterator

import pytest

from tests.runtime import kubelet
from tests.runtime.agent import RunningAgent, running_agent
from tests.runtime.kubelet import RunningKubelet
from tests.runtime.node import IMAGE, RuntimeNode
from tests.runtime.pods import batch_pod, start_pod

SHARES_OF_BEST_EFFORT = "2"


@pytest.fixture(scope="module")
def agent(runtime_node: RuntimeNode) -> Iterator[RunningAgent]:
    if why := kubelet.why_missing():
        pytest.skip(why)
    with running_agent(runtime_node) as running:
        yield running


@pytest.fixture
def real_kubelet(runtime_node: RuntimeNode, agent: RunningAgent) -> Iterator[RunningKubelet]:
    running = RunningKubelet(runtime_node)
    yield running
    running.end()


def file_of(node: RuntimeNode, group: str, name: str) -> str:
    return (node.group("cpu", group) / name).read_text().strip()


def test_a_kubelet_starts_and_starts_again_while_batch_pods_are_idle(
    runtime_node: RuntimeNode, real_kubelet: RunningKubelet
) -> None:
    pod = start_pod(runtime_node, batch_pod("batch"))
    runtime_node.until(lambda: file_of(runtime_node, pod.shape.parent, "cpu.idle") == "1", "koordlet")

    for _ in range(2):
        runtime_node.group("cpu", "kubepods/besteffort").joinpath("cpu.shares").write_text("1000")
        real_kubelet.start()
        runtime_node.until(
            lambda: file_of(runtime_node, "kubepods/besteffort", "cpu.shares") == SHARES_OF_BEST_EFFORT,
            kubelet.LOG,
        )
        assert "Failed to update QoS cgroup configuration" not in real_kubelet.said()
        real_kubelet.end()


def test_a_kubelet_ends_at_its_start_where_the_class_is_idle(
    runtime_node: RuntimeNode, real_kubelet: RunningKubelet
) -> None:
    """Why koordlet makes pods idle: should a kubelet or kernel bear more one day, this test tells."""
    idle = runtime_node.group("cpu", "kubepods/besteffort") / "cpu.idle"
    idle.write_text("1")
    try:
        with pytest.raises(AssertionError, match="failed to update top level BestEffort QOS cgroup"):
            real_kubelet.start()
    finally:
        idle.write_text("0")


def test_a_pod_that_the_kubelet_runs_is_idle_and_has_its_batch_limits(
    runtime_node: RuntimeNode, real_kubelet: RunningKubelet
) -> None:
    real_kubelet.start()
    shape = batch_pod("static")
    meta = {"name": shape.name, "namespace": "default", "uid": shape.uid}
    # Privileged pods get no seccomp profile, which the runc of these tests is not built with.
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "securityContext": {"privileged": True},
    }
    real_kubelet.run_pod(
        shape.name,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**meta, "labels": dict(shape.labels), "annotations": dict(shape.annotations)},
            "spec": {"hostNetwork": True, "containers": [container]},
        },
    )

    def own(name: str) -> str:
        return file_of(runtime_node, shape.parent, name)

    def of_containers() -> list[str]:
        """Shares of the sandbox and the container, which is there once there are two."""
        groups = runtime_node.group("cpu", shape.parent).glob("*/cpu.shares")
        return sorted(each.read_text().strip() for each in groups)

    runtime_node.until(lambda: of_containers() == ["2", "512"], kubelet.LOG)
    assert (own("cpu.idle"), own("cpu.cfs_quota_us")) == ("1", "70000")
