"""Containers are stopped through a real gRPC server on a real socket."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from koordinator.host import cri
from koordinator.host.cgroup_layout import ContainerID, Runtime
from koordinator.host.cri import ContainerRuntimes
from koordinator.host.files import Files, HostRoots

grpc = pytest.importorskip("grpc")
pytest.importorskip("grpc.aio")


class FakeRuntime:
    """A CRI server below a tree's /run: answers StopContainer of the services that it knows."""

    def __init__(self, root: Path, services: tuple[str, ...] = cri.SERVICES[:1]) -> None:
        self.path = root / "run/containerd/containerd.sock"
        self.path.parent.mkdir(parents=True)
        self.services = services
        self.asked: list[tuple[str, bytes]] = []
        self.failures: dict[bytes, Any] = {}
        self.hang = False
        self.on_stop: Callable[[str], None] = lambda _: None
        self._server: Any = None

    async def start(self) -> None:
        self._server = grpc.aio.server()
        for service in self.services:
            methods = {"StopContainer": grpc.unary_unary_rpc_method_handler(self._answer(service))}
            self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, methods)])
        self._server.add_insecure_port(f"unix://{self.path}")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    def _answer(self, service: str) -> Any:
        async def answer(request: bytes, context: Any) -> bytes:
            self.asked.append((service, request))
            if self.hang:
                await asyncio.sleep(60)
            for ending, code in self.failures.items():
                if request.endswith(ending):
                    await context.abort(code, "as told")
            self.on_stop(request[2 : 2 + request[1]].decode())
            return b""

        return answer


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[FakeRuntime]:
    fake = FakeRuntime(tmp_path)
    await fake.start()
    yield fake
    await fake.stop()


def runtimes(root: Path, endpoints: dict[Runtime, str] | None = None) -> ContainerRuntimes:
    return ContainerRuntimes(Files(0), HostRoots.below(str(root)), endpoints or {})


async def test_a_container_is_stopped_at_once(tmp_path: Path, runtime: FakeRuntime) -> None:
    assert await runtimes(tmp_path).stop(ContainerID(Runtime.CONTAINERD, "abc")) == ""

    assert runtime.asked == [("runtime.v1.RuntimeService", b"\x0a\x03abc")]


async def test_a_container_that_is_gone_is_stopped(tmp_path: Path, runtime: FakeRuntime) -> None:
    runtime.failures[b"gone"] = grpc.StatusCode.NOT_FOUND

    assert await runtimes(tmp_path).stop(ContainerID(Runtime.CONTAINERD, "gone")) == ""


async def test_a_refusal_is_reported_in_the_runtimes_words(tmp_path: Path, runtime: FakeRuntime) -> None:
    runtime.failures[b"abc"] = grpc.StatusCode.INTERNAL

    problem = await runtimes(tmp_path).stop(ContainerID(Runtime.CONTAINERD, "abc"))

    assert problem == "runtime.v1.RuntimeService: INTERNAL: as told"


async def test_an_old_runtime_is_asked_in_its_version(tmp_path: Path) -> None:
    fake = FakeRuntime(tmp_path, cri.SERVICES[1:])
    await fake.start()
    try:
        assert await runtimes(tmp_path).stop(ContainerID(Runtime.CONTAINERD, "abc")) == ""
    finally:
        await fake.stop()

    assert [service for service, _ in fake.asked] == ["runtime.v1alpha2.RuntimeService"]


async def test_a_runtime_that_hangs_is_given_up(
    tmp_path: Path, runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cri, "CALL_S_MAX", 0.2)
    runtime.hang = True

    assert "did not answer" in await runtimes(tmp_path).stop(ContainerID(Runtime.CONTAINERD, "abc"))


async def test_without_a_socket_the_places_are_named(tmp_path: Path) -> None:
    problem = await runtimes(tmp_path).stop(ContainerID(Runtime.CRI_O, "abc"))

    assert problem.startswith("no socket of cri-o below ")


async def test_an_endpoint_given_wins(tmp_path: Path, runtime: FakeRuntime) -> None:
    elsewhere = tmp_path / "elsewhere.sock"
    elsewhere.symlink_to(runtime.path)
    runtime_of = runtimes(tmp_path, {Runtime.DOCKER: f"unix://{elsewhere}", Runtime.POUCH: ""})

    assert runtime_of.socket(Runtime.DOCKER) == str(elsewhere)
    assert runtime_of.socket(Runtime.POUCH) is None
    assert await runtime_of.stop(ContainerID(Runtime.DOCKER, "abc")) == ""
