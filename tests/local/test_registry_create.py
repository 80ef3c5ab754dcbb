"""Creating objects: what the server fills in and what it refuses."""

import re
from typing import Any

import pytest

from koordinator.clock import FixedClock
from koordinator.cluster import errors
from koordinator.cluster.backend import DeleteRequest, WriteOptions
from tests.local.registry_builders import NOW, backend, create, definition, merge, names, pod


async def test_the_server_fills_in_who_and_when() -> None:
    record = await create(backend(), "pods", pod("web-0"), "default")

    meta = record.obj["metadata"]
    assert meta["namespace"] == "default"
    assert meta["creationTimestamp"] == NOW
    assert meta["generation"] == 1
    assert meta["resourceVersion"] == str(record.version)
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", meta["uid"])
    assert record.obj["kind"] == "Pod"
    assert record.obj["apiVersion"] == "v1"


async def test_what_only_the_server_may_say_is_dropped() -> None:
    body = pod(
        "web-0", uid="mine", deletionTimestamp=NOW, deletionGracePeriodSeconds=0, selfLink="/x", generation=7
    )
    body["status"] = {"phase": "Running"}

    record = await create(backend(), "pods", body, "default")

    meta = record.obj["metadata"]
    assert meta["uid"] != "mine"
    assert meta["generation"] == 1
    assert not {"deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"} & meta.keys()
    assert record.obj["status"]["phase"] == "Pending"


async def test_a_generated_name_is_the_base_with_five_characters() -> None:
    api = backend()
    first = await create(api, "pods", pod("", generateName="web-"), "default")
    second = await create(api, "pods", pod("", generateName="x" * 80), "default")

    assert re.fullmatch(r"web-[bcdfghjklmnpqrstvwxz2456789]{5}", first.obj["metadata"]["name"])
    assert re.fullmatch(r"x{58}[bcdfghjklmnpqrstvwxz2456789]{5}", second.obj["metadata"]["name"])


async def test_the_same_seed_gives_the_same_names() -> None:
    one = await create(backend(seed=7), "pods", pod("", generateName="web-"), "default")
    two = await create(backend(seed=7), "pods", pod("", generateName="web-"), "default")
    other = await create(backend(seed=8), "pods", pod("", generateName="web-"), "default")

    assert one.obj["metadata"] == two.obj["metadata"]
    assert one.obj["metadata"]["name"] != other.obj["metadata"]["name"]


