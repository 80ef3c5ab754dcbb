"""A ReplicaSet has as many pods as it asks for, and says how they are."""

import asyncio
from typing import Any

import pytest

from koordinator.api.apps import Deployment, ReplicaSet, ReplicationController
from koordinator.api.core import Pod
from koordinator.cluster import errors
from tests.local.controllers.fake_kubelet import Fate
from tests.local.controllers.workload_world import (
    LABELS,
    controllers,
    edit,
    events_of,
    fetch,
    make,
    pods,
    template,
)
from tests.local.controllers.world import World, run


def test_it_creates_its_pods_and_counts_them() -> None:
    async def scenario(world: World) -> None:
        await make(world, ReplicaSet, replicas=3)
        await asyncio.sleep(5)

        found = await pods(world)
        assert len(found) == 3
        assert all(p.metadata.name.startswith("web-") and p.metadata.labels == LABELS for p in found)
        owner = found[0].metadata.owner_references[0]
        assert (owner.kind, owner.controller, owner.block_owner_deletion) == ("ReplicaSet", True, True)
        status = (await fetch(world, ReplicaSet)).status
        assert (status.replicas, status.ready_replicas, status.available_replicas) == (3, 3, 3)
        assert (status.fully_labeled_replicas, status.observed_generation) == (3, 1)
        assert len(await events_of(world, "SuccessfulCreate")) == 3

    run(controllers(), scenario)


def test_it_scales_down_to_nothing_and_its_status_says_so() -> None:
    async def scenario(world: World) -> None:
        await make(world, ReplicaSet, replicas=3)
        await asyncio.sleep(5)

        await edit(world, ReplicaSet, replicas=0)
        await asyncio.sleep(5)

        assert await pods(world) == []
        status = (await fetch(world, ReplicaSet)).status
        assert (status.replicas, status.ready_replicas, status.observed_generation) == (0, 0, 2)

    run(controllers(), scenario)


def test_a_lost_pod_is_replaced_and_a_failed_one_too() -> None:
    async def scenario(world: World) -> None:
        await make(world, ReplicaSet, replicas=2)
        await asyncio.sleep(5)
        first, second = await pods(world)

        await world.cluster.delete(Pod, first.metadata.name, "default", grace_period_s=0)
        await world.kubelet.end(second, exit_code=1)  # type: ignore[attr-defined]
        await asyncio.sleep(5)

        found = await pods(world)
        assert sum(pod.status.phase == "Running" for pod in found) == 2
        assert sum(pod.status.phase == "Failed" for pod in found) == 1
        assert (await fetch(world, ReplicaSet)).status.replicas == 2

    run(controllers(), scenario)


def test_ready_pods_are_available_only_after_min_ready_seconds() -> None:
    async def scenario(world: World) -> None:
        await make(world, ReplicaSet, replicas=2, minReadySeconds=30)
        await asyncio.sleep(10)
        status = (await fetch(world, ReplicaSet)).status
        assert (status.ready_replicas, status.available_replicas) == (2, 0)

        await asyncio.sleep(25)
        assert (await fetch(world, ReplicaSet)).status.available_replicas == 2

    run(controllers(), scenario)


def test_strays_that_match_are_adopted_and_pods_that_no_longer_match_released() -> None:
    async def scenario(world: World) -> None:
        stray = await world.cluster.create(
            Pod, {**template(), "metadata": {"name": "s", "labels": LABELS}}, "default"
        )
        await make(world, ReplicaSet, replicas=2)
        await asyncio.sleep(5)
        assert len(await pods(world)) == 2
        adopted = await world.cluster.get(Pod, "s", "default")
        assert adopted.metadata.uid == stray.metadata.uid
        assert adopted.metadata.owner_references[0].name == "web"

        await world.cluster.patch(Pod, "s", {"metadata": {"labels": {"app": "other"}}}, "default")
        await asyncio.sleep(5)
        assert len(await pods(world)) == 3
        assert (await world.cluster.get(Pod, "s", "default")).metadata.owner_references == []

    run(controllers(), scenario)


def test_a_stray_that_appears_later_is_adopted_and_the_surplus_deleted() -> None:
    async def scenario(world: World) -> None:
        await make(world, ReplicaSet, replicas=2)
        await asyncio.sleep(5)

        await world.cluster.create(
            Pod, {**template(), "metadata": {"name": "s", "labels": LABELS}}, "default"
        )
        await asyncio.sleep(5)

        assert len(await pods(world)) == 2
        with pytest.raises(errors.NotFound):  # it was the youngest and not ready
            await world.cluster.get(Pod, "s", "default")

    run(controllers(), scenario)


