"""koord-runtime-proxy before a real dockerd, koordlet behind it: calls as a kubelet's Docker client makes them."""

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from koordinator.runtime_proxy import docker as names
from tests.runtime import binaries, docker, image, pods
from tests.runtime import node as nodes
from tests.runtime.node import IMAGE, RuntimeNode
from tests.runtime.pods import OF_NODE, PodShape, Told, batch_pod, has_batch_limits
from tests.runtime.proxy import LOG, RunningProxy
from tests.runtime_proxy.fake_docker import DockerCaller

_V = "/v1.41"


class DockerNode(NamedTuple):
    node: RuntimeNode
    proxy: RunningProxy


@pytest.fixture(scope="module")
def docker_node(_can_run: None) -> Iterator[DockerNode]:
    """A node with dockerd, koordlet and a proxy in Docker mode."""
    if why := docker.why_missing():
        pytest.skip(why)
    with nodes.bare_node() as node:
        docker.start(node)
        mode = ("-backend-runtime-mode=Docker", f"-remote-runtime-service-endpoint=/var/run/{docker.SOCKET}")
        proxy = RunningProxy(node, *mode)
        try:
            proxy.start()
            proxy.start_agent()
            node.until(lambda: proxy.loaded() > 0, LOG)
            asyncio.run(_load_image(node))
            yield DockerNode(node, proxy)
        finally:
            proxy.close()


@pytest.fixture
async def kubelet(docker_node: DockerNode) -> AsyncIterator[DockerCaller]:
    """Calls the proxy."""
    caller = DockerCaller(docker_node.proxy.socket)
    yield caller
    await caller.close()


async def _load_image(node: RuntimeNode) -> None:
    archive = node.folder / "image.tar"
    image.write_archive(archive, IMAGE, {"probe": (node.programs / binaries.PROBE).read_bytes()}, ["/probe"])
    own = DockerCaller(node.run / docker.SOCKET)
    await own.send(f"{_V}/images/load", archive.read_bytes())
    await own.close()


class DockerPod(NamedTuple):
    node: RuntimeNode
    shape: PodShape
    sandbox: str
    container: str

    async def told(self, caller: DockerCaller) -> Told:
        """What the container said first, by a stream that passes through."""
        said = await caller.get(f"{_V}/containers/{self.container}/logs?stdout=1&follow=1", until="end\r\n")
        return pods.as_told(said.replace("\r\n", "\n"), self.shape)

    def own(self, file: str) -> str:
        group = self.node.group("cpu", f"{self.shape.parent}/{self.container}")
        return (group / file).read_text().strip()

    async def remove(self, caller: DockerCaller) -> None:
        for each in (self.container, self.sandbox):
            await caller.post(f"{_V}/containers/{each}/stop?t=1")
            await caller.delete(f"{_V}/containers/{each}?force=1")


async def start_pod(found: DockerNode, shape: PodShape, caller: DockerCaller) -> DockerPod:
    """A sandbox and a container in it. Raises: AssertionError with Docker's answer when one is refused."""
    pods.make_pod_group(found.node, shape)
    sandbox = await _started(caller, f"k8s_POD_{shape.name}_default_{shape.uid}_0", _sandbox(shape))
    container = await _started(
        caller, f"k8s_main_{shape.name}_default_{shape.uid}_0", _container(shape, sandbox)
    )
    pods.listed(found.node, lambda known: [*known, pods.manifest(shape, container, "docker")])
    return DockerPod(found.node, shape, sandbox, container)


async def _started(caller: DockerCaller, name: str, body: dict[str, Any]) -> str:
    status, made = await caller.post(f"{_V}/containers/create?name={name}", body)
    assert status == HTTPStatus.CREATED, made
    status, said = await caller.post(f"{_V}/containers/{made['Id']}/start")
    assert status == HTTPStatus.NO_CONTENT, said
    return str(made["Id"])


def _sandbox(shape: PodShape) -> dict[str, Any]:
    prefixed = {f"{names.ANNOTATION_PREFIX}{name}": value for name, value in shape.annotations.items()}
    kind = {names.TYPE_LABEL: names.SANDBOX_TYPE}
    return {
        "Image": IMAGE,
        "Cmd": ["pause"],
        "Labels": {**shape.labels, **prefixed, **kind},
        "HostConfig": {"CgroupParent": shape.parent, "NetworkMode": "none", "CpuShares": 2},
    }


