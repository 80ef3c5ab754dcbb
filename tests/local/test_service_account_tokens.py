"""Tokens of ServiceAccounts, from the `token` subresource to whom they stand for."""

from pathlib import Path
from typing import Any

import jwt
import pytest

from koordinator.api.meta import Resource
from koordinator.clock import FixedClock
from koordinator.cluster import errors
from koordinator.local import registry
from koordinator.local.registry import ObjectRegistry
from koordinator.local.service_account_tokens import ISSUER, BadToken
from tests.local.registry_builders import pod

NOW_S = 1_700_000_000.0


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock(NOW_S)


@pytest.fixture
def api(clock: FixedClock) -> ObjectRegistry:
    return registry.in_memory(clock)


def accounts(api: ObjectRegistry) -> Resource:
    return api.resolve("", "v1", "serviceaccounts")


async def request(api: ObjectRegistry, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    body = {"spec": spec, "metadata": metadata}
    return await api.connect(accounts(api), "default", "default", "token", body)


async def test_a_token_stands_for_its_account_until_it_expires(
    api: ObjectRegistry, clock: FixedClock
) -> None:
    answer = await request(api, {"expirationSeconds": 600})
    token = answer["status"]["token"]

    found = api.tokens.verify(token)

    uid = api.get(accounts(api), "default", "default").obj["metadata"]["uid"]
    assert (found.user, found.account.uid) == ("system:serviceaccount:default:default", uid)
    assert found.groups == (
        "system:serviceaccounts",
        "system:serviceaccounts:default",
        "system:authenticated",
    )
    assert answer["status"]["expirationTimestamp"] == "2023-11-14T22:23:20Z"
    assert answer["spec"]["audiences"] == [ISSUER]
    clock.now_s += 600
    with pytest.raises(BadToken, match="expired"):
        api.tokens.verify(token)


async def test_a_token_is_a_json_web_token_with_the_claims_of_kubernetes(api: ObjectRegistry) -> None:
    answer = await request(api, {"audiences": ["vault"]})

    claims = jwt.decode(answer["status"]["token"], options={"verify_signature": False})

    assert (claims["aud"], claims["sub"]) == (["vault"], "system:serviceaccount:default:default")
    assert claims["exp"] - claims["iat"] == 3600
    assert claims["kubernetes.io"]["serviceaccount"]["name"] == "default"
    with pytest.raises(BadToken, match="udience"):
        api.tokens.verify(answer["status"]["token"])


async def test_a_token_that_another_key_signed_is_refused(api: ObjectRegistry, clock: FixedClock) -> None:
    stranger = await request(registry.in_memory(clock), {})

    with pytest.raises(BadToken):
        api.tokens.verify(stranger["status"]["token"])
    forged = jwt.encode({"aud": [ISSUER], "iss": ISSUER}, key="", algorithm="none")
    with pytest.raises(BadToken):
        api.tokens.verify(forged)


async def test_tokens_of_an_account_that_was_made_anew_are_refused(api: ObjectRegistry) -> None:
    token = (await request(api, {}))["status"]["token"]

    await api.delete(accounts(api), "default", "default")
    with pytest.raises(BadToken, match="gone"):
        api.tokens.verify(token)
    await api.create(accounts(api), "default", {"metadata": {"name": "default"}})
    with pytest.raises(BadToken, match="gone"):
        api.tokens.verify(token)


async def test_a_token_bound_to_a_pod_ends_with_the_pod(api: ObjectRegistry, clock: FixedClock) -> None:
    pods = api.resolve("", "v1", "pods")
    created = await api.create(pods, "default", pod("web"))
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": created.obj["metadata"]["uid"]}
    token = (await request(api, {"boundObjectRef": reference}))["status"]["token"]

    assert api.tokens.verify(token).bound["pod"].name == "web"
    await api.delete(pods, "default", "web")
    with pytest.raises(BadToken, match='pods "web"'):
        api.tokens.verify(token)


@pytest.mark.parametrize(
    ("spec", "metadata", "error", "text"),
    [
        pytest.param(
            {"expirationSeconds": 599},
            {},
            errors.Invalid,
            'TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 599: '
            "may not specify a duration less than 10 minutes",
            id="too short",
        ),
        pytest.param(
            {},
            {"name": "other"},
            errors.Invalid,
            'TokenRequest.authentication.k8s.io "default" is invalid: metadata.name: Invalid value: "other": '
            "must match the service account name if specified",
            id="another name",
        ),
        pytest.param(
            {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "gone"}},
            {},
            errors.NotFound,
            'pods "gone" not found',
            id="no such pod",
        ),
        pytest.param(
            {"boundObjectRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}},
            {},
            errors.BadRequest,
            "cannot bind token to object of type apps/v1, Kind=Deployment",
            id="a kind that tokens cannot be bound to",
        ),
    ],
)
async def test_a_request_that_cannot_be_granted_is_refused_with_its_reason(
    api: ObjectRegistry,
    spec: dict[str, Any],
    metadata: dict[str, Any],
    error: type[errors.ApiError],
    text: str,
) -> None:
    with pytest.raises(error) as refused:
        await request(api, spec, **metadata)

    assert refused.value.message == text


async def test_tokens_outlive_a_restart_of_a_cluster_that_keeps_its_objects(
    clock: FixedClock, tmp_path: Path
) -> None:
    first = registry.on_disk(clock, tmp_path)
    token = (await request(first, {}))["status"]["token"]
    await first.close()

    second = registry.on_disk(clock, tmp_path)

    assert second.tokens.verify(token).user == "system:serviceaccount:default:default"
    assert (tmp_path / "service-accounts.key").stat().st_mode & 0o077 == 0
    await second.close()
