"""ResourceQuotas as kube-apiserver 1.35 enforces them; the texts are its own."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from koordinator.clock import FixedClock
from koordinator.cluster import errors
from koordinator.cluster.protocol import PatchType
from koordinator.local import registry
from koordinator.local.registry import ObjectRegistry

Json = dict[str, Any]


@pytest.fixture
def api() -> ObjectRegistry:
    return registry.in_memory(FixedClock())


async def create(api: ObjectRegistry, plural: str, body: Json, group: str = "") -> Json:
    resource = api.resolve(group, "v1", plural)
    return (await api.create(resource, "default", {**body})).obj


async def quota(api: ObjectRegistry, hard: Json, name: str = "main", **spec: Any) -> None:
    await create(api, "resourcequotas", {"metadata": {"name": name}, "spec": {"hard": hard, **spec}})


def used(api: ObjectRegistry, name: str = "main") -> Json:
    status: Json = api.get(api.resolve("", "v1", "resourcequotas"), "default", name).obj["status"]
    return dict(status.get("used") or {})


def pod(name: str, resources: Json | None = None, **spec: Any) -> Json:
    container = {"name": "c", "image": "x", **({"resources": resources} if resources else {})}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


def service(name: str, kind: str) -> Json:
    return {"metadata": {"name": name}, "spec": {"type": kind, "ports": [{"port": 80}]}}


def claim(name: str, storage: str, storage_class: str | None = None) -> Json:
    spec: Json = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage}}}
    return {"metadata": {"name": name}, "spec": {**spec, "storageClassName": storage_class}}


MAIN = {"requests.cpu": "1", "limits.memory": "1Gi", "pods": "2", "count/configmaps": "1", "cpu": "2"}
FAST = "fast.storageclass.storage.k8s.io"
STORAGE = {
    "persistentvolumeclaims": "2",
    "requests.storage": "5Gi",
    f"{FAST}/requests.storage": "1Gi",
    f"{FAST}/persistentvolumeclaims": "1",
}
SERVICES = {"services": "3", "services.loadbalancers": "0", "services.nodeports": "1"}


@pytest.mark.parametrize(
    ("hard", "before", "plural", "body", "why"),
    [
        (
            MAIN,
            [],
            "pods",
            pod("a"),
            'pods "a" is forbidden: failed quota: main: must specify cpu for: c; limits.memory for: c; requests.cpu '
            "for: c",
        ),
        (
            MAIN,
            [],
            "pods",
            pod("a", {"requests": {"cpu": "500m"}}),
            'pods "a" is forbidden: failed quota: main: must specify limits.memory for: c',
        ),
        (
            MAIN,
            [],
            "pods",
            pod("a", {"requests": {"cpu": "1500m"}, "limits": {"memory": "2Gi"}}),
            'pods "a" is forbidden: exceeded quota: main, requested: limits.memory=2Gi,requests.cpu=1500m, used: '
            "limits.memory=0,requests.cpu=0, limited: limits.memory=1Gi,requests.cpu=1",
        ),
        (
            MAIN,
            [("pods", pod("a", {"requests": {"cpu": "500m"}, "limits": {"memory": "512Mi"}}))],
            "pods",
            pod("b", {"requests": {"cpu": "600m"}, "limits": {"memory": "512Mi"}}),
            'pods "b" is forbidden: exceeded quota: main, requested: requests.cpu=600m, used: requests.cpu=500m, '
            "limited: requests.cpu=1",
        ),
        (
            MAIN,
            [("configmaps", {"metadata": {"name": "one"}})],
            "configmaps",
            {"metadata": {"name": "two"}},
            'configmaps "two" is forbidden: exceeded quota: main, requested: count/configmaps=1, used: '
            "count/configmaps=1, limited: count/configmaps=1",
        ),
        (
            SERVICES,
            [],
            "services",
            service("a", "LoadBalancer"),
            'services "a" is forbidden: exceeded quota: main, requested: services.loadbalancers=1, used: '
            "services.loadbalancers=0, limited: services.loadbalancers=0",
        ),
        (
            SERVICES,
            [("services", service("b", "NodePort"))],
            "services",
            service("c", "NodePort"),
            'services "c" is forbidden: exceeded quota: main, requested: services.nodeports=1, used: '
            "services.nodeports=1, limited: services.nodeports=1",
        ),
        (
            STORAGE,
            [],
            "persistentvolumeclaims",
            claim("a", "6Gi"),
            'persistentvolumeclaims "a" is forbidden: exceeded quota: main, requested: requests.storage=6Gi, used: '
            "requests.storage=0, limited: requests.storage=5Gi",
        ),
        (
            STORAGE,
            [
                ("persistentvolumeclaims", claim("b", "2Gi")),
                ("persistentvolumeclaims", claim("d", "500Mi", "fast")),
            ],
            "persistentvolumeclaims",
            claim("e", "1Mi", "fast"),
            f'persistentvolumeclaims "e" is forbidden: exceeded quota: main, requested: {FAST}/'
            f"persistentvolumeclaims=1,persistentvolumeclaims=1, used: {FAST}/persistentvolumeclaims=1,"
            f"persistentvolumeclaims=2, limited: {FAST}/persistentvolumeclaims=1,persistentvolumeclaims=2",
        ),
        (
            {"requests.example.com/gpu": "1"},
            [],
            "pods",
            pod("x", {"requests": {"example.com/gpu": "2"}, "limits": {"example.com/gpu": "2"}}),
            'pods "x" is forbidden: exceeded quota: main, requested: requests.example.com/gpu=2, used: '
            "requests.example.com/gpu=0, limited: requests.example.com/gpu=1",
        ),
        (
            {"secrets": "0"},
            [],
            "secrets",
            {"metadata": {"name": "d"}},
            'secrets "d" is forbidden: exceeded quota: main, requested: secrets=1, used: secrets=0, limited: secrets=0',
        ),
        (
            {"requests.cpu": "1", "requests.memory": "1Gi"},
            [],
            "pods",
            pod(
                "a",
                initContainers=[{"name": "i", "image": "x"}],
                containers=[
                    {"name": "c", "image": "x", "resources": {"requests": {"cpu": "1"}}},
                    {"name": "d", "image": "x", "resources": {"requests": {"memory": "1Gi"}}},
                ],
            ),
            'pods "a" is forbidden: failed quota: main: must specify requests.cpu for: d,i; requests.memory for: c,i',
        ),
        (
            {"requests.cpu": "1"},
            [],
            "pods",
            pod(
                "a",
                {"requests": {"cpu": "1"}},
                initContainers=[{"name": "i", "image": "x", "resources": {"requests": {"cpu": "2"}}}],
            ),
            'pods "a" is forbidden: exceeded quota: main, requested: requests.cpu=2, used: requests.cpu=0, limited: '
            "requests.cpu=1",
        ),
    ],
)
async def test_what_would_exceed_a_quota_is_refused_in_the_words_of_kubernetes(
    api: ObjectRegistry, hard: Json, before: list[tuple[str, Json]], plural: str, body: Json, why: str
) -> None:
    await quota(api, hard)
    for kind, first in before:
        await create(api, kind, first)
    charged = used(api)

    with pytest.raises(errors.Forbidden) as refusal:
        await create(api, plural, body)

    assert refusal.value.message == why
    assert used(api) == charged


BEST_EFFORT, BURSTABLE = {}, {"requests": {"cpu": "100m"}}


@pytest.mark.parametrize(
    ("spec", "inside", "outside"),
    [
        ({"scopes": ["BestEffort"]}, pod("a"), pod("a", BURSTABLE)),
        ({"scopes": ["NotBestEffort"]}, pod("a", BURSTABLE), pod("a")),
        ({"scopes": ["Terminating"]}, pod("a", activeDeadlineSeconds=9), pod("a")),
        ({"scopes": ["NotTerminating"]}, pod("a"), pod("a", activeDeadlineSeconds=9)),
        (
            {
                "scopeSelector": {
                    "matchExpressions": [
                        {
                            "scopeName": "PriorityClass",
                            "operator": "In",
                            "values": ["system-node-critical"],
                        }
                    ]
                }
            },
            pod("a", priorityClassName="system-node-critical"),
            pod("a", priorityClassName="system-cluster-critical"),
        ),
        (
            {"scopes": ["CrossNamespacePodAffinity"]},
            pod(
                "a",
                affinity={
                    "podAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [
                            {"topologyKey": "x", "namespaces": ["other"], "labelSelector": {}}
                        ]
                    }
                },
            ),
            pod("a"),
        ),
    ],
)
async def test_a_quota_with_scopes_counts_the_pods_in_them_only(
    api: ObjectRegistry, spec: Json, inside: Json, outside: Json
) -> None:
    await quota(api, {"pods": "0"}, **spec)

    with pytest.raises(errors.Forbidden, match="exceeded quota: main, requested: pods=1"):
        await create(api, "pods", inside)
    await create(api, "pods", outside)


async def test_writes_at_the_same_time_never_go_over(api: ObjectRegistry) -> None:
    await quota(api, {"pods": "3", "requests.cpu": "1"})
    bodies = [pod(f"p{number}", {"requests": {"cpu": "300m"}}) for number in range(10)]

    outcomes = await asyncio.gather(*(create(api, "pods", body) for body in bodies), return_exceptions=True)

    assert sum(isinstance(outcome, errors.Forbidden) for outcome in outcomes) == 7
    assert used(api) == {"pods": "3", "requests.cpu": "900m"}


async def test_what_was_there_before_the_quota_counts(api: ObjectRegistry) -> None:
    await create(api, "pods", pod("old"))
    await quota(api, {"pods": "1"})

    with pytest.raises(errors.Forbidden, match="used: pods=1"):
        await create(api, "pods", pod("new"))


async def test_a_quota_that_was_changed_counts_by_its_new_amounts(api: ObjectRegistry) -> None:
    await quota(api, {"pods": "1"})
    await create(api, "pods", pod("a"))
    resource = api.resolve("", "v1", "resourcequotas")
    patch = {"spec": {"hard": {"pods": "2", "count/configmaps": "0"}}}
    await api.patch(resource, "default", "main", patch, PatchType.MERGE)

    await create(api, "pods", pod("b"))
    with pytest.raises(errors.Forbidden, match="used: pods=2"):
        await create(api, "pods", pod("c"))
    with pytest.raises(errors.Forbidden, match="count/configmaps=1"):
        await create(api, "configmaps", {"metadata": {"name": "one"}})


async def test_what_is_refused_otherwise_or_tried_only_costs_nothing(api: ObjectRegistry) -> None:
    await quota(api, {"pods": "5"})
    await create(api, "pods", pod("a"))

    with pytest.raises(errors.AlreadyExists):
        await create(api, "pods", pod("a"))
    with pytest.raises(errors.Invalid):
        await create(api, "pods", pod("Bad_Name"))
    resource = api.resolve("", "v1", "pods")
    await api.create(resource, "default", pod("b"), registry.registry.WriteOptions(dry_run=True))

    assert used(api) == {"pods": "1"}


@pytest.mark.parametrize(
    ("hard", "plural", "body", "patch", "why"),
    [
        (
            SERVICES,
            "services",
            service("d", "ClusterIP"),
            {"spec": {"type": "LoadBalancer"}},
            "requested: services.loadbalancers=1, used: services.loadbalancers=0",
        ),
        (
            {"requests.storage": "2Gi"},
            "persistentvolumeclaims",
            claim("d", "1Gi"),
            {"spec": {"resources": {"requests": {"storage": "3Gi"}}}},
            "requested: requests.storage=2Gi, used: requests.storage=1Gi",
        ),
    ],
)
async def test_an_update_is_charged_for_what_it_adds(
    api: ObjectRegistry, hard: Json, plural: str, body: Json, patch: Json, why: str
) -> None:
    await quota(api, hard)
    await create(api, plural, body)
    resource = api.resolve("", "v1", plural)
    name = body["metadata"]["name"]
    if plural == "persistentvolumeclaims":  # only a bound claim may grow
        await api.patch(
            resource, "default", name, {"status": {"phase": "Bound"}}, PatchType.MERGE, subresource="status"
        )

    with pytest.raises(errors.Forbidden, match=why):
        await api.patch(resource, "default", name, patch, PatchType.MERGE)


@pytest.mark.parametrize(
    "gone",
    [
        lambda api, pods: api.delete(pods, "default", "a"),
        lambda api, pods: api.patch(
            pods, "default", "a", {"status": {"phase": "Failed"}}, PatchType.MERGE, subresource="status"
        ),
    ],
    ids=["deleted", "failed"],
)
async def test_a_recount_gives_back_what_is_no_longer_used(
    api: ObjectRegistry, gone: Callable[[ObjectRegistry, Any], Any]
) -> None:
    await quota(api, {"pods": "1", "requests.cpu": "1"})
    await create(api, "pods", pod("a", BURSTABLE))
    assert used(api) == {"pods": "1", "requests.cpu": "100m"}

    await gone(api, api.resolve("", "v1", "pods"))
    await api.recount_quota("default", "main")

    assert used(api) == {"pods": "0", "requests.cpu": "0"}


async def test_a_quota_that_limits_nothing_hinders_nobody(api: ObjectRegistry) -> None:
    await create(api, "resourcequotas", {"metadata": {"name": "empty"}})
    await quota(api, {}, "bare")

    await create(api, "pods", pod("a"))
    await api.recount_quota("default", "empty")
