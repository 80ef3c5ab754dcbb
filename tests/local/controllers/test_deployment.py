"""A Deployment rolls its pods from template to template, and tells how far it is."""

import asyncio
from typing import Any

from koordinator.api.apps import Deployment, DeploymentStatus, ReplicaSet
from koordinator.api.core import Pod
from koordinator.cluster import errors
from koordinator.local.controllers.revisions import template_hash
from tests.local.controllers.fake_kubelet import Fate
from tests.local.controllers.workload_world import (
    controllers,
    edit,
    events_of,
    fetch,
    make,
    pods,
    template,
)
from tests.local.controllers.world import World, run

REVISION = "deployment.kubernetes.io/revision"


async def sets(world: World) -> list[ReplicaSet]:
    """Oldest revision first."""
    found = (await world.cluster.list(ReplicaSet, "default")).items
    return sorted(found, key=lambda one: int(one.metadata.annotations.get(REVISION, "0")))


async def sizes(world: World) -> dict[str, int]:
    """Replicas by image of the template."""
    return {
        one.spec.template["spec"]["containers"][0]["image"]: one.spec.replicas for one in await sets(world)
    }


def reasons(status: DeploymentStatus) -> dict[str, tuple[str, str]]:
    return {c.type: (c.status, c.reason) for c in status.conditions}


def hanging(image: str) -> Any:
    """Pods of this image never become ready."""
    return lambda pod: Fate(ready_s=None if pod.spec.containers[0].image == image else 1.0)


def test_it_makes_a_replica_set_of_its_template_and_becomes_available() -> None:
    async def scenario(world: World) -> None:
        await make(world, Deployment, replicas=3)
        await asyncio.sleep(5)

        (only,) = await sets(world)
        value = only.metadata.labels["pod-template-hash"]
        assert only.metadata.name == f"web-{value}"
        assert only.spec.selector.match_labels == {"app": "web", "pod-template-hash": value}
        annotations = only.metadata.annotations
        assert annotations[REVISION] == "1"
        assert annotations["deployment.kubernetes.io/desired-replicas"] == "3"
        assert annotations["deployment.kubernetes.io/max-replicas"] == "4"
        assert all(p.metadata.labels["pod-template-hash"] == value for p in await pods(world))
        found = await fetch(world, Deployment)
        assert found.metadata.annotations[REVISION] == "1"
        status = found.status
        assert (status.replicas, status.updated_replicas, status.ready_replicas) == (3, 3, 3)
        assert (status.available_replicas, status.unavailable_replicas) == (3, 0)
        assert reasons(status) == {
            "Available": ("True", "MinimumReplicasAvailable"),
            "Progressing": ("True", "NewReplicaSetAvailable"),
        }
        (event,) = await events_of(world, "ScalingReplicaSet")
        assert event.message == f"Scaled up replica set {only.metadata.name} from 0 to 3"
        assert event.source.component == "deployment-controller"

    run(controllers(), scenario)


def test_a_new_template_replaces_all_pods_and_counts_the_revision_up() -> None:
    async def scenario(world: World) -> None:
        await make(world, Deployment, replicas=4)
        await asyncio.sleep(5)

        await edit(world, Deployment, template=template("b"))
        await asyncio.sleep(30)

        assert await sizes(world) == {"a": 0, "b": 4}
        assert {p.spec.containers[0].image for p in await pods(world)} == {"b"}
        found = await fetch(world, Deployment)
        assert found.metadata.annotations[REVISION] == "2"
        assert reasons(found.status)["Progressing"] == ("True", "NewReplicaSetAvailable")
        assert (found.status.updated_replicas, found.status.observed_generation) == (4, 2)

    run(controllers(), scenario)


def test_going_back_to_an_earlier_template_reuses_its_replica_set_under_a_new_revision() -> None:
    async def scenario(world: World) -> None:
        await make(world, Deployment, replicas=2)
        await asyncio.sleep(5)
        (first,) = await sets(world)
        await edit(world, Deployment, template=template("b"))
        await asyncio.sleep(30)

        await edit(world, Deployment, template=template("a"))
        await asyncio.sleep(30)

        _, newest = await sets(world)
        assert newest.metadata.uid == first.metadata.uid
        assert newest.metadata.annotations[REVISION] == "3"
        assert newest.metadata.annotations["deployment.kubernetes.io/revision-history"] == "1"
        assert await sizes(world) == {"b": 0, "a": 2}
        assert (await fetch(world, Deployment)).metadata.annotations[REVISION] == "3"

    run(controllers(), scenario)


