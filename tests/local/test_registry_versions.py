"""Kinds that are served in several versions: what is read in one and written back loses nothing."""

import copy
from typing import Any

import pytest

from koordinator.api.kinds import BUILT_IN
from koordinator.api.meta import Resource
from koordinator.clock import FixedClock
from koordinator.local import registry
from koordinator.local.registry import ObjectRegistry
from tests.local.registry_builders import definition

_TARGET = {"kind": "Deployment", "name": "web", "apiVersion": "apps/v1"}
_CPU = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}}
_MEMORY = {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}
_METRICS = [{"type": "Resource", "resource": resource} for resource in (_CPU, _MEMORY)]
BODIES: dict[str, dict[str, Any]] = {
    "HorizontalPodAutoscaler": {
        "spec": {"scaleTargetRef": _TARGET, "minReplicas": 1, "maxReplicas": 5, "metrics": _METRICS}
    },
    "Event": {
        "involvedObject": {"kind": "Pod", "name": "web", "namespace": "default"},
        "reason": "Seen",
        "message": "a thing was seen",
        "type": "Normal",
        "action": "See",
        "eventTime": "2026-01-02T03:04:05.000006Z",
        "reportingComponent": "example.com/seer",
        "reportingInstance": "seer-1",
    },
    "Widget": {"spec": {"color": "red"}},
}
"""A body of each kind, in the version that is stored."""


def versions() -> list[tuple[str, list[Resource]]]:
    """Every built-in kind that is served in several versions or groups."""
    groups: dict[tuple[str, str], list[Resource]] = {}
    for resource in BUILT_IN:
        groups.setdefault((resource.kind, resource.plural), []).append(resource)
    return [(kind, served) for (kind, _), served in groups.items() if len(served) > 1]


ROUND_TRIPS = [
    pytest.param(kind, other, id=f"{kind} in {other.api_version}")
    for kind, served in versions()
    for other in served
]


async def written_back(api: ObjectRegistry, kind: str, stored: Resource, other: Resource) -> None:
    """Create in the stored version, read in another, change a label there, and compare in the stored one."""
    created = await api.create(
        stored, "default", {"metadata": {"name": "web"}, **copy.deepcopy(BODIES[kind])}
    )
    read = copy.deepcopy(api.get(other, "default", "web").obj)
    read["metadata"]["labels"] = {"seen": "yes"}

    answer = await api.update(other, "default", "web", read)

    kept = api.get(stored, "default", "web").obj
    before, after = created.obj["metadata"], kept["metadata"]
    for field in ("name", "namespace", "uid", "creationTimestamp"):
        assert after[field] == before[field] == answer.obj["metadata"][field], field
    assert after["labels"] == {"seen": "yes"}
    assert after["resourceVersion"] != before["resourceVersion"]
    assert after.get("annotations") == before.get("annotations")
    content = {key: value for key, value in created.obj.items() if key != "metadata"}
    assert {key: value for key, value in kept.items() if key != "metadata"} == content
    unchanged = await api.update(other, "default", "web", copy.deepcopy(answer.obj))
    assert unchanged.obj["metadata"]["resourceVersion"] == answer.obj["metadata"]["resourceVersion"]


@pytest.mark.parametrize(("kind", "other"), ROUND_TRIPS)
async def test_an_update_through_any_version_keeps_all_of_the_object(kind: str, other: Resource) -> None:
    stored = next(resource for resource in BUILT_IN if resource.kind == kind)

    await written_back(registry.in_memory(FixedClock()), kind, stored, other)


@pytest.mark.parametrize("version", ["v1alpha1", "v1"])
async def test_an_update_through_any_version_of_a_custom_resource_keeps_all_of_it(version: str) -> None:
    api = registry.in_memory(FixedClock())
    definitions = api.resolve("apiextensions.k8s.io", "v1", "customresourcedefinitions")
    await api.create(definitions, "", definition(versions=("v1alpha1", "v1")))

    stored, other = (api.resolve("example.com", each, "widgets") for each in ("v1", version))

    await written_back(api, "Widget", stored, other)


def test_every_kind_with_several_versions_is_tried() -> None:
    assert {kind for kind, _ in versions()} == {"Event", "HorizontalPodAutoscaler"}
