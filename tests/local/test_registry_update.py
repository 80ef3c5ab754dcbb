"""Changing objects: versions, what is immutable, status beside spec, and nothing written for nothing."""

from typing import Any

import pytest

from koordinator.clock import FixedClock
from koordinator.cluster import errors
from koordinator.cluster.backend import ObjectRecord, WriteOptions
from koordinator.cluster.protocol import PatchType
from koordinator.local import registry
from koordinator.local.interfaces import AdmissionAttributes
from koordinator.local.registry import ObjectRegistry
from tests.local.registry_builders import NOW, NOW_S, backend, create, definition, merge, pod

DEPLOYMENT = {
    "metadata": {"name": "web"},
    "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}},
}


async def deployed(api: ObjectRegistry) -> ObjectRecord:
    return await create(api, "deployments", dict(DEPLOYMENT), "default", "apps/v1")


async def put(
    api: ObjectRegistry,
    record: ObjectRecord,
    subresource: str = "",
    plural: str = "deployments",
    **changes: Any,
) -> ObjectRecord:
    """Update an object to what a record holds, with top-level parts changed."""
    group, _, version = record.obj["apiVersion"].rpartition("/")
    meta = record.obj["metadata"]
    obj = {**record.obj, **changes}
    resource = api.resolve(group, version, plural)
    return await api.update(resource, meta["namespace"], meta["name"], obj, subresource=subresource)


async def test_a_stale_version_conflicts() -> None:
    api = backend()
    old = await deployed(api)
    await put(api, old, spec={"replicas": 3})

    with pytest.raises(errors.Conflict) as refused:
        await put(api, old, spec={"replicas": 4})

    assert str(refused.value) == (
        'Operation cannot be fulfilled on deployments.apps "web": the object has been modified; please apply '
        "your changes to the latest version and try again"
    )


async def test_an_update_without_a_version_takes_the_newest() -> None:
    api = backend()
    old = await deployed(api)
    await put(api, old, spec={"replicas": 3})
    meta = {"name": "web"}

    assert (await put(api, old, metadata=meta | {"namespace": "default"}, spec={"replicas": 4})).obj[
        "spec"
    ] == {"replicas": 4}


@pytest.mark.parametrize("version", ["", "0"])
async def test_leases_and_custom_resources_insist_on_a_version(version: str) -> None:
    api = backend()
    body = {"metadata": {"name": "n1"}}
    lease = await create(api, "leases", body, "kube-node-lease", "coordination.k8s.io/v1")
    meta = {"name": "n1", "namespace": "kube-node-lease", "resourceVersion": version}

    with pytest.raises(errors.Invalid) as refused:
        await put(api, lease, plural="leases", metadata=meta)

    assert str(refused.value) == (
        'leases.coordination.k8s.io "n1" is invalid: metadata.resourceVersion: Invalid value: 0: must be '
        "specified for an update"
    )


async def test_another_uid_is_another_object() -> None:
    api = backend()
    old = await deployed(api)

    with pytest.raises(
        errors.Conflict, match="Precondition failed: UID in precondition: other, UID in object"
    ):
        await put(api, old, metadata={**old.obj["metadata"], "uid": "other"})


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"creationTimestamp": "2020-01-01T00:00:00Z"}, "metadata.creationTimestamp: Invalid value:"),
        ({"name": "api"}, "the name of the object (api) does not match the name on the URL (web)"),
        ({"name": ""}, "the name of the object (web based on URL) was undeterminable: name must be provided"),
        ({"resourceVersion": "x"}, 'metadata.resourceVersion: Invalid value: "x": strconv.ParseUint'),
    ],
)
async def test_identity_cannot_change(meta: dict[str, Any], message: str) -> None:
    api = backend()
    old = await deployed(api)

    with pytest.raises(errors.ApiError) as refused:
        await put(api, old, metadata={**old.obj["metadata"], **meta})

    assert message in str(refused.value)


async def test_the_generation_counts_changes_of_the_spec_only() -> None:
    api = backend()
    record = await deployed(api)
    record = await merge(
        api, "deployments", "web", {"metadata": {"labels": {"a": "b"}}}, api_version="apps/v1"
    )
    assert record.obj["metadata"]["generation"] == 1

    record = await merge(api, "deployments", "web", {"spec": {"replicas": 5}}, api_version="apps/v1")
    assert record.obj["metadata"]["generation"] == 2

    status = {"status": {"observedGeneration": 2}, "metadata": {"generation": 9}}
    record = await merge(api, "deployments", "web", status, api_version="apps/v1", subresource="status")
    assert record.obj["metadata"]["generation"] == 2
    assert record.obj["status"] == {"observedGeneration": 2}