def test_a_rollout_that_hangs_keeps_the_old_pods_and_is_called_stuck() -> None:
    async def scenario(world: World) -> None:
        await make(world, Deployment, replicas=4, progressDeadlineSeconds=60)
        await asyncio.sleep(5)

        await edit(world, Deployment, template=template("bad"))
        await asyncio.sleep(30)
        assert await sizes(world) == {"a": 3, "bad": 2}
        assert reasons((await fetch(world, Deployment)).status)["Progressing"][0] == "True"

        await asyncio.sleep(60)
        status = (await fetch(world, Deployment)).status
        assert reasons(status)["Progressing"] == ("False", "ProgressDeadlineExceeded")
        assert reasons(status)["Available"] == ("True", "MinimumReplicasAvailable")
        assert await sizes(world) == {"a": 3, "bad": 2}

        await edit(world, Deployment, template=template("a"))
        await asyncio.sleep(30)
        assert await sizes(world) == {"bad": 0, "a": 4}
        assert reasons((await fetch(world, Deployment)).status)["Progressing"][1] == "NewReplicaSetAvailable"

    run(controllers(hanging("bad")), scenario)


def test_recreate_starts_new_pods_only_when_all_old_ones_are_gone() -> None:
    async def scenario(world: World) -> None:
        await make(world, Deployment, replicas=3, strategy={"type": "Recreate"})
        await asyncio.sleep(5)

        await edit(world, Deployment, template=template("b"))
        for _ in range(200):
            await asyncio.sleep(0.1)
            assert len({p.spec.containers[0].image for p in await pods(world)}) < 2

        assert await sizes(world) == {"a": 0, "b": 3}
        assert (await fetch(world, Deployment)).status.available_replicas == 3

    run(controllers(lambda _: Fate(stop_s=5.0)), scenario)


def test_a_paused_deployment_scales_but_does_not_roll() -> None:
    async def scenario(world: World) -> None:
        await make(world, Deployment, replicas=2)
        await asyncio.sleep(5)

        await edit(world, Deployment, paused=True, template=template("b"), replicas=4)
        await asyncio.sleep(10)
        assert await sizes(world) == {"a": 4}
        assert reasons((await fetch(world, Deployment)).status)["Progressing"] == (
            "Unknown",
            "DeploymentPaused",
        )

        await edit(world, Deployment, paused=False)
        await asyncio.sleep(30)
        assert await sizes(world) == {"a": 0, "b": 4}
        assert reasons((await fetch(world, Deployment)).status)["Progressing"][1] == "NewReplicaSetAvailable"

    run(controllers(), scenario)


def test_scaling_in_the_middle_of_a_rollout_is_spread_in_proportion() -> None:
    async def scenario(world: World) -> None:
        strategy = {"rollingUpdate": {"maxSurge": 3, "maxUnavailable": 2}}
        await make(world, Deployment, replicas=10, strategy=strategy)
        await asyncio.sleep(5)
        await edit(world, Deployment, template=template("bad"))
        await asyncio.sleep(10)
        assert await sizes(world) == {"a": 8, "bad": 5}

        await edit(world, Deployment, replicas=15)
        await asyncio.sleep(10)
        # The example of the Kubernetes documentation: 5 more, 3 to the larger and 2 to the smaller.
        assert await sizes(world) == {"a": 11, "bad": 7}

    run(controllers(hanging("bad")), scenario)


def test_old_replica_sets_beyond_the_history_limit_go() -> None:
    async def scenario(world: World) -> None:
        await make(world, Deployment, replicas=1, revisionHistoryLimit=1)
        for image in ("b", "c", "d"):
            await asyncio.sleep(20)
            await edit(world, Deployment, template=template(image))
        await asyncio.sleep(20)

        assert await sizes(world) == {"c": 0, "d": 1}

    run(controllers(), scenario)


def test_min_ready_seconds_slows_the_rollout_down() -> None:
    async def scenario(world: World) -> None:
        await make(world, Deployment, replicas=2, minReadySeconds=20)
        await asyncio.sleep(5)
        assert (await fetch(world, Deployment)).status.available_replicas == 0
        await asyncio.sleep(25)
        assert (await fetch(world, Deployment)).status.available_replicas == 2

        await edit(world, Deployment, template=template("b"))
        await asyncio.sleep(15)
        assert await sizes(world) == {"a": 2, "b": 1}
        await asyncio.sleep(60)
        assert await sizes(world) == {"a": 0, "b": 2}

    run(controllers(), scenario)


