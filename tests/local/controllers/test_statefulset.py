"""A StatefulSet's pods have names and storage that stay, and change in order."""

import asyncio
import random
from typing import Any

import pytest

from koordinator.api.apps import ClaimRetentionPolicy, ControllerRevision, StatefulSet, StatefulSetSpec
from koordinator.api.core import Pod
from koordinator.api.meta import ObjectMeta, OwnerReference
from koordinator.api.storage import PersistentVolumeClaim
from koordinator.local.controllers import pod_health, statefulset
from koordinator.local.controllers.garbage_collector import GarbageCollector
from tests.local.controllers.fake_kubelet import Fate
from tests.local.controllers.workload_world import (
    LABELS,
    controllers,
    edit,
    events_of,
    fetch,
    make,
    pod_names,
    pods,
    template,
)
from tests.local.controllers.world import Runs, World, run

CLAIMS = [
    {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
]


async def images(world: World) -> dict[str, str]:
    return {pod.metadata.name: pod.spec.containers[0].image for pod in await pods(world)}


async def claims(world: World) -> dict[str, list[str]]:
    """Kinds of the owners of each claim."""
    found = (await world.cluster.list(PersistentVolumeClaim, "default")).items
    return {one.metadata.name: [owner.kind for owner in one.metadata.owner_references] for one in found}


def test_pods_come_one_after_the_other_with_names_that_stay() -> None:
    async def scenario(world: World) -> None:
        await make(world, StatefulSet, replicas=3, serviceName="db")
        await asyncio.sleep(0.5)
        assert await pod_names(world) == ["web-0"]
        await asyncio.sleep(5)
        assert await pod_names(world) == ["web-0", "web-1", "web-2"]

        first = await world.cluster.get(Pod, "web-0", "default")
        labels = first.metadata.labels
        assert labels["statefulset.kubernetes.io/pod-name"] == "web-0"
        assert labels["apps.kubernetes.io/pod-index"] == "0"
        assert (first.spec.hostname, first.spec.subdomain) == ("web-0", "db")
        status = (await fetch(world, StatefulSet)).status
        assert (status.replicas, status.ready_replicas, status.available_replicas) == (3, 3, 3)
        assert (status.current_replicas, status.updated_replicas) == (3, 3)
        assert status.current_revision == status.update_revision == labels["controller-revision-hash"]
        messages = [event.message for event in await events_of(world, "SuccessfulCreate")]
        assert "Create Pod web-0 in StatefulSet web successful" in messages

        await world.cluster.delete(Pod, "web-1", "default")
        await asyncio.sleep(5)
        again = await world.cluster.get(Pod, "web-1", "default")
        assert again.metadata.creation_timestamp != first.metadata.creation_timestamp

    run(controllers(), scenario)


def test_an_unready_pod_holds_the_later_ones_back_unless_they_are_managed_in_parallel() -> None:
    async def scenario(world: World) -> None:
        await make(world, StatefulSet, replicas=3)
        await make(
            world,
            StatefulSet,
            "all",
            replicas=3,
            podManagementPolicy="Parallel",
            selector={"matchLabels": {"app": "all"}},
            template=template(labels={"app": "all"}),
        )
        await asyncio.sleep(30)

        assert await pod_names(world) == ["all-0", "all-1", "all-2", "web-0"]

    run(controllers(lambda _: Fate(ready_s=None)), scenario)


def test_it_shrinks_from_the_highest_ordinal_one_by_one() -> None:
    async def scenario(world: World) -> None:
        await make(world, StatefulSet, replicas=3)
        await asyncio.sleep(10)

        await edit(world, StatefulSet, replicas=1)
        await asyncio.sleep(1)
        deleting = [p.metadata.name for p in await pods(world) if p.metadata.deletion_timestamp]
        assert deleting == ["web-2"]
        await asyncio.sleep(10)
        assert await pod_names(world) == ["web-0"]
        assert (await fetch(world, StatefulSet)).status.replicas == 1

    run(controllers(lambda _: Fate(stop_s=2.0)), scenario)


def test_an_update_goes_from_the_highest_ordinal_down_and_its_revision_becomes_the_current_one() -> None:
    async def scenario(world: World) -> None:
        await make(world, StatefulSet, replicas=3)
        await asyncio.sleep(10)
        before = (await fetch(world, StatefulSet)).status

        await edit(world, StatefulSet, template=template("b"))
        await asyncio.sleep(4)
        assert await images(world) == {"web-0": "a", "web-1": "a", "web-2": "b"}
        during = (await fetch(world, StatefulSet)).status
        assert during.current_revision == before.current_revision != during.update_revision

        await asyncio.sleep(20)
        assert set((await images(world)).values()) == {"b"}
        after = (await fetch(world, StatefulSet)).status
        assert after.current_revision == after.update_revision == during.update_revision
        assert (after.current_replicas, after.updated_replicas) == (3, 3)

    run(controllers(lambda _: Fate(ready_s=2.0)), scenario)


def test_below_the_partition_pods_keep_their_template_even_when_made_anew() -> None:
    async def scenario(world: World) -> None:
        strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}
        await make(world, StatefulSet, replicas=3, updateStrategy=strategy)
        await asyncio.sleep(10)
        await edit(world, StatefulSet, template=template("b"))
        await asyncio.sleep(10)
        assert await images(world) == {"web-0": "a", "web-1": "a", "web-2": "b"}

        await world.cluster.delete(Pod, "web-0", "default")
        await asyncio.sleep(10)
        assert await images(world) == {"web-0": "a", "web-1": "a", "web-2": "b"}
        status = (await fetch(world, StatefulSet)).status
        assert (status.current_replicas, status.updated_replicas) == (2, 1)

    run(controllers(), scenario)


