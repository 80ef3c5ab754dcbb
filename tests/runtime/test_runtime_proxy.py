"""koord-runtime-proxy before a real containerd, koordlet behind it: what the first instruction of a container sees."""

import contextlib
import json
import socket
import subprocess
from collections.abc import Iterator

import grpc
import pytest

from koordinator.host.cri_messages import ContainerState, LinuxContainerResources
from tests.runtime import node as nodes
from tests.runtime.cri import CRIClient
from tests.runtime.node import WAIT_S
from tests.runtime.pods import PodShape, batch_pod, is_protected, start_pod
from tests.runtime.proxy import LOG, RunningProxy


@pytest.fixture(scope="module")
def proxy(_can_run: None) -> Iterator[RunningProxy]:
    """A node without NRI."""
    with nodes.running_node(nri=False) as node:
        running = RunningProxy(node)
        try:
            running.start()
            running.start_agent()
            node.until(lambda: running.loaded() > 0, LOG)
            yield running
        finally:
            running.close()


def test_a_batch_container_starts_with_its_limits(proxy: RunningProxy) -> None:
    shape = batch_pod("batch", environment={"COLOUR": "red"})

    pod = start_pod(proxy.node, shape, proxy.cri)

    assert is_protected(pod)
    told = pod.told()
    assert (told.files["pod quota"], told.files["pod memory"]) == ("70000", str(128 << 20))
    assert (told.files["pod idle"], told.files["pod shares"]) == ("1", "3"), (
        "no bvt: idle groups have no others"
    )
    assert told.environment["COLOUR"] == "red"
    pod.remove()


def test_a_pod_with_cpus_of_its_own_starts_on_them_without_quota(proxy: RunningProxy) -> None:
    resources = LinuxContainerResources(cpu_shares=1024, cpu_period=100_000, cpu_quota=100_000)
    annotations = {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": "1"})}
    shape = PodShape("bound", {"koordinator.sh/qosClass": "LSR"}, annotations, "", resources)

    pod = start_pod(proxy.node, shape, proxy.cri)

    files = pod.told().files
    assert (files["cpus"], files["quota"], files["shares"]) == ("1", "-1", "1024")
    pod.remove()


def test_containers_of_others_are_left_as_the_kubelet_wants_them(proxy: RunningProxy) -> None:
    resources = LinuxContainerResources(
        cpu_shares=204, cpu_period=100_000, cpu_quota=50_000, memory_limit_in_bytes=64 << 20
    )

    pod = start_pod(proxy.node, PodShape("other", kube_qos="burstable", resources=resources), proxy.cri)

    files = pod.told().files
    assert (files["shares"], files["quota"], files["memory"]) == ("204", "50000", str(64 << 20))
    pod.remove()


def test_a_killed_proxy_leaves_containers_alone_and_knows_them_when_it_is_back(proxy: RunningProxy) -> None:
    pod = start_pod(proxy.node, batch_pod("steady"), proxy.cri)
    assert is_protected(pod)

    proxy.kill()
    assert proxy.node.cri.container_status(pod.container).state == ContainerState.RUNNING
    proxy.start()
    wanted = LinuxContainerResources(cpu_shares=2, cpu_period=100_000, cpu_quota=-1)
    proxy.cri.update_container(pod.container, wanted)

    own = proxy.node.group("cpu", f"{pod.shape.parent}/{pod.container}")
    assert (own / "cpu.shares").read_text() == "512\n"
    assert (own / "cpu.cfs_quota_us").read_text() == "70000\n"
    later = start_pod(proxy.node, batch_pod("later"), proxy.cri)
    assert is_protected(later)
    later.remove()
    pod.remove()


def test_a_proxy_killed_in_the_middle_of_a_call_is_an_error_that_the_kubelet_can_repeat(
    proxy: RunningProxy,
) -> None:
    loaded = proxy.loaded()
    with silent_server(proxy):
        proxy.node.until(lambda: proxy.loaded() > loaded, LOG)
        killer = subprocess.Popen(["sh", "-c", 'sleep 1; exec kill -9 "$1"', "sh", str(proxy.pid)])
        with pytest.raises(grpc.RpcError):
            start_pod(proxy.node, batch_pod("cut"), proxy.cri)
        killer.wait(WAIT_S)

    proxy.wait_killed()
    proxy.start()
    again = start_pod(proxy.node, batch_pod("cut"), proxy.cri)
    assert is_protected(again)
    again.remove()


def test_containerd_may_restart_behind_the_proxy(proxy: RunningProxy) -> None:
    pod = start_pod(proxy.node, batch_pod("before"), proxy.cri)
    assert is_protected(pod)

    proxy.node.stop_containerd()
    proxy.node.start_containerd(nri=False)

    proxy.node.until(lambda: _answers(proxy.cri), LOG)
    assert proxy.cri.container_status(pod.container).state == ContainerState.RUNNING
    after = start_pod(proxy.node, batch_pod("after"), proxy.cri)
    assert is_protected(after)
    after.remove()
    pod.remove()


@pytest.mark.parametrize("policy", ["Ignore", "Fail"])
def test_without_koordlet_the_policy_says_whether_containers_start(proxy: RunningProxy, policy: str) -> None:
    proxy.agent.kill()
    loaded = proxy.loaded()
    proxy.start_agent(policy)
    proxy.node.until(lambda: proxy.loaded() > loaded, LOG)
    proxy.agent.kill()

    if policy == "Ignore":
        pod = start_pod(proxy.node, batch_pod("bare"), proxy.cri)
        assert pod.told().files["shares"] == "2"
        pod.remove()
    else:
        with pytest.raises(grpc.RpcError, match=r"hook PreRunPodSandbox of koordlet\.json"):
            start_pod(proxy.node, batch_pod("refused"), proxy.cri)

    loaded = proxy.loaded()
    proxy.start_agent()
    proxy.node.until(lambda: proxy.loaded() > loaded, LOG)
    pod = start_pod(proxy.node, batch_pod(f"again-{policy.lower()}"), proxy.cri)
    assert is_protected(pod)
    pod.remove()


@contextlib.contextmanager
def silent_server(proxy: RunningProxy) -> Iterator[None]:
    """A hook server that takes calls and never answers, asked before koordlet."""
    path = proxy.node.run / "silent.sock"
    file = proxy.hooks / "a-silent.json"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen()
        body = {"remote-endpoint": "/run/silent.sock", "runtime-hooks": ["PreRunPodSandbox"]}
        file.write_text(json.dumps(body))
        try:
            yield
        finally:
            file.unlink()


def _answers(client: CRIClient) -> bool:
    try:
        client.containers()
    except grpc.RpcError:
        return False
    return True
