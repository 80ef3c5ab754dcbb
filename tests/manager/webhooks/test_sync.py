"""Certificates and configurations over time, on virtual time: who writes, and how often."""

import asyncio
import base64
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from koordinator import clock as clocks
from koordinator.api import kinds
from koordinator.api.admission import MutatingWebhookConfiguration
from koordinator.api.core import Secret
from koordinator.cluster import errors
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import cluster as local
from koordinator.local import registry
from koordinator.manager.webhooks import certificates, configuration, table
from koordinator.manager.webhooks.certificates import CertificateSet
from koordinator.manager.webhooks.configuration import WebhookSettings
from koordinator.manager.webhooks.sync import WebhookSync
from koordinator.simulate import virtual_time

PATHS = (table.MUTATE_POD, table.VALIDATE_POD)
NAME = configuration.MUTATING_NAME
Scenario = Callable[["World"], Awaitable[None]]


class Counting(MemoryCluster):
    """Counts writes, and fails them while it is told to."""

    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        self.patched: list[str] = []
        self.is_down = False

    async def get(self, view: Any, name: str, namespace: str = "") -> Any:
        if self.is_down:
            raise errors.ServiceUnavailable("the API server is down")
        return await super().get(view, name, namespace)

    async def patch(self, view: Any, name: str, patch: Any, namespace: str = "", **more: Any) -> Any:
        self.patched.append(name)
        return await super().patch(view, name, patch, namespace, **more)


class World:
    """A cluster, and replicas that sync."""

    def __init__(self, clock: clocks.Clock, folder: Path) -> None:
        self.cluster = Counting(registry.in_memory(clock))
        self.folder = folder
        self.presented: list[CertificateSet] = []

    @contextlib.asynccontextmanager
    async def replica(self, paths: Collection[str] = PATHS) -> AsyncIterator[WebhookSync]:
        factory = InformerFactory(self.cluster, random.Random(1))
        settings = WebhookSettings(cert_dir=self.folder / str(len(self.presented)))
        sync = WebhookSync(
            self.cluster, factory, settings, paths, self.presented.append, rng=random.Random(2)
        )
        async with asyncio.TaskGroup() as group:
            factory.start(group)
            running = group.create_task(sync.run())
            yield sync
            running.cancel()
            await factory.stop()

    def trusted(self) -> bytes:
        """All CAs in the entries of a configuration; none when it asks nobody."""
        backend, view = self.cluster._backend, MutatingWebhookConfiguration
        webhooks = backend.get(view.resource, "", NAME).view(view).webhooks
        return b"".join({base64.b64decode(each.client_config.ca_bundle or "") for each in webhooks})

    async def entries(self) -> list[str]:
        return [each.name for each in (await self.cluster.get(MutatingWebhookConfiguration, NAME)).webhooks]


def run(scenario: Scenario, folder: Path) -> None:
    async def main(clock: clocks.LoopClock) -> None:
        world = World(clock, folder)
        await local.quieten_webhooks(world.cluster)
        world.cluster.patched.clear()
        await scenario(world)

    virtual_time.run_virtual(main)