def test_on_delete_changes_a_pod_only_when_somebody_deletes_it() -> None:
    async def scenario(world: World) -> None:
        await make(world, StatefulSet, replicas=2, updateStrategy={"type": "OnDelete"})
        await asyncio.sleep(10)
        await edit(world, StatefulSet, template=template("b"))
        await asyncio.sleep(10)
        assert await images(world) == {"web-0": "a", "web-1": "a"}

        await world.cluster.delete(Pod, "web-0", "default")
        await asyncio.sleep(10)
        assert await images(world) == {"web-0": "b", "web-1": "a"}

    run(controllers(), scenario)


def test_going_back_renumbers_the_old_revision() -> None:
    async def scenario(world: World) -> None:
        await make(world, StatefulSet, replicas=1)
        for image in ("b", "a"):
            await asyncio.sleep(10)
            await edit(world, StatefulSet, template=template(image))
        await asyncio.sleep(10)

        found = (await world.cluster.list(ControllerRevision, "default")).items
        assert sorted(one.revision for one in found) == [2, 3]
        newest = max(found, key=lambda one: one.revision)
        assert newest.metadata.name == (await fetch(world, StatefulSet)).status.update_revision

    run(controllers(), scenario)


def test_ordinals_start_where_asked() -> None:
    async def scenario(world: World) -> None:
        await make(world, StatefulSet, replicas=2, ordinals={"start": 5})
        await asyncio.sleep(10)
        assert await pod_names(world) == ["web-5", "web-6"]

    run(controllers(), scenario)


def test_each_pod_has_its_own_claim_which_outlives_it_by_default() -> None:
    async def scenario(world: World) -> None:
        await make(world, StatefulSet, replicas=2, volumeClaimTemplates=CLAIMS)
        await asyncio.sleep(10)
        assert await claims(world) == {"data-web-0": [], "data-web-1": []}
        pod = await world.cluster.get(Pod, "web-1", "default")
        (volume,) = pod.spec.volumes
        assert volume.name == "data"
        claim = await world.cluster.get(PersistentVolumeClaim, "data-web-1", "default")
        assert claim.metadata.labels == LABELS
        messages = [event.message for event in await events_of(world, "SuccessfulCreate")]
        assert "Create Claim data-web-0 Pod web-0 in StatefulSet web success" in messages

        await edit(world, StatefulSet, replicas=0)
        await asyncio.sleep(10)
        assert list(await claims(world)) == ["data-web-0", "data-web-1"]

    run(controllers(), scenario)


def collecting(world: World) -> list[Runs]:
    return [*controllers()(world), GarbageCollector(world.cluster, world.factory, world.backend.resources)]


def test_claims_go_with_pods_that_are_scaled_away_where_the_policy_says_so_and_come_back_new() -> None:
    async def scenario(world: World) -> None:
        policy = {"whenScaled": "Delete", "whenDeleted": "Delete"}
        await make(
            world,
            StatefulSet,
            replicas=2,
            volumeClaimTemplates=CLAIMS,
            persistentVolumeClaimRetentionPolicy=policy,
        )
        await asyncio.sleep(10)
        assert await claims(world) == {"data-web-0": ["StatefulSet"], "data-web-1": ["StatefulSet"]}
        first = await world.cluster.get(PersistentVolumeClaim, "data-web-1", "default")

        await edit(world, StatefulSet, replicas=1)
        await asyncio.sleep(1.5)
        await edit(world, StatefulSet, replicas=2)
        await asyncio.sleep(20)
        assert await pod_names(world) == ["web-0", "web-1"]
        again = await world.cluster.get(PersistentVolumeClaim, "data-web-1", "default")
        assert again.metadata.uid != first.metadata.uid

        await world.cluster.delete(StatefulSet, "web", "default")
        await asyncio.sleep(20)
        assert await claims(world) == {}
        assert await pods(world) == []

    run(collecting, scenario)


def test_a_failed_pod_is_made_anew_under_its_name() -> None:
    order = iter(range(100))

    def fate_of(pod: Pod) -> Fate:
        return Fate(run_s=5.0 if next(order) == 0 else None, exit_code=1)

    async def scenario(world: World) -> None:
        await make(world, StatefulSet, replicas=1)
        await asyncio.sleep(20)
        (pod,) = await pods(world)
        assert (pod.metadata.name, pod.status.phase) == ("web-0", "Running")

    run(controllers(fate_of), scenario)


