"""A Docker that keeps what it was asked, and whoever calls it as a kubelet does. Bodies are JSON."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from tests.runtime_proxy.fake_runtime import ANNOTATIONS, LABELS

SANDBOX_NAME, CONTAINER_NAME = "k8s_POD_job_shop_u1_0", "k8s_main_job_shop_u1_2"
PREFIXED = {f"annotation.{name}": value for name, value in ANNOTATIONS.items()}


def sandbox_body(**labels: str) -> dict[str, Any]:
    kind = {"io.kubernetes.docker.type": "podsandbox"}
    return {
        "Image": "pause",
        "Labels": {**LABELS, **PREFIXED, **kind, **labels},
        "HostConfig": {"CgroupParent": "/kubepods/besteffort/podu1", "NetworkMode": "none"},
    }


def container_body() -> dict[str, Any]:
    return {
        "Image": "job",
        "Env": ["PATH=/bin", "HOME"],
        "Labels": {"io.kubernetes.docker.type": "container", "io.kubernetes.sandbox.id": "c1"},
        "HostConfig": {"CpuShares": 2, "OomScoreAdj": 1000, "Binds": ["/a:/a"]},
        "NetworkingConfig": None,
    }


class FakeDocker:
    """Containers are named c1, c2, … in the order in which they were made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked: list[tuple[str, Any]] = []
        self.containers: dict[str, tuple[str, dict[str, Any]]] = {}
        self.failure: int | None = None
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/info", self._info)
        app.router.add_get("/containers/{id}/json", self._inspect)
        app.router.add_route("*", "/{tail:.*}", self._any)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self.path)).start()

    async def stop(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def last(self, ending: str) -> Any:
        """The body of the last call whose path ends so."""
        return [body for path, body in self.asked if path.endswith(ending)][-1]

    async def _info(self, _: web.Request) -> web.Response:
        return web.json_response({"CgroupDriver": "cgroupfs"})

    async def _inspect(self, request: web.Request) -> web.Response:
        found = self.containers.get(request.match_info["id"])
        if found is None:
            return web.json_response({"message": "No such container"}, status=404)
        name, body = found
        config = {name: value for name, value in body.items() if name != "HostConfig"}
        return web.json_response({"Name": f"/{name}", "Config": config, "HostConfig": body["HostConfig"]})

    async def _any(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Upgrade"):
            return await self._hijacked(request)
        body = await request.json() if request.can_read_body else None
        self.asked.append((request.path, body))
        if self.failure is not None:
            return web.json_response({"message": "no"}, status=self.failure)
        if request.path.endswith("/containers/create"):
            own_id = f"c{len(self.containers) + 1}"
            self.containers[own_id] = request.query["name"], body
            return web.json_response({"Id": own_id, "Warnings": []}, status=201)
        if request.path.endswith("/logs"):
            response = web.StreamResponse()
            await response.prepare(request)
            for line in (b"one\n", b"two\n"):
                await response.write(line)
            return response
        return web.Response(status=204)

    async def _hijacked(self, request: web.Request) -> web.StreamResponse:
        """As `exec`: the connection echoes from here on."""
        response = web.StreamResponse(status=101, headers={"Upgrade": "tcp", "Connection": "Upgrade"})
        await response.prepare(request)
        transport = request.transport
        assert transport is not None
        protocol: Any = _Echo(asyncio.Event(), transport)
        transport.set_protocol(protocol)
        await protocol.ended.wait()
        return response


class _Echo(asyncio.Protocol):
    def __init__(self, ended: asyncio.Event, transport: Any) -> None:
        self.ended = ended
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data.upper())

    def eof_received(self) -> bool:
        self._transport.close()
        return False

    def connection_lost(self, _: Exception | None) -> None:
        self.ended.set()


class DockerCaller:
    """Calls a socket."""

    def __init__(self, path: Path) -> None:
        self._session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path)))

    async def post(self, target: str, body: Any = None) -> tuple[int, Any]:
        async with self._session.post(f"http://docker{target}", json=body) as response:
            text = await response.text()
            return response.status, await response.json() if text else None

    async def get(self, target: str, until: str = "") -> str:
        """The answer; of a stream that does not end, what comes until it says a word."""
        async with self._session.get(f"http://docker{target}") as response:
            if not until:
                return await response.text()
            said = ""
            while not said.endswith(until) and (more := await response.content.readany()):
                said += more.decode()
            return said

    async def delete(self, target: str) -> None:
        async with self._session.delete(f"http://docker{target}") as response:
            await response.read()

    async def send(self, target: str, archive: bytes) -> None:
        """Post an archive."""
        kind = {"Content-Type": "application/x-tar"}
        async with self._session.post(
            f"http://docker{target}", data=archive, headers=kind, raise_for_status=True
        ) as response:
            await response.read()

    async def close(self) -> None:
        await self._session.close()
