"""The HTTP protocol of single requests, over a backend that does nothing of its own."""

import gzip
from typing import Any

import aiohttp
import pytest

from koordinator.cluster import errors
from koordinator.cluster.protocol import PatchType
from koordinator.local.apiserver import ApiServer, bodies
from koordinator.local.apiserver import server as server_module
from tests.local.apiserver.fake import PODS, FakeBackend
from tests.local.apiserver.requests import JSON, POD, PODS_PATH, pod, send


async def test_what_is_created_can_be_read_listed_replaced_patched_and_deleted(
    http: aiohttp.ClientSession,
) -> None:
    assert (await send(http, "POST", PODS_PATH, pod()))[0] == 201
    assert (await send(http, "GET", POD))[1]["metadata"]["namespace"] == "default"
    code, listed = await send(http, "GET", PODS_PATH)
    assert (code, listed["kind"], len(listed["items"])) == (200, "PodList", 1)
    assert (await send(http, "PUT", POD, pod(spec={"nodeName": "a"})))[1]["spec"] == {"nodeName": "a"}
    merge = {"Content-Type": "application/merge-patch+json"}
    assert (await send(http, "PATCH", POD, {"spec": {"nodeName": "b"}}, merge))[1]["spec"] == {
        "nodeName": "b"
    }
    assert (await send(http, "DELETE", POD))[1]["kind"] == "Pod"
    assert (await send(http, "GET", POD))[0] == 404


async def test_a_page_of_a_list_names_its_successor(http: aiohttp.ClientSession) -> None:
    for name in ("a", "b"):
        await send(http, "POST", PODS_PATH, pod(name))

    _, page = await send(http, "GET", PODS_PATH + "?limit=1")

    assert page["metadata"] == {"resourceVersion": "12", "continue": "next", "remainingItemCount": 1}


async def test_deletion_of_most_kinds_is_answered_with_a_status(http: aiohttp.ClientSession) -> None:
    path = "/apis/example.com/v1/namespaces/default/widgets"
    await send(
        http, "POST", path, {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}}
    )

    _, answer = await send(http, "DELETE", path + "/w")

    assert (answer["status"], answer["details"]["name"], answer["details"]["kind"]) == (
        "Success",
        "w",
        "widgets",
    )


async def test_a_kind_without_namespaces_forgets_the_one_that_a_client_sent(
    http: aiohttp.ClientSession,
) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "namespace": "default"}}

    code, created = await send(http, "POST", "/api/v1/nodes", node)

    assert (code, created["metadata"].get("namespace")) == (201, None)


async def test_options_reach_the_backend(http: aiohttp.ClientSession, backend: FakeBackend) -> None:
    query = "?dryRun=All&fieldManager=me&fieldValidation=Strict"
    await send(http, "POST", PODS_PATH + query, pod())
    apply = {"Content-Type": "application/apply-patch+yaml"}
    await send(http, "PATCH", POD + "?fieldManager=me&force=true", "kind: Pod\napiVersion: v1\n", apply)
    deletion = {"gracePeriodSeconds": 3, "propagationPolicy": "Foreground", "preconditions": {"uid": "u"}}
    await send(http, "DELETE", POD, deletion)

    created, applied, deleted = (call[-1] for call in backend.calls)
    assert (created.dry_run, created.field_manager, created.field_validation) == (True, "me", "Strict")
    assert applied.force
    assert backend.calls[1][5] is PatchType.APPLY
    assert (deleted.grace_period_s, deleted.propagation, deleted.uid) == (3, "Foreground", "u")


async def test_without_a_field_manager_the_program_is_the_manager(
    http: aiohttp.ClientSession, backend: FakeBackend
) -> None:
    await send(http, "POST", PODS_PATH, pod(), {"User-Agent": "robot/v1 (linux)"})

    assert backend.calls[0][-1].field_manager == "robot"