def test_an_adopted_pod_gets_the_labels_that_name_it() -> None:
    async def scenario(world: World) -> None:
        await world.cluster.create(
            Pod, {**template(), "metadata": {"name": "web-0", "labels": LABELS}}, "default"
        )
        await make(world, StatefulSet, replicas=1, updateStrategy={"type": "OnDelete"})
        await asyncio.sleep(10)

        (pod,) = await pods(world)
        assert pod.metadata.owner_references[0].name == "web"
        assert pod.metadata.labels["statefulset.kubernetes.io/pod-name"] == "web-0"

    run(controllers(), scenario)


@pytest.mark.parametrize("policy", ["OrderedReady", "Parallel"])
@pytest.mark.parametrize("seed", range(6))
def test_an_update_takes_one_pod_at_a_time_and_no_name_is_ever_used_twice(seed: int, policy: str) -> None:
    rng = random.Random(seed)
    replicas = rng.randint(2, 6)

    async def scenario(world: World) -> None:
        await make(world, StatefulSet, replicas=replicas, podManagementPolicy=policy)
        await asyncio.sleep(40)
        for step in range(300):
            if step % 100 == 0:
                await edit(world, StatefulSet, template=template(f"image{rng.randint(0, 9)}"))
            await asyncio.sleep(0.25)
            found = await pods(world)
            up = [pod for pod in found if pod_health.is_active(pod) and pod_health.is_ready(pod)]
            assert len(up) >= replicas - 1
            assert {pod.metadata.name for pod in found} <= {f"web-{n}" for n in range(replicas)}

        await asyncio.sleep(60)
        status = (await fetch(world, StatefulSet)).status
        assert (status.updated_replicas, status.available_replicas) == (replicas, replicas)

    def fate_of(pod: Pod) -> Fate:
        return Fate(ready_s=rng.choice([0.3, 2.0]), stop_s=rng.choice([0.1, 3.0]))

    run(controllers(fate_of), scenario)


def test_a_bound_that_is_no_percentage_is_reported() -> None:
    async def scenario(world: World) -> None:
        strategy: dict[str, Any] = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "most"}}
        await make(world, StatefulSet, replicas=1, updateStrategy=strategy)
        await asyncio.sleep(10)
        assert "maxUnavailable: 'most'" in (await events_of(world, "InvalidSpec"))[0].message

    run(controllers(), scenario)


def test_pods_tell_the_prefix_of_their_names_as_all_pods_of_workloads_do() -> None:
    async def scenario(world: World) -> None:
        await make(world, StatefulSet, replicas=1)
        await asyncio.sleep(5)

        (pod,) = await pods(world)
        assert (pod.metadata.name, pod.metadata.generate_name) == ("web-0", "web-")

    run(controllers(), scenario)


def owner_of(kind: str, name: str, uid: str, *, controller: bool = True) -> OwnerReference:
    version = "v1" if kind == "Pod" else "apps/v1"
    return OwnerReference(
        api_version=version,
        kind=kind,
        name=name,
        uid=uid,
        controller=controller,
        block_owner_deletion=controller,
    )


OURS, STRANGE = owner_of("StatefulSet", "web", "set"), owner_of("Other", "x", "o")


@pytest.mark.parametrize(
    ("present", "wanted"),
    [
        pytest.param([], [OURS], id="the set is its controller"),
        pytest.param(
            [owner_of("StatefulSet", "web", "set", controller=False)], [OURS], id="also where it only owned"
        ),
        pytest.param([STRANGE], [STRANGE], id="who has another controller is left alone"),
        pytest.param([STRANGE, OURS], [STRANGE], id="and not owned besides"),
        pytest.param([OURS], [OURS], id="nothing is to be done"),
        *[
            pytest.param([stale], [stale], id=f"of an earlier {stale.kind} of that name")
            for stale in (owner_of("StatefulSet", "web", "before"), owner_of("Pod", "web-0", "before"))
        ],
    ],
)
def test_owners_of_a_claim_that_goes_with_its_set(
    present: list[OwnerReference], wanted: list[OwnerReference]
) -> None:
    policy = ClaimRetentionPolicy(when_deleted="Delete")
    spec = StatefulSetSpec(persistent_volume_claim_retention_policy=policy)
    obj = StatefulSet(metadata=ObjectMeta(name="web", uid="set"), spec=spec)

    assert statefulset.wanted_owners(obj, None, present, ["pod"]) == wanted


def test_a_set_that_takes_over_the_claims_of_its_pods_says_so() -> None:
    async def scenario(world: World) -> None:
        await make(world, StatefulSet, replicas=1, volumeClaimTemplates=CLAIMS)
        await asyncio.sleep(5)
        assert not await events_of(world, "SuccessfulUpdate")

        await edit(world, StatefulSet, persistentVolumeClaimRetentionPolicy={"whenDeleted": "Delete"})
        await asyncio.sleep(5)

        (told,) = await events_of(world, "SuccessfulUpdate")
        assert told.message == "Update Pod web-0 in StatefulSet web successful"

    run(controllers(), scenario)