def test_a_refused_pod_becomes_a_condition_and_an_event_and_is_tried_again() -> None:
    async def scenario(world: World) -> None:
        await make(world, ReplicaSet, replicas=8, template=template(priorityClassName="absent"))
        await asyncio.sleep(2)

        found = (await fetch(world, ReplicaSet)).status.conditions
        assert [(c.type, c.status, c.reason) for c in found] == [("ReplicaFailure", "True", "FailedCreate")]
        assert "no PriorityClass with name absent" in found[0].message
        assert "Error creating" in (await events_of(world, "FailedCreate"))[0].message

        body = {"apiVersion": "scheduling.k8s.io/v1", "metadata": {"name": "absent"}, "value": 1}
        await world.cluster.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
        await asyncio.sleep(600)
        assert len(await pods(world)) == 8
        assert (await fetch(world, ReplicaSet)).status.conditions == []

    run(controllers(), scenario)


def test_a_cache_that_is_behind_never_costs_a_second_create() -> None:
    async def scenario(world: World) -> None:
        informer = world.factory.informer(Pod)
        apply, held = informer._apply, []
        informer._apply = held.append  # type: ignore[method-assign]  # the watch stalls
        created = await make(world, ReplicaSet, replicas=4)
        for number in range(20):
            await asyncio.sleep(1)
            await world.cluster.patch(
                ReplicaSet, "web", {"metadata": {"annotations": {"n": str(number)}}}, "default"
            )
        assert len(await pods(world)) == 4

        informer._apply = apply  # type: ignore[method-assign]
        for batch in held:
            apply(batch)
        await asyncio.sleep(10)
        assert len(await pods(world)) == 4
        assert (await fetch(world, ReplicaSet)).status.ready_replicas == 4
        assert created.metadata.uid

    run(controllers(), scenario)


def test_unready_and_cheap_pods_go_first() -> None:
    def fate_of(pod: Pod) -> Fate:
        return Fate(ready_s=None if pod.metadata.name == "unready" else 1.0)

    async def scenario(world: World) -> None:
        for name, annotations in [
            ("unready", {}),
            ("cheap", {"controller.kubernetes.io/pod-deletion-cost": "-5"}),
        ]:
            meta: dict[str, Any] = {"name": name, "labels": LABELS, "annotations": annotations}
            await world.cluster.create(Pod, {**template(), "metadata": meta}, "default")
        await make(world, ReplicaSet, replicas=5)
        await asyncio.sleep(60)

        await edit(world, ReplicaSet, replicas=4)
        await asyncio.sleep(5)
        names = {pod.metadata.name for pod in await pods(world)}
        assert "unready" not in names and "cheap" in names

        await edit(world, ReplicaSet, replicas=3)
        await asyncio.sleep(5)
        assert "cheap" not in {pod.metadata.name for pod in await pods(world)}

    run(controllers(fate_of), scenario)


def test_a_replication_controller_works_alike() -> None:
    async def scenario(world: World) -> None:
        await make(world, ReplicationController, replicas=2, selector=LABELS)
        await asyncio.sleep(5)

        assert len(await pods(world)) == 2
        assert (await fetch(world, ReplicationController)).status.available_replicas == 2

    run(controllers(), scenario)


def test_a_selector_that_makes_no_sense_gets_an_event_and_harms_nobody() -> None:
    async def scenario(world: World) -> None:
        bad = {"matchExpressions": [{"key": "a", "operator": "Near", "values": ["b"]}]}
        await make(world, ReplicaSet, "bad", replicas=1, selector=bad)
        await make(world, ReplicaSet, replicas=1)
        await asyncio.sleep(5)

        assert len(await pods(world)) == 1
        assert "unknown operator 'Near'" in (await events_of(world, "InvalidSpec"))[0].message

    run(controllers(), scenario)


def test_it_tells_how_many_pods_are_stopping_and_so_does_its_deployment() -> None:
    async def scenario(world: World) -> None:
        made = await make(world, Deployment, replicas=3)
        await asyncio.sleep(5)
        await edit(world, Deployment, replicas=1)
        await asyncio.sleep(5)

        (one,) = (await world.cluster.list(ReplicaSet)).items
        assert (one.status.replicas, one.status.terminating_replicas) == (1, 2)
        assert (await fetch(world, Deployment)).status.terminating_replicas == 2
        await asyncio.sleep(30)
        assert (await fetch(world, Deployment, made.metadata.name)).status.terminating_replicas == 0

    run(controllers(lambda _: Fate(stop_s=20.0)), scenario)
