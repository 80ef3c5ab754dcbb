"""The subresources `ephemeralcontainers` and `resize` of pods: what they change, and what they refuse."""

from typing import Any

import pytest

from koordinator.clock import FixedClock
from koordinator.cluster import errors
from koordinator.cluster.protocol import PatchType
from koordinator.local import registry
from koordinator.local.registry import ObjectRegistry
from tests.local.registry_builders import pod

RESOURCES = {"requests": {"cpu": "1", "memory": "1Gi"}}


@pytest.fixture
async def api() -> ObjectRegistry:
    api = registry.in_memory(FixedClock())
    body = pod("web")
    body["spec"]["containers"][0]["resources"] = RESOURCES
    await api.create(api.resolve("", "v1", "pods"), "default", body)
    return api


async def patched(
    api: ObjectRegistry, spec: dict[str, Any], subresource: str, kind: PatchType = PatchType.STRATEGIC
) -> dict[str, Any]:
    pods = api.resolve("", "v1", "pods")
    record = await api.patch(pods, "default", "web", {"spec": spec}, kind, subresource=subresource)
    return record.obj


def debugger(**more: Any) -> dict[str, Any]:
    return {"ephemeralContainers": [{"name": "debugger", "image": "busybox", **more}]}


async def test_an_ephemeral_container_is_added_and_nothing_else(api: ObjectRegistry) -> None:
    spec = {**debugger(targetContainerName="main"), "nodeName": "n1", "priority": 7}

    changed = await patched(api, spec, "ephemeralcontainers")

    (added,) = changed["spec"]["ephemeralContainers"]
    assert (added["name"], added["terminationMessagePath"]) == ("debugger", "/dev/termination-log")
    assert ("nodeName" in changed["spec"], changed["spec"]["priority"]) == (False, 0)
    assert changed["metadata"]["generation"] == 2


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        pytest.param(
            {"ephemeralContainers": [{"name": "main", "image": "busybox"}]},
            'spec.ephemeralContainers[0].name: Duplicate value: "main"',
            id="a name that is taken",
        ),
        pytest.param(
            debugger(targetContainerName="nobody"),
            'spec.ephemeralContainers[0].targetContainerName: Not found: "nobody"',
            id="a target that is not there",
        ),
        pytest.param(
            debugger(ports=[{"containerPort": 80}]),
            "spec.ephemeralContainers[0].ports: Forbidden: cannot be set for an Ephemeral Container",
            id="ports",
        ),
        pytest.param(
            debugger(resources={"requests": {"cpu": "1"}}),
            "spec.ephemeralContainers[0].resources: Forbidden: cannot be set for an Ephemeral Container",
            id="resources",
        ),
    ],
)
async def test_an_ephemeral_container_that_is_no_such_is_refused(
    api: ObjectRegistry, spec: dict[str, Any], text: str
) -> None:
    with pytest.raises(errors.Invalid) as refused:
        await patched(api, spec, "ephemeralcontainers")

    assert refused.value.message == f'Pod "web" is invalid: {text}'


async def test_ephemeral_containers_stay_as_they_are(api: ObjectRegistry) -> None:
    await patched(api, debugger(), "ephemeralcontainers")

    with pytest.raises(errors.Invalid, match="may not be removed"):
        await patched(api, {"ephemeralContainers": None}, "ephemeralcontainers", PatchType.MERGE)
    with pytest.raises(errors.Invalid, match="may not be changed"):
        await patched(api, debugger(command=["sh"]), "ephemeralcontainers")
    with pytest.raises(errors.Invalid, match="pod updates may not change fields"):
        await patched(api, {"ephemeralContainers": None}, "", PatchType.MERGE)


def sized(**requests: str) -> dict[str, Any]:
    return {"containers": [{"name": "main", "resources": {"requests": requests}}]}


async def test_a_resize_changes_resources_and_nothing_else(api: ObjectRegistry) -> None:
    spec = sized(cpu="2")
    spec["containers"][0]["image"] = "other:1"

    changed = await patched(api, spec, "resize")

    (container,) = changed["spec"]["containers"]
    assert container["resources"]["requests"] == {"cpu": "2", "memory": "1Gi"}
    assert container["image"] == "web:1"
    assert changed["metadata"]["generation"] == 2


@pytest.mark.parametrize(
    ("spec", "kind", "text"),
    [
        pytest.param(
            {"containers": [{"name": "main", "image": "web:1", "resources": {"requests": {"cpu": "1"}}}]},
            PatchType.MERGE,
            "spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed",
            id="an amount that goes",
        ),
        pytest.param(
            {"containers": [{"name": "other", "image": "web:1", "resources": RESOURCES}]},
            PatchType.MERGE,
            "spec.containers[0].name: Forbidden: containers may not be renamed or reordered on resize",
            id="another name",
        ),
        pytest.param(
            {"containers": [{"name": "main", "resources": {"requests": {"ephemeral-storage": "1Gi"}}}]},
            PatchType.STRATEGIC,
            "spec: Forbidden: only cpu and memory resources are mutable",
            id="another resource",
        ),
        pytest.param(
            {
                "containers": [
                    {"name": "main", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}},
                ]
            },
            PatchType.STRATEGIC,
            'spec: Invalid value: "Burstable": Pod QOS Class may not change as a result of resizing',
            id="another class of quality",
        ),
    ],
)
async def test_a_resize_that_changes_what_the_pod_is_is_refused(
    api: ObjectRegistry, spec: dict[str, Any], kind: PatchType, text: str
) -> None:
    with pytest.raises(errors.Invalid) as refused:
        await patched(api, spec, "resize", kind)

    assert refused.value.message == f'Pod "web" is invalid: {text}'


async def test_resources_change_through_the_subresource_only(api: ObjectRegistry) -> None:
    with pytest.raises(errors.Invalid, match="pod updates may not change fields"):
        await patched(api, sized(cpu="2"), "")