async def test_apply_answers_201_only_for_what_was_not_there(http: aiohttp.ClientSession) -> None:
    apply = {"Content-Type": "application/apply-patch+yaml"}

    codes = [(await send(http, "PATCH", POD + "?fieldManager=me", "kind: Pod", apply))[0] for _ in range(2)]

    assert codes == [201, 200]


async def test_yaml_bodies_are_read(http: aiohttp.ClientSession) -> None:
    body = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {hostNetwork: yes}\n"

    code, created = await send(http, "POST", PODS_PATH, body, {"Content-Type": "application/yaml"})

    assert (code, created["spec"]) == (201, {"hostNetwork": True})


async def test_answers_come_as_yaml_when_asked(http: aiohttp.ClientSession) -> None:
    async with http.get("/version", headers={"Accept": "application/json"}) as response:
        assert (await response.json())["minor"] == "35"
    await send(http, "POST", PODS_PATH, pod())
    async with http.get(POD, headers={"Accept": "application/yaml"}) as response:
        assert "kind: Pod\n" in await response.text()


@pytest.mark.parametrize(
    ("accept", "code"),
    [
        pytest.param("application/cbor", 406, id="something else only"),
        pytest.param("application/cbor,application/json", 200, id="something else or JSON"),
        pytest.param("text/html", 406, id="HTML"),
        pytest.param("*/*", 200, id="anything"),
        pytest.param("application/json;as=Poem;g=x;v=v1", 406, id="an unknown form"),
        pytest.param("application/json;q=0", 406, id="JSON refused"),
    ],
)
async def test_accept_lists_that_hold_json_work(http: aiohttp.ClientSession, accept: str, code: int) -> None:
    assert (await send(http, "GET", PODS_PATH, None, {"Accept": accept}))[0] == code


async def test_a_body_beyond_the_limit_is_refused_whether_announced_or_not(
    http: aiohttp.ClientSession,
) -> None:
    body = b'{"a":"' + b"x" * bodies.BODY_BYTES_MAX + b'"}'

    async def pieces() -> Any:
        for start in range(0, len(body), 1 << 18):
            yield body[start : start + (1 << 18)]

    for data in (body, pieces()):
        async with http.post(PODS_PATH, data=data, headers=JSON) as response:
            status = await response.json()
        assert (response.status, status["message"]) == (413, "Request entity too large: limit is 3145728")


async def test_keys_given_twice_are_warned_of_or_refused(http: aiohttp.ClientSession) -> None:
    body = '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web", "name":"web"},"spec":{"a":[{"b":1,"b":2}]}}'

    async with http.post(PODS_PATH, data=body, headers=JSON) as response:
        warnings = response.headers.getall("Warning")
    _, refused = await send(http, "POST", PODS_PATH + "?fieldValidation=Strict", body)
    async with http.post(PODS_PATH + "?fieldValidation=Ignore", data=body, headers=JSON) as response:
        ignored = response.headers.getall("Warning", [])

    assert warnings == [
        '299 - "duplicate field \\"metadata.name\\""',
        '299 - "duplicate field \\"spec.a[0].b\\""',
    ]
    assert refused["message"] == (
        'strict decoding error: duplicate field "metadata.name", duplicate field "spec.a[0].b"'
    )
    assert ignored == []


async def test_an_error_of_our_own_is_a_status_and_counted(
    http: aiohttp.ClientSession, backend: FakeBackend, server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    backend.fail = ZeroDivisionError("oops")

    code, status = await send(http, "GET", POD)

    assert (code, status["reason"]) == (500, "InternalError")
    assert server.telemetry.panics == 1
    assert "ZeroDivisionError" in caplog.text


async def test_errors_carry_when_to_retry(http: aiohttp.ClientSession, backend: FakeBackend) -> None:
    backend.fail = errors.TooManyRequests("busy", details=errors.StatusDetails(retry_after_seconds=7))

    async with http.get(POD) as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "7")


async def test_beyond_the_limit_of_requests_in_flight_clients_are_told_to_wait(
    http: aiohttp.ClientSession, server: ApiServer
) -> None:
    server.telemetry.in_flight = server_module.IN_FLIGHT_MAX

    async with http.get(PODS_PATH) as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "1")
    async with http.get("/readyz") as response:
        assert response.status == 200


