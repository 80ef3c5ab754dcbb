"""Containers are stopped, their use and images are told, through a real gRPC server on a real socket."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from koordinator.host import cri
from koordinator.host.cgroup_layout import ContainerID, Runtime
from koordinator.host.cri import ContainerRuntimes, RuntimeUsage
from koordinator.host.cri_messages import (
    Image,
    ListContainerStatsResponse,
    ListImagesResponse,
    ListPodSandboxStatsResponse,
)
from koordinator.host.errors import RuntimeCallError
from koordinator.host.files import Files, HostRoots
from tests.host.cri_double import FakeRuntime, container_stats, grpc, sandbox_stats


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


async def test_use_of_sandboxes_comes_with_that_of_their_containers(
    tmp_path: Path, runtime: FakeRuntime
) -> None:
    main, side = container_stats("main", 10, 1), container_stats("side", 10, 2)
    pod = sandbox_stats("web", 10, 4, main, side)
    runtime.answers["ListPodSandboxStats"] = ListPodSandboxStatsResponse((pod,))

    assert await runtimes(tmp_path).used(Runtime.CONTAINERD) == RuntimeUsage((pod,), (main, side))


async def test_a_runtime_that_knows_no_use_of_sandboxes_is_asked_for_containers(
    tmp_path: Path, runtime: FakeRuntime
) -> None:
    main = container_stats("main", 10, 1)
    runtime.answers["ListContainerStats"] = ListContainerStatsResponse((main,))

    assert await runtimes(tmp_path).used(Runtime.CONTAINERD) == RuntimeUsage((), (main,))


async def test_images_are_told_with_their_sizes(tmp_path: Path) -> None:
    fake = FakeRuntime(tmp_path, cri.IMAGE_SERVICES[:1])
    images = (Image("sha256:1", ("shop/web:1",), ("shop/web@sha256:2",), 5 << 20),)
    fake.answers["ListImages"] = ListImagesResponse(images)
    await fake.start()
    try:
        assert await runtimes(tmp_path).images(Runtime.CONTAINERD) == images
    finally:
        await fake.stop()


async def test_who_cannot_tell_says_why(tmp_path: Path, runtime: FakeRuntime) -> None:
    with pytest.raises(RuntimeCallError, match=r"RuntimeService: UNIMPLEMENTED: "):
        await runtimes(tmp_path).used(Runtime.CONTAINERD)
    with pytest.raises(RuntimeCallError, match="no socket of cri-o below"):
        await runtimes(tmp_path).images(Runtime.CRI_O)
