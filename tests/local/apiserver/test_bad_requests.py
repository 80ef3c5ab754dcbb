"""Requests that must be refused, each in the words that users of Kubernetes know."""

from typing import Any

import aiohttp
import pytest

from tests.local.apiserver.requests import POD, PODS_PATH, pod, send

REFUSED = [
    pytest.param(
        "GET", "/api/v1/gadgets", None, 404, "could not find the requested resource", id="unknown resource"
    ),
    pytest.param("GET", "/nowhere", None, 404, "could not find the requested resource", id="unknown path"),
    pytest.param("GET", POD, None, 404, 'pods "web" not found', id="unknown object"),
    pytest.param("GET", POD + "/nothing", None, 404, "could not find", id="unknown subresource"),
    pytest.param(
        "GET",
        "/apis/example.com/v1/namespaces/a/widgets/one/scale",
        None,
        404,
        'widgets.example.com "one" not found',
        id="a custom kind without scale",
    ),
    pytest.param(
        "GET", "/api/v1/namespaces/a/nodes", None, 404, "could not find", id="a node in a namespace"
    ),
    pytest.param("PUT", PODS_PATH, "{}", 405, "does not allow this method", id="put to a collection"),
    pytest.param(
        "POST", "/api/v1/pods", pod(), 405, "does not allow this method", id="create without namespace"
    ),
    pytest.param("OPTIONS", PODS_PATH, None, 405, "does not allow this method", id="an unknown method"),
    pytest.param("POST", PODS_PATH, "{", 400, "unexpected end of JSON input ({)", id="half a JSON"),
    pytest.param("POST", PODS_PATH, "", 400, "unexpected end of JSON input (<empty>)", id="no body"),
    pytest.param(
        "POST", PODS_PATH, "[1]", 400, "cannot unmarshal array into Go value", id="a list for an object"
    ),
    pytest.param(
        "POST", PODS_PATH, '{"a":' * 300 + "1" + "}" * 300, 400, "exceeded max depth", id="too deep"
    ),
    pytest.param("POST", PODS_PATH, "[" * 100_000, 400, "exceeded max depth", id="far too deep"),
    pytest.param(
        "POST", PODS_PATH, "[" + "{}," * 250_000 + "{}]", 400, "more than 250000 values", id="too many values"
    ),
    pytest.param(
        "POST", PODS_PATH, "[" + "1," * 250_000 + "1]", 400, "more than 250000 values", id="too many numbers"
    ),
    pytest.param(
        "POST",
        PODS_PATH,
        pod() | {"apiVersion": "apps/v1"},
        400,
        "the API version in the data (apps/v1) does not match the expected API version (v1)",
        id="another version",
    ),
    pytest.param(
        "POST", PODS_PATH, pod() | {"kind": "Node"}, 400, "cannot be handled as a Pod", id="another kind"
    ),
    pytest.param(
        "POST", PODS_PATH, pod() | {"kind": 1}, 400, "cannot unmarshal number", id="a kind that is no text"
    ),
    pytest.param(
        "POST", PODS_PATH + "?dryRun=maybe", pod(), 422, 'dryRun: Unsupported value: ["maybe"]', id="dryRun"
    ),
    pytest.param(
        "POST", PODS_PATH + "?fieldValidation=Loose", pod(), 422, "fieldValidation: Unsupp", id="validation"
    ),
    pytest.param("GET", PODS_PATH + "?limit=abc", None, 400, 'strconv.ParseInt: parsing "abc"', id="limit"),
    pytest.param("GET", PODS_PATH + "?limit=" + "9" * 30, None, 400, "value out of range", id="a huge limit"),
    pytest.param(
        "GET", PODS_PATH + "?watch=1&timeoutSeconds=x", None, 400, "invalid syntax", id="timeoutSeconds"
    ),
    pytest.param(
        "DELETE", POD + "?propagationPolicy=Up", None, 422, "propagationPolicy: Unsupp", id="propagation"
    ),
    pytest.param(
        "DELETE", POD, {"gracePeriodSeconds": "x"}, 400, "cannot unmarshal string", id="grace of text"
    ),
    pytest.param(
        "DELETE", POD, {"kind": "Pod"}, 400, "cannot be converted to DeleteOptions", id="a pod as options"
    ),
    pytest.param("GET", POD + "/attach", None, 400, "no kubelet to connect to", id="attach"),
    pytest.param("GET", POD + "/proxy/a/b", None, 400, "no kubelet to connect to", id="proxy"),
]


@pytest.mark.parametrize(("method", "path", "body", "code", "message"), REFUSED)
async def test_bad_requests_are_answered_in_the_words_that_users_know(
    http: aiohttp.ClientSession, method: str, path: str, body: Any, code: int, message: str
) -> None:
    answered, status = await send(http, method, path, body)

    assert (answered, status["kind"], status["status"], status["code"]) == (code, "Status", "Failure", code)
    assert message in status["message"]


@pytest.mark.parametrize(
    ("content_type", "body", "code", "message"),
    [
        pytest.param("text/plain", "{}", 415, "application/json-patch+json", id="no patch type"),
        pytest.param(
            "application/merge-patch+json", "[]", 400, "cannot unmarshal array", id="a merge patch list"
        ),
        pytest.param("application/json-patch+json", "{}", 400, "jsonpatch.Patch", id="a JSON patch object"),
        pytest.param("application/merge-patch+json", "{", 400, "error decoding patch", id="half a patch"),
        pytest.param(
            "application/apply-patch+yaml", "a: b", 422, "fieldManager: Required value", id="no manager"
        ),
    ],
)
async def test_bad_patches_are_refused(
    http: aiohttp.ClientSession, content_type: str, body: str, code: int, message: str
) -> None:
    answered, status = await send(http, "PATCH", POD, body, {"Content-Type": content_type})

    assert answered == code
    assert message in status["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param("a: b: c", "mapping values are not allowed", id="nonsense"),
        pytest.param("a: 1\na: 2", 'key "a" already set in map', id="a key twice"),
        pytest.param("- " * 5_000, "exceeded max depth", id="too deep"),
        pytest.param(
            "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
            + "".join(
                f"{b}: &{b} [{','.join(['*' + a] * 10)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)
            ),
            "excessive aliasing",
            id="a bomb",
        ),
    ],
)
async def test_bad_yaml_is_refused(http: aiohttp.ClientSession, body: str, message: str) -> None:
    code, status = await send(http, "POST", PODS_PATH, body, {"Content-Type": "application/yaml"})

    assert code == 400
    assert message in status["message"]
