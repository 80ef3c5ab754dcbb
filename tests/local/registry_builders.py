"""A registry without checks and short ways to say what is in it."""

from typing import Any

from koordinator.clock import FixedClock
from koordinator.cluster.backend import ListOptions, ObjectRecord, RecordEvent, Subscription
from koordinator.cluster.protocol import PatchType
from koordinator.local import registry
from koordinator.local.registry import ObjectRegistry

NOW_S = 1_700_000_000.0
NOW = "2023-11-14T22:13:20Z"


def backend(**options: Any) -> ObjectRegistry:
    return registry.in_memory(FixedClock(NOW_S), checks=False, **options)


def pod(name: str = "web-0", node: str = "", **meta: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": [{"name": "main", "image": "web:1"}]}
    if node:
        spec["nodeName"] = node
    return {"metadata": {"name": name, **meta}, "spec": spec}


def definition(
    plural: str = "widgets", kind: str = "Widget", versions: tuple[str, ...] = ("v1",), **version_parts: Any
) -> dict[str, Any]:
    """A CustomResourceDefinition of group example.com whose last version is stored."""
    return {
        "metadata": {"name": f"{plural}.example.com"},
        "spec": {
            "group": "example.com",
            "names": {"plural": plural, "kind": kind},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": version == versions[-1],
                    "schema": {
                        "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                    },
                    **version_parts,
                }
                for version in versions
            ],
        },
    }


async def create(
    backend: ObjectRegistry, plural: str, obj: dict[str, Any], namespace: str = "", api_version: str = "v1"
) -> ObjectRecord:
    group, _, version = api_version.rpartition("/")
    return await backend.create(backend.resolve(group, version, plural), namespace, obj)


async def merge(
    backend: ObjectRegistry,
    plural: str,
    name: str,
    patch: dict[str, Any],
    namespace: str = "default",
    api_version: str = "v1",
    subresource: str = "",
) -> ObjectRecord:
    group, _, version = api_version.rpartition("/")
    resource = backend.resolve(group, version, plural)
    return await backend.patch(resource, namespace, name, patch, PatchType.MERGE, subresource=subresource)


def names(backend: ObjectRegistry, plural: str, namespace: str = "", **options: Any) -> list[str]:
    found = backend.list(backend.resolve("", "v1", plural), namespace, ListOptions(**options))
    return [record.obj["metadata"]["name"] for record in found.records]


async def next_events(watch: Subscription) -> list[RecordEvent]:
    return list(await anext(aiter(watch)))


def story(events: list[RecordEvent]) -> list[str]:
    """`ADDED web-0` for each event; bookmarks without a name."""
    return [
        f"{event.type.value} {event.record.obj['metadata']['name']}" if event.record else event.type.value
        for event in events
    ]
