"""koordlet as an NRI plugin of a real containerd: what the first instruction of a container sees."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordinator.api import labels
from koordinator.host.cri_messages import ContainerState, LinuxContainerResources
from tests.runtime.agent import RunningAgent, running_agent
from tests.runtime.node import RuntimeNode
from tests.runtime.pods import PodShape, RunningPod, batch_pod, is_protected, listed, manifest, start_pod

GATES = "GPUEnvInject=true,OOMScoreAdj=true"


@pytest.fixture(scope="module")
def agent(runtime_node: RuntimeNode) -> Iterator[RunningAgent]:
    library = runtime_node.folder / "libvgpu.so"
    library.write_text("")
    flags = (f"-feature-gates={GATES}", f"-hami-core-library-directory-path={library}")
    with running_agent(runtime_node, flags) as running:
        yield running


def own_file(pod: RunningPod, name: str) -> str:
    """A file of the container's own group, as it is now."""
    group = pod.node.group(name.partition(".")[0], f"{pod.shape.parent}/{pod.container}")
    return (group / name).read_text().strip()


def pod_file(pod: RunningPod, name: str) -> str:
    """A file of the pod's group, as it is now."""
    return (pod.node.group(name.partition(".")[0], pod.shape.parent) / name).read_text().strip()


def own_shares(pod: RunningPod) -> str:
    return own_file(pod, "cpu.shares")


def test_a_batch_container_starts_with_its_limits(runtime_node: RuntimeNode, agent: RunningAgent) -> None:
    pod = start_pod(runtime_node, batch_pod("batch"))

    assert is_protected(pod)
    files = pod.told().files
    assert (files["pod quota"], files["pod memory"]) == ("70000", str(128 << 20))
    assert (files["pod idle"], files["pod shares"]) == ("1", "3"), "no bvt: idle groups have no other shares"
    pod.remove()


def test_a_pod_with_cpus_of_its_own_starts_on_them_without_quota(
    runtime_node: RuntimeNode, agent: RunningAgent
) -> None:
    resources = LinuxContainerResources(cpu_shares=1024, cpu_period=100_000, cpu_quota=100_000)
    annotations = {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": "1"})}
    labels = {"koordinator.sh/qosClass": "LSR"}

    pod = start_pod(runtime_node, PodShape("bound", labels, annotations, "", resources))

    files = pod.told().files
    assert (files["cpus"], files["quota"], files["shares"]) == ("1", "-1", "1024")
    pod.remove()


def test_a_gpu_pod_starts_with_its_environment_and_mounts(
    runtime_node: RuntimeNode, agent: RunningAgent
) -> None:
    share = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "8Gi"}
    gpu = {"minor": 3, "resources": {**share, "koordinator.sh/gpu-memory-ratio": "50"}}
    annotations = {"scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": [gpu]})}
    library = str(runtime_node.folder / "libvgpu.so")
    shape = PodShape(
        "gpu",
        {"koordinator.sh/gpu-isolation-provider": "HAMi-core"},
        annotations,
        environment={"MODEL": "small"},
        tells=[f"stat:{library}", "stat:/tmp/vgpulock"],
    )
    with lock_folder():
        pod = start_pod(runtime_node, shape)
        told = pod.told()
        pod.remove()

    assert told.environment["MODEL"] == "small"
    assert told.environment["NVIDIA_VISIBLE_DEVICES"] == "3"
    assert told.environment["CUDA_DEVICE_MEMORY_LIMIT"] == str(8 << 30)
    assert told.environment["LD_PRELOAD"] == library
    assert told.files[f"stat:{library}"].startswith("file")
    assert told.files["stat:/tmp/vgpulock"].startswith("dir")


def test_a_container_starts_with_the_oom_score_of_its_pod(
    runtime_node: RuntimeNode, agent: RunningAgent
) -> None:
    annotations = {labels.OOM_SCORE_ADJ: "777"}
    resources = LinuxContainerResources(cpu_shares=2, oom_score_adj=500)

    pod = start_pod(runtime_node, PodShape("oom", annotations=annotations, resources=resources))

    assert pod.told().files["/proc/self/oom_score_adj"] == "777"
    pod.remove()


def test_an_update_by_the_kubelet_does_not_take_limits_away(
    runtime_node: RuntimeNode, agent: RunningAgent
) -> None:
    pod = start_pod(runtime_node, batch_pod("updated"))
    pod.told()

    runtime_node.cri.update_container(
        pod.container, LinuxContainerResources(cpu_shares=2, cpu_period=100_000, cpu_quota=-1)
    )

    assert own_shares(pod) == "512"
    assert own_file(pod, "cpu.cfs_quota_us") == "70000"
    pod.remove()


