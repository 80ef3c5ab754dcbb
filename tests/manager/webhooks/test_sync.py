"""Certificates and configurations over time, on virtual time: who writes, and how often."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from koordinator import clock as clocks
from koordinator.api.admission import MutatingWebhookConfiguration
from koordinator.api.core import Secret
from koordinator.cluster import errors
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import cluster as local
from koordinator.local import registry
from koordinator.manager.webhooks import configuration, table
from koordinator.manager.webhooks.certificates import CertificateSet
from koordinator.manager.webhooks.settings import WebhookSettings
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
            body["metadata"]["name"]: local.kinds.view_of(local._resource(body))
            for body in configuration.configurations(configuration.Service())
        }
        await world.cluster.delete(views[missing], missing)
        async with world.replica() as sync:
            await asyncio.sleep(5)

            assert missing in str(sync.guard.last_error)
            (other,) = set(views) - {missing}
            assert (await world.cluster.get(views[other], other)).webhooks  # type: ignore[attr-defined]

    run(scenario, tmp_path)
