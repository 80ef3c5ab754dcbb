"""Discovery in both forms, and usage metrics for `kubectl top`."""

import aiohttp
import msgspec

from koordinator.api.meta import Resource
from koordinator.clock import rfc3339
from koordinator.local.apiserver.discovery import Documents, Served
from tests.local.apiserver.fake import WIDGETS, FakeBackend
from tests.local.apiserver.requests import send

AGGREGATED = {
    "Accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
}


async def test_both_forms_name_the_same_resources(http: aiohttp.ClientSession) -> None:
    _, groups = await send(http, "GET", "/apis")
    plain = set()
    for group in groups["groups"]:
        _, listed = await send(http, "GET", "/apis/" + group["preferredVersion"]["groupVersion"])
        plain |= {(group["name"], entry["name"]) for entry in listed["resources"]}
    _, whole = await send(http, "GET", "/apis", None, AGGREGATED)

    aggregated = set()
    for item in whole["items"]:
        for entry in item["versions"][0]["resources"]:
            names = [entry["resource"]]
            names += [f"{entry['resource']}/{sub['subresource']}" for sub in entry.get("subresources", [])]
            aggregated |= {(item["metadata"]["name"], name) for name in names}
    assert whole["apiVersion"] == "apidiscovery.k8s.io/v2"
    assert aggregated == plain
    assert ("example.com", "widgets") in plain


async def test_the_core_group_lists_subresources_with_their_kinds(http: aiohttp.ClientSession) -> None:
    assert (await send(http, "GET", "/api"))[1]["versions"] == ["v1"]
    _, core = await send(http, "GET", "/api/v1")

    entries = {entry["name"]: entry for entry in core["resources"]}
    assert entries["pods"]["shortNames"] == ["po"]
    assert (entries["pods/eviction"]["group"], entries["pods/eviction"]["kind"]) == ("policy", "Eviction")
    assert entries["nodes"]["namespaced"] is False


async def test_a_known_document_is_not_sent_again_until_it_changes(
    http: aiohttp.ClientSession, backend: FakeBackend
) -> None:
    async with http.get("/apis", headers=AGGREGATED) as response:
        tag = response.headers["ETag"]
        assert response.headers["Content-Type"].endswith("as=APIGroupDiscoveryList")

    known = {**AGGREGATED, "If-None-Match": tag}
    async with http.get("/apis", headers=known) as response:
        assert (response.status, await response.read()) == (304, b"")
    backend.served.remove(WIDGETS)
    async with http.get("/apis", headers=known) as response:
        assert response.status == 200
        assert "example.com" not in await response.text()


def test_versions_are_ordered_by_how_stable_they_are() -> None:
    versions = ["v1alpha1", "v2", "v1beta2", "v1", "v10", "v1beta1", "foo"]
    served = [Served(msgspec.structs.replace(WIDGETS, version=version)) for version in versions]

    group = Documents(served).group("example.com")

    assert group is not None
    ordered = [version["version"] for version in group["versions"]]
    assert ordered == ["v10", "v2", "v1", "v1beta2", "v1beta1", "v1alpha1", "foo"]


NODE_METRICS = Resource(
    group="slo.koordinator.sh", version="v1alpha1", kind="NodeMetric", plural="nodemetrics", namespaced=False
)


async def test_usage_of_what_exists_is_what_node_metrics_report(
    http: aiohttp.ClientSession, backend: FakeBackend
) -> None:
    await send(http, "POST", "/api/v1/nodes", {"metadata": {"name": "node-1", "labels": {"a": "b"}}})
    await send(http, "POST", "/api/v1/namespaces/default/pods", {"metadata": {"name": "web"}})
    path = "/apis/metrics.k8s.io/v1beta1"
    assert (await send(http, "GET", f"{path}/nodes"))[1]["items"] == []

    backend.served.append(NODE_METRICS)
    used = {"resources": {"cpu": "2", "memory": "3Gi"}}
    report = {
        "updateTime": rfc3339(60),
        "nodeMetric": {"nodeUsage": used},
        "podsMetric": [{"name": "web", "namespace": "default", "podUsage": used}, {"name": "unmeasured"}],
    }
    for name in ("node-1", "gone"):
        metric = {"kind": "NodeMetric", "apiVersion": NODE_METRICS.api_version, "metadata": {"name": name}}
        await send(http, "POST", NODE_METRICS.path(), {**metric, "status": report})

    _, nodes = await send(http, "GET", f"{path}/nodes")
    _, pod = await send(http, "GET", f"{path}/namespaces/default/pods/web")
    missing, _ = await send(http, "GET", f"{path}/nodes/gone")

    assert nodes["kind"] == "NodeMetricsList"
    ((node),) = nodes["items"]
    assert (node["metadata"]["name"], node["metadata"]["labels"]) == ("node-1", {"a": "b"})
    assert (node["usage"], node["timestamp"], node["window"]) == (used["resources"], rfc3339(60), "60s")
    assert pod["containers"] == [{"name": "web", "usage": used["resources"]}]
    assert missing == 404
