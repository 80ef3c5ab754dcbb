"""The pod-resources proxy: the kubelet's answers with our devices, and its refusals as they are."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from koordinator.api import labels
from koordinator.clock import FixedClock
from koordinator.cluster.memory import MemoryCluster
from koordinator.host import protobuf
from koordinator.host.errors import ContentError
from koordinator.koordlet.config import KubeletClientConfig
from koordinator.koordlet.report import pod_resources
from koordinator.koordlet.report.pod_resources import SERVICE, PodResourcesProxy
from koordinator.local import registry
from tests.koordlet.report.agent_node import NOW_S, AgentNode, pod_object

ALLOCATED = {
    labels.DEVICE_ALLOCATED: '{"gpu":[{"minor":0,"id":"GPU-a","resources":{}},{"minor":1,"id":"GPU-b","resources":{}}],'
    '"rdma":[{"minor":0,"id":"r0","resources":{},"extension":{"vfs":[{"minor":-1,"busID":"0000:1f:00.2"}]}}]}'
}


def device(resource: str, *ids: str) -> bytes:
    return protobuf.field(1, resource) + b"".join(protobuf.field(2, each) for each in ids)


def container(name: str, *devices: bytes) -> bytes:
    # CPUs (field 3) stand behind devices, as the kubelet writes them, and something from the future.
    return (
        protobuf.field(1, name)
        + b"".join(protobuf.field(2, each) for each in devices)
        + protobuf.field(3, b"\x01\x02")
        + protobuf.field(99, "new")
    )


def pod(name: str, *containers: bytes) -> bytes:
    return protobuf.field(
        1,
        protobuf.field(1, name)
        + protobuf.field(2, "default")
        + b"".join(protobuf.field(3, each) for each in containers),
    )


def devices_of(answer: bytes) -> dict[tuple[str, str], list[tuple[str, list[str]]]]:
    """Pod and container → devices."""
    found = {}
    for each in protobuf.fields(answer):
        parts = list(protobuf.fields(each.content))
        (name,) = [part.content.decode() for part in parts if part.number == 1]
        for part in parts:
            if part.number == 3:
                inner = list(protobuf.fields(part.content))
                entries = [list(protobuf.fields(entry.content)) for entry in inner if entry.number == 2]
                found[name, inner[0].content.decode()] = [
                    (
                        next(field.content.decode() for field in entry if field.number == 1),
                        [field.content.decode() for field in entry if field.number == 2],
                    )
                    for entry in entries
                ]
    return found


def test_devices_go_to_the_first_container_by_resource_name() -> None:
    answer = pod(
        "train", container("main", device("example.com/z", "z0"), device("a.com/x", "x0")), container("side")
    )
    answer += pod("other", container("main"))

    changed = pod_resources.with_allocated(answer, {("default", "train"): ALLOCATED})

    assert devices_of(changed) == {
        ("train", "main"): [
            ("a.com/x", ["x0"]),
            ("example.com/z", ["z0"]),
            ("koordinator.sh/rdma", ["0000:1f:00.2"]),
            ("nvidia.com/gpu", ["GPU-a", "GPU-b"]),
        ],
        ("train", "side"): [],
        ("other", "main"): [],
    }
    assert changed.endswith(pod("other", container("main")))
    assert protobuf.field(99, "new") in changed


@pytest.mark.parametrize(
    "answer", [b"", pod("train"), pod("other", container("main")), protobuf.field(7, "later")]
)
def test_answers_without_such_pods_pass_as_they_are(answer: bytes) -> None:
    assert pod_resources.with_allocated(answer, {("default", "train"): ALLOCATED}) == answer


def test_what_is_no_answer_is_refused() -> None:
    with pytest.raises(ContentError):
        pod_resources.with_allocated(b"\x0a\x05ab", {})


class Kubelet:
    """A kubelet's pod-resources service below a tree's root."""

    def __init__(self, grpc: Any, path: Path) -> None:
        self._grpc, self._path = grpc, path
        self.answer = pod("train", container("main"))
        self.refusal: Any = None
        self.server = grpc.aio.server()

    async def start(self) -> None:
        async def answer(request: bytes, context: Any) -> bytes:
            if self.refusal is not None:
                await context.abort(self.refusal, "not now")
            return request if request else self.answer

        handler = self._grpc.unary_unary_rpc_method_handler(answer)
        methods = dict.fromkeys(("List", "Get", "GetAllocatableResources"), handler)
        generic = self._grpc.method_handlers_generic_handler(SERVICE, methods)
        self.server.add_generic_rpc_handlers((generic,))
        self._path.parent.mkdir(parents=True)
        self.server.add_insecure_port(f"unix://{self._path}")
        await self.server.start()


class Proxied:
    def __init__(self, grpc: Any, root: Path) -> None:
        self.grpc = grpc
        node = AgentNode(
            root,
            MemoryCluster(registry.in_memory(FixedClock(NOW_S))),
            kubelet_config=KubeletClientConfig(pod_resources_proxy=str(root / "proxy")),
        )
        node.pods(pod_object("train", annotations=ALLOCATED))
        self.kubelet = Kubelet(grpc, root / "var/lib/kubelet/pod-resources/kubelet.sock")
        self.proxy = PodResourcesProxy(node.shared)

    async def ask(self, method: str, request: bytes = b"") -> bytes:
        async with self.grpc.aio.insecure_channel(f"unix://{self.proxy.path}") as channel:
            answer: bytes = await channel.unary_unary(f"/{SERVICE}/{method}")(
                request, timeout=5, wait_for_ready=True
            )
            return answer


@pytest.fixture
async def proxied() -> AsyncIterator[Proxied]:
    grpc = pytest.importorskip("grpc")
    pytest.importorskip("grpc.aio")
    root = Path(tempfile.mkdtemp(prefix="prp"))  # names of sockets are short
    made = Proxied(grpc, root)
    await made.kubelet.start()
    task = asyncio.create_task(made.proxy.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await made.kubelet.server.stop(0)
        shutil.rmtree(root)


async def test_a_list_through_the_proxy_shows_our_devices(proxied: Proxied) -> None:
    found = devices_of(await proxied.ask("List"))

    assert found["train", "main"][-1] == ("nvidia.com/gpu", ["GPU-a", "GPU-b"])


async def test_other_calls_and_refusals_pass_as_they_are(proxied: Proxied) -> None:
    assert await proxied.ask("GetAllocatableResources", b"\x0a\x01x") == b"\x0a\x01x"

    proxied.kubelet.refusal = proxied.grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(proxied.grpc.aio.AioRpcError) as refused:
        await proxied.ask("List")

    assert refused.value.code() is proxied.grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused.value.details() == "not now"


async def test_an_answer_that_cannot_be_read_passes_as_it_is(proxied: Proxied) -> None:
    proxied.kubelet.answer = b"\x0a\x05ab"

    assert await proxied.ask("List") == b"\x0a\x05ab"


async def test_a_socket_that_was_left_behind_is_replaced(proxied: Proxied) -> None:
    await proxied.ask("List")

    again = PodResourcesProxy(proxied.proxy._shared)
    task = asyncio.create_task(again.run())
    try:
        assert devices_of(await proxied.ask("List"))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_directory_that_cannot_be_made_is_reported_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("grpc")
    (tmp_path / "file").touch()
    node = AgentNode(
        tmp_path,
        MemoryCluster(registry.in_memory(FixedClock(NOW_S))),
        kubelet_config=KubeletClientConfig(pod_resources_proxy=str(tmp_path / "file")),
    )
    proxy = PodResourcesProxy(node.shared)

    await proxy.run()
    await proxy.run()

    assert caplog.text.count("pod-resources proxy failed") == 1
