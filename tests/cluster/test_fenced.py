"""Writes of a leader that may be leader no more."""

import asyncio
import random
from typing import Any

import pytest

from koordinator.api.core import ConfigMap
from koordinator.clock import LoopClock
from koordinator.cluster.backoff import Rate
from koordinator.cluster.config import from_url
from koordinator.cluster.kube import KubeCluster
from koordinator.cluster.leader import ElectionConfig, LeaderElector
from koordinator.cluster.memory import MemoryCluster
from koordinator.cluster.write_through import FencedCluster, NotLeading
from koordinator.local import registry
from koordinator.simulate import virtual_time
from tests.cluster.scripted_server import ok, scripted

BODY: dict[str, Any] = {"metadata": {"name": "c"}, "data": {"a": "1"}}


def test_who_does_not_lead_can_read_and_change_nothing() -> None:
    async def main(clock: LoopClock) -> None:
        inner = MemoryCluster(registry.in_memory(clock, checks=False))
        await inner.create(ConfigMap, dict(BODY), "default")
        leads = False
        cluster = FencedCluster(inner, lambda: leads)

        assert (await cluster.get(ConfigMap, "c", "default")).data == {"a": "1"}
        assert len((await cluster.list(ConfigMap, "default")).items) == 1
        for write in (
            lambda: cluster.create(ConfigMap, {"metadata": {"name": "d"}}, "default"),
            lambda: cluster.patch(ConfigMap, "c", {"data": {"a": "2"}}, "default"),
            lambda: cluster.delete(ConfigMap, "c", "default"),
            lambda: cluster.bind("default", "p", "n"),
            lambda: cluster.evict("default", "p"),
            lambda: cluster.request("POST", "/api/v1/namespaces/default/configmaps", {}),
        ):
            with pytest.raises(NotLeading):
                await write()
        assert (await inner.get(ConfigMap, "c", "default")).data == {"a": "1"}

        leads = True
        await cluster.patch(ConfigMap, "c", {"data": {"a": "2"}}, "default")
        assert (await inner.get(ConfigMap, "c", "default")).data == {"a": "2"}

    virtual_time.run_virtual(main)


class StuckCluster(MemoryCluster):
    """Whose API does not answer about leases while it is stuck."""

    stuck = False

    async def patch(self, *args: Any, **kwargs: Any) -> Any:
        if self.stuck:
            await asyncio.sleep(3_600)
        return await super().patch(*args, **kwargs)


def test_a_leader_may_act_until_others_could_have_taken_over() -> None:
    async def main(clock: LoopClock) -> None:
        cluster = StuckCluster(registry.in_memory(clock, checks=False))
        config = ElectionConfig(name="l", namespace="default", identity="me")
        election = LeaderElector(cluster, config, rng=random.Random(0))
        assert not election.may_act

        running = asyncio.create_task(election.run(asyncio.Event().wait))  # type: ignore[arg-type]
        await asyncio.sleep(60)
        assert election.may_act

        cluster.stuck = True
        await asyncio.sleep(7)
        assert election.may_act and not running.done()
        await asyncio.sleep(3.1)  # the last renewal was sent at most 2 s before
        assert not election.may_act
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    virtual_time.run_virtual(main)


async def test_what_waited_for_its_turn_is_kept_back_when_another_leads_by_then() -> None:
    async with scripted() as server:
        server.otherwise = ok(BODY)
        rate = Rate(per_s=20, burst=1)
        async with KubeCluster(from_url(server.url), rng=random.Random(1), rate=rate) as inner:
            leads = True
            cluster = FencedCluster(inner, lambda: leads)
            patch = {"data": {"a": "2"}}
            await cluster.patch(ConfigMap, "c", patch, "default")
            waiting = [
                asyncio.create_task(cluster.patch(ConfigMap, "c", patch, "default")),
                asyncio.create_task(cluster.delete(ConfigMap, "c", "default")),
                asyncio.create_task(inner.patch(ConfigMap, "other", patch, "default")),
            ]
            await asyncio.sleep(0)
            leads = False
            for task in waiting[:2]:
                with pytest.raises(NotLeading):
                    await task
            await waiting[2]
    assert [asked.path.rsplit("/", 1)[-1] for asked in server.asked] == ["c", "other"]
