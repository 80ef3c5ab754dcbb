"""Quota profiles on an in-process cluster: the quota follows its nodes, and nothing is written when it does."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from koordinator import clock as clocks
from koordinator.api import crd, labels
from koordinator.api.core import Namespace, Node
from koordinator.api.groups import CustomResourceDefinition, ElasticQuotaProfile
from koordinator.api.meta import Object
from koordinator.api.sigs import ElasticQuota
from koordinator.cluster import errors
from koordinator.cluster.memory import MemoryCluster
from koordinator.cluster.supervise import strictly
from koordinator.local import registry
from koordinator.manager.manager import Manager
from koordinator.manager.options import ManagerOptions
from koordinator.simulate import virtual_time

NAMESPACE = "quotas"


class Cluster(MemoryCluster):
    """Counts writes of quotas, and refuses them while told so."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.writes = 0
        self.refusal = ""
        self.is_ahead = False
        """Whether quotas are there before our caches know, as the webhook then says."""

    async def create(self, view: type[Any], obj: Mapping[str, Any], namespace: str = "") -> Any:
        self._count(view)
        found = await super().create(view, obj, namespace)
        if self.is_ahead and view is ElasticQuota:
            raise errors.BadRequest("AddQuota quota already exists")
        return found

    async def patch(self, view: type[Any], *rest: Any, **more: Any) -> Any:
        self._count(view)
        return await super().patch(view, *rest, **more)

    def _count(self, view: type[Object]) -> None:
        if view is ElasticQuota:
            self.writes += 1
            if self.refusal:
                raise errors.BadRequest(self.refusal)

    async def quota(self, name: str = "pool") -> ElasticQuota:
        return await self.get(ElasticQuota, name, NAMESPACE)

    async def reasons(self) -> dict[str, str]:
        """Reason -> message of the events so far."""
        found = await self.request("GET", f"/api/v1/namespaces/{NAMESPACE}/events")
        return {event["reason"]: event["message"] for event in found["items"]}


def run(scenario: Callable[[Cluster], Awaitable[None]]) -> None:
    async def main(clock: clocks.LoopClock) -> None:
        cluster = Cluster(registry.in_memory(clock, checks=False))
        for manifest in crd.manifests():
            await cluster.create(CustomResourceDefinition, manifest)
        await cluster.create(Namespace, {"metadata": {"name": NAMESPACE}})
        for name in ("n1", "n2"):
            await cluster.create(Node, node(name))
        options = ManagerOptions(controllers=("quotaprofile",))
        with strictly():
            async with asyncio.TaskGroup() as group:
                task = group.create_task(Manager(cluster, options).run())
                await scenario(cluster)
                task.cancel()

    virtual_time.run_virtual(main)


