"""Instances of the manager on one API server, and users whose requests about quotas reach one of them."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from koordinator import clock as clocks
from koordinator.api import crd
from koordinator.api.core import Namespace
from koordinator.api.groups import CustomResourceDefinition
from koordinator.api.sigs import ElasticQuota
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory
from koordinator.local import registry
from koordinator.manager.metrics import ManagerMetrics
from koordinator.manager.quota.validation import QuotaRules
from koordinator.manager.webhooks import quota_admission
from koordinator.manager.webhooks.quota_admission import SharedWeightMetric
from koordinator.manager.webhooks.quota_topology import QuotaTopology
from koordinator.manager.webhooks.review import AdmissionRequest, AdmissionVerdict, GroupVersionResource
from koordinator.simulate import virtual_time
from tests.manager.quota.distant import Cluster

MANIFESTS = [m for m in crd.manifests() if m["spec"]["names"]["kind"] == "ElasticQuota"]
RESOURCE = GroupVersionResource(resource="elasticquotas")
Body = dict[str, Any]


class Instance:
    """One instance of the manager, and users whose requests reach this one."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.factory = InformerFactory(cluster, random.Random(0))
        self.events = EventRecorder(cluster, "koord-manager", rng=random.Random(0))
        self.topology = QuotaTopology(self.factory, cluster.clock)
        self.metrics = ManagerMetrics(cluster.clock)
        look_up = quota_admission.ParentLookUp(cluster, self.topology)
        self.mutating = quota_admission.QuotaMutatingHandler(self.topology, look_up)
        self.validating = quota_admission.QuotaValidatingHandler(self.topology, QuotaRules(), look_up)
        quota_admission.ConflictWatch(self.topology, QuotaRules(), self.events)
        SharedWeightMetric(self.factory, self.metrics.quota_shared_weight)

    async def ask(
        self, operation: str, body: Body | None, old: Body | None = None, *, dry_run: bool = False
    ) -> AdmissionVerdict:
        """The verdict alone: nothing is stored."""
        metadata = (body or old or {})["metadata"]
        request = AdmissionRequest(
            resource=RESOURCE,
            operation=operation,
            name=metadata["name"],
            namespace=metadata["namespace"],
            object=body,
            old_object=old,
            dry_run=dry_run,
        )
        if operation == "CREATE":
            completed = await self.mutating(request)
            if not completed.allowed:
                return completed
            request = msgspec.structs.replace(request, object=completed.obj)
        return await self.validating(request)

    async def create(self, body: Body, *, stored: bool = True) -> str:
        """Why it is refused; empty when it was allowed (and stored, unless something else refuses it)."""
        verdict = await self.ask("CREATE", body)
        if verdict.allowed and stored:
            await self.cluster.create(ElasticQuota, body, body["metadata"]["namespace"])
        return verdict.message

    async def update(self, body: Body, *, stored: bool = True) -> str:
        old = await self.stored(body["metadata"]["name"], body["metadata"]["namespace"])
        verdict = await self.ask("UPDATE", body, old)
        if verdict.allowed and stored:
            metadata = {}
            for field in ("labels", "annotations"):
                gone: Body = dict.fromkeys(old["metadata"].get(field, {}))
                metadata[field] = gone | body["metadata"][field]
            patch = {"metadata": metadata, "spec": body["spec"]}
            name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
            await self.cluster.patch(ElasticQuota, name, patch, namespace)
        return verdict.message

    async def delete(self, name: str, namespace: str = "quotas", *, stored: bool = True) -> str:
        verdict = await self.ask("DELETE", None, await self.stored(name, namespace))
        if verdict.allowed and stored:
            await self.cluster.delete(ElasticQuota, name, namespace)
        return verdict.message

    async def stored(self, name: str, namespace: str = "quotas") -> Body:
        path = f"/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/{namespace}/elasticquotas/{name}"
        return await self.cluster.request("GET", path)


def run(scenario: Callable[..., Awaitable[None]], *, instances: int = 1) -> None:
    """A scenario with some instances on one API server, all caches filled."""

    async def main(clock: clocks.LoopClock) -> None:
        backend = registry.in_memory(clock, checks=False)
        found = [Instance(Cluster(backend, random.Random(0))) for _ in range(instances)]
        cluster = found[0].cluster
        for manifest in MANIFESTS:
            await cluster.create(CustomResourceDefinition, manifest)
        for name in ("quotas", "elsewhere"):
            await cluster.create(Namespace, {"metadata": {"name": name}})
        async with asyncio.TaskGroup() as group:
            notifying = [group.create_task(each.events.run()) for each in found]
            for each in found:
                each.factory.start(group)
                await each.factory.wait_synced()
            await scenario(*found)
            for task in notifying:
                task.cancel()
            for each in found:
                await each.factory.stop()

    virtual_time.run_virtual(main)
