"""A source of webhook configurations, and webhooks to be called."""

import base64
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from koordinator.api.meta import Resource
from koordinator.cluster.backend import ObjectRecord, WriteOptions
from koordinator.local.admission import BackendSource, ServiceResolver, UnresolvedService, WebhookAdmission
from koordinator.local.admission.rules import CompiledWebhook
from koordinator.local.admission.webhooks import compiled
from koordinator.local.interfaces import AdmissionAttributes

Json = dict[str, Any]
Handler = Callable[[bytes], Awaitable[bytes]]

PODS = Resource(group="", version="v1", kind="Pod", plural="pods", subresources=("status", "binding"))
NODES = Resource(group="", version="v1", kind="Node", plural="nodes", namespaced=False)
POD: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"app": "x"}}}


class Source(BackendSource):
    """Configurations and namespaces as plain lists."""

    def __init__(self, mutating: Sequence[Json] = (), validating: Sequence[Json] = ()) -> None:
        self._webhooks = [
            *compiled([ObjectRecord(one, 1) for one in mutating], mutating=True),
            *compiled([ObjectRecord(one, 1) for one in validating], mutating=False),
        ]
        self.namespaces: dict[str, Mapping[str, str]] = {"default": {"team": "a"}}
        self.versions: list[Resource] = []

    def webhooks(self) -> Sequence[CompiledWebhook]:
        return self._webhooks

    def namespace_labels(self, namespace: str) -> Mapping[str, str]:
        return self.namespaces.get(namespace, {})

    def equivalents(self, resource: Resource) -> Sequence[Resource]:
        return self.versions


class Resolver(ServiceResolver):
    """Knows one service."""

    def __init__(self, port: int = 0) -> None:
        self.port = port

    def resolve(self, namespace: str, name: str, port: int) -> tuple[str, int]:
        if not self.port:
            raise UnresolvedService(f'service "{name}" not found')
        return "127.0.0.1", self.port


def webhook(name: str = "a.example.com", **more: Any) -> Json:
    rule = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    return {
        "name": name,
        "clientConfig": {"url": f"inproc://{name}"},
        "rules": [rule],
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        **more,
    }


def configuration(*webhooks: Json, name: str = "config") -> Json:
    return {"metadata": {"name": name}, "webhooks": list(webhooks)}


def rule(**more: Any) -> Json:
    return {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], **more}


def answering(
    patch: list[Json] | None = None, seen: list[Json] | None = None, version: str = "v1", **response: Any
) -> Handler:
    """A webhook that says the same to everything and remembers what it was asked."""

    async def handle(body: bytes) -> bytes:
        request = msgspec.json.decode(body)["request"]
        if seen is not None:
            seen.append(request)
        answer: Json = {"uid": request["uid"], "allowed": True, **response}
        if patch is not None:
            answer |= {
                "patch": base64.b64encode(msgspec.json.encode(patch)).decode(),
                "patchType": "JSONPatch",
            }
        review = {"apiVersion": f"admission.k8s.io/{version}", "kind": "AdmissionReview", "response": answer}
        return msgspec.json.encode(review)

    return handle


def label(name: str, value: str = "y") -> list[Json]:
    return [{"op": "add", "path": f"/metadata/labels/{name}", "value": value}]


def admission(source: Source, resolver: Resolver | None = None, **handlers: Handler) -> WebhookAdmission:
    """Handlers by the first part of their webhook's name."""
    made = WebhookAdmission(source, resolver or Resolver(), random.Random(0))
    for name, handler in handlers.items():
        made.register_handler(f"{name}.example.com", handler)
    return made


def attributes(
    operation: str,
    resource: Resource,
    namespace: str,
    old: Json | None,
    options: WriteOptions = WriteOptions(),
) -> AdmissionAttributes:
    """A write of the object `p`."""
    return AdmissionAttributes(
        operation=operation, resource=resource, namespace=namespace, name="p", old=old, options=options
    )
