"""A cluster that asks a webhook server over TLS, with handlers of the test's own."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from koordinator.api.admission import MutatingWebhookConfiguration, ValidatingWebhookConfiguration
from koordinator.api.core import Pod
from koordinator.clock import FixedClock, SystemClock
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import cluster as local
from koordinator.local import registry
from koordinator.local.admission import AdmissionChain
from koordinator.manager.webhooks import configuration, table
from koordinator.manager.webhooks.all import AdmissionHandlers
from koordinator.manager.webhooks.configuration import WebhookSettings
from koordinator.manager.webhooks.review import ALLOWED, AdmissionRequest, AdmissionVerdict, Handler, Page
from koordinator.manager.webhooks.serving import Webhooks
from tests.manager.shared_parts import shared_parts

HOST = "127.0.0.1"
SERVICE = configuration.WebhookService()


async def labelling(request: AdmissionRequest) -> AdmissionVerdict:
    """Marks what it is asked about."""
    assert request.object is not None
    metadata = request.object["metadata"]
    labels = {**metadata.get("labels", {}), "asked": "yes"}
    return AdmissionVerdict(obj={**request.object, "metadata": {**metadata, "labels": labels}})


async def allowing(_: AdmissionRequest) -> AdmissionVerdict:
    """Has nothing against anything."""
    return ALLOWED


HANDLERS: Mapping[str, Handler] = {table.MUTATE_POD: labelling, table.VALIDATE_POD: allowing}


class World:
    """An API with both configurations, asking nobody yet; `webhooks` are started by the test."""

    def __init__(self, folder: Path) -> None:
        self.clock = FixedClock(SystemClock().now())  # TLS clients look at the real one
        self.backend = registry.in_memory(self.clock)
        self.client = MemoryCluster(self.backend, user="test")
        self._folder = folder
        self._made = 0
        self._running: dict[Webhooks, asyncio.Task[None]] = {}

    async def install(self) -> None:
        """What the manager's manifests bring."""
        await local.quieten_webhooks(self.client)

    @contextlib.asynccontextmanager
    async def serving(
        self,
        handlers: Mapping[str, Handler] = HANDLERS,
        *,
        synced: bool = True,
        settings: WebhookSettings | None = None,
        drain_s: float = 0.0,
        pages: Mapping[str, Page] | None = None,
    ) -> AsyncIterator[Webhooks]:
        """One replica, reached through the Service from when it is ready."""
        shared = shared_parts(self.client)
        self._made += 1
        settings = settings or WebhookSettings(port=0, cert_dir=self._folder / f"certs-{self._made}")
        filled = asyncio.Event()
        if synced:
            filled.set()
        admission = AdmissionHandlers(handlers, pages or {})
        webhooks = Webhooks(shared, admission, settings, synced=filled, host=HOST, drain_s=drain_s)
        async with asyncio.TaskGroup() as group:
            shared.factory.start(group)
            running = self._running[webhooks] = group.create_task(webhooks.run())
            ready = asyncio.create_task(webhooks.ready.wait())
            await asyncio.wait((running, ready), return_when=asyncio.FIRST_COMPLETED)
            ready.cancel()
            if webhooks.ready.is_set() and handlers:
                self.reach(webhooks.port)
            try:
                if not running.done():
                    yield webhooks
            finally:
                running.cancel()
                await shared.factory.stop()

    async def stopped(self, webhooks: Webhooks) -> None:
        """Tell a replica to stop, and wait until it has."""
        self._running[webhooks].cancel()
        await asyncio.wait([self._running[webhooks]])

    def reach(self, port: int) -> None:
        """Where the Service leads from now on."""
        admission = self.backend.admission
        assert isinstance(admission, AdmissionChain)
        admission.webhooks.register_service(SERVICE.namespace, SERVICE.name, HOST, port)

    async def create_pod(self, name: str) -> Pod:
        spec = {"containers": [{"name": "main", "image": "x"}]}
        return await self.client.create(Pod, {"metadata": {"name": name}, "spec": spec}, "default")

    async def lists(self) -> tuple[list[Any], list[Any]]:
        """The entries of both configurations."""
        mutating = await self.client.get(MutatingWebhookConfiguration, configuration.MUTATING_NAME)
        validating = await self.client.get(ValidatingWebhookConfiguration, configuration.VALIDATING_NAME)
        return mutating.webhooks, validating.webhooks

    async def close(self) -> None:
        await self.backend.close()


async def until(holds: Any, within_s: float = 10.0) -> None:
    """Wait until the coroutine function says so."""
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + within_s
    while not await holds():
        assert loop.time() < ends_s, f"not within {within_s:g} s"
        await asyncio.sleep(0.01)
