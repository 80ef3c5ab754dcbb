"""Migration jobs from their creation to their end: room first, then the eviction; limits, faults and restarts."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pytest

from koordinator.api import labels
from koordinator.api.core import Event, Pod
from koordinator.api.groups import PodDisruptionBudget
from koordinator.api.meta import Object, ObjectMeta
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.cluster import errors
from koordinator.cluster.protocol import Cluster, WatchEvent
from koordinator.cluster.write_through import ClusterWrite, WriteThrough
from koordinator.descheduler.migration import reservation_template
from koordinator.descheduler.migration.controller import SCAVENGE_PERIOD_S
from tests.cluster.faulty_cluster import Faults, FaultyCluster
from tests.descheduler.world import REST, World, config, run

T = TypeVar("T", bound=Object)
R = TypeVar("R")

LOOSE = {
    "maxMigratingPerWorkload": 3,
    "maxUnavailablePerWorkload": 3,
    "objectLimiters": {"workload": {"duration": "0s"}},
}


def test_a_pod_goes_when_room_for_its_successor_is_reserved_and_the_job_ends_when_that_is_ready() -> None:
    async def scenario(world: World) -> None:
        pods = await world.deployment("web", 4, "n0")
        world.elsewhere, world.reserves = "n1", False
        async with world.descheduling(config(args=LOOSE)):
            await world.migrate(pods[0])
            await asyncio.sleep(30)
            [reservation] = await world.reservations()
            assert reservation.spec.owners[0].controller is not None
            assert reservation.metadata.labels[labels.CREATED_BY] == "koord-descheduler"
            assert {pod.metadata.uid for pod in await world.pods()} == {pod.metadata.uid for pod in pods}

            world.reserves = True
            job = await world.ended()

        successor = next(pod for pod in await world.pods() if pod.spec.node_name == "n1")
        assert (job.status.phase, job.status.status, job.status.node_name) == ("Succeeded", "Complete", "n1")
        assert job.status.pod_ref is not None and job.status.pod_ref.name == successor.metadata.name
        assert pods[0].metadata.name not in {pod.metadata.name for pod in await world.pods()}
        by_type = {each.type: each for each in job.status.conditions}
        # The job's message says whose eviction is over; nobody probes conditions.
        assert (by_type["Eviction"].reason, by_type["Eviction"].message) == ("EvictComplete", "")
        assert {each.last_probe_time for each in job.status.conditions} == {None}

    run(scenario)


def test_room_that_never_comes_evicts_nobody_and_the_job_ends_by_its_ttl_with_its_reservation() -> None:
    async def scenario(world: World) -> None:
        pods = await world.deployment("web", 4, "n0")
        world.reserves = False
        async with world.descheduling(config(args=LOOSE)):
            await world.migrate(pods[0])
            job = await world.ended()
        assert (job.status.phase, job.status.reason) == ("Failed", "Timeout")
        assert not await world.reservations()
        assert {pod.metadata.uid for pod in await world.pods()} == {pod.metadata.uid for pod in pods}

    run(scenario)


@pytest.mark.parametrize("policy", ["Eviction", "Delete"])
@pytest.mark.parametrize(
    "options",
    [{"dryRun": ["All"]}, {"preconditions": {"resourceVersion": "1"}}, {"preconditions": {"uid": "x"}}],
)
def test_a_pod_that_the_delete_options_spare_stays(policy: str, options: dict[str, Any]) -> None:
    async def scenario(world: World) -> None:
        pods = await world.deployment("web", 4, "n0")
        async with world.descheduling(config(args={**LOOSE, "evictionPolicy": policy})):
            await world.migrate(pods[0], mode="EvictDirectly", deleteOptions=options)
            job = await world.ended()
        assert (job.status.phase, job.status.reason) == ("Failed", "Timeout")
        assert {pod.metadata.uid for pod in await world.pods()} == {pod.metadata.uid for pod in pods}

    run(scenario)


@pytest.mark.parametrize("after_s", [0.0, 0.6, 1.2, 2.5, 4.0, 6.0])
def test_a_job_goes_on_where_the_last_leader_left_it(after_s: float) -> None:
    async def scenario(world: World) -> None:
        pods = await world.deployment("web", 4, "n0")
        world.elsewhere = "n1"
        async with world.descheduling(config(args=LOOSE)) as first:
            await first.migration.prepare()
            assert not await first.migration.create(pods[0], "Test", "why not")
            await asyncio.sleep(after_s)
        async with world.descheduling(config(args=LOOSE)):
            [job] = await world.jobs()
            ended = await world.ended(job.metadata.name)
        assert ended.status.phase == "Succeeded"
        assert sorted(pod.spec.node_name for pod in await world.pods()) == ["n0", "n0", "n0", "n1"]

    run(scenario)


def test_a_disruption_budget_holds_a_job_back_until_it_allows_a_disruption() -> None:
    async def scenario(world: World) -> None:
        pods = await world.deployment("web", 4, "n0")
        selector = {"matchLabels": {"app": "web"}}
        budget = {"metadata": {"name": "web"}, "spec": {"minAvailable": 4, "selector": selector}}
        await world.cluster.create(PodDisruptionBudget, budget, "default")
        world.elsewhere = "n1"
        async with world.descheduling(config(args=LOOSE)):
            await world.migrate(pods[0])
            await asyncio.sleep(60)
            assert {pod.metadata.uid for pod in await world.pods()} == {pod.metadata.uid for pod in pods}
            events = [
                one.message for one in (await world.cluster.list(Event)).items if one.reason == "Evicting"
            ]
            assert any("disruption budget" in message for message in events)

            await world.cluster.patch(PodDisruptionBudget, "web", {"spec": {"minAvailable": 3}}, "default")
            assert (await world.ended()).status.phase == "Succeeded"

    run(scenario)


def test_arbitration_lets_jobs_of_a_node_pass_one_by_one_and_says_why_others_wait() -> None:
    async def scenario(world: World) -> None:
        pods = await world.deployment("web", 6, "n0")
        world.elsewhere, world.reserves = "n1", False
        async with world.descheduling(config(args={**LOOSE, "maxMigratingPerNode": 1})) as running:
            for number in (0, 1):
                await world.migrate(pods[number], f"move-{number}")
            await asyncio.sleep(5)
            [(waiting, why)] = running.migration.refused.items()
            assert why == "1 pods of node n0 are migrating, at most 1 may"

            # An edit does not get a job past arbitration.
            await world.cluster.patch(PodMigrationJob, waiting, {"metadata": {"labels": {"edited": "yes"}}})
            await asyncio.sleep(5)
            assert (await world.cluster.get(PodMigrationJob, waiting)).status.phase == ""

            world.reserves = True
            assert {(await world.ended(f"move-{n}")).status.phase for n in (0, 1)} == {"Succeeded"}

    run(scenario)


def test_a_pod_that_may_never_move_fails_its_job_with_the_reason() -> None:
    async def scenario(world: World) -> None:
        [pod] = await world.deployment("alone", 1, "n0")
        async with world.descheduling(config()):
            await world.migrate(pod)
            job = await world.ended()
        assert (job.status.phase, job.status.reason) == ("Failed", "ForbiddenMigratePod")
        assert "its workload has only 1 replicas" in job.status.message

    run(scenario)


class LateCluster(WriteThrough):
    """Whatever is written is watched before its answer arrives, or long after."""

    def __init__(self, inner: Cluster, answer_s: float, watch_s: float) -> None:
        super().__init__(inner)
        self._answer_s, self._watch_s = answer_s, watch_s

    async def watch(
        self, view: type[T], namespace: str = "", **options: Any
    ) -> AsyncIterator[Sequence[WatchEvent[T]]]:
        async for batch in self._inner.watch(view, namespace, **options):
            await asyncio.sleep(self._watch_s)
            yield batch

    async def _send(self, write: ClusterWrite | None, effect: Callable[[], Awaitable[R]]) -> R:
        result = await effect()
        await asyncio.sleep(self._answer_s)
        return result


@pytest.mark.parametrize(("answer_s", "watch_s"), [(3.0, 0.0), (0.0, 3.0)])
def test_a_verdict_is_written_and_told_once_however_late_its_answer_or_its_watch_event(
    answer_s: float, watch_s: float
) -> None:
    async def scenario(world: World) -> None:
        [pod] = await world.deployment("alone", 1, "n0")
        async with world.descheduling(config(), LateCluster(world.cluster, answer_s, watch_s)):
            await world.migrate(pod)
            await world.ended()
            await asyncio.sleep(60)
        told = [one for one in (await world.cluster.list(Event)).items if one.reason == "ForbiddenMigratePod"]
        assert [one.count for one in told] == [1]

    run(scenario)


class RefusingCluster(WriteThrough):
    """Refuses every write of one job."""

    def __init__(self, inner: Cluster, name: str) -> None:
        super().__init__(inner)
        self._name = name

    async def _send(self, write: ClusterWrite | None, effect: Callable[[], Awaitable[R]]) -> R:
        if write is not None and write.name == self._name:
            raise errors.Invalid(f"admission webhook: {self._name} is not to be changed")
        return await effect()


def test_a_job_that_cannot_be_written_holds_no_other_back() -> None:
    async def scenario(world: World) -> None:
        pods = await world.deployment("web", 6, "n0")
        world.elsewhere = "n1"
        async with world.descheduling(config(args=LOOSE), RefusingCluster(world.cluster, "move-0")):
            for number in (0, 1):
                await world.migrate(pods[number], f"move-{number}")
            assert (await world.ended("move-1")).status.phase == "Succeeded"
            assert (await world.cluster.get(PodMigrationJob, "move-0")).status.phase == ""

    run(scenario)


@pytest.mark.parametrize(
    "template", [{"spec": "web"}, {"metadata": [1]}, {"spec": {"template": {"spec": {"affinity": 5}}}}]
)
def test_a_template_that_is_none_is_told_in_the_jobs_status(template: dict[str, Any]) -> None:
    async def scenario(world: World) -> None:
        pods = await world.deployment("web", 4, "n0")
        async with world.descheduling(config(args=LOOSE)):
            await world.migrate(pods[0], reservationOptions={"template": template})
            await asyncio.sleep(10)
            job = await world.cluster.get(PodMigrationJob, "move")
            assert job.status.reason == "FailedCreateReservation"
            assert "spec.reservationOptions.template" in job.status.message
            assert (await world.ended()).status.reason == "Timeout"

    run(scenario)


class BlindCluster(LateCluster):
    """Its watches tell nothing while it is blind."""

    is_blind = False

    async def watch(
        self, view: type[T], namespace: str = "", **options: Any
    ) -> AsyncIterator[Sequence[WatchEvent[T]]]:
        async for batch in self._inner.watch(view, namespace, **options):
            if not self.is_blind:
                yield batch


@pytest.mark.parametrize("others", [[], [{"name": "tmp", "emptyDir": {}}]])
def test_room_without_claims_keeps_the_other_volumes_and_no_empty_list(others: list[dict[str, Any]]) -> None:
    claims = [{"name": "data", "persistentVolumeClaim": {"claimName": "d"}}, {"name": "e", "ephemeral": {}}]
    wire = {"metadata": {"namespace": "shop", "name": "db"}, "spec": {"volumes": [*claims, *others]}}
    job = PodMigrationJob(metadata=ObjectMeta(name="move", uid="uid-move"))

    made = reservation_template.reservation(job, wire, 0.0, without_claims=True)

    assert made["spec"]["template"]["spec"] == ({"volumes": others} if others else {})
    assert wire["spec"]["volumes"][:2] == claims


def test_a_job_that_vanished_unseen_counts_no_longer_than_it_could_have_lasted() -> None:
    async def scenario(world: World) -> None:
        pods = await world.deployment("web", 6, "n0")
        cluster = BlindCluster(world.cluster, 0.0, 0.0)
        async with world.descheduling(config(args=LOOSE), cluster) as running:
            migration, cluster.is_blind = running.migration, True
            await migration.prepare()
            assert await migration.create(pods[0], "test", "") == ""
            [job] = await world.jobs()
            await world.cluster.delete(PodMigrationJob, job.metadata.name)
            cluster.is_blind = False
            await migration.prepare()
            assert migration.refusal(pods[0])
            await asyncio.sleep(300 + 300 + SCAVENGE_PERIOD_S)
            await migration.prepare()
            assert not migration.refusal(pods[0])

    run(scenario)


def test_soft_eviction_only_marks_the_pod_and_the_job_ends_when_somebody_removes_it() -> None:
    async def scenario(world: World) -> None:
        pods = await world.deployment("web", 4, "n0")
        world.elsewhere = "n1"
        own = {"evictionPolicy": "SoftEviction", "defaultDeleteOptions": {"gracePeriodSeconds": 7}}
        async with world.descheduling(config(args={**LOOSE, **own})):
            await world.migrate(pods[0])
            await asyncio.sleep(30)
            name = pods[0].metadata.name
            marked = await world.cluster.get(Pod, name, "default")
            text = marked.metadata.annotations[labels.SOFT_EVICTION]
            assert '"reason":"NotSet"' in text and '"deleteOptions":{"gracePeriodSeconds":7}' in text
            await world.cluster.delete(Pod, name, "default")
            assert (await world.ended()).status.phase == "Succeeded"

    run(scenario)


def test_a_deleted_job_takes_its_reservation_along_and_old_jobs_are_swept() -> None:
    async def scenario(world: World) -> None:
        pods = await world.deployment("web", 4, "n0")
        world.reserves = False
        async with world.descheduling(config(args=LOOSE)):
            await world.migrate(pods[0], "one")
            await world.migrate(pods[1], "two", ttl="1m")
            await asyncio.sleep(10)
            await world.cluster.delete(PodMigrationJob, "one")
            await asyncio.sleep(2)
            assert len(await world.reservations()) == 1
            await asyncio.sleep(60 + 300 + SCAVENGE_PERIOD_S)
            assert not await world.jobs()

    run(scenario)


def test_jobs_past_their_time_are_swept_each_minute() -> None:
    async def scenario(world: World) -> None:
        pods = await world.deployment("web", 4, "n0")
        world.reserves = False
        async with world.descheduling(config(args=LOOSE)):
            await asyncio.sleep(235)
            await world.migrate(pods[0], ttl="1m")
            await asyncio.sleep(362)
            assert await world.jobs(), "past its time since 2 s"
            await asyncio.sleep(5)
            assert not await world.jobs(), "600 s after the start it was looked at"

    run(scenario)


@pytest.mark.parametrize("kind", ["example.com/v1 Game", "batch/v1 Job"], ids=["gone", "without scale"])
def test_evictions_of_a_workload_of_which_nothing_is_known_are_not_limited(kind: str) -> None:
    async def scenario(world: World) -> None:
        pods = [await foreign(world, name, kind) for name in ("one", "two")]
        async with world.descheduling(config(args={})):
            for pod in pods:
                await world.migrate(pod, pod.metadata.name, mode="EvictDirectly")
            for pod in pods:
                assert (await world.ended(pod.metadata.name, within_s=60)).status.phase == "Succeeded"

    run(scenario)


async def foreign(world: World, name: str, kind: str) -> Pod:
    """A pod that a user wants evicted, of a controller of which nobody can say how many replicas it has."""
    version, _, kind = kind.partition(" ")
    owner = {"apiVersion": version, "kind": kind, "name": "chess", "uid": "u", "controller": True}
    meta = {"name": name, "annotations": {labels.DESCHEDULER_EVICT: "true"}, "ownerReferences": [owner]}
    spec = {"nodeName": "n0", "schedulerName": "koord-scheduler", "containers": REST}
    return await world.cluster.create(Pod, {"metadata": meta, "spec": spec}, "default")


@pytest.mark.parametrize("seed", range(6))
def test_with_any_faults_of_the_api_no_pod_goes_without_a_place_and_all_jobs_end(seed: int) -> None:
    async def scenario(world: World) -> None:
        pods = await world.deployment("web", 6, "n0")
        world.elsewhere = "n1"
        rng = random.Random(seed)
        faulty = FaultyCluster(world.cluster, Faults.drawn(rng), rng)
        gone_without_place: list[str] = []
        placed: set[str] = set()

        async def watch_over() -> None:
            while True:
                present = {pod.metadata.name for pod in await world.pods()}
                rooms = {one.metadata.name for one in await world.reservations() if one.status.node_name}
                placed.update(
                    job.spec.pod_ref.name for job in await world.jobs() if job.metadata.uid in rooms
                )
                gone_without_place.extend({pod.metadata.name for pod in pods} - present - placed)
                await asyncio.sleep(0.1)

        watching = asyncio.create_task(watch_over())
        async with world.descheduling(config(args={**LOOSE, "maxMigratingPerNode": 2}), faulty):
            for number in (0, 1, 2):
                await world.migrate(pods[number], f"move-{number}")
            await asyncio.sleep(120)
            faulty.heal()
            for number in (0, 1, 2):
                await world.ended(f"move-{number}")
        watching.cancel()
        assert not gone_without_place
        await world.until(lambda now: len(now) == 6)

    run(scenario)