def test_what_is_right_is_not_written_again(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.replica():
            await asyncio.sleep(3600)

            assert sorted(world.cluster.patched) == [NAME, configuration.VALIDATING_NAME]
            assert len(world.presented) == 1

    run(scenario, tmp_path)


def test_replicas_with_other_gates_do_not_write_without_end(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.replica(), world.replica((*PATHS, table.MUTATE_QUOTA)):
            await asyncio.sleep(60)
            first_minute = world.cluster.patched.count(NAME)
            await asyncio.sleep(3600)

            assert 4 < first_minute < 30
            assert world.cluster.patched.count(NAME) - first_minute < 2 * 60

    run(scenario, tmp_path)


def test_an_edit_is_put_right_within_a_second_and_an_hour_later_too(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.replica():
            await asyncio.sleep(10)
            right = await world.entries()
            for _ in range(3):
                await world.cluster.patch(MutatingWebhookConfiguration, NAME, {"webhooks": []})
                await asyncio.sleep(1)
                assert await world.entries() == right
                await asyncio.sleep(3600)

    run(scenario, tmp_path)


def test_a_new_ca_is_presented_only_after_it_is_trusted(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.replica():
            await asyncio.sleep(10)
            await world.cluster.delete(Secret, "koordinator-webhook-certs", "koordinator-system")
            await asyncio.sleep(4.5)
            assert len(world.presented) == 1
            await asyncio.sleep(2)
            old, new = world.presented
            assert old.ca_cert != new.ca_cert

            async def trusted_count() -> int:
                found = await world.cluster.get(MutatingWebhookConfiguration, NAME)
                return len(found.webhooks[0].client_config.ca_bundle or "") // len(old.ca_cert)

            assert await trusted_count() == 2
            await asyncio.sleep(3700)
            assert await trusted_count() == 1

    run(scenario, tmp_path)


def test_an_api_server_that_is_away_for_a_while_is_asked_again(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.cluster.is_down = True
        async with world.replica() as sync:
            await asyncio.sleep(600)
            assert not sync.done.is_set()
            assert 8 < sync.guard.failure_count < 30
            world.cluster.is_down = False
            await asyncio.sleep(121)

            assert sync.done.is_set()
            assert await world.entries() == ["mpod-create.koordinator.sh", "mpod-update.koordinator.sh"]

    run(scenario, tmp_path)


@pytest.mark.parametrize("missing", [configuration.MUTATING_NAME, configuration.VALIDATING_NAME])
def test_of_two_configurations_the_one_that_is_there_is_kept_right(tmp_path: Path, missing: str) -> None:
    async def scenario(world: World) -> None:
        views = {
            body["metadata"]["name"]: kinds.view_of(kinds.resource_of(body))
            for body in configuration.configurations(configuration.WebhookService())
        }
        await world.cluster.delete(views[missing], missing)
        async with world.replica() as sync:
            await asyncio.sleep(5)

            assert missing in str(sync.guard.last_error)
            (other,) = set(views) - {missing}
            assert (await world.cluster.get(views[other], other)).webhooks  # type: ignore[attr-defined]

    run(scenario, tmp_path)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_what_is_presented_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Secrets deleted and broken, replicas restarted, lists edited, an API server that is away: a replica that has
    set up its webhooks once presents a certificate that both configurations trust, at every second."""
    monkeypatch.setattr(certificates, "KEY_BITS", 1024)  # weak, but made in no time
    chance = random.Random(seed)

    async def scenario(world: World) -> None:
        cluster = world.cluster
        secret = (Secret, "koordinator-webhook-certs", "koordinator-system")
        replicas = [Replica(world), Replica(world)]
        async with asyncio.TaskGroup() as group:
            for replica in replicas:
                replica.start(group)
            await asyncio.sleep(5)
            for _ in range(20):
                match chance.choice(("delete", "break", "restart", "edit", "away", "nothing")):
                    case "delete":
                        with contextlib.suppress(errors.NotFound):
                            await cluster.delete(*secret)
                    case "break":
                        with contextlib.suppress(errors.NotFound):
                            field = chance.choice(("cert.pem", "key.pem", "ca-key.pem", "ca-cert.pem"))
                            await cluster.patch(secret[0], secret[1], {"data": {field: "AAAA"}}, secret[2])
                    case "restart":
                        chance.choice(replicas).start(group)
                    case "edit":
                        await cluster.patch(MutatingWebhookConfiguration, NAME, {"webhooks": []})
                    case "away":
                        cluster.is_down = True
                        await asyncio.sleep(chance.uniform(0, 90))
                        cluster.is_down = False
                for _ in range(chance.randrange(8, 150)):
                    await asyncio.sleep(1)
                    await check(replicas)
            await asyncio.sleep(7200)
            assert {world.trusted()} == {each.presented[-1].ca_cert for each in replicas}
            for replica in replicas:
                await replica.stop()

    async def check(replicas: list["Replica"]) -> None:
        bundle = replicas[0].world.trusted()
        for replica in replicas:
            # An emptied list asks nobody.
            assert not replica.is_set_up or not bundle or replica.presented[-1].ca_cert in bundle

    run(scenario, tmp_path)


class Replica:
    """One that can be started anew."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.presented: list[CertificateSet] = []
        self._running: asyncio.Task[Any] | None = None
        self._sync: WebhookSync | None = None

    @property
    def is_set_up(self) -> bool:
        return self._sync is not None and self._sync.done.is_set()

    def start(self, group: asyncio.TaskGroup) -> None:
        if self._running is not None:
            self._running.cancel()
        cluster = self.world.cluster
        factory = InformerFactory(cluster, random.Random(1))
        settings = WebhookSettings(cert_dir=self.world.folder / "shared")
        self.presented = []
        self._sync = WebhookSync(cluster, factory, settings, PATHS, self._present, rng=random.Random(3))
        self._running = group.create_task(self._run(factory, self._sync))

    def _present(self, certs: CertificateSet) -> None:
        bundle = self.world.trusted()
        assert not self.is_set_up or not bundle or certs.ca_cert in bundle, "presented before it was trusted"
        self.presented.append(certs)

    async def stop(self) -> None:
        assert self._running is not None
        self._running.cancel()

    async def _run(self, factory: InformerFactory, sync: WebhookSync) -> None:
        async with asyncio.TaskGroup() as group:
            factory.start(group)
            await sync.run()
