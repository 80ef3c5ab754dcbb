"""Admission with the real registry: configurations, namespaces and services as users create them."""

import random
from typing import Any

import pytest

from koordinator.clock import FixedClock
from koordinator.cluster.errors import ApiError
from koordinator.local.admission import ServiceResolver, UnresolvedService, WebhookAdmission
from koordinator.local.registry import ObjectRegistry, in_memory
from tests.local.admission.builders import answering, configuration, label, webhook

Json = dict[str, Any]


@pytest.fixture
def registry() -> ObjectRegistry:
    return in_memory(FixedClock())


async def create(registry: ObjectRegistry, path: str, obj: Json, namespace: str = "default") -> Json:
    group, version, plural = path.split("/")
    resource = registry.resolve(group, version, plural)
    record = await registry.create(resource, namespace if resource.namespaced else "", obj)
    return record.obj


async def configure(registry: ObjectRegistry, kind: str, *webhooks: Json) -> None:
    group = "admissionregistration.k8s.io"
    body = {"apiVersion": f"{group}/v1", "kind": kind, **configuration(*webhooks)}
    await create(registry, f"{group}/v1/{kind.lower()}s", body)


def pod(**meta: Any) -> Json:
    spec = {"containers": [{"name": "c", "image": "i:1"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {}, **meta}, "spec": spec}


async def test_a_configuration_counts_from_its_creation_to_its_deletion(registry: ObjectRegistry) -> None:
    admission = WebhookAdmission.on(registry, random.Random(0))
    admission.register_handler("a.example.com", answering(label("seen")))
    registry.admission = admission
    pods = registry.resolve("", "v1", "pods")
    assert not admission.wants(pods, "CREATE", "")

    await configure(registry, "MutatingWebhookConfiguration", webhook())
    mutated = await create(registry, "/v1/pods", pod(name="one", labels={"a": "b"}))
    kinds = registry.resolve("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations")
    await registry.delete(kinds, "", "config")
    untouched = await create(registry, "/v1/pods", pod(name="two", labels={"a": "b"}))

    assert mutated["metadata"]["labels"] == {"a": "b", "seen": "y"}
    assert untouched["metadata"]["labels"] == {"a": "b"}


async def test_what_a_webhook_makes_of_an_object_is_checked(registry: ObjectRegistry) -> None:
    admission = WebhookAdmission.on(registry, random.Random(0))
    breaking = [{"op": "replace", "path": "/spec/containers/0/image", "value": ""}]
    admission.register_handler("a.example.com", answering(breaking))
    registry.admission = admission
    await configure(registry, "MutatingWebhookConfiguration", webhook())

    with pytest.raises(ApiError, match=r"spec.containers\[0\].image: Required value"):
        await create(registry, "/v1/pods", pod())


async def test_namespaces_are_selected_by_their_labels(registry: ObjectRegistry) -> None:
    admission = WebhookAdmission.on(registry, random.Random(0))
    admission.register_handler("a.example.com", answering(allowed=False, status={"message": "no"}))
    registry.admission = admission
    guarded = {"namespaceSelector": {"matchLabels": {"guarded": "yes"}}}
    await configure(registry, "ValidatingWebhookConfiguration", webhook(**guarded))
    for name, labels in (("open", {}), ("closed", {"guarded": "yes"})):
        await create(
            registry,
            "/v1/namespaces",
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}},
        )

    assert await create(registry, "/v1/pods", pod(), "open")
    with pytest.raises(ApiError, match=r'admission webhook "a.example.com" denied the request: no'):
        await create(registry, "/v1/pods", pod(), "closed")


async def test_a_service_is_where_it_was_registered_or_where_its_endpoints_are(
    registry: ObjectRegistry,
) -> None:
    resolver = ServiceResolver(registry)
    with pytest.raises(UnresolvedService, match='service "hook" not found'):
        resolver.resolve("default", "hook", 443)

    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "hook"},
        "spec": {"ports": [{"port": 443}]},
    }
    await create(registry, "/v1/services", service)
    with pytest.raises(UnresolvedService, match='no endpoints available for service "hook"'):
        resolver.resolve("default", "hook", 443)

    endpoints = [
        {"addresses": ["10.0.0.1"], "conditions": {"ready": False}},
        {"addresses": ["127.0.0.1"], "conditions": {"ready": True}},
    ]
    await create(
        registry,
        "discovery.k8s.io/v1/endpointslices",
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": "hook-1", "labels": {"kubernetes.io/service-name": "hook"}},
            "addressType": "IPv4",
            "ports": [{"port": 9443}],
            "endpoints": endpoints,
        },
    )
    assert resolver.resolve("default", "hook", 443) == ("127.0.0.1", 9443)

    resolver.register("default", "hook", "127.0.0.1", 8443)
    assert resolver.resolve("default", "hook", 443) == ("127.0.0.1", 8443)
