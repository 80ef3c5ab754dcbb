"""LimitRanges as kube-apiserver 1.35 enforces them; results and texts are its own."""

from typing import Any

import pytest

from koordinator.clock import FixedClock
from koordinator.cluster import errors
from koordinator.local import registry
from koordinator.local.admission.limit_ranges import LimitRanges
from koordinator.local.registry import ObjectRegistry

Json = dict[str, Any]

CONTAINER = {
    "type": "Container",
    "default": {"cpu": "500m", "memory": "512Mi"},
    "defaultRequest": {"cpu": "100m"},
    "min": {"cpu": "50m"},
    "max": {"cpu": "1", "memory": "1Gi"},
    "maxLimitRequestRatio": {"cpu": "10"},
}
FULL = [
    CONTAINER,
    {"type": "Pod", "max": {"cpu": "1500m"}, "min": {"memory": "10Mi"}},
    {"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "2Gi"}},
]
RATIO = [
    {"type": "Container", "max": {"memory": "1Gi"}},
    {"type": "Pod", "maxLimitRequestRatio": {"memory": "2"}, "min": {"cpu": "1"}},
]
REQUEST_ONLY = [{"type": "Container", "defaultRequest": {"memory": "1Gi"}}]


@pytest.fixture
def api() -> ObjectRegistry:
    return registry.in_memory(FixedClock())


async def create(api: ObjectRegistry, plural: str, body: Json) -> Json:
    return (await api.create(api.resolve("", "v1", plural), "default", body)).obj


async def limit(api: ObjectRegistry, limits: list[Json]) -> Json:
    return await create(api, "limitranges", {"metadata": {"name": "l"}, "spec": {"limits": limits}})


def pod(*resources: Json) -> Json:
    containers = [
        {"name": name, "image": "x", "resources": each} for name, each in zip("cd", resources, strict=False)
    ]
    return {"metadata": {"name": "p"}, "spec": {"containers": containers}}


@pytest.mark.parametrize(
    ("plural", "subresource", "operation", "wanted"),
    [
        ("pods", "", "CREATE", True),
        ("pods", "", "UPDATE", False),
        ("pods", "resize", "UPDATE", True),
        ("pods", "status", "UPDATE", False),
        ("pods", "", "DELETE", False),
        ("persistentvolumeclaims", "", "CREATE", True),
        ("persistentvolumeclaims", "", "UPDATE", True),
        ("persistentvolumeclaims", "status", "UPDATE", False),
        ("persistentvolumeclaims", "", "DELETE", False),
        ("configmaps", "", "CREATE", False),
    ],
)
async def test_ranges_look_at_pods_and_claims_that_come_or_grow_where_there_are_ranges(
    api: ObjectRegistry, plural: str, subresource: str, operation: str, wanted: bool
) -> None:
    ranges, resource = LimitRanges(api.store), api.resolve("", "v1", plural)
    assert not ranges.wants(resource, operation, subresource, "default")

    await limit(api, FULL)

    assert ranges.wants(resource, operation, subresource, "default") is wanted
    assert not ranges.wants(resource, operation, subresource, "other")


async def test_a_range_gets_the_defaults_that_follow_from_its_bounds(api: ObjectRegistry) -> None:
    stored = (await limit(api, FULL))["spec"]["limits"]
    assert stored[0]["defaultRequest"] == {"cpu": "100m", "memory": "512Mi"}
    assert stored[1:] == FULL[1:]

    other = registry.in_memory(FixedClock())
    stored = (await limit(other, RATIO))["spec"]["limits"]
    assert (stored[0]["default"], stored[0]["defaultRequest"]) == ({"memory": "1Gi"}, {"memory": "1Gi"})


@pytest.mark.parametrize(
    ("limits", "sent", "resources", "note"),
    [
        (
            FULL,
            [{}],
            [
                {
                    "limits": {"cpu": "500m", "memory": "512Mi"},
                    "requests": {"cpu": "100m", "memory": "512Mi"},
                }
            ],
            "cpu, memory request for container c; cpu, memory limit for container c",
        ),
        (
            FULL,
            [{"limits": {"cpu": "800m"}}, {"requests": {"memory": "1Mi"}}],
            [
                {
                    "limits": {"cpu": "800m", "memory": "512Mi"},
                    "requests": {"cpu": "800m", "memory": "512Mi"},
                },
                {"limits": {"cpu": "500m", "memory": "512Mi"}, "requests": {"cpu": "100m", "memory": "1Mi"}},
            ],
            "memory request for container c; memory limit for container c; cpu request for container d; cpu, memory "
            "limit for container d",
        ),
        (REQUEST_ONLY, [{}], [{"requests": {"memory": "1Gi"}}], "memory request for container c"),
        (
            REQUEST_ONLY,
            [{"limits": {"memory": "300Mi"}}],
            [{"limits": {"memory": "300Mi"}, "requests": {"memory": "300Mi"}}],
            None,
        ),
    ],
)
async def test_containers_get_what_they_leave_out(
    api: ObjectRegistry, limits: list[Json], sent: list[Json], resources: list[Json], note: str | None
) -> None:
    await limit(api, limits)

    stored = await create(api, "pods", pod(*sent))

    assert [container["resources"] for container in stored["spec"]["containers"]] == resources
    said = (stored["metadata"].get("annotations") or {}).get("kubernetes.io/limit-ranger")
    assert said == (f"LimitRanger plugin set: {note}" if note else None)


@pytest.mark.parametrize(
    ("limits", "sent", "why"),
    [
        (
            FULL,
            [{"limits": {"cpu": "2"}}],
            "[maximum cpu usage per Container is 1, but limit is 2, maximum cpu usage per Pod is 1500m, but limit is "
            "2]",
        ),
        (
            FULL,
            [{"requests": {"cpu": "10m"}, "limits": {"memory": "2Gi"}}],
            "[minimum cpu usage per Container is 50m, but request is 10m, maximum memory usage per Container is 1Gi, "
            "but limit is 2Gi, cpu max limit to request ratio per Container is 10, but provided ratio is 50.000000]",
        ),
        (
            FULL,
            [{"limits": {"cpu": "1"}}, {"limits": {"cpu": "1"}}],
            "maximum cpu usage per Pod is 1500m, but limit is 2",
        ),
        (
            FULL,
            [{"requests": {"cpu": "60m"}, "limits": {"cpu": "1"}}],
            "cpu max limit to request ratio per Container is 10, but provided ratio is 16.666667",
        ),
        (RATIO, [{}], "minimum cpu usage per Pod is 1.  No request is specified"),
        (
            RATIO,
            [{"requests": {"cpu": "1", "memory": "100Mi"}, "limits": {"memory": "300Mi"}}],
            "memory max limit to request ratio per Pod is 2, but provided ratio is 3.000000",
        ),
    ],
)
async def test_pods_beyond_the_bounds_are_refused_in_the_words_of_kubernetes(
    api: ObjectRegistry, limits: list[Json], sent: list[Json], why: str
) -> None:
    await limit(api, limits)

    with pytest.raises(errors.Forbidden) as refusal:
        await create(api, "pods", pod(*sent))

    assert refusal.value.message == f'pods "p" is forbidden: {why}'


@pytest.mark.parametrize(
    ("storage", "why"),
    [
        ("500Mi", "minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 500Mi"),
        ("3Gi", "maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi"),
        ("1500Mi", None),
    ],
)
async def test_claims_stay_within_their_bounds(api: ObjectRegistry, storage: str, why: str | None) -> None:
    await limit(api, FULL)
    body = {
        "metadata": {"name": "v"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage}}},
    }

    if why is None:
        await create(api, "persistentvolumeclaims", body)
        return
    with pytest.raises(errors.Forbidden) as refusal:
        await create(api, "persistentvolumeclaims", body)
    assert refusal.value.message == f'persistentvolumeclaims "v" is forbidden: {why}'


async def test_defaults_of_ranges_are_what_quotas_count(api: ObjectRegistry) -> None:
    await limit(api, [CONTAINER])
    hard = {"requests.cpu": "150m"}
    await create(api, "resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": hard}})

    await create(api, "pods", pod({}))
    with pytest.raises(errors.Forbidden, match=r"requested: requests\.cpu=100m, used: requests\.cpu=100m"):
        await create(api, "pods", {**pod({}), "metadata": {"name": "second"}})


async def test_a_range_counts_in_its_namespace_only(api: ObjectRegistry) -> None:
    await limit(api, FULL)
    resource = api.resolve("", "v1", "pods")

    stored = await api.create(resource, "kube-system", pod({}))

    assert "annotations" not in stored.obj["metadata"]
