"""The metric of quotas tells how they stand, whatever of it was written before."""

import random
from collections.abc import Iterator

from koordinator.scheduler.plugins.elastic_quota.accounts import QuotaGauge
from koordinator.scheduler.plugins.elastic_quota.plugin import ElasticQuota
from tests.scheduler.elastic_quota.test_lending import plugin_of
from tests.scheduler.elastic_quota.test_plugin import fixed, member, quota
from tests.scheduler.world import World, play

NAME = "scheduler_elastic_quota_status"


def lines(world: World, name: str) -> Iterator[str]:
    for line in world.scheduler.metrics.text().splitlines():
        if line.startswith(f'{NAME}{{name="{name}"'):
            yield line.removeprefix(NAME)


def test_quotas_are_reported_in_milli_cores_and_whole_units_until_they_are_gone() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="8", memory="8Gi")
        world.api.put("ElasticQuota", quota("team", low=2, high=4))
        world.api.put("Pod", member("pod", "team", cpu="1500m"))
        await world.settle(3)

        labels = 'resource="cpu",tree="",is_parent="false",parent="koordinator-root-quota"'
        reported = list(lines(world, "team"))
        for field, number in (
            ("used", 1500),
            ("request", 1500),
            ("runtime", 1500),
            ("min", 2000),
            ("max", 4000),
        ):
            assert f'{{name="team",{labels},field="{field}"}} {number}' in reported
        assert reported == sorted(reported)

        world.api.put("Pod", member("more", "team"))
        await world.settle(3)
        assert f'{{name="team",{labels},field="used"}} 2500' in list(lines(world, "team"))

        world.api.put("ElasticQuota", quota("empty", low=2, high=4))
        await world.settle(20)
        assert list(lines(world, "empty"))
        for name in ("team", "empty"):
            world.api.remove("ElasticQuota", name, "quotas")
        await world.settle(3)
        assert [*lines(world, "team"), *lines(world, "empty")] == []

    play(story)


def test_what_is_kept_of_the_metric_is_what_would_be_written_anew() -> None:
    async def story(world: World) -> None:
        rng = random.Random(5)
        world.nodes(1, cpu="30", memory="64Gi")
        plugin: ElasticQuota = plugin_of(world)
        kept = QuotaGauge(plugin.book, plugin.accounts.changes)
        for step in range(30):
            name = f"team-{rng.randrange(6)}"
            parent = rng.choice(("", "", "team-5")) if name != "team-5" else ""
            match rng.randrange(6):
                case 0 | 1:
                    world.api.put(
                        "ElasticQuota",
                        quota(name, parent=parent, low=rng.randrange(9), high=rng.randrange(9, 20)),
                    )
                case 2 if ("quotas", name) in world.api.objects.get("ElasticQuota", {}):
                    world.api.remove("ElasticQuota", name, "quotas")
                case 3:
                    world.nodes(1, cpu=str(rng.randrange(10, 40)), memory="64Gi")
                case _:
                    body = member(f"pod-{step}", name, cpu=str(rng.randrange(1, 4)))
                    world.api.put("Pod", fixed(body) if rng.random() < 0.3 else body)
            await world.settle(rng.choice((0.1, 1, 12)))

            assert list(kept.lines()) == list(QuotaGauge(plugin.book, plugin.accounts.changes).lines()), step

    play(story)
