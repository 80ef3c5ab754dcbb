"""The official Python client against the API server: what scripts and operators written with it do."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import kubernetes
import pytest
import pytest_asyncio
from kubernetes import client, dynamic, watch

from koordinator.clock import SystemClock
from tests.local.apiserver.manifests import WIDGET, WIDGETS
from tests.local.apiserver.world import real_server

pytestmark = pytest.mark.asyncio(loop_scope="module")
T = TypeVar("T")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[client.ApiClient]:
    server, _ = real_server(SystemClock())
    await server.start()
    path: Path = tmp_path_factory.mktemp("client") / "kubeconfig"
    server.write_kubeconfig(path)
    yield kubernetes.config.new_client_from_config(str(path))
    await server.stop()


async def blocking(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """The client blocks; the server shares this loop, so the client gets a thread."""
    return await asyncio.to_thread(call, *args, **kwargs)


def config_map(name: str, labels: dict[str, str] | None = None) -> client.V1ConfigMap:
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name, labels=labels), data={"a": "1"})


async def test_creates_lists_in_chunks_and_deletes_a_collection(api: client.ApiClient) -> None:
    core = client.CoreV1Api(api)
    for i in range(7):
        await blocking(
            core.create_namespaced_config_map, "default", config_map(f"chunk-{i}", {"set": "chunks"})
        )

    names: list[str] = []
    token, pages = None, 0
    while token != "":
        page = await blocking(
            core.list_namespaced_config_map,
            "default",
            label_selector="set=chunks",
            limit=3,
            _continue=token or "",
        )
        names += [item.metadata.name for item in page.items]
        token, pages = page.metadata._continue or "", pages + 1

    assert (names, pages) == ([f"chunk-{i}" for i in range(7)], 3)
    await blocking(core.delete_collection_namespaced_config_map, "default", label_selector="set=chunks")
    left = await blocking(core.list_namespaced_config_map, "default", label_selector="set=chunks")
    assert left.items == []


async def test_a_watch_resumes_where_it_left_off(api: client.ApiClient) -> None:
    core = client.CoreV1Api(api)
    start = (await blocking(core.list_namespaced_secret, "default")).metadata.resource_version

    def follow(version: str, count: int) -> list[tuple[str, str, str]]:
        seen = []
        watcher = watch.Watch()
        for event in watcher.stream(
            core.list_namespaced_secret, "default", resource_version=version, timeout_seconds=10
        ):
            meta = event["object"].metadata
            seen.append((event["type"], meta.name, meta.resource_version))
            if len(seen) == count:
                watcher.stop()
        return seen

    following = asyncio.create_task(asyncio.to_thread(follow, start, 1))
    secret = client.V1Secret(metadata=client.V1ObjectMeta(name="one"), string_data={"a": "b"})
    await blocking(core.create_namespaced_secret, "default", secret)
    ((kind, name, version),) = await following
    assert (kind, name) == ("ADDED", "one")

    await blocking(core.patch_namespaced_secret, "one", "default", {"metadata": {"labels": {"x": "y"}}})
    await blocking(core.delete_namespaced_secret, "one", "default")
    resumed = await blocking(follow, version, 2)
    assert [event[:2] for event in resumed] == [("MODIFIED", "one"), ("DELETED", "one")]


@pytest.mark.parametrize(
    ("media", "patch"),
    [
        pytest.param(
            "application/json-patch+json", [{"op": "add", "path": "/data/b", "value": "2"}], id="json"
        ),
        pytest.param("application/merge-patch+json", {"data": {"b": "2"}}, id="merge"),
        pytest.param("application/strategic-merge-patch+json", {"data": {"b": "2"}}, id="strategic"),
    ],
)
async def test_patches_of_all_types(api: client.ApiClient, media: str, patch: Any) -> None:
    core = client.CoreV1Api(api)
    name = "patched-" + media.partition("/")[2].partition("-")[0]
    await blocking(core.create_namespaced_config_map, "default", config_map(name))

    patched = await blocking(core.patch_namespaced_config_map, name, "default", patch, _content_type=media)

    assert patched.data == {"a": "1", "b": "2"}


async def test_custom_objects_and_their_status(api: client.ApiClient) -> None:
    extensions, custom = client.ApiextensionsV1Api(api), client.CustomObjectsApi(api)
    await blocking(extensions.create_custom_resource_definition, WIDGETS)
    definition = await blocking(extensions.read_custom_resource_definition, "widgets.example.com")
    assert definition.status.accepted_names.kind == "Widget"
    address = ("example.com", "v1", "default", "widgets")

    created = await blocking(custom.create_namespaced_custom_object, *address, WIDGET)
    scaled = await blocking(custom.patch_namespaced_custom_object, *address, "w1", {"spec": {"replicas": 2}})
    status = {"status": {"replicas": 2}}
    await blocking(custom.patch_namespaced_custom_object_status, *address, "w1", status)

    assert (created["spec"]["color"], scaled["spec"]["replicas"]) == ("red", 2)
    found = await blocking(custom.list_namespaced_custom_object, *address)
    assert [item["status"]["replicas"] for item in found["items"]] == [2]


async def test_the_dynamic_client_discovers_and_applies(api: client.ApiClient) -> None:
    dynamic_client = await blocking(dynamic.DynamicClient, api)
    maps = await blocking(dynamic_client.resources.get, api_version="v1", kind="ConfigMap")
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "dynamic"}, "data": {"a": "1"}}

    await blocking(
        maps.server_side_apply, body=body, name="dynamic", namespace="default", field_manager="test"
    )

    found = await blocking(maps.get, name="dynamic", namespace="default")
    assert found.data.a == "1"
    assert found.metadata.managedFields[0].operation == "Apply"


async def test_errors_arrive_as_api_exceptions_with_their_reason(api: client.ApiClient) -> None:
    core = client.CoreV1Api(api)

    with pytest.raises(client.ApiException) as missing:
        await blocking(core.read_namespaced_pod, "nobody", "default")
    await blocking(core.create_namespaced_config_map, "default", config_map("twice"))
    with pytest.raises(client.ApiException) as twice:
        await blocking(core.create_namespaced_config_map, "default", config_map("twice"))

    assert (missing.value.status, twice.value.status) == (404, 409)
    assert '"reason":"AlreadyExists"' in twice.value.body


async def test_a_typed_binding_puts_a_pod_on_a_node_and_a_token_request_is_answered(
    api: client.ApiClient,
) -> None:
    core = client.CoreV1Api(api)
    container = client.V1Container(name="main", image="web")
    web = client.V1Pod(
        metadata=client.V1ObjectMeta(name="bound"), spec=client.V1PodSpec(containers=[container])
    )
    await blocking(core.create_namespaced_pod, "default", web)
    binding = client.V1Binding(
        metadata=client.V1ObjectMeta(name="bound"), target=client.V1ObjectReference(kind="Node", name="n1")
    )

    await blocking(core.create_namespaced_binding, "default", binding, _preload_content=False)
    request = client.AuthenticationV1TokenRequest(spec=client.V1TokenRequestSpec(audiences=[]))
    answer = await blocking(core.create_namespaced_service_account_token, "default", "default", request)

    assert (await blocking(core.read_namespaced_pod, "bound", "default")).spec.node_name == "n1"
    assert answer.status.token.count(".") == 2