@pytest.mark.parametrize(
    ("obj", "error", "message"),
    [
        (
            pod(""),
            errors.Invalid,
            'Pod "" is invalid: metadata.name: Required value: name or generateName is required',
        ),
        (
            pod("a", resourceVersion="5"),
            errors.BadRequest,
            "resourceVersion should not be set on objects to be created",
        ),
        (
            pod("a", namespace="kube-system"),
            errors.BadRequest,
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        (
            {**pod("a"), "apiVersion": "v2"},
            errors.BadRequest,
            "the API version in the data (v2) does not match the expected API version (v1)",
        ),
        (
            {**pod("a"), "kind": "Node"},
            errors.BadRequest,
            'Node in version "v1" cannot be handled as a Pod',
        ),
    ],
)
async def test_a_wrong_create_is_refused(obj: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as refused:
        await create(backend(), "pods", obj, "default")

    assert str(refused.value) == message


async def test_a_name_is_given_once() -> None:
    api = backend()
    await create(api, "pods", pod("web-0"), "default")

    with pytest.raises(errors.AlreadyExists) as refused:
        await create(api, "pods", pod("web-0"), "default")

    assert str(refused.value) == 'pods "web-0" already exists'
    assert refused.value.details is not None
    assert (refused.value.details.name, refused.value.details.kind) == ("web-0", "pods")


async def test_a_name_is_taken_until_its_object_is_gone() -> None:
    api = backend()
    await create(api, "pods", pod("web-0", finalizers=["a.io/b"]), "default")
    await api.delete(api.resolve("", "v1", "pods"), "default", "web-0")

    with pytest.raises(errors.AlreadyExists, match='object is being deleted: pods "web-0" already exists'):
        await create(api, "pods", pod("web-0"), "default")


async def test_objects_need_their_namespace() -> None:
    with pytest.raises(errors.NotFound) as refused:
        await create(backend(), "pods", pod("web-0"), "nowhere")

    assert str(refused.value) == 'namespaces "nowhere" not found'


async def test_a_terminating_namespace_takes_nothing_new() -> None:
    api = backend()
    await create(api, "namespaces", {"metadata": {"name": "shop"}})
    await api.delete(api.resolve("", "v1", "namespaces"), "", "shop")

    with pytest.raises(errors.Forbidden) as refused:
        await create(api, "pods", pod("web-0"), "shop")

    assert str(refused.value) == (
        'pods "web-0" is forbidden: unable to create new content in namespace shop because it is being '
        "terminated"
    )
    assert refused.value.details is not None
    (cause,) = refused.value.details.causes
    assert (cause.reason, cause.field) == ("NamespaceTerminating", "metadata.namespace")


async def test_a_dry_run_stores_nothing() -> None:
    api = backend()
    before = api.store.version
    record = await api.create(
        api.resolve("", "v1", "pods"), "default", pod("web-0"), WriteOptions(dry_run=True)
    )

    assert record.obj["metadata"]["uid"]
    assert "resourceVersion" not in record.obj["metadata"]
    assert names(api, "pods") == []
    assert api.store.version == before


async def test_a_dry_run_is_refused_like_a_real_one() -> None:
    api = backend()
    pods = api.resolve("", "v1", "pods")
    await create(api, "pods", pod("web-0"), "default")

    with pytest.raises(errors.AlreadyExists):
        await api.create(pods, "default", pod("web-0"), WriteOptions(dry_run=True))
    await api.delete(pods, "default", "web-0", DeleteRequest(dry_run=True))
    assert names(api, "pods") == ["web-0"]


async def test_every_cluster_starts_with_the_system_objects() -> None:
    api = backend()

    assert names(api, "namespaces") == [
        "default", "koordinator-system", "kube-node-lease", "kube-public", "kube-system",
    ]  # fmt: skip
    assert names(api, "services", "default") == ["kubernetes"]
    classes = api.resolve("scheduling.k8s.io", "v1", "priorityclasses")
    assert api.get(classes, "", "system-node-critical").obj["value"] == 2_000_001_000


async def test_an_unknown_resource_is_not_found() -> None:
    with pytest.raises(errors.NotFound, match="the server could not find the requested resource"):
        backend().resolve("example.com", "v1", "widgets")


async def test_services_get_an_address_and_node_ports() -> None:
    api = backend()
    ports = [{"port": 80}]
    first = await create(api, "services", {"metadata": {"name": "a"}, "spec": {"ports": ports}}, "default")
    second = await create(
        api, "services", {"metadata": {"name": "b"}, "spec": {"type": "NodePort", "ports": ports}}, "default"
    )
    headless = {"metadata": {"name": "c"}, "spec": {"clusterIP": "None", "ports": ports}}

    assert first.obj["spec"]["clusterIP"] == "10.96.0.11"
    assert second.obj["spec"]["clusterIP"] == "10.96.0.12"
    assert second.obj["spec"]["ports"] == [{"port": 80, "nodePort": 30_000}]
    assert (await create(api, "services", headless, "default")).obj["spec"]["clusterIP"] == "None"
    with pytest.raises(errors.Invalid, match="provided IP is already allocated"):
        body = {"metadata": {"name": "d"}, "spec": {"clusterIP": "10.96.0.11"}}
        await create(api, "services", body, "default")


async def test_jobs_select_their_pods_by_uid() -> None:
    api = backend()
    body = {"metadata": {"name": "sum"}, "spec": {"template": {"spec": {}}}}
    job = await create(api, "jobs", body, "default", "batch/v1")

    uid = job.obj["metadata"]["uid"]
    assert job.obj["spec"]["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    assert job.obj["spec"]["template"]["metadata"]["labels"] == {
        "batch.kubernetes.io/job-name": "sum",
        "job-name": "sum",
        "batch.kubernetes.io/controller-uid": uid,
        "controller-uid": uid,
    }


async def test_nodes_register_with_their_status() -> None:
    body = {"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "4"}}}

    record = await create(backend(), "nodes", body)

    assert record.obj["status"] == {"allocatable": {"cpu": "4"}}
    assert "generation" not in record.obj["metadata"]


async def test_events_are_one_collection_under_two_names() -> None:
    api = backend()
    event = {
        "metadata": {"name": "e1"},
        "involvedObject": {"kind": "Pod", "name": "web-0"},
        "message": "was evicted",
        "count": 3,
    }
    await create(api, "events", event, "default")

    new = api.get(api.resolve("events.k8s.io", "v1", "events"), "default", "e1").obj
    assert (new["apiVersion"], new["note"], new["deprecatedCount"]) == ("events.k8s.io/v1", "was evicted", 3)
    assert new["regarding"] == {"kind": "Pod", "name": "web-0"}

    await merge(api, "events", "e1", {"note": "was moved"}, api_version="events.k8s.io/v1")
    old = api.get(api.resolve("", "v1", "events"), "default", "e1").obj
    assert (old["apiVersion"], old["message"]) == ("v1", "was moved")


async def test_custom_resources_take_any_version_that_is_served() -> None:
    api = backend()
    await create(
        api,
        "customresourcedefinitions",
        definition(versions=("v1", "v2")),
        api_version="apiextensions.k8s.io/v1",
    )
    body = {"metadata": {"name": "w"}, "spec": {"size": 1}}
    await create(api, "widgets", body, "default", "example.com/v1")

    newer = api.get(api.resolve("example.com", "v2", "widgets"), "default", "w").obj
    assert newer["apiVersion"] == "example.com/v2"
    assert newer["spec"] == {"size": 1}
    assert newer["metadata"]["generation"] == 1


async def test_events_go_an_hour_after_their_last_write() -> None:
    api = backend()
    clock = api.clock
    assert isinstance(clock, FixedClock)
    await create(api, "events", {"metadata": {"name": "once"}}, "default")
    await create(api, "events", {"metadata": {"name": "again"}}, "default")
    clock.now_s += 1_800
    await merge(api, "events", "again", {"count": 2})
    clock.now_s += 1_800
    await create(api, "events", {"metadata": {"name": "new"}}, "default")

    assert names(api, "events") == ["again", "new"]
