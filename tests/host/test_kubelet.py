"""The kubelet client against a server that answers as kubelets do, and what kubelets leave in files."""

import asyncio
import ssl
import subprocess
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from koordinator.host import kubelet
from koordinator.host.cgroup_knobs import V1
from koordinator.host.cgroup_layout import Driver
from koordinator.host.host import tree_host
from koordinator.host.kubelet import FoundDriver, KubeletAccess, KubeletClient, KubeletError
from tests.host import host_tree

PODS = {
    "kind": "PodList",
    "items": [
        {
            "metadata": {"name": "web", "namespace": "default", "uid": "u1"},
            "status": {"containerStatuses": None},
        },
        {"metadata": "nonsense"},
    ],
}


class Kubelet:
    """Answers of a kubelet; remembers what it was sent."""

    def __init__(self) -> None:
        self.status = 200
        self.delay_s = 0.0
        self.pods: object = PODS
        self.tokens: list[str] = []
        application = web.Application()
        application.add_routes([web.get("/pods/", self._pods), web.get("/configz", self._config)])
        self.server = TestServer(application)

    async def _pods(self, request: web.Request) -> web.Response:
        self.tokens.append(request.headers.get("Authorization", ""))
        await asyncio.sleep(self.delay_s)
        return web.json_response(self.pods, status=self.status)

    async def _config(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"kubeletconfig": {"cpuManagerPolicy": "static", "logging": {"x": "broken"}}}
        )


async def test_pods_and_configuration_come_from_the_read_only_port() -> None:
    kubelet = Kubelet()
    answers: list[tuple[str, str, str]] = []
    async with kubelet.server:
        access = KubeletAccess(
            address="127.0.0.1", port=kubelet.server.port or 0, is_plain=True, token_file="/none"
        )
        async with KubeletClient(access, on_answer=lambda *reported: answers.append(reported[:3])) as client:
            pods = await client.pods()
            config = await client.config()

    assert [pod.metadata.uid for pod in pods] == ["u1"], "the pod that does not fit is left out"
    assert config == {"cpuManagerPolicy": "static"}
    assert kubelet.tokens == [""]
    assert answers == [("get", "/pods/", "200"), ("get", "/configz", "200")]


@pytest.mark.parametrize("pods", [{"items": "none"}, ["x"], "text"])
async def test_an_answer_that_is_no_list_is_an_error(pods: object) -> None:
    kubelet = Kubelet()
    kubelet.pods = pods
    async with kubelet.server:
        access = KubeletAccess(address="127.0.0.1", port=kubelet.server.port or 0, is_plain=True)
        async with KubeletClient(access) as client:
            with pytest.raises(KubeletError, match="not a list of pods"):
                await client.pods()


async def test_refusals_delays_and_dead_kubelets_are_errors_with_a_reason() -> None:
    kubelet = Kubelet()
    async with kubelet.server:
        access = KubeletAccess(address="127.0.0.1", port=kubelet.server.port or 0, is_plain=True)
        async with KubeletClient(access, timeout_s=0.1) as client:
            kubelet.status = 401
            with pytest.raises(KubeletError, match="status 401"):
                await client.pods()
            kubelet.delay_s = 0.3
            with pytest.raises(KubeletError, match="no answer: TimeoutError"):
                await client.pods()
            kubelet.status, kubelet.delay_s = 200, 0
            assert len(await client.pods()) == 1
    async with KubeletClient(access) as client:
        with pytest.raises(KubeletError, match="no answer"):
            await client.pods()


def self_signed(directory: Path) -> tuple[Path, Path]:
    """Certificate and key for 127.0.0.1."""
    directory.mkdir()
    certificate, key = directory / "cert.pem", directory / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=kubelet",
    ]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(certificate), "-keyout", str(key)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


async def test_tls_with_a_token_that_rotates(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path / "kubelet")
    other, _ = self_signed(tmp_path / "other")
    token = tmp_path / "token"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    kubelet = Kubelet()
    server = TestServer(kubelet.server.app, scheme="https")
    await server.start_server(ssl=context)
    access = KubeletAccess(address="127.0.0.1", port=server.port or 0, token_file=str(token))
    try:
        token.write_text("first\n")
        async with KubeletClient(access) as client:
            await client.pods()
            token.write_text("second\n")
            await client.pods()
        async with KubeletClient(msgspec.structs.replace(access, ca_file=str(certificate))) as client:
            await client.pods()
        async with KubeletClient(msgspec.structs.replace(access, ca_file=str(other))) as client:
            with pytest.raises(KubeletError, match="no answer"):
                await client.pods()
    finally:
        await server.close()
    assert kubelet.tokens == ["Bearer first", "Bearer second", "Bearer second"]


async def test_a_token_that_cannot_be_read_is_an_error_with_its_path(tmp_path: Path) -> None:
    access = KubeletAccess(address="127.0.0.1", port=1, token_file=str(tmp_path / "none"))

    async with KubeletClient(access) as client:
        with pytest.raises(KubeletError, match="none"):
            await client.pods()


# Files


def process(root: Path, pid: int, name: str, *arguments: str) -> None:
    host_tree.write(root, {f"proc/{pid}/comm": name})
    (root / f"proc/{pid}/cmdline").write_text("\0".join(arguments) + "\0")


def driver(root: Path) -> FoundDriver:
    host = tree_host(str(root))
    return kubelet.cgroup_driver(host.cgroups, host.processes, host.roots)


def test_directories_tell_the_driver_before_anything_else(tmp_path: Path) -> None:
    host_tree.group(tmp_path, V1, "kubepods")
    process(tmp_path, 7, "kubelet", "kubelet", "--cgroup-driver=systemd")

    assert driver(tmp_path) == FoundDriver(Driver.CGROUPFS, "directories of pods")


@pytest.mark.parametrize(
    ("arguments", "config", "wanted"),
    [
        pytest.param(["--cgroup-driver", "systemd"], None, Driver.SYSTEMD, id="flag"),
        pytest.param(["--v=2"], None, Driver.CGROUPFS, id="neither flag nor file"),
        pytest.param(["--config=/etc/k.yaml"], "cgroupDriver: systemd\n", Driver.SYSTEMD, id="file"),
        pytest.param(
            ["--config=/etc/k.yaml"], "kind: KubeletConfiguration\n", Driver.CGROUPFS, id="file without"
        ),
        pytest.param(["--config=/etc/k.yaml"], "{broken", Driver.CGROUPFS, id="malformed file"),
        pytest.param(["--config=/etc/k.yaml"], None, None, id="file missing"),
    ],
)
def test_the_kubelet_process_tells_the_driver(
    tmp_path: Path, arguments: list[str], config: str | None, wanted: Driver | None
) -> None:
    process(tmp_path, 3, "sshd", "sshd")
    process(tmp_path, 7, "kubelet", "/usr/bin/kubelet", *arguments)
    if config is not None:
        host_tree.write(tmp_path, {"proc/7/root/etc/k.yaml": config})

    assert driver(tmp_path).driver is wanted


def test_without_a_kubelet_the_driver_is_not_known_yet(tmp_path: Path) -> None:
    assert driver(tmp_path).driver is None


def test_the_state_of_the_cpu_manager_is_read_where_the_kubelet_keeps_it(tmp_path: Path) -> None:
    host = tree_host(str(tmp_path))
    assert kubelet.cpu_manager_state(host.files, host.roots) is None
    host_tree.write(tmp_path, {"var/lib/kubelet/cpu_manager_state": "{}"})

    assert kubelet.cpu_manager_state(host.files, host.roots) == "{}\n"
