"""Kubelet, proxy, Docker and koordlet's hooks on real sockets: what passes, what hooks change, what failures do."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.host.cri_messages import LinuxContainerResources
from koordinator.host.errors import ContentError
from koordinator.host.grpc_sockets import SocketError
from koordinator.runtime_proxy import docker, http1
from koordinator.runtime_proxy.docker import DockerCall
from koordinator.runtime_proxy.docker_proxy import DockerProxy
from tests.runtime_proxy.fake_docker import (
    CONTAINER_NAME,
    SANDBOX_NAME,
    DockerCaller,
    FakeDocker,
    container_body,
    sandbox_body,
)
from tests.runtime_proxy.proxied_node import ProxiedNode

pytest.importorskip("grpc")
CREATE = "/v1.41/containers/create?name="


class Node(ProxiedNode):
    """A Docker, a proxy before it, and a folder for hook servers."""

    def __init__(self, root: Path) -> None:
        self.docker = FakeDocker(root / "docker.sock")
        super().__init__(root, self.docker.path)
        self.kubelet = DockerCaller(self.socket)

    async def start_proxy(self) -> asyncio.Task[Any]:
        return await self.start(DockerProxy)

    def register_nobody(self, policy: str) -> None:
        self.register("none", str(self.root / "none.sock"), "PreCreateContainer", policy=policy)

    async def make_sandbox(self, **labels: str) -> None:
        assert await self.kubelet.post(f"{CREATE}{SANDBOX_NAME}", sandbox_body(**labels)) == (
            201,
            {"Id": "c1", "Warnings": []},
        )

    async def make_container(self) -> tuple[int, Any]:
        return await self.kubelet.post(f"{CREATE}{CONTAINER_NAME}", container_body())

    async def close(self) -> None:
        await self.kubelet.close()
        await self.end_tasks()
        with contextlib.suppress(AssertionError):
            await self.docker.stop()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    await made.docker.start()
    yield made
    await made.close()


async def test_a_batch_container_is_made_with_its_limits(node: Node) -> None:
    await node.start_koordlet()
    await node.start_proxy()
    await node.make_sandbox()

    assert (await node.make_container())[0] == 201

    made = node.docker.last("/containers/create")
    limits = {"CpuShares": 512, "CpuQuota": 50_000, "Memory": 1 << 30, "OomScoreAdj": 1000}
    assert {name: made["HostConfig"][name] for name in limits} == limits
    assert made["HostConfig"]["Binds"] == ["/a:/a"] and made["NetworkingConfig"] is None
    assert sorted(made["Env"]) == ["HOME", "PATH=/bin"]


async def test_an_update_keeps_the_limits_that_hooks_gave(node: Node) -> None:
    await node.start_koordlet()
    await node.start_proxy()
    await node.make_sandbox()
    await node.make_container()

    assert (await node.kubelet.post("/containers/c2/update", {"CpuShares": 2, "CpusetCpus": "0"}))[0] == 204

    updated = node.docker.last("/update")
    assert (updated["CpuShares"], updated["CpuQuota"], updated["CpusetCpus"]) == (512, 50_000, "0")
    assert "OomScoreAdj" not in updated


async def test_a_new_proxy_asks_docker_about_what_was_made_before_it(node: Node) -> None:
    await node.start_koordlet()
    proxy = await node.start_proxy()
    await node.make_sandbox()
    await node.make_container()
    proxy.cancel()
    await asyncio.gather(proxy, return_exceptions=True)
    await node.start_proxy()

    await node.kubelet.post("/containers/c2/update", {"CpusetCpus": "1"})

    updated = node.docker.last("/update")
    assert (updated["CpuQuota"], updated["Memory"], updated["CpusetCpus"]) == (50_000, 1 << 30, "1")


async def test_pods_with_the_label_meet_no_hook(node: Node) -> None:
    await node.start_koordlet()
    await node.start_proxy()
    await node.make_sandbox(**{"runtimeproxy.koordinator.sh/skip-hookserver": "true"})

    await node.make_container()

    assert node.docker.last("/containers/create")["HostConfig"] == container_body()["HostConfig"]


@pytest.mark.parametrize(("policy", "status"), [("Ignore", 201), ("Fail", 500)])
async def test_a_hook_that_is_away_counts_as_its_policy_says(node: Node, policy: str, status: int) -> None:
    node.register_nobody(policy)
    await node.start_proxy()
    await node.make_sandbox()

    answered, body = await node.make_container()

    assert answered == status
    assert status == 201 or "PreCreateContainer" in body["message"]


async def test_start_and_stop_pass_and_what_is_stopped_is_forgotten(node: Node) -> None:
    await node.start_koordlet()
    await node.start_proxy()
    await node.make_sandbox()
    await node.make_container()

    for target in ("/v1.41/containers/c1/start", "/containers/c2/start", "/containers/c2/stop?t=1"):
        assert (await node.kubelet.post(target))[0] == 204
    node.docker.containers.clear()

    status, body = await node.kubelet.post("/containers/c2/stop")
    assert (status, body) == (500, {"message": "No such container: c2"})


@pytest.mark.parametrize("own_id", ["c1", "c9"], ids=["that no kubelet named", "that nobody knows"])
async def test_a_container_goes_on_without_hooks(node: Node, own_id: str) -> None:
    node.docker.containers["c1"] = "redis", {"Labels": {}, "HostConfig": {}}
    await node.start_koordlet()
    await node.start_proxy()

    assert (await node.kubelet.post(f"/containers/{own_id}/start"))[0] == 204
    assert (await node.kubelet.post(f"/containers/{own_id}/update", {"CpuShares": 2}))[0] == 204

    assert node.docker.last("/update") == {"CpuShares": 2}
    assert (await node.kubelet.post(f"/containers/{own_id}/stop"))[0] == 500


async def test_a_container_that_no_kubelet_named_is_refused(node: Node) -> None:
    await node.start_proxy()

    status, body = await node.kubelet.post(f"{CREATE}mine", sandbox_body())

    assert status == 500 and "'mine' is not k8s_" in body["message"]


async def test_dockers_own_errors_reach_the_kubelet(node: Node) -> None:
    await node.start_proxy()
    node.docker.failure = 409

    assert await node.kubelet.post(f"{CREATE}{SANDBOX_NAME}", sandbox_body()) == (409, {"message": "no"})


async def test_all_other_calls_pass_with_streams_and_connections_that_are_taken_over(node: Node) -> None:
    await node.start_proxy()

    assert await node.kubelet.get("/v1.41/containers/c1/logs?follow=1") == "one\ntwo\n"
    assert (await node.kubelet.post("/invented/tomorrow", {"a": 1}))[0] == 204
    reader, writer = await asyncio.open_unix_connection(str(node.socket))
    writer.write(b"POST /exec/e1/start HTTP/1.1\r\nHost: d\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
    writer.write(b"echo")
    assert await reader.readexactly(4) == b"ECHO"
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()

    assert node.docker.last("/tomorrow") == {"a": 1}


async def test_docker_may_be_away(node: Node) -> None:
    await node.start_proxy()
    await node.make_sandbox()
    await node.docker.stop()

    assert (await node.make_container())[0] == 502
    assert (await node.kubelet.post("/images/create"))[0] == 502


async def test_the_proxy_needs_a_docker_that_it_can_trust(node: Node) -> None:
    os.chmod(node.docker.path, 0o666)

    with pytest.raises(SocketError, match="can be written by everybody"):
        await node.start_proxy()


# Requests


async def read(raw: bytes) -> tuple[http1.Head | None, bytes]:
    reader = asyncio.StreamReader(limit=http1.HEAD_BYTES_MAX)
    reader.feed_data(raw)
    reader.feed_eof()
    head = await http1.read_head(reader)
    return head, await http1.read_body(reader, head, 1000) if head is not None else b""


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (b"Content-Length: 5\r\n", b"hello"),
        (b"Transfer-Encoding: chunked\r\n", b"3\r\nhel\r\n2;x=1\r\nlo\r\n0\r\nTrailer: 1\r\n\r\n"),
    ],
)
async def test_bodies_end_where_they_say(headers: bytes, body: bytes) -> None:
    head, found = await read(b"POST /a HTTP/1.1\r\n" + headers + b"\r\n" + body)

    assert head is not None and (head.method, head.target, found) == ("POST", "/a", b"hello")


@pytest.mark.parametrize(
    "raw",
    [
        b"hello\r\n\r\n",
        b"GET http://a HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n folded: 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 1001\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n",
        b"GET / HTTP/1.1\r\n" + b"a" * http1.HEAD_BYTES_MAX,
        b"GET / HTTP/1.1\r\nHost",
    ],
)
async def test_requests_that_are_none_are_refused(raw: bytes) -> None:
    with pytest.raises((ContentError, EOFError)):
        await read(raw)


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_be_refused(raw: bytes) -> None:
    with contextlib.suppress(ContentError, EOFError):
        asyncio.run(read(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + raw))
    with contextlib.suppress(ContentError, EOFError):
        asyncio.run(read(raw))


@pytest.mark.parametrize(
    ("line", "call"),
    [
        ("POST /containers/create?name=a", DockerCall("create", "a")),
        ("POST /v1.24/containers/c1/stop?t=3", DockerCall("stop", "c1")),
        ("POST /containers/c1/kill", None),
        ("GET /containers/c1/start", None),
        ("POST /v1.24/x/containers/c1/start", None),
    ],
)
def test_four_calls_meet_hooks(line: str, call: DockerCall | None) -> None:
    assert docker.call_of(*line.split()) == call


@given(
    st.builds(
        LinuxContainerResources,
        cpu_period=st.integers(0, 10**6),
        cpu_quota=st.integers(-1, 10**9),
        cpu_shares=st.integers(0, 10**5),
        memory_limit_in_bytes=st.integers(0, 1 << 50),
        oom_score_adj=st.integers(-1000, 1000),
        cpuset_cpus=st.sampled_from(("", "0-3")),
    )
)
def test_resources_of_docker_and_cri_say_the_same(found: LinuxContainerResources) -> None:
    assert docker.resources(docker.host_config_of(found)) == found
