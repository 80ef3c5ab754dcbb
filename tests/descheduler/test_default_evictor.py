"""DefaultEvictor's arguments that name other objects, in a running descheduler."""

from typing import Any

import msgspec
import pytest

from koordinator.api.core import Namespace
from koordinator.api.groups import PriorityClass
from koordinator.descheduler.cycle import Profile
from koordinator.descheduler.plugins.stock.common import PREFER_NO_EVICTION
from koordinator.descheduler.plugins.stock.default_evictor import DefaultEvictor
from tests.descheduler import builders
from tests.descheduler.world import World, config, run


def with_arguments(args: dict[str, Any]) -> dict[str, Any]:
    body = config()
    on = {"enabled": [{"name": "DefaultEvictor"}], "disabled": [{"name": "*"}]}
    body["profiles"][0]["plugins"] |= {"evict": on, "filter": on}
    body["profiles"][0]["pluginConfig"] = [{"name": "DefaultEvictor", "args": args}]
    return body


def spared(profile: Profile, *priorities: int) -> list[int]:
    return [one for one in priorities if not profile.may_evict(builders.pod("p", "n0", priority=one))]


def test_a_threshold_is_the_value_of_the_class_that_it_names() -> None:
    async def scenario(world: World) -> None:
        await world.cluster.create(PriorityClass, {"metadata": {"name": "high"}, "value": 100})
        async with world.descheduling(with_arguments({"priorityThreshold": {"name": "high"}})) as running:
            [profile] = running.profiles
            await profile.prepare()
            assert spared(profile, 0, 99, 100) == [100]

    run(scenario)


def test_a_threshold_that_names_no_class_spares_all() -> None:
    async def scenario(world: World) -> None:
        async with world.descheduling(with_arguments({"priorityThreshold": {"name": "high"}})) as running:
            [profile] = running.profiles
            assert "names no PriorityClass high" in profile.refusal(builders.pod("p", "n0"))
            assert spared(profile, 0, 99, 100) == [0, 99, 100]

    run(scenario)


def test_a_threshold_has_no_effect_where_critical_pods_are_not_protected() -> None:
    args = {"evictSystemCriticalPods": True, "priorityThreshold": {"value": 2_000_000_001}}
    DefaultEvictor.read(args)

    async def scenario(world: World) -> None:
        async with world.descheduling(
            with_arguments(args | {"priorityThreshold": {"name": "high"}})
        ) as running:
            assert spared(running.profiles[0], 0, 2_000_000_000) == []

    run(scenario)


@pytest.mark.parametrize(("policy", "stays"), [("", False), ("Preferred", False), ("Mandatory", True)])
def test_a_pod_may_ask_to_stay_where_the_policy_is_mandatory(policy: str, stays: bool) -> None:
    asking = builders.pod("p", "n0")
    meta = msgspec.structs.replace(asking.metadata, annotations={PREFER_NO_EVICTION: ""})
    asking = msgspec.structs.replace(asking, metadata=meta)

    async def scenario(world: World) -> None:
        async with world.descheduling(with_arguments({"noEvictionPolicy": policy})) as running:
            assert running.profiles[0].may_evict(asking) is not stays

    run(scenario)


@pytest.mark.parametrize(
    ("selector", "passes"),
    [
        ({"matchLabels": {"team": "a"}}, True),
        ({"matchLabels": {"team": "b"}}, False),
        ({"matchLabels": {"team": "a"}, "matchExpressions": [{"key": "old", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "old", "operator": "Exists"}]}, True),
    ],
)
def test_expressions_about_namespaces_count_only_beside_labels(
    selector: dict[str, Any], passes: bool
) -> None:
    async def scenario(world: World) -> None:
        await world.cluster.patch(Namespace, "default", {"metadata": {"labels": {"team": "a"}}})
        async with world.descheduling(with_arguments({"namespaceLabelSelector": selector})) as running:
            assert running.profiles[0].may_evict_now(builders.pod("p", "n0")) is passes

    run(scenario)
