"""The profile controller on an in-process cluster: rounds, limits, refusals and races."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, TypeVar

from koordinator import clock as clocks
from koordinator.api import crd, labels
from koordinator.api.core import Namespace, Pod
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.groups import ClusterColocationProfile, CustomResourceDefinition
from koordinator.api.meta import Object
from koordinator.cluster import errors
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import registry
from koordinator.manager.manager import Manager
from koordinator.manager.options import ManagerOptions, ProfileControllerOptions
from koordinator.simulate import virtual_time

GATES = ",".join(
    [
        *("ColocationProfileController=true", "PodMutatingWebhook=false", "PodValidatingWebhook=false"),
        *("ElasticMutatingWebhook=false", "ElasticValidatingWebhook=false"),
    ]
)
T = TypeVar("T", bound=Object)
MANAGED = {labels.CONTROLLER_MANAGED: "true"}
Scenario = Callable[[MemoryCluster], Awaitable[None]]


def run(scenario: Scenario, *, cluster_type: type[MemoryCluster] = MemoryCluster, **options: Any) -> None:
    async def main(clock: clocks.LoopClock) -> None:
        cluster = cluster_type(registry.in_memory(clock, checks=False))
        for manifest in crd.manifests():
            await cluster.create(CustomResourceDefinition, manifest)
        known = {ns.metadata.name for ns in (await cluster.list(Namespace)).items}
        for name in {"default", "team"} - known:
            await cluster.create(Namespace, {"metadata": {"name": name, "labels": {"own": name}}})
        reported = ManagerOptions(
            controllers=("colocationprofile",), profile_controller=ProfileControllerOptions(**options)
        )
        manager = Manager(cluster, reported, FeatureGates.of(Component.MANAGER, GATES))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(manager.run())
            await asyncio.sleep(1)
            await scenario(cluster)
            task.cancel()

    virtual_time.run_virtual(main)


async def create_pod(cluster: MemoryCluster, name: str, namespace: str = "default", **rest: Any) -> None:
    body: dict[str, Any] = {
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "x"}], **rest},
        "status": {"phase": "Pending"},
    }
    await cluster.create(Pod, body, namespace)


async def create_profile(cluster: MemoryCluster, name: str = "batch", **spec: Any) -> None:
    body = {
        "metadata": {"name": name, "labels": dict(MANAGED)},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, **spec},
    }
    await cluster.create(ClusterColocationProfile, body)
    await asyncio.sleep(1)


async def values(cluster: MemoryCluster, key: str, namespace: str = "default") -> dict[str, str]:
    found = (await cluster.list(Pod, namespace)).items
    return {pod.metadata.name: pod.metadata.labels.get(key, "") for pod in found}


async def events(cluster: MemoryCluster, reason: str) -> list[str]:
    found = await cluster.request("GET", "/api/v1/events")
    return [event["message"] for event in found["items"] if event["reason"] == reason]


def test_pods_that_wait_get_what_the_profile_says_and_no_others() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        await create_pod(cluster, "waits")
        await create_pod(cluster, "placed", nodeName="n1")
        await create_pod(cluster, "elsewhere", "team")
        await create_profile(
            cluster,
            namespaceSelector={"matchLabels": {"kubernetes.io/metadata.name": "default"}},
            qosClass="BE",
            koordinatorPriority=7,
            labelSuffixes={"app": "-batch"},
            schedulerName="koord-scheduler",
            priorityClassName="koord-batch",
        )

        found = await cluster.get(Pod, "waits", "default")
        assert found.metadata.labels == {
            "app": "web-batch",
            labels.QOS_CLASS: "BE",
            labels.PRIORITY: "7",
        }
        assert found.spec.scheduler_name != "koord-scheduler" and not found.spec.priority_class_name
        assert (await cluster.get(Pod, "placed", "default")).metadata.labels == {"app": "web"}
        assert await values(cluster, "app", "team") == {"elsewhere": "web"}
        (message,) = await events(cluster, "ColocationProfileApplied")
        assert message.startswith(
            "ClusterColocationProfile batch changed labels app, koordinator.sh/priority"
        )

        await create_pod(cluster, "late")
        await asyncio.sleep(31)
        assert (await values(cluster, labels.QOS_CLASS))["late"] == "BE"

    run(scenario)


def test_an_hour_of_rounds_appends_a_suffix_once_and_mends_what_others_changed() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        await create_pod(cluster, "waits")
        await create_profile(cluster, "a", labelSuffixes={"app": "-1"}, selector={})
        await create_profile(cluster, "b", labelSuffixes={"app": "-2"}, labels={"team": "b"}, selector={})
        await cluster.patch(Pod, "waits", {"metadata": {"labels": {"team": "x"}}}, "default")
        await asyncio.sleep(3_600)

        assert (await cluster.get(Pod, "waits", "default")).metadata.labels == {"app": "web-1-2", "team": "b"}
        assert len(await events(cluster, "ColocationProfileApplied")) <= 3

    run(scenario)


def test_a_share_of_the_pods_stays_that_share() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        for number in range(60):
            await create_pod(cluster, f"p{number}")
        await create_profile(cluster, probability="30%", labels={"batch": "1"})
        await asyncio.sleep(60)
        first = await values(cluster, "batch")
        assert 8 <= list(first.values()).count("1") <= 28

        await asyncio.sleep(3_600)
        assert await values(cluster, "batch") == first

        await cluster.patch(ClusterColocationProfile, "batch", {"spec": {"probability": 100}})
        await asyncio.sleep(5)
        assert set((await values(cluster, "batch")).values()) == {"1"}

    run(scenario, update_pod_qps=1_000.0)


def test_writes_keep_to_their_rate() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        for number in range(50):
            await create_pod(cluster, f"p{number}")
        await create_profile(cluster, labels={"batch": "1"})
        assert list((await values(cluster, "batch")).values()).count("1") <= 15
        await asyncio.sleep(2)
        assert list((await values(cluster, "batch")).values()).count("1") <= 35
        await asyncio.sleep(10)
        assert set((await values(cluster, "batch")).values()) == {"1"}

    run(scenario, update_pod_burst=5)


def test_a_patch_reaches_the_whole_pod() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        await create_pod(cluster, "waits")
        patch = {"metadata": {"annotations": {"a": "1"}}, "spec": {"terminationGracePeriodSeconds": 5}}
        await create_profile(cluster, patch=patch)

        found = await cluster.request("GET", "/api/v1/namespaces/default/pods/waits")
        assert found["metadata"]["annotations"] == {"a": "1"}
        assert found["spec"]["terminationGracePeriodSeconds"] == 5
        assert len(found["spec"]["containers"]) == 1

    run(scenario)


def test_a_profile_that_is_of_no_use_says_so_once() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        await create_pod(cluster, "waits")
        await create_profile(cluster, "broken", probability="many")
        await asyncio.sleep(300)
        (message,) = await events(cluster, "ColocationProfileInvalid")
        assert message == "changes no pod: spec.probability: 'many' is neither a number nor N%"

        await cluster.patch(
            ClusterColocationProfile, "broken", {"spec": {"labels": {"batch": "1"}, "probability": 100}}
        )
        await asyncio.sleep(1)
        assert await values(cluster, "batch") == {"waits": "1"}

    run(scenario)


class Stubborn(MemoryCluster):
    """Refuses some pods for good, and lets every third patch of the others lose a race."""

    tried: ClassVar[Counter[str]] = Counter()

    async def patch(self, view: type[T], name: str, patch: Any, namespace: str = "", **rest: Any) -> T:
        if view is Pod:
            self.tried[name] += 1
            if name.startswith("stubborn"):
                raise errors.Invalid("labels.koordinator.sh/qosClass: field is immutable")
            if self.tried[name] == 1 and name.endswith("3"):
                raise errors.Conflict("the object has been modified")
        return await super().patch(view, name, patch, namespace, **rest)


def test_refusals_are_reported_and_not_repeated_for_a_while_and_lost_races_are() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        for number in range(6):
            await create_pod(cluster, f"p{number}")
        for name in ("stubborn1", "stubborn2"):
            await create_pod(cluster, name)
        await create_profile(cluster, qosClass="BE", labels={"batch": "1"})
        await asyncio.sleep(100)

        found = await values(cluster, "batch")
        assert {name for name, value in found.items() if not value} == {"stubborn1", "stubborn2"}
        (message,) = await events(cluster, "ColocationProfileRefused")
        assert message.startswith(
            "2 pods could not be changed, default/stubborn1 for one: labels.koordinator"
        )
        assert Stubborn.tried["stubborn1"] == 1 and Stubborn.tried["p3"] == 2

        await asyncio.sleep(300)
        assert Stubborn.tried["stubborn1"] == 2

    run(scenario, cluster_type=Stubborn)


def test_only_managed_profiles_count_unless_all_do() -> None:
    async def scenario(cluster: MemoryCluster) -> None:
        await create_pod(cluster, "waits")
        body = {
            "metadata": {"name": "plain"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "labels": {"batch": "1"}},
        }
        await cluster.create(ClusterColocationProfile, body)
        await asyncio.sleep(40)
        assert await values(cluster, "batch") == {"waits": ""}

        await cluster.patch(ClusterColocationProfile, "plain", {"metadata": {"labels": MANAGED}})
        await asyncio.sleep(1)
        assert await values(cluster, "batch") == {"waits": "1"}

    run(scenario)
