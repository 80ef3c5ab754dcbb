"""Admission of quotas, and of pods to quotas: CPU time per request, and how it grows with the number of quotas.

    python -m benchmarks.quota_admission [--sizes 100,1000,10000]

Two trees of each size: flat (one parent with all others below it, the worst case for rules about siblings) and
deep (ten children per parent). Requests go through `review.review`, JSON to JSON, on full caches; those of
evaluation write to the in-process registry. Then what quota profiles cost with 10,000 nodes and 20 profiles.
"""

import argparse
import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec

from koordinator.api import crd, labels
from koordinator.api.affinity import LabelSelector
from koordinator.api.core import Namespace, Node
from koordinator.api.decode import from_builtins
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.groups import CustomResourceDefinition
from koordinator.api.sigs import ElasticQuota
from koordinator.clock import SystemClock
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import registry
from koordinator.manager.manager import Manager
from koordinator.manager.quota import profile_controller
from koordinator.manager.quota.profile_controller import NodeTotals
from koordinator.manager.webhooks import review, table

GATES = FeatureGates.of(Component.MANAGER, "EnableQuotaAdmission=true")
ROUNDS = 5
REQUESTS = 200
NAMESPACE = "quotas"
FAN_OUT = 10
NODES, PROFILES = 10_000, 20


def quota(name: str, parent: str, *, is_parent: bool = False, low: int = 1) -> dict[str, Any]:
    own = {labels.QUOTA_IS_PARENT: "true" if is_parent else "false", labels.QUOTA_PARENT: parent}
    amounts = {"cpu": str(low), "memory": f"{low}Gi", "kubernetes.io/batch-cpu": str(low * 1000)}
    most = {"cpu": "1000000", "memory": "1000000Gi", "kubernetes.io/batch-cpu": "1000000000"}
    return {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "ElasticQuota",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": own, "annotations": {}},
        "spec": {"min": amounts, "max": most},
    }


def flat(count: int) -> Iterator[dict[str, Any]]:
    """One parent, all others below it."""
    yield quota("q0", labels.ROOT_QUOTA_NAME, is_parent=True, low=count * 10)
    for number in range(1, count):
        yield quota(f"q{number}", "q0")


def deep(count: int) -> Iterator[dict[str, Any]]:
    """Ten children per parent, each sure of what its children are and some more."""
    below = [0] * count
    for number in range(count - 1, -1, -1):
        below[number] += 1
        if number:
            below[(number - 1) // FAN_OUT] += below[number]
    for number in range(count):
        parent = f"q{(number - 1) // FAN_OUT}" if number else labels.ROOT_QUOTA_NAME
        yield quota(f"q{number}", parent, is_parent=FAN_OUT * number + 1 < count, low=below[number] * 10)


def request(
    operation: str,
    body: dict[str, Any] | None,
    old: dict[str, Any] | None = None,
    *,
    resource: str = "elasticquotas",
    dry_run: bool = True,
) -> bytes:
    metadata = (body or old or {})["metadata"]
    return msgspec.json.encode(
        {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": "1",
                "resource": {"resource": resource},
                "operation": operation,
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "object": body,
                "oldObject": old,
                "dryRun": dry_run,
            },
        }
    )


def pod(name: str, named: str) -> dict[str, Any]:
    requests = {"cpu": "10m", "memory": "1Mi"}
    return {
        "metadata": {"name": name, "namespace": "shop", "labels": {labels.QUOTA_NAME: named}},
        "spec": {"containers": [{"name": "c", "image": "x", "resources": {"requests": requests}}]},
    }