def test_a_name_that_is_taken_by_another_replica_set_is_avoided() -> None:
    async def scenario(world: World) -> None:
        taken = f"web-{template_hash(template())}"
        other = {
            "metadata": {"name": taken},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": {"x": "y"}},
                "template": template(labels={"x": "y"}),
            },
        }
        await world.cluster.create(ReplicaSet, other, "default")
        await make(world, Deployment, replicas=1)
        await asyncio.sleep(5)

        found = await fetch(world, Deployment)
        assert (found.status.collision_count, found.status.available_replicas) == (1, 1)
        assert len(await sets(world)) == 2

    run(controllers(), scenario)


def test_a_lost_pod_does_not_count_as_a_new_rollout() -> None:
    async def scenario(world: World) -> None:
        await make(world, Deployment, replicas=2)
        await asyncio.sleep(5)

        await world.cluster.delete(Pod, (await pods(world))[0].metadata.name, "default", grace_period_s=0)
        await asyncio.sleep(0.5)
        status = (await fetch(world, Deployment)).status
        assert (status.available_replicas, status.unavailable_replicas) == (1, 1)
        assert reasons(status)["Available"] == ("False", "MinimumReplicasUnavailable")
        assert reasons(status)["Progressing"] == ("True", "NewReplicaSetAvailable")

    run(controllers(), scenario)


def test_annotations_of_the_deployment_reach_its_replica_set() -> None:
    async def scenario(world: World) -> None:
        await make(world, Deployment, replicas=1)
        await asyncio.sleep(5)

        annotations = {
            "kubernetes.io/change-cause": "because",
            "kubectl.kubernetes.io/last-applied-configuration": "x",
        }
        await world.cluster.patch(Deployment, "web", {"metadata": {"annotations": annotations}}, "default")
        await asyncio.sleep(5)

        (only,) = await sets(world)
        assert only.metadata.annotations["kubernetes.io/change-cause"] == "because"
        assert "kubectl.kubernetes.io/last-applied-configuration" not in only.metadata.annotations

    run(controllers(), scenario)


def test_failures_of_the_replica_set_show_on_the_deployment() -> None:
    async def scenario(world: World) -> None:
        await make(world, Deployment, replicas=1, template=template(priorityClassName="absent"))
        await asyncio.sleep(2)

        assert reasons((await fetch(world, Deployment)).status)["ReplicaFailure"] == ("True", "FailedCreate")

    run(controllers(), scenario)


def test_a_bound_that_is_no_percentage_is_reported_and_harms_nobody() -> None:
    async def scenario(world: World) -> None:
        await make(world, Deployment, "bad", strategy={"rollingUpdate": {"maxSurge": "many"}})
        await make(world, Deployment, replicas=1)
        await asyncio.sleep(5)

        assert (await fetch(world, Deployment)).status.available_replicas == 1
        (event,) = await events_of(world, "InvalidSpec")
        assert "maxSurge: 'many' is neither a count nor a percentage" in event.message

    run(controllers(), scenario)


def test_conflicts_are_tried_again() -> None:
    async def scenario(world: World) -> None:
        await make(world, Deployment, replicas=3)
        await asyncio.sleep(5)
        patch, failures = world.cluster.patch, iter(range(6))

        async def unlucky(view: Any, *args: Any, **more: Any) -> Any:
            if view is ReplicaSet and next(failures, None) is not None:
                raise errors.Conflict("the object has been modified")
            return await patch(view, *args, **more)

        world.cluster.patch = unlucky  # type: ignore[method-assign]
        await edit(world, Deployment, template=template("b"))
        await asyncio.sleep(60)
        assert await sizes(world) == {"a": 0, "b": 3}

    run(controllers(), scenario)


def test_a_replica_set_forgets_a_readiness_time_that_is_taken_back() -> None:
    async def scenario(world: World) -> None:
        await make(world, Deployment, replicas=1, minReadySeconds=3)
        await asyncio.sleep(5)
        await edit(world, Deployment, minReadySeconds=None)
        await asyncio.sleep(5)

        listed = await world.cluster.request("GET", "/apis/apps/v1/namespaces/default/replicasets")
        assert ["minReadySeconds" in each["spec"] for each in listed["items"]] == [False]

    run(controllers(), scenario)
