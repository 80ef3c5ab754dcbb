"""Protobuf: what kubectl encodes, every field of every built-in kind, and answers and watches on the wire."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from koordinator.api.kinds import BUILT_IN
from koordinator.api.meta import Resource
from koordinator.clock import SystemClock
from koordinator.host.protobuf import field, fields
from koordinator.local.apiserver import ApiServer, protobuf
from koordinator.local.schema import Catalog
from koordinator.local.schema.types import SchemaType, WireKind
from tests.local.apiserver.fake import FakeBackend
from tests.local.apiserver.kubectl import Kubectl, needs_kubectl
from tests.local.apiserver.world import real_server

CREATES = [
    "namespace team-a",
    "deployment web --image=nginx:1.27 --replicas=3 --port=8080 -- sleep 1d",
    "job once --image=busybox -- sh -c 'echo hi'",
    "cronjob nightly --image=busybox --schedule='0 3 * * *' -- date",
    "service clusterip web --tcp=80:8080",
    "service nodeport web --tcp=80:8080 --node-port=30080",
    "service externalname db --external-name=db.example.com",
    "configmap settings --from-literal=a=1 --from-literal=b=two",
    "secret generic token --from-literal=key=value",
    "serviceaccount robot",
    "quota limits --hard=cpu=2,pods=3",
    "poddisruptionbudget web --selector=app=web --min-available=50%",
    "poddisruptionbudget db --selector=app=db --max-unavailable=1",
    "priorityclass high --value=1000 --description=important",
    "priorityclass zero --value=0",
    "role reader --verb=get,list --resource=pods,deployments.apps",
    "rolebinding reader --role=reader --user=alice --serviceaccount=default:robot",
    "clusterrole reader --verb=get --resource=nodes --resource-name=a",
    "clusterrole urls --verb=get --non-resource-url=/logs",
    "clusterrolebinding reader --clusterrole=reader --group=staff",
    "ingress web --rule='example.com/path*=web:80,tls=cert' --class=nginx",
]


@pytest.mark.kubectl
@needs_kubectl
@pytest.mark.parametrize("command", CREATES, ids=lambda command: " ".join(command.split()[:3]))
async def test_what_kubectl_creates_in_protobuf_arrives_as_what_it_prints_as_json(
    command: str, server: ApiServer, backend: FakeBackend, tmp_path: Path
) -> None:
    backend.served = list(BUILT_IN)
    kubectl = Kubectl(server, tmp_path)

    head, separator, program = command.partition(" -- ")
    printed = json.loads(await kubectl(f"create {head} --dry-run=client -o json{separator}{program}"))
    await kubectl(f"create {command}")

    (record,) = backend.records.values()
    assert without_nothing(record.obj) == without_nothing(printed)


def without_nothing(value: Any) -> Any:
    """An object without what says nothing: empty members, what the fake server added."""
    if isinstance(value, dict):
        kept = {key: without_nothing(item) for key, item in value.items()}
        return {
            key: item
            for key, item in kept.items()
            if item not in (None, {}, [])
            and key not in ("creationTimestamp", "resourceVersion", "namespace", "status")
        }
    return [without_nothing(item) for item in value] if isinstance(value, list) else value


def envelope(kind: str, raw: bytes, api_version: str = "v1") -> bytes:
    """A message as Go clients wrap it."""
    type_meta = field(1, api_version.encode()) + field(2, kind.encode())
    return b"k8s\x00" + field(1, type_meta) + field(2, raw)


def full_value(shape: SchemaType, name: str, inside: tuple[str, ...]) -> Any:
    """A value of a type with all of its fields, but for those that would contain themselves."""
    match shape.kind:
        case WireKind.STRUCT:
            if shape.name in inside:
                return {}
            within = (*inside, shape.name)
            return {
                key: full_value(member.type, key, within)
                for key, member in shape.fields.items()
                if not _is_lost(shape.name if inside else "", key)
            }
        case WireKind.LIST:
            assert shape.element is not None
            return [full_value(shape.element, name, inside)]
        case WireKind.MAP:
            assert shape.element is not None
            return {"a": full_value(shape.element, name, inside), "": full_value(shape.element, name, inside)}
    return {} if shape.kind is WireKind.ANY and name in _SCHEMAS else _FULL[shape.kind]


def _is_lost(owner: str, key: str) -> bool:
    return key in _NEWER or f"{owner}.{key}" in _NEWER or (owner in _INSIDE and key in ("apiVersion", "kind"))


_FULL: dict[WireKind, Any] = {
    WireKind.STRING: "täxt",
    WireKind.BOOL: True,
    WireKind.INT32: -5,
    WireKind.INT64: 2**62,
    WireKind.FLOAT: 0.5,
    WireKind.BYTES: "AP8=",
    WireKind.TIME: "2026-01-02T03:04:05Z",
    WireKind.MICRO_TIME: "2026-01-02T03:04:05.000006Z",
    WireKind.QUANTITY: "1500m",
    WireKind.INT_OR_STRING: "50%",
    WireKind.ANY: {"any": [1, "thing"]},
}

_SCHEMAS = ("additionalItems", "additionalProperties", "dependencies", "status")
"""Members that are any JSON in the models and a schema, or nothing, in fact."""
_NEWER = {
    "schedulingGroup",
    "volumeStatus",
    "V1ResourceHealth.message",
    "nodeAllocatableResourceClaimStatuses",
    "preventPodSchedulingIfMissing",
    "nodeAllocatableResourceMappings",
    "bools",
    "ints",
    "strings",
    "versions",
}
"""Fields of Kubernetes 1.36, which the models have and the messages of 1.35 have not."""
_INSIDE = ("V1PersistentVolumeClaim",)
"""Whole objects inside others, which have no apiVersion and kind of their own in protobuf."""
SHAPES = Catalog(BUILT_IN)


@pytest.mark.parametrize("resource", BUILT_IN, ids=lambda each: f"{each.api_version}/{each.kind}")
def test_every_built_in_kind_keeps_every_field_through_protobuf(resource: Resource) -> None:
    obj = full_value(SHAPES.schema_of(resource).type, "", ())
    obj |= {"apiVersion": resource.api_version, "kind": resource.kind}

    decoded, unknown = protobuf.decode(protobuf.encode(obj))

    assert unknown == []
    assert decoded == obj


@pytest.mark.parametrize("resource", BUILT_IN, ids=lambda each: f"{each.api_version}/{each.kind}")
def test_every_built_in_kind_has_a_list_in_protobuf(resource: Resource) -> None:
    listed = {
        "apiVersion": resource.api_version,
        "kind": f"{resource.kind}List",
        "metadata": {"resourceVersion": "7", "continue": "x"},
        "items": [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}],
    }

    decoded, _ = protobuf.decode(protobuf.encode(listed))

    assert [item["metadata"]["name"] for item in decoded["items"]] == ["a", "b"]
    assert decoded["metadata"] == listed["metadata"]


def test_zeros_that_mean_something_arrive_and_those_that_mean_nothing_do_not() -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "hostNetwork": False,
            "nodeName": "",
            "containers": [{"name": "", "image": "", "securityContext": {"privileged": False}}],
        },
    }

    spec = protobuf.decode(protobuf.encode(pod))[0]["spec"]

    assert spec == {
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "", "securityContext": {"privileged": False}}],
    }


def test_fields_that_nobody_knows_are_left_out_and_named() -> None:
    raw = field(1, field(1, b"web")) + field(99, b"new")

    decoded, unknown = protobuf.decode(envelope("Pod", raw))

    assert decoded["metadata"] == {"name": "web"}
    assert unknown == ["Pod.99"]


def test_delete_options_come_under_the_version_of_what_is_deleted() -> None:
    decoded, _ = protobuf.decode(envelope("DeleteOptions", b"\x08\x00", "example.com/v1"))

    assert decoded["gracePeriodSeconds"] == 0


def test_schemas_that_contain_schemas_end_at_a_depth_instead_of_the_interpreter() -> None:
    raw = b""
    for _ in range(300):
        raw = field(28, raw)  # `not`

    with pytest.raises(protobuf.Malformed, match="depth"):
        protobuf.decode(envelope("CustomResourceDefinition", nested_schema(raw), "apiextensions.k8s.io/v1"))


def nested_schema(schema: bytes) -> bytes:
    """A CustomResourceDefinition whose first version has that schema."""
    return field(2, field(7, field(4, field(1, schema))))


def test_a_kind_that_is_not_known_is_refused() -> None:
    with pytest.raises(protobuf.JsonOnly, match="Gadget"):
        protobuf.decode(envelope("Gadget", b""))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{}", id="no envelope"),
        pytest.param(b"k8s\x00\x0a\xff", id="a length beyond the end"),
        pytest.param(b"k8s\x00" + b"\xff" * 12, id="a number of 84 bits"),
        pytest.param(b"k8s\x00\x0b", id="an unknown wire type"),
        pytest.param(envelope("Pod", field(1, field(1, b"\xff\xfe"))), id="a text that is not UTF-8"),
        pytest.param(envelope("Pod", b"\x08\x01"), id="a number for a message"),
    ],
)
def test_malformed_bytes_are_told_apart_from_unknown_messages(body: bytes) -> None:
    with pytest.raises(protobuf.Malformed):
        protobuf.decode(body)


async def test_a_kind_without_field_numbers_answers_415_so_that_clients_fall_back(
    http: aiohttp.ClientSession, backend: FakeBackend
) -> None:
    backend.served = [Resource(group="example.com", version="v1", kind="Widget", plural="widgets")]
    headers = {"Content-Type": protobuf.MEDIA_TYPE}

    async with http.post(
        "/apis/example.com/v1/namespaces/a/widgets",
        data=envelope("Widget", b"", "example.com/v1"),
        headers=headers,
    ) as response:
        status = await response.json()

    assert (response.status, status["reason"]) == (415, "UnsupportedMediaType")
    assert "application/json" in status["message"]


IN_PROTOBUF = {"Content-Type": protobuf.MEDIA_TYPE, "Accept": f"{protobuf.MEDIA_TYPE}, */*"}


@pytest.fixture
async def typed() -> AsyncIterator[aiohttp.ClientSession]:
    """A client that sends and takes protobuf, at a server on the real registry."""
    server, _ = real_server(SystemClock())
    await server.start()
    async with aiohttp.ClientSession(server.url, headers=IN_PROTOBUF) as session:
        yield session
    await server.stop()


async def said(response: aiohttp.ClientResponse) -> tuple[int, dict[str, Any]]:
    assert response.headers["Content-Type"] == protobuf.MEDIA_TYPE
    return response.status, protobuf.decode(await response.read())[0]


LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
LEASE = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "metadata": {"name": "leader"},
    "spec": {"holderIdentity": "a", "renewTime": "2026-01-02T03:04:05.000006Z"},
}


async def test_create_get_update_patch_list_and_delete_answer_in_protobuf(
    typed: aiohttp.ClientSession,
) -> None:
    async with typed.post(LEASES, data=protobuf.encode(LEASE)) as response:
        status, created = await said(response)
    assert (status, created["spec"]) == (201, LEASE["spec"])

    taken = {**created, "spec": {**created["spec"], "holderIdentity": "b"}}
    async with typed.put(f"{LEASES}/leader", data=protobuf.encode(taken)) as response:
        _, updated = await said(response)
    assert updated["spec"]["holderIdentity"] == "b"

    merge = {"Content-Type": "application/merge-patch+json"}
    async with typed.patch(
        f"{LEASES}/leader", data=b'{"metadata":{"labels":{"x":"y"}}}', headers=merge
    ) as response:
        _, patched = await said(response)
    assert patched["metadata"]["labels"] == {"x": "y"}

    async with typed.get(LEASES) as response:
        _, listed = await said(response)
    assert (listed["kind"], listed["items"][0]["metadata"]) == ("LeaseList", patched["metadata"])

    options = {"apiVersion": "coordination.k8s.io/v1", "kind": "DeleteOptions", "dryRun": ["All"]}
    async with typed.delete(f"{LEASES}/leader", data=protobuf.encode(options)) as response:
        _, deleted = await said(response)
    assert (deleted["kind"], deleted["status"], deleted["details"]["name"]) == ("Status", "Success", "leader")


async def test_errors_arrive_in_protobuf_with_their_details(typed: aiohttp.ClientSession) -> None:
    async with typed.get(f"{LEASES}/nobody") as response:
        status, error = await said(response)

    assert (status, error["reason"], error["code"]) == (404, "NotFound", 404)
    assert error["details"] == {
        "name": "nobody",
        "group": "coordination.k8s.io",
        "kind": "leases",
    }


async def test_a_watch_in_protobuf_sends_frames_with_events(typed: aiohttp.ClientSession) -> None:
    async with typed.post(LEASES, data=protobuf.encode(LEASE)):
        pass

    async with typed.get(LEASES, params={"watch": "1", "timeoutSeconds": "5"}) as response:
        assert response.headers["Content-Type"] == protobuf.WATCH_TYPE
        size = int.from_bytes(await response.content.readexactly(4), "big")
        frame = await response.content.readexactly(size)

    parts = {each.number: each.content for each in fields(frame)}
    inner = {each.number: each.content for each in fields(parts[2])}
    obj, _ = protobuf.decode(inner[1])
    assert (parts[1], obj["kind"], obj["spec"]) == (b"ADDED", "Lease", LEASE["spec"])


async def test_a_watch_of_metadata_only_and_bookmarks_are_frames_too(typed: aiohttp.ClientSession) -> None:
    form = f"{protobuf.MEDIA_TYPE};as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
    params = {
        "watch": "1",
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
        "fieldSelector": "metadata.name=default",
    }
    seen = []
    async with typed.get("/api/v1/namespaces", params=params, headers={"Accept": form}) as response:
        for _ in range(2):
            size = int.from_bytes(await response.content.readexactly(4), "big")
            parts = {each.number: each.content for each in fields(await response.content.readexactly(size))}
            obj, _ = protobuf.decode(next(fields(parts[2])).content)
            seen.append((parts[1], obj["kind"], obj["metadata"].get("name")))
            annotations = obj["metadata"].get("annotations")

    assert seen == [
        (b"ADDED", "PartialObjectMetadata", "default"),
        (b"BOOKMARK", "PartialObjectMetadata", None),
    ]
    assert annotations == {"k8s.io/initial-events-end": "true"}


async def test_fields_that_nobody_knows_are_reported_in_a_warning_or_refused(
    typed: aiohttp.ClientSession,
) -> None:
    lease = envelope("Lease", field(1, field(1, b"new")) + field(99, b"x"), "coordination.k8s.io/v1")

    async with typed.post(LEASES, data=lease, params={"fieldValidation": "Strict"}) as response:
        status, refused = await said(response)
    async with typed.post(LEASES, data=lease) as response:
        warning = response.headers["Warning"]

    assert (status, refused["message"]) == (400, 'strict decoding error: unknown field "Lease.99"')
    assert "Lease.99" in warning


async def test_reviews_scales_and_evictions_are_understood_in_protobuf(typed: aiohttp.ClientSession) -> None:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}},
    }
    async with typed.post(
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", data=protobuf.encode(review)
    ) as response:
        _, answer = await said(response)
    assert answer["status"]["allowed"] is True

    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    async with typed.post(
        "/api/v1/namespaces/default/serviceaccounts/default/token", data=protobuf.encode(request)
    ) as response:
        status, answer = await said(response)
    assert (status, answer["status"]["token"].count(".")) == (201, 2)
