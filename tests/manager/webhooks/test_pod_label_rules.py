"""Label rules follow their ConfigMap: at once by the watch, at the latest after an interval without it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from koordinator import clock as clocks
from koordinator.api.core import ConfigMap, Event
from koordinator.cluster.errors import ServiceUnavailable
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import registry
from koordinator.manager.options import EnhancedValidatorOptions
from koordinator.manager.parts import ManagerContext
from koordinator.manager.webhooks import pod_rules
from koordinator.manager.webhooks.pod_rules import LabelRulesSource
from koordinator.simulate import virtual_time
from tests.manager.shared_parts import shared_parts

OPTIONS = EnhancedValidatorOptions()
NAMESPACE, NAME = OPTIONS.config_namespace, OPTIONS.config_name


class _Cluster(MemoryCluster):
    """An API that can be told not to answer."""

    silent = False

    async def get(self, view: Any, name: str, namespace: str = "") -> Any:
        if self.silent and view is ConfigMap:
            raise ServiceUnavailable("no answer")
        return await super().get(view, name, namespace)


def run(scenario: Callable[[LabelRulesSource, _Cluster, ManagerContext], Awaitable[None]]) -> None:
    async def main(clock: clocks.LoopClock) -> None:
        cluster = _Cluster(registry.in_memory(clock, checks=False))
        shared = shared_parts(cluster)
        source = LabelRulesSource(shared)
        async with asyncio.TaskGroup() as group:
            shared.factory.start(group)
            events = group.create_task(shared.events.run())
            await shared.factory.wait_synced()
            await scenario(source, cluster, shared)
            events.cancel()
            await shared.factory.stop()

    virtual_time.run_virtual(main)


def config(label: str) -> dict[str, Any]:
    rules = f'[{{"name": "r", "requiredLabels": ["{label}"]}}]'
    return {"metadata": {"name": NAME}, "data": {"enable": " True ", "rules": rules}}


async def lacking(source: LabelRulesSource) -> str:
    return pod_rules.violation(await source.fresh(), "d", {})


def test_a_change_counts_at_once() -> None:
    async def scenario(source: LabelRulesSource, cluster: _Cluster, _: ManagerContext) -> None:
        assert await lacking(source) == ""
        await cluster.create(ConfigMap, config("app"), NAMESPACE)
        await asyncio.sleep(1)
        assert "'app'" in await lacking(source)
        await cluster.delete(ConfigMap, NAME, NAMESPACE)
        await asyncio.sleep(1)
        assert await lacking(source) == ""

    run(scenario)


def test_without_a_watch_a_change_counts_after_the_interval() -> None:
    async def scenario(source: LabelRulesSource, cluster: _Cluster, shared: ManagerContext) -> None:
        await cluster.create(ConfigMap, config("app"), NAMESPACE)
        await asyncio.sleep(1)
        assert "'app'" in await lacking(source)
        await shared.factory.stop()
        await cluster.patch(ConfigMap, NAME, {"data": config("team")["data"]}, NAMESPACE)

        await asyncio.sleep(290)
        assert "'app'" in await lacking(source)
        cluster.silent = True
        await asyncio.sleep(20)
        assert "'app'" in await lacking(source), "nobody answered: the last rules stay"
        cluster.silent = False
        await asyncio.sleep(301)
        assert "'team'" in await lacking(source)

    run(scenario)


def test_rules_that_nobody_can_read_keep_the_old_and_tell_the_config_map_once() -> None:
    async def scenario(source: LabelRulesSource, cluster: _Cluster, _: ManagerContext) -> None:
        await cluster.create(ConfigMap, config("app"), NAMESPACE)
        await asyncio.sleep(1)
        await cluster.patch(ConfigMap, NAME, {"data": {"rules": "[{"}}, NAMESPACE)
        await asyncio.sleep(1)
        assert "'app'" in await lacking(source)
        await asyncio.sleep(400)
        assert "'app'" in await lacking(source)
        await asyncio.sleep(5)

        (event,) = (await cluster.list(Event)).items
        assert (event.reason, event.count) == ("LabelRulesNotUsed", 1)
        assert f"{NAMESPACE}/{NAME}: rules" in event.message

        await cluster.patch(ConfigMap, NAME, {"data": {"enable": "no"}}, NAMESPACE)
        await asyncio.sleep(1)
        assert await lacking(source) == "", "switched off, they need not be readable"

    run(scenario)