async def test_large_lists_are_compressed_when_accepted(
    http: aiohttp.ClientSession, server: ApiServer
) -> None:
    for name in ("a", "b"):
        await send(http, "POST", PODS_PATH, pod(name, spec={"nodeName": "x" * 100_000}))

    headers = {"Accept-Encoding": "gzip"}
    async with (
        aiohttp.ClientSession(server.url, auto_decompress=False) as raw,
        raw.get(PODS_PATH, headers=headers) as response,
    ):
        assert response.headers["Content-Encoding"] == "gzip"
        packed = await response.read()
    async with http.get(PODS_PATH, headers={"Accept-Encoding": "identity"}) as response:
        assert "Content-Encoding" not in response.headers
        plain = await response.read()

    assert len(packed) < len(plain) // 10
    assert gzip.decompress(packed) == plain


async def test_metadata_alone_can_be_asked_for(http: aiohttp.ClientSession) -> None:
    await send(http, "POST", PODS_PATH, pod(spec={"nodeName": "a"}))
    accept = {"Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}

    _, listed = await send(http, "GET", PODS_PATH, None, accept)

    assert (listed["kind"], listed["items"][0]["kind"]) == (
        "PartialObjectMetadataList",
        "PartialObjectMetadata",
    )
    assert "spec" not in listed["items"][0]


async def test_a_list_is_no_single_object(http: aiohttp.ClientSession) -> None:
    accept = {"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}

    code, refused = await send(http, "GET", PODS_PATH, None, accept)

    assert (code, refused["message"]) == (
        406,
        "you requested PartialObjectMetadata, but the requested object is a list (*core.PodList)",
    )


async def test_items_of_a_list_do_not_say_again_what_they_are(http: aiohttp.ClientSession) -> None:
    await send(http, "POST", PODS_PATH, {"metadata": {"name": "b"}, "kind": "Pod", "apiVersion": "v1"})
    await send(http, "POST", PODS_PATH, pod("a"))

    _, listed = await send(http, "GET", PODS_PATH)

    assert listed["kind"] == "PodList" and len(listed["items"]) == 2
    assert all(each.keys().isdisjoint(("kind", "apiVersion")) for each in listed["items"])


async def test_binding_goes_to_connect(http: aiohttp.ClientSession, backend: FakeBackend) -> None:
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "web"},
        "target": {"name": "node-1"},
    }

    code, _ = await send(http, "POST", POD + "/binding", binding)

    assert code == 201
    assert backend.calls == [("connect", PODS.plural, "default", "web", "binding", backend.calls[0][-1])]
    assert backend.calls[0][-1]["target"] == {"name": "node-1"}


async def test_health_metrics_and_root_answer(http: aiohttp.ClientSession) -> None:
    for path in ("/healthz", "/livez", "/readyz", "/readyz/ping"):
        async with http.get(path) as response:
            assert await response.text() == "ok"
    async with http.get("/readyz?verbose") as response:
        assert "[+]ping ok" in await response.text()
    async with http.get("/metrics") as response:
        text = await response.text()
    assert 'apiserver_request_total{code="200",group="",resource="",verb="GET"} 5' in text
    assert 'apiserver_request_duration_seconds_count{verb="GET"} 5' in text
    assert "/apis" in (await send(http, "GET", "/"))[1]["paths"]


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/namespaces/default/pods/nobody",
        "/api/v1/namespaces/default/pods/nobody/ephemeralcontainers",
        "/api/v1/nothings",
        "/apis/nobody.example.com/v1/things",
        "/apis/nobody.example.com",
        "/nowhere",
    ],
)
async def test_every_404_has_details(path: str, http: aiohttp.ClientSession, backend: FakeBackend) -> None:
    async with http.get(path) as response:
        status = await response.json()

    assert response.status == 404
    assert isinstance(status["details"], dict)