def test_a_batch_container_that_is_resized_in_place_keeps_its_protection(
    runtime_node: RuntimeNode, agent: RunningAgent
) -> None:
    pod = start_pod(runtime_node, batch_pod("resized"))
    pod.told()

    resized = LinuxContainerResources(
        cpu_shares=1024, cpu_period=100_000, cpu_quota=200_000, memory_limit_in_bytes=1 << 30
    )
    runtime_node.cri.update_container(pod.container, resized)

    own = [own_file(pod, name) for name in ("cpu.shares", "cpu.cfs_quota_us", "memory.limit_in_bytes")]
    assert own == ["512", "70000", str(128 << 20)]
    assert (pod_file(pod, "cpu.idle"), pod_file(pod, "cpu.cfs_quota_us")) == ("1", "70000")
    pod.remove()


def test_a_batch_pod_that_is_given_more_has_it_without_a_restart(
    runtime_node: RuntimeNode, agent: RunningAgent
) -> None:
    pod = start_pod(runtime_node, batch_pod("grown"))
    pod.told()
    more = {"kubernetes.io/batch-cpu": "1400", "kubernetes.io/batch-memory": "256Mi"}
    spec = {"containers": {"main": {"requests": more, "limits": more}}}
    shape = pod.shape._replace(annotations={labels.EXTENDED_RESOURCE_SPEC: json.dumps(spec)})

    def others(pods: list[Any]) -> list[Any]:
        return [each for each in pods if each["metadata"]["uid"] != shape.uid]

    listed(runtime_node, lambda pods: [*others(pods), manifest(shape, pod.container)])

    runtime_node.until(lambda: own_file(pod, "cpu.cfs_quota_us") == "140000", "koordlet")
    runtime_node.until(lambda: own_file(pod, "memory.limit_in_bytes") == str(256 << 20), "koordlet")
    assert own_shares(pod) == "1433"
    files = ("cpu.cfs_quota_us", "memory.limit_in_bytes", "cpu.idle")
    assert [pod_file(pod, name) for name in files] == ["140000", str(256 << 20), "1"]
    pod.remove()


def test_containers_of_others_are_left_as_the_kubelet_wants_them(
    runtime_node: RuntimeNode, agent: RunningAgent
) -> None:
    resources = LinuxContainerResources(
        cpu_shares=204, cpu_period=100_000, cpu_quota=50_000, memory_limit_in_bytes=64 << 20
    )

    pod = start_pod(runtime_node, PodShape("other", kube_qos="burstable", resources=resources))

    files = pod.told().files
    assert (files["shares"], files["quota"], files["memory"]) == ("204", "50000", str(64 << 20))
    pod.remove()


def test_a_malformed_annotation_costs_no_pod_its_start(
    runtime_node: RuntimeNode, agent: RunningAgent
) -> None:
    shape = batch_pod("malformed")
    broken = {**shape.annotations, "scheduling.koordinator.sh/resource-status": "{"}

    pod = start_pod(runtime_node, shape._replace(annotations=broken))

    assert is_protected(pod), "the other hooks go on"
    pod.remove()


def test_after_containerd_is_killed_containers_go_on_and_the_next_one_is_protected(
    runtime_node: RuntimeNode, agent: RunningAgent
) -> None:
    before = start_pod(runtime_node, batch_pod("before-kill"))
    before.told()
    joins = agent.joins()

    runtime_node.stop_containerd()
    runtime_node.start_containerd()
    runtime_node.until(lambda: agent.joins() > joins, "koordlet")

    assert runtime_node.cri.container_status(before.container).state == ContainerState.RUNNING
    after = start_pod(runtime_node, batch_pod("after-kill"))
    assert is_protected(after)
    before.remove()
    after.remove()


def test_while_koordlet_is_dead_pods_start_and_afterwards_they_are_protected_again(
    runtime_node: RuntimeNode, agent: RunningAgent
) -> None:
    before = start_pod(runtime_node, batch_pod("before-death"))
    agent.kill()

    meanwhile = start_pod(runtime_node, batch_pod("meanwhile"))
    assert not is_protected(meanwhile)
    agent.start()
    after = start_pod(runtime_node, batch_pod("after-death"))

    assert is_protected(after)
    runtime_node.until(lambda: own_shares(meanwhile) == "512", "koordlet")  # by the reconciler
    for pod in (before, meanwhile):
        assert runtime_node.cri.container_status(pod.container).state == ContainerState.RUNNING
    for pod in (before, meanwhile, after):
        pod.remove()


def test_metrics_say_which_way_hooks_go(runtime_node: RuntimeNode, agent: RunningAgent) -> None:
    text = agent.metrics()

    for mode in ("nri", "reconciler"):
        line = f'koordlet_runtime_hook_delivery{{node="n1",hook="BatchResource",mode="{mode}"}} 1'
        assert line in text
    assert 'hook="BatchResource",stage="PreCreateContainer",status="succeeded"' in text


@contextlib.contextmanager
def lock_folder() -> Iterator[None]:
    """The folder that HAMi's installation makes on a node."""
    path = Path("/tmp/vgpulock")
    is_new = not path.exists()
    path.mkdir(exist_ok=True)
    try:
        yield
    finally:
        if is_new:
            path.rmdir()
