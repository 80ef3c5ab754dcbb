"""An API server with several doors, so that a test sees what each process asks, and can shut one."""

import asyncio
from pathlib import Path

import msgspec
from aiohttp import web

from koordinator.api import kinds
from koordinator.clock import SystemClock
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import cluster as local
from koordinator.local import registry
from koordinator.local.apiserver.server import ApiServer
from koordinator.local.apiserver.short_requests import AnyRequest
from koordinator.local.registry.registry import ObjectRegistry
from koordinator.local.schema.catalog import Catalog


class Write(msgspec.Struct, frozen=True):
    """A request that changes something."""

    at_s: float
    method: str
    path: str


class Door(ApiServer):
    """A server of its own for one process; the objects are everybody's."""

    def __init__(self, backend: ObjectRegistry) -> None:
        super().__init__(backend)
        self.writes: list[Write] = []
        self.agents: set[str] = set()

    async def _answer(self, request: AnyRequest) -> web.StreamResponse:
        self.agents.add(request.headers.get("User-Agent", ""))
        if request.method != "GET":
            self.writes.append(Write(asyncio.get_running_loop().time(), request.method, request.path))
        return await super()._answer(request)

    def decisions(self) -> list[Write]:
        """Writes of controllers: neither the lease nor events nor certificates."""
        apart = ("/leases", "/events", "/secrets", "webhookconfigurations")
        return [write for write in self.writes if not any(part in write.path for part in apart)]


async def cluster() -> tuple[ObjectRegistry, MemoryCluster]:
    """A cluster with CRDs and defaults, and a client that sees everything."""
    catalog = Catalog(kinds.BUILT_IN)
    backend = registry.in_memory(SystemClock(), catalog=catalog)
    client = MemoryCluster(backend, user="test")
    await local.install(client)
    await local.quieten_webhooks(client)
    return backend, client


async def opened(backend: ObjectRegistry, path: Path) -> Door:
    """A door, with a kubeconfig for it at `path`."""
    door = Door(backend)
    await door.start()
    door.write_kubeconfig(path)
    return door