async def test_a_write_that_changes_nothing_keeps_the_version() -> None:
    api = backend()
    old = await deployed(api)
    before = api.store.version

    assert (await put(api, old)).version == old.version
    same = await merge(api, "deployments", "web", {"spec": {"replicas": 2}}, api_version="apps/v1")
    assert same.version == old.version
    assert api.store.version == before


async def test_status_and_spec_are_written_apart() -> None:
    api = backend()
    old = await deployed(api)

    both = {"spec": {"replicas": 7}, "status": {"replicas": 7}}
    main = await merge(api, "deployments", "web", both, api_version="apps/v1")
    assert (main.obj["spec"]["replicas"], main.obj["status"]) == (7, {})

    both = {"spec": {"replicas": 9}, "status": {"replicas": 9}, "metadata": {"labels": {"a": "b"}}}
    status = await merge(api, "deployments", "web", both, api_version="apps/v1", subresource="status")
    assert (status.obj["spec"]["replicas"], status.obj["status"]) == (7, {"replicas": 9})
    assert "labels" not in status.obj["metadata"]
    assert old.obj["spec"]["replicas"] == 2


async def test_a_kind_without_the_subresource_has_no_status_to_write() -> None:
    api = backend()
    await create(api, "configmaps", {"metadata": {"name": "c"}}, "default")

    with pytest.raises(errors.NotFound, match="could not find the requested resource"):
        await merge(api, "configmaps", "c", {"status": {}}, subresource="status")


async def test_a_custom_resource_without_status_subresource_counts_its_status_too() -> None:
    api = backend()
    await create(api, "customresourcedefinitions", definition(), api_version="apiextensions.k8s.io/v1")
    await create(api, "widgets", {"metadata": {"name": "w"}}, "default", "example.com/v1")

    record = await merge(api, "widgets", "w", {"status": {"a": 1}}, api_version="example.com/v1")

    assert record.obj["status"] == {"a": 1}
    assert record.obj["metadata"]["generation"] == 2


async def test_what_is_not_there_is_not_created_by_an_update() -> None:
    api = backend()
    with pytest.raises(errors.NotFound, match='pods "web-0" not found'):
        await api.update(api.resolve("", "v1", "pods"), "default", "web-0", pod("web-0"))
    with pytest.raises(errors.NotFound, match='pods "web-0" not found'):
        await merge(api, "pods", "web-0", {})


async def test_a_stored_object_never_changes() -> None:
    api = backend()
    body = pod("web-0")
    old = await create(api, "pods", body, "default")
    before = old.json()
    await merge(api, "pods", "web-0", {"metadata": {"labels": {"a": "b"}}, "spec": {"priority": 0}})
    await merge(api, "pods", "web-0", {"status": {"phase": "Running"}}, subresource="status")

    assert type(old)(old.obj, old.version).json() == before


async def test_a_dry_run_update_shows_what_would_be() -> None:
    api = backend()
    old = await deployed(api)
    resource = api.resolve("apps", "v1", "deployments")
    shown = await api.patch(
        resource, "default", "web", {"spec": {"replicas": 9}}, PatchType.MERGE, WriteOptions(dry_run=True)
    )

    assert shown.obj["spec"]["replicas"] == 9
    assert api.get(resource, "default", "web") is api.store.table("deployments.apps").get("default", "web")
    assert api.get(resource, "default", "web").version == old.version


async def test_no_finalizer_is_added_to_what_is_being_deleted() -> None:
    api = backend()
    await create(api, "configmaps", {"metadata": {"name": "c", "finalizers": ["a.io/b"]}}, "default")
    await api.delete(api.resolve("", "v1", "configmaps"), "default", "c")

    with pytest.raises(
        errors.Invalid, match="no new finalizers can be added if the object is being deleted, found new"
    ):
        await merge(api, "configmaps", "c", {"metadata": {"finalizers": ["a.io/b", "c.io/d"]}})


async def test_a_deletion_cannot_be_taken_back() -> None:
    api = backend()
    await create(api, "configmaps", {"metadata": {"name": "c", "finalizers": ["a.io/b"]}}, "default")
    await api.delete(api.resolve("", "v1", "configmaps"), "default", "c")

    record = await merge(api, "configmaps", "c", {"metadata": {"deletionTimestamp": None}})

    assert record.obj["metadata"]["deletionTimestamp"] == NOW


class MeddlingAdmission:
    """Changes the object behind the writer's back while it is asked, `times` times."""

    def __init__(self, api: ObjectRegistry, times: int) -> None:
        self._api = api
        self.left = times

    def wants(self, resource: Any, operation: str, subresource: str, namespace: str) -> bool:
        return operation == "UPDATE" and resource.plural == "configmaps"

    async def admit(self, asked: AdmissionAttributes, obj: Any) -> Any:
        if self.left:
            self.left -= 1
            self._api.admission = None
            await merge(self._api, "configmaps", asked.name, {"data": {f"other-{self.left}": "x"}})
            self._api.admission = self
        return obj


