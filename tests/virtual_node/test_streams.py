"""kubectl at the borrower reads and enters pods that run in the lender, through a virtual node; and who may not."""

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import aiohttp
import pytest

from koordinator.api.core import Namespace, Node, Pod
from koordinator.cli import component, serving
from koordinator.clock import SystemClock
from koordinator.cluster import connect
from koordinator.cluster.backend import ObjectRecord
from koordinator.cluster.delegated_auth import AccessReviewer, ClientCAs, DelegatedAuth, TokenReviewer
from koordinator.cluster.kube import KubeCluster
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import registry
from koordinator.local.apiserver import ApiServer, auth, tls
from koordinator.local.apiserver.kubelets import KubeletStreams
from koordinator.local.apiserver.pod_streams import (
    STDERR,
    STDOUT,
    ExecOptions,
    LogOptions,
    NoStreams,
)
from koordinator.virtual_node.objects import PodDocument
from koordinator.virtual_node.streams import PodStreams
from tests.local.apiserver.kubectl import Kubectl, needs_kubectl

NODE, LENT, LENT_NAME = "tidal-web", "tidal-web", "default-far-0a1b2c3d"


class Lender:
    """The lender's containers: `cat` gives back its input, anything else says so and ends with 7."""

    def __init__(self) -> None:
        self.asked: list[LogOptions] = []

    async def open(self, pod: ObjectRecord, options: LogOptions) -> AsyncIterator[bytes]:
        assert pod.obj["metadata"]["name"] == LENT_NAME
        self.asked.append(options)
        return self._log()

    async def _log(self) -> AsyncIterator[bytes]:
        yield b"begun\n"
        yield b"done\n"

    async def start(self, pod: ObjectRecord, options: ExecOptions) -> "Running":
        assert pod.obj["metadata"]["name"] == LENT_NAME
        return Running(options)


class Running:
    """A command in a container."""

    def __init__(self, options: ExecOptions) -> None:
        self.is_cat = options.command == ("cat",)
        self._input: asyncio.Queue[bytes] = asyncio.Queue()

    def outputs(self) -> Mapping[int, AsyncIterator[bytes]]:
        return {STDOUT: self._out(), STDERR: self._err()}

    async def _out(self) -> AsyncIterator[bytes]:
        while self.is_cat and (piece := await self._input.get()):
            yield piece

    async def _err(self) -> AsyncIterator[bytes]:
        if not self.is_cat:
            yield b"trouble\n"

    async def write(self, data: bytes) -> None:
        self._input.put_nowait(data)

    def close_input(self) -> None:
        self._input.put_nowait(b"")

    def resize(self, columns: int, rows: int) -> None: ...

    async def wait(self) -> int:
        return 0 if self.is_cat else 7

    def abandon(self) -> None: ...


def pod(name: str, node: str) -> dict[str, object]:
    return {
        "metadata": {"name": name},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "i"}]},
    }


class Between:
    """A virtual node's streams between two API servers."""

    def __init__(self, folder: Path) -> None:
        self.containers = Lender()
        self._folder = folder
        self.kubelet_url = ""

    async def run(self, done: asyncio.Event, ready: asyncio.Event) -> None:
        clock = SystemClock()
        secured = tls.self_signed(self._folder / "pki", clock)
        behind = registry.in_memory(clock)
        lender = ApiServer(behind, streams=self.containers, tls=secured)
        front = registry.in_memory(clock)
        registry.seed_roles(front)
        kubelets = KubeletStreams(
            front, NoStreams(), lambda: registry.kubelet_client_token(front), lambda _: False
        )
        self.borrower = ApiServer(
            front,
            streams=kubelets,
            tokens=[auth.StaticToken("secret")],
            tls=secured,
            authorizer=front.authorizer,
            accounts=front.tokens,
        )
        await lender.start()
        await self.borrower.start()
        clients = []
        for name, server in (("lender", lender), ("borrower", self.borrower)):
            server.write_kubeconfig(self._folder / name)
            where = connect.load(kubeconfig_file=str(self._folder / name))
            clients.append(KubeCluster(where, rng=random.Random(1)))
        async with clients[0] as here, clients[1] as there:
            await MemoryCluster(behind).create(Namespace, {"metadata": {"name": LENT}})
            await MemoryCluster(behind).create(Pod, pod(LENT_NAME, "n1"), LENT)
            lent = await here.get(PodDocument, LENT_NAME, LENT)
            access = AccessReviewer(there)
            streams = PodStreams(
                here.transport,
                lambda namespace, name: (NODE, lent) if (namespace, name) == ("default", "far") else None,
                DelegatedAuth(ClientCAs(), TokenReviewer(there), access),
                access,
                NODE,
            )
            own = serving.tls_context(None, None, None, clock)
            async with component.served(streams.application(), "127.0.0.1", 0, own) as port:
                self.kubelet_url = f"https://127.0.0.1:{port}"
                await self._register(MemoryCluster(front), port)
                ready.set()
                await done.wait()
        await self.borrower.stop()
        await lender.stop()

    async def _register(self, borrower: MemoryCluster, port: int) -> None:
        address = [{"type": "InternalIP", "address": "127.0.0.1"}]
        endpoints = {"kubeletEndpoint": {"Port": port}}
        await borrower.create(Node, {"metadata": {"name": NODE}})
        status = {"status": {"addresses": address, "daemonEndpoints": endpoints}}
        await borrower.patch(Node, NODE, status, subresource="status")
        for name in ("far", "gone"):
            await borrower.create(Pod, pod(name, NODE), "default")


@pytest.fixture
async def between(tmp_path: Path) -> AsyncIterator[Between]:
    found, done, ready = Between(tmp_path), asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(found.run(done, ready))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        await running
    yield found
    done.set()
    await running


@pytest.mark.kubectl
@needs_kubectl
async def test_kubectl_reads_and_enters_a_pod_of_the_lender(between: Between, tmp_path: Path) -> None:
    kubectl = Kubectl(between.borrower, tmp_path)

    assert await kubectl("logs far --tail 3 --timestamps") == "begun\ndone\n"
    (asked,) = between.containers.asked
    assert (asked.tail_lines, asked.timestamps, asked.container) == (3, True, "main")

    sent = "".join(f"line {number}\n" for number in range(50_000))
    assert await kubectl("exec -i far -- cat", stdin=sent) == sent
    code, out, err = await kubectl.run("exec far -- false")
    assert (code, out, err.splitlines()[0]) == (7, "", "trouble")

    assert "does not run in the lender" in await kubectl.fails("logs gone")


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        pytest.param({}, 403, id="a stranger"),
        pytest.param({"Authorization": "Bearer wrong"}, 401, id="a token that nobody knows"),
    ],
)
async def test_only_those_are_served_whom_the_borrower_lets_reach_the_node(
    between: Between, headers: dict[str, str], code: int
) -> None:
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    connector = aiohttp.TCPConnector(ssl=unchecked)
    async with aiohttp.ClientSession(between.kubelet_url, connector=connector, headers=headers) as session:
        for path in ("/containerLogs/default/far/main", "/exec/default/far/main?command=cat&output=1"):
            async with session.get(path) as response:
                assert response.status == code
        async with session.get("/healthz") as response:
            assert response.status == 200