async def per_request_us(call: Callable[[int], Awaitable[Any]], count: int = REQUESTS) -> float:
    """CPU time of one call, the best of some rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        started_s = time.process_time()
        for number in range(count):
            await call(number)
        best = min(best, (time.process_time() - started_s) / count)
    return best * 1e6


class Bench:
    """A manager on a cluster with a tree."""

    def __init__(self, cluster: MemoryCluster, manager: Manager, tree: list[dict[str, Any]]) -> None:
        self.cluster, self.manager, self.tree = cluster, manager, tree

    async def allowed(self, path: str, body: bytes, expected: bool = True) -> None:
        answer = msgspec.json.decode(await review.review(self.manager.handlers[path], body))
        assert answer["response"]["allowed"] is expected, answer["response"]["status"]

    def _asking(self, body: bytes, is_allowed: bool) -> Callable[[int], Awaitable[None]]:
        return lambda _: self.allowed(table.VALIDATE_QUOTA, body, is_allowed)

    async def figures(self) -> dict[str, float]:
        leaf, count = self.tree[-1], len(self.tree)
        parent = leaf["metadata"]["labels"][labels.QUOTA_PARENT]
        stored = await self._stored(leaf)
        changed = {**stored, "spec": {**stored["spec"], "min": {**stored["spec"]["min"], "cpu": "2"}}}
        greedy = quota("new", parent, low=count * 1_000)
        completed = request("CREATE", {**quota("new", parent)})
        figures = {
            "complete": await per_request_us(lambda _: self.allowed(table.MUTATE_QUOTA, completed)),
            "create": await per_request_us(lambda _: self.allowed(table.VALIDATE_QUOTA, completed)),
        }
        for name, body, is_allowed in (
            ("update", request("UPDATE", changed, stored), True),
            ("delete", request("DELETE", None, stored), True),
            ("refused", request("CREATE", greedy), False),
        ):
            figures[name] = await per_request_us(self._asking(body, is_allowed), 20)
        return figures | await self._pods(leaf["metadata"]["name"])

    async def _pods(self, leaf: str) -> dict[str, float]:
        """Whole pod validations: which quota, may it, and (but for a dry run) a reservation."""
        tried, meant = (
            request("CREATE", pod("p", leaf), resource="pods", dry_run=dry_run) for dry_run in (True, False)
        )

        async def together(_: int) -> None:
            await asyncio.gather(*(self.allowed(table.VALIDATE_POD, meant) for _ in range(100)))

        return {
            "pod, dry run": await per_request_us(lambda _: self.allowed(table.VALIDATE_POD, tried)),
            "pod alone": await per_request_us(lambda _: self.allowed(table.VALIDATE_POD, meant), 50),
            "pod of 100": await per_request_us(together, 3) / 100,
        }

    async def _stored(self, body: dict[str, Any]) -> dict[str, Any]:
        path = f"/apis/{body['apiVersion']}/namespaces/{NAMESPACE}/elasticquotas/{body['metadata']['name']}"
        return await self.cluster.request("GET", path)


async def measure(tree: list[dict[str, Any]]) -> dict[str, float]:
    cluster = MemoryCluster(registry.in_memory(SystemClock(), checks=False))
    for manifest in crd.manifests():
        await cluster.create(CustomResourceDefinition, manifest)
    await cluster.create(Namespace, {"metadata": {"name": NAMESPACE}})
    for body in tree:
        await cluster.create(ElasticQuota, msgspec.json.decode(msgspec.json.encode(body)), NAMESPACE)
    manager = Manager(cluster, gates=GATES)
    async with manager.following():
        return await Bench(cluster, manager, tree).figures()


def node(number: int, cpu: int = 64) -> Node:
    body = {
        "metadata": {"name": f"n{number}", "labels": {"pool": f"p{number % PROFILES}", "zone": "a"}},
        "status": {
            "allocatable": {
                "cpu": str(cpu),
                "memory": "256Gi",
                "pods": "110",
                "kubernetes.io/batch-cpu": "12345",
                "kubernetes.io/batch-memory": "100Gi",
            },
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    return from_builtins(body, Node)


def profiles() -> dict[str, float]:
    """Microseconds of what nodes cost the quotas of profiles."""
    totals = NodeTotals(lambda _: None)
    for number in range(PROFILES):
        selector = from_builtins({"matchLabels": {"pool": f"p{number}"}}, LabelSelector)
        totals.select(f"quotas/p{number}", selector)
    nodes = [node(number) for number in range(NODES)]

    def timed(call: Callable[[int], Any], count: int) -> float:
        started_s = time.process_time()
        for number in range(count):
            call(number)
        return (time.process_time() - started_s) / count * 1e6

    first = timed(lambda number: totals.put(nodes[number]), NODES)
    changed = [node(number, 32) for number in range(1_000)]
    return {
        "node appears": first,
        "heartbeat": timed(
            lambda number: profile_controller.is_heartbeat(nodes[number], nodes[number]), NODES
        ),
        "node changes": timed(lambda number: totals.put(changed[number]), 1_000),
        "a profile's sums": timed(lambda number: totals.sums(f"quotas/p{number % PROFILES}"), 1_000),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="100,1000,10000")
    sizes = [int(text) for text in parser.parse_args().sizes.split(",")]
    random.seed(0)
    for shape in (flat, deep):
        print(f"{shape.__name__} tree: µs of CPU per request")
        heads: list[str] = []
        for size in sizes:
            figures = asyncio.run(measure(list(shape(size))))
            if not heads:
                heads = list(figures)
                print("quotas".rjust(8), *(head.rjust(12) for head in heads))
            print(f"{size:8}", *(f"{figures[head]:12.0f}" for head in heads), flush=True)
    print(f"\nquota profiles: µs of CPU, {NODES:,} nodes, {PROFILES} profiles")
    for name, figure in profiles().items():
        print(f"{name:>20} {figure:8.1f}")


if __name__ == "__main__":
    main()