async def test_a_patch_is_computed_again_when_the_object_changed_meanwhile() -> None:
    api = backend()
    await create(api, "configmaps", {"metadata": {"name": "c"}}, "default")
    api.admission = MeddlingAdmission(api, times=2)

    record = await merge(api, "configmaps", "c", {"data": {"mine": "y"}})

    assert record.obj["data"] == {"mine": "y", "other-0": "x", "other-1": "x"}


async def test_a_patch_gives_up_on_an_object_that_never_rests() -> None:
    api = backend()
    await create(api, "configmaps", {"metadata": {"name": "c"}}, "default")
    api.admission = MeddlingAdmission(api, times=100)

    with pytest.raises(errors.Conflict, match="the object has been modified"):
        await merge(api, "configmaps", "c", {"data": {"mine": "y"}})


async def test_scaling_changes_the_replicas_and_nothing_else() -> None:
    api = backend()
    await deployed(api)
    resource = api.resolve("apps", "v1", "deployments")

    scale = api.get(resource, "default", "web", "scale").obj
    assert (scale["kind"], scale["spec"], scale["status"]) == (
        "Scale", {"replicas": 2}, {"replicas": 0, "selector": "app=web"},
    )  # fmt: skip

    await api.patch(
        resource, "default", "web", {"spec": {"replicas": 5}}, PatchType.MERGE, subresource="scale"
    )
    changed = api.get(resource, "default", "web").obj
    assert changed["spec"] == {"replicas": 5, "selector": {"matchLabels": {"app": "web"}}}
    assert changed["metadata"]["generation"] == 2

    with pytest.raises(errors.Conflict, match="the object has been modified"):
        await api.update(resource, "default", "web", {**scale, "spec": {"replicas": 1}}, subresource="scale")
    with pytest.raises(errors.Invalid, match="must be greater than or equal to 0"):
        body = {"metadata": {"name": "web"}, "spec": {"replicas": -1}}
        await api.update(resource, "default", "web", body, subresource="scale")


async def test_custom_resources_scale_by_their_paths() -> None:
    api = backend()
    paths = {
        "specReplicasPath": ".spec.size",
        "statusReplicasPath": ".status.size",
        "labelSelectorPath": ".status.s",
    }
    crd = definition(subresources={"status": {}, "scale": paths})
    await create(api, "customresourcedefinitions", crd, api_version="apiextensions.k8s.io/v1")
    body = {"metadata": {"name": "w"}, "spec": {"size": 3}}
    await create(api, "widgets", body, "default", "example.com/v1")
    status = {"status": {"size": 2, "s": "app=w"}}
    await merge(api, "widgets", "w", status, api_version="example.com/v1", subresource="status")
    widgets = api.resolve("example.com", "v1", "widgets")

    scale = api.get(widgets, "default", "w", "scale").obj
    assert (scale["spec"], scale["status"]) == ({"replicas": 3}, {"replicas": 2, "selector": "app=w"})

    body = {"metadata": {"name": "w"}, "spec": {"replicas": 8}}
    await api.update(widgets, "default", "w", body, subresource="scale")
    assert api.get(widgets, "default", "w").obj["spec"] == {"size": 8}


async def test_a_status_update_cannot_take_the_qos_class_away() -> None:
    api = backend()
    await create(api, "pods", pod("web-0"), "default")

    status = {"status": {"qosClass": None, "phase": "Running"}}
    record = await merge(api, "pods", "web-0", status, subresource="status")

    assert record.obj["status"] == {"qosClass": "BestEffort", "phase": "Running"}


async def test_a_volume_tells_since_when_it_is_in_its_phase() -> None:
    clock = FixedClock(NOW_S)
    api = registry.in_memory(clock, checks=False)
    volume = await create(api, "persistentvolumes", {"metadata": {"name": "v"}, "spec": {}})

    async def status_at(now_s: float, **status: str) -> dict[str, Any]:
        clock.now_s = now_s
        changed = await merge(api, "persistentvolumes", "v", {"status": status}, "", subresource="status")
        found: dict[str, Any] = changed.obj["status"]
        return found

    fresh = {"phase": "Pending", "lastPhaseTransitionTime": NOW}
    later = {"phase": "Available", "lastPhaseTransitionTime": "2023-11-14T22:13:21Z"}
    assert volume.obj["status"] == fresh
    assert await status_at(NOW_S + 1, phase="Available") == later
    assert await status_at(NOW_S + 2, phase="Available", message="as before") == {
        **later,
        "message": "as before",
    }
    told = {"phase": "Bound", "lastPhaseTransitionTime": "2023-01-01T00:00:00Z"}
    assert (await status_at(NOW_S + 3, **told))["lastPhaseTransitionTime"] == "2023-01-01T00:00:00Z"
