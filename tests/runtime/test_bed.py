"""The bed itself: a container tells what its first instruction saw, and outlives its runtime."""

from koordinator.host.cri_messages import ContainerState, LinuxContainerResources
from tests.runtime.node import RuntimeNode
from tests.runtime.pods import PodShape, start_pod


def test_a_container_tells_the_limits_that_the_runtime_was_asked_for(runtime_node: RuntimeNode) -> None:
    resources = LinuxContainerResources(
        cpu_period=100_000,
        cpu_quota=50_000,
        cpu_shares=204,
        memory_limit_in_bytes=64 << 20,
        oom_score_adj=900,
    )
    shape = PodShape("plain", resources=resources, environment={"COLOUR": "red"}, tells=["stat:/dev/null"])

    pod = start_pod(runtime_node, shape)

    told = pod.told()
    assert told.files["shares"] == "204"
    assert told.files["quota"] == "50000"
    assert told.files["memory"] == str(64 << 20)
    assert told.files["pod shares"] == "1024"
    assert told.files["/proc/self/oom_score_adj"] == "900"
    assert told.files["stat:/dev/null"] == "char 666 1:3"
    assert told.environment["COLOUR"] == "red"
    pod.remove()


def test_containers_go_on_while_containerd_is_away(runtime_node: RuntimeNode) -> None:
    pod = start_pod(runtime_node, PodShape("steady"))
    pod.told()

    runtime_node.stop_containerd()
    runtime_node.start_containerd()

    assert runtime_node.cri.container_status(pod.container).state == ContainerState.RUNNING
    pod.remove()