def node(name: str, pool: str = "a") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"pool": pool}},
        "status": {
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def profile(name: str = "pool-a", **spec: Any) -> dict[str, Any]:
    body = {"quotaName": "pool", "nodeSelector": {"matchLabels": {"pool": "a"}}, **spec}
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": body}


def total(quota: ElasticQuota, key: str = labels.QUOTA_TOTAL_RESOURCE) -> dict[str, str]:
    found: dict[str, str] = msgspec.json.decode(quota.metadata.annotations[key])
    return found


def test_a_quota_follows_the_nodes_of_its_profile_within_seconds_and_rests_when_they_do() -> None:
    async def scenario(cluster: Cluster) -> None:
        given = profile(quotaLabels={labels.QUOTA_IS_PARENT: "true"}, resourceRatio="0.5")
        await cluster.create(ElasticQuotaProfile, given, NAMESPACE)
        await asyncio.sleep(2)
        quota = await cluster.quota()
        noted = await cluster.get(ElasticQuotaProfile, "pool-a", NAMESPACE)
        assert quota.spec.min == {"cpu": "4", "memory": "8Gi"}
        assert total(quota) == {"cpu": "4", "memory": "8Gi", "pods": "110"}
        assert quota.metadata.labels == {
            labels.QUOTA_PROFILE: "pool-a",
            labels.QUOTA_IS_PARENT: "true",
            labels.QUOTA_IS_ROOT: "true",
            labels.QUOTA_TREE_ID: noted.metadata.labels[labels.QUOTA_TREE_ID],
        }

        await cluster.create(Node, node("n3"))
        await cluster.patch(Node, "n2", {"spec": {"unschedulable": True}})
        await asyncio.sleep(2)
        quota = await cluster.quota()
        assert quota.spec.min["cpu"] == "6"
        assert total(quota, labels.QUOTA_UNSCHEDULABLE_RESOURCE)["cpu"] == "2"

        writes = cluster.writes
        for _ in range(6):
            heartbeat = {"lastHeartbeatTime": clocks.rfc3339(cluster.clock.now()), "type": "Ready"}
            status = {"conditions": [{**heartbeat, "status": "True"}]}
            await cluster.patch(Node, "n1", {"status": status}, subresource="status")
            await asyncio.sleep(10)
        assert cluster.writes == writes

    run(scenario)


def test_what_users_change_or_delete_of_the_quota_is_put_right_and_their_own_labels_stay() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(ElasticQuotaProfile, profile(), NAMESPACE)
        await asyncio.sleep(2)
        patch = {"metadata": {"labels": {"mine": "yes"}}, "spec": {"min": {"cpu": "1", "odd": "1"}}}
        await cluster.patch(ElasticQuota, "pool", patch, NAMESPACE)
        await asyncio.sleep(2)
        quota = await cluster.quota()
        assert quota.spec.min == {"cpu": "8", "memory": "16Gi"}
        assert quota.metadata.labels["mine"] == "yes"

        await cluster.delete(ElasticQuota, "pool", NAMESPACE)
        await asyncio.sleep(2)
        assert (await cluster.quota()).spec.min["cpu"] == "8"

        await cluster.delete(ElasticQuotaProfile, "pool-a", NAMESPACE)
        await asyncio.sleep(20)
        assert (await cluster.quota()).spec.min["cpu"] == "8", "a quota outlives its profile"

    run(scenario)


def test_a_refused_quota_is_reported_on_the_profile_and_tried_again() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.refusal = "quota team's min is more than there is"
        await cluster.create(ElasticQuotaProfile, profile(), NAMESPACE)
        await asyncio.sleep(3)
        assert 2 <= cluster.writes <= 3, "every 2 s, and when the tree id is noted"
        said = await cluster.reasons()
        assert said == {"CreateQuotaFailed": f"ElasticQuota quotas/pool: {cluster.refusal}"}

        cluster.refusal = ""
        await asyncio.sleep(2)
        assert (await cluster.quota()).spec.min["cpu"] == "8"

        cluster.refusal = "no"
        await cluster.create(Node, node("n3"))
        await asyncio.sleep(3)
        assert (await cluster.reasons())["UpdateQuotaFailed"] == "ElasticQuota quotas/pool: no"

    run(scenario)


def test_a_quota_that_is_there_before_the_cache_knows_is_no_failure() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.is_ahead = True
        await cluster.create(ElasticQuotaProfile, profile(), NAMESPACE)
        await asyncio.sleep(5)
        assert (await cluster.quota()).spec.min["cpu"] == "8"
        assert await cluster.reasons() == {}

    run(scenario)


def test_a_profile_that_cannot_be_kept_says_why_and_holds_up_nobody() -> None:
    async def scenario(cluster: Cluster) -> None:
        selector = {"matchExpressions": [{"key": "pool", "operator": "In"}]}
        await cluster.create(
            ElasticQuotaProfile, profile("broken", nodeSelector=selector, quotaName="other"), NAMESPACE
        )
        await cluster.create(ElasticQuotaProfile, profile(), NAMESPACE)
        await asyncio.sleep(30)

        said = await cluster.reasons()
        assert "ElasticQuotaProfile quotas/broken: spec.nodeSelector" in said["InvalidQuotaProfile"]
        assert "needs values" in said["InvalidQuotaProfile"]
        assert (await cluster.quota()).spec.min["cpu"] == "8"

    run(scenario)


def test_of_two_profiles_with_one_quota_the_older_keeps_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(ElasticQuotaProfile, profile(), NAMESPACE)
        await asyncio.sleep(2)
        await cluster.create(Node, node("b1", "b"))
        rival = profile("a-rival", nodeSelector={"matchLabels": {"pool": "b"}})
        await cluster.create(ElasticQuotaProfile, rival, NAMESPACE)
        await asyncio.sleep(30)

        said = await cluster.reasons()
        assert said["QuotaNameTaken"] == "no quota is kept: ElasticQuotaProfile pool-a keeps pool already"
        assert (await cluster.quota()).spec.min["cpu"] == "8"

        await cluster.delete(ElasticQuotaProfile, "pool-a", NAMESPACE)
        await asyncio.sleep(15)
        said = await cluster.reasons()
        assert (await cluster.quota()).spec.min["cpu"] == "4", said

    run(scenario)
