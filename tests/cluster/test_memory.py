"""`MemoryCluster` over a fake backend: shared views, bodies of subresources, raw requests."""

import pytest

from koordinator.cluster import errors
from koordinator.cluster.memory import MemoryCluster
from koordinator.cluster.resource_path import ResourcePath, parse
from tests.cluster.fake_backend import FakeBackend, PodView, pod


async def test_readers_share_one_view_of_one_version() -> None:
    backend = FakeBackend()
    backend.put(pod("a"))
    cluster = MemoryCluster(backend)

    page = await cluster.list(PodView)

    assert page.items[0] is await cluster.get(PodView, "a", "shop")
    assert page.resource_version == "101"


async def test_getting_an_unreadable_object_names_object_field_and_reason() -> None:
    backend = FakeBackend()
    backend.put({"metadata": {"name": "a", "namespace": "shop"}, "spec": {"priority": "high"}})

    with pytest.raises(errors.Unreadable) as caught:
        await MemoryCluster(backend).get(PodView, "a", "shop")

    assert (caught.value.obj, caught.value.field) == ("shop/a", "$.spec.priority")
    assert "got `str`" in caught.value.why


async def test_a_list_goes_on_without_the_unreadable_and_names_them() -> None:
    backend = FakeBackend()
    backend.put({"metadata": {"name": "a", "namespace": "shop"}, "spec": {"priority": "high"}})
    backend.put(pod("b"))

    page = await MemoryCluster(backend).list(PodView)

    assert [obj.metadata.name for obj in page.items] == ["b"]
    assert page.unreadable == (("shop", "a"),)


async def test_create_fills_in_kind_and_version() -> None:
    backend = FakeBackend()

    await MemoryCluster(backend).create(PodView, pod("a"), "shop")

    stored = backend.records["shop", "a"].obj
    assert (stored["apiVersion"], stored["kind"]) == ("v1", "Pod")


async def test_bind_and_evict_post_guarded_bodies() -> None:
    backend = FakeBackend()
    cluster = MemoryCluster(backend)

    await cluster.bind("shop", "a", "n1", uid="u1")
    await cluster.evict("shop", "a", uid="u1", grace_period_s=0)

    (_, binding, bound), (_, eviction, evicted) = backend.posted
    assert (binding, eviction) == ("binding", "eviction")
    assert bound["target"] == {"apiVersion": "v1", "kind": "Node", "name": "n1"}
    assert bound["metadata"] == {"name": "a", "namespace": "shop", "uid": "u1"}
    assert evicted["apiVersion"] == "policy/v1"
    assert evicted["deleteOptions"] == {"preconditions": {"uid": "u1"}, "gracePeriodSeconds": 0}


@pytest.mark.parametrize(
    ("path", "target"),
    [
        pytest.param("/api/v1", ResourcePath("", "v1"), id="core discovery"),
        pytest.param("/apis/apps/v1", ResourcePath("apps", "v1"), id="group discovery"),
        pytest.param(
            "/api/v1/nodes/n1/status", ResourcePath("", "v1", "nodes", "", "n1", "status"), id="node status"
        ),
        pytest.param("/api/v1/namespaces", ResourcePath("", "v1", "namespaces"), id="all namespaces"),
        pytest.param(
            "/api/v1/namespaces/shop", ResourcePath("", "v1", "namespaces", "", "shop"), id="a namespace"
        ),
        pytest.param(
            "/api/v1/namespaces/shop/finalize",
            ResourcePath("", "v1", "namespaces", "", "shop", "finalize"),
            id="subresource of a namespace",
        ),
        pytest.param(
            "/api/v1/namespaces/shop/pods", ResourcePath("", "v1", "pods", "shop"), id="pods of a namespace"
        ),
        pytest.param(
            "/apis/apps/v1/namespaces/shop/deployments/web/scale",
            ResourcePath("apps", "v1", "deployments", "shop", "web", "scale"),
            id="subresource in a namespace",
        ),
    ],
)
def test_paths_are_read_as_the_api_server_does(path: str, target: ResourcePath) -> None:
    assert parse(path) == target


@pytest.mark.parametrize("path", ["/", "/healthz", "/api", "/apis/apps", "/api/v1/pods/a/b/c"])
def test_other_paths_are_not_found(path: str) -> None:
    with pytest.raises(errors.NotFound):
        parse(path)


async def test_raw_requests_reach_the_same_objects() -> None:
    cluster = MemoryCluster(FakeBackend())
    pods = "/api/v1/namespaces/shop/pods"

    await cluster.request("POST", pods, pod("a"))
    patched = await cluster.request("PATCH", f"{pods}/a", {"spec": {"nodeName": "n1"}})
    listed = await cluster.request("GET", pods)
    served = await cluster.request("GET", "/api/v1")
    await cluster.request("DELETE", f"{pods}/a")

    assert patched["spec"] == {"nodeName": "n1"}
    assert (listed["kind"], len(listed["items"])) == ("PodList", 1)
    assert served["resources"][0]["name"] == "pods"
    with pytest.raises(errors.NotFound):
        await cluster.request("GET", f"{pods}/a")
    with pytest.raises(errors.MethodNotSupported):
        await cluster.request("DELETE", pods)
