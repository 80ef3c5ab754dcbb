"""Budgets count what must stay, and evictions are granted only out of what may go."""

import asyncio
from typing import Any

import pytest

from koordinator.api.apps import ReplicaSet
from koordinator.api.core import Pod
from koordinator.api.groups import PodDisruptionBudget, PodDisruptionBudgetSpec
from koordinator.cluster import errors
from koordinator.cluster.events import EventRecorder
from koordinator.local.controllers import disruption
from koordinator.local.controllers.disruption import DisruptionController
from tests.local.controllers.workload_world import events_of
from tests.local.controllers.world import Runs, World, owned_by, run


def build(world: World) -> list[Runs]:
    events = EventRecorder(world.cluster, "test", rng=world.rng)
    return [events, DisruptionController(world.cluster, world.factory, events)]


async def add_pods(world: World, count: int, owner: dict[str, Any] | None = None) -> None:
    for number in range(count):
        body = {
            "metadata": {
                "name": f"p{number}",
                "labels": {"app": "web"},
                "ownerReferences": [owner] if owner else [],
            },
            "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "x"}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        }
        created = await world.cluster.create(Pod, body, "default")
        await world.cluster.patch(
            Pod, created.metadata.name, {"status": body["status"]}, "default", subresource="status"
        )


async def add_budget(world: World, **spec: Any) -> None:
    body = {"metadata": {"name": "b"}, "spec": {"selector": {"matchLabels": {"app": "web"}}, **spec}}
    await world.cluster.create(PodDisruptionBudget, body, "default")
    await asyncio.sleep(1)


async def budget(world: World) -> PodDisruptionBudget:
    return await world.cluster.get(PodDisruptionBudget, "b", "default")


def test_evictions_are_granted_until_the_minimum_is_reached() -> None:
    async def scenario(world: World) -> None:
        await add_pods(world, 3)
        await add_budget(world, minAvailable=2)
        status = (await budget(world)).status
        assert (status.disruptions_allowed, status.current_healthy, status.expected_pods) == (1, 3, 3)

        await world.cluster.evict("default", "p0")
        with pytest.raises(errors.TooManyRequests, match="disruption budget"):
            await world.cluster.evict("default", "p1")
        await asyncio.sleep(1)
        status = (await budget(world)).status
        assert (status.disruptions_allowed, status.current_healthy) == (0, 2)

    run(build, scenario)


def test_a_percentage_counts_what_the_workload_wants_not_what_it_has() -> None:
    async def scenario(world: World) -> None:
        body = {
            "metadata": {"name": "rs"},
            "spec": {"replicas": 10, "selector": {"matchLabels": {"app": "web"}}},
        }
        owner = await world.cluster.create(ReplicaSet, body, "default")
        await add_pods(world, 9, owned_by(owner, controller=True))
        await add_budget(world, maxUnavailable="20%")

        status = (await budget(world)).status
        assert (status.expected_pods, status.desired_healthy, status.disruptions_allowed) == (10, 8, 1)

    run(build, scenario)


def test_pods_without_a_workload_do_not_count_under_a_percentage_and_the_budget_says_so() -> None:
    async def scenario(world: World) -> None:
        await add_pods(world, 3)
        await add_budget(world, minAvailable="50%")

        found = (await budget(world)).status
        assert (found.expected_pods, found.current_healthy, found.disruptions_allowed) == (0, 3, 0)
        assert found.conditions[0].reason == "InsufficientPods"
        (told,) = await events_of(world, "UnmanagedPods")
        assert ".spec.minAvailable" in told.message

    run(build, scenario)


def test_pods_of_a_workload_that_nobody_knows_allow_nothing_and_the_counts_stay() -> None:
    async def scenario(world: World) -> None:
        owner = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "name": "gone",
            "uid": "u",
            "controller": True,
        }
        await add_pods(world, 3, owner)
        await add_budget(world, minAvailable="50%")

        found = (await budget(world)).status
        assert (found.disruptions_allowed, found.observed_generation) == (0, 0)
        assert found.conditions[0].reason == "SyncFailed"
        (told,) = await events_of(world, "CalculateExpectedPodCountFailed")
        assert told.message.startswith("Failed to calculate the number of expected pods: ")

    run(build, scenario)


def test_a_budget_without_pods_says_so() -> None:
    async def scenario(world: World) -> None:
        await add_budget(world, minAvailable=1)

        (told,) = await events_of(world, "NoPods")
        assert told.message == "No matching pods found"

    run(build, scenario)


@pytest.mark.parametrize(
    ("spec", "expected", "desired"),
    [
        pytest.param({"min_available": 2}, 5, 2, id="a plain minimum"),
        pytest.param({"min_available": "50%"}, 5, 3, id="a percentage of the minimum rounds up"),
        pytest.param({"max_unavailable": "30%"}, 5, 3, id="a percentage that may be missing rounds up, too"),
        pytest.param({"max_unavailable": 9}, 5, 0, id="never below zero"),
    ],
)
def test_desired_healthy(spec: dict[str, Any], expected: int, desired: int) -> None:
    assert disruption.desired_healthy(PodDisruptionBudgetSpec(**spec), expected) == desired