def _container(shape: PodShape, sandbox: str) -> dict[str, Any]:
    given = shape.resources
    return {
        "Image": IMAGE,
        "Cmd": list(pods.questions(shape)),
        "Env": [f"{name}={value}" for name, value in shape.environment.items()],
        "Tty": True,
        "Labels": {names.TYPE_LABEL: "container", names.SANDBOX_ID_LABEL: sandbox},
        "HostConfig": {
            "CgroupParent": shape.parent,
            "NetworkMode": f"container:{sandbox}",
            "CpuShares": given.cpu_shares,
            "OomScoreAdj": given.oom_score_adj,
            "Binds": [f"/sys/fs/cgroup:{OF_NODE}:ro"],
        },
    }


async def test_a_batch_container_starts_with_its_limits(
    docker_node: DockerNode, kubelet: DockerCaller
) -> None:
    pod = await start_pod(docker_node, batch_pod("batch", environment={"COLOUR": "red"}), kubelet)

    told = await pod.told(kubelet)
    assert has_batch_limits(told), told.files
    assert (told.files["pod quota"], told.files["pod memory"]) == ("70000", str(128 << 20))
    assert told.environment["COLOUR"] == "red"
    assert told.files[pods.SCORE] == "1000"
    await pod.remove(kubelet)


async def test_an_update_by_the_kubelet_leaves_the_limits(
    docker_node: DockerNode, kubelet: DockerCaller
) -> None:
    pod = await start_pod(docker_node, batch_pod("updated"), kubelet)

    wanted = {"CpuShares": 2, "CpuPeriod": 100_000, "CpuQuota": -1}
    status, said = await kubelet.post(f"{_V}/containers/{pod.container}/update", wanted)

    assert status == HTTPStatus.OK, said
    assert (pod.own("cpu.shares"), pod.own("cpu.cfs_quota_us")) == ("512", "70000")
    await pod.remove(kubelet)


async def test_a_killed_proxy_leaves_containers_alone_and_knows_them_when_it_is_back(
    docker_node: DockerNode, kubelet: DockerCaller
) -> None:
    pod = await start_pod(docker_node, batch_pod("steady"), kubelet)

    docker_node.proxy.kill()
    assert pod.own("cgroup.procs")
    docker_node.proxy.start()
    status, said = await kubelet.post(f"{_V}/containers/{pod.container}/update", {"CpuShares": 2})

    assert status == HTTPStatus.OK, said
    assert (pod.own("cpu.shares"), pod.own("cpu.cfs_quota_us")) == ("512", "70000")
    later = await start_pod(docker_node, batch_pod("later"), kubelet)
    assert has_batch_limits(await later.told(kubelet))
    await later.remove(kubelet)
    await pod.remove(kubelet)


async def test_a_command_in_a_container_takes_its_connection_over(
    docker_node: DockerNode, kubelet: DockerCaller
) -> None:
    pod = await start_pod(docker_node, batch_pod("talks"), kubelet)
    command = {"Cmd": ["/probe", "exit"], "AttachStdout": True, "Tty": True}
    _, made = await kubelet.post(f"{_V}/containers/{pod.container}/exec", command)

    answer = await _hijacked(docker_node.proxy.socket, f"{_V}/exec/{made['Id']}/start", {"Tty": True})

    head, _, said = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101")
    assert said.endswith(b"end\r\n")
    await pod.remove(kubelet)


async def test_without_koordlet_the_policy_fail_refuses_containers(
    docker_node: DockerNode, kubelet: DockerCaller
) -> None:
    proxy = docker_node.proxy
    proxy.agent.kill()
    loaded = proxy.loaded()
    proxy.start_agent("Fail")
    proxy.node.until(lambda: proxy.loaded() > loaded, LOG)
    proxy.agent.kill(signal.SIGKILL)

    with pytest.raises(AssertionError, match=r"hook PreRunPodSandbox of koordlet\.json"):
        await start_pod(docker_node, batch_pod("refused"), kubelet)

    loaded = proxy.loaded()
    proxy.start_agent()
    proxy.node.until(lambda: proxy.loaded() > loaded, LOG)
    pod = await start_pod(docker_node, batch_pod("again"), kubelet)
    assert has_batch_limits(await pod.told(kubelet))
    await pod.remove(kubelet)


async def _hijacked(socket: Path, target: str, body: dict[str, Any]) -> bytes:
    """All that comes by a connection that a call takes over."""
    reader, writer = await asyncio.open_unix_connection(str(socket))
    content = json.dumps(body).encode()
    head = (
        f"POST {target} HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    writer.write(head.encode() + content)
    async with asyncio.timeout(nodes.WAIT_S):
        said = await reader.read()
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return said
