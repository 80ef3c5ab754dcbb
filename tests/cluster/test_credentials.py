"""Credentials that are fetched and renewed: exec plugins and OIDC."""

import asyncio
import base64
import json
import random
import stat
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordinator.clock import FixedClock
from koordinator.cluster import config, connect, errors
from koordinator.cluster.config import ClusterConfigError
from koordinator.cluster.kube import KubeCluster
from tests.cluster.kubeconfigs import CLOCK, load, simple
from tests.cluster.scripted_server import ok, scripted, status

# Plugins


def plugin(tmp_path: Path, script: str, **options: Any) -> config.ClientConfig:
    path = tmp_path / "plugin"
    path.write_text("#!/bin/sh\n" + textwrap.dedent(script))
    path.chmod(0o700)
    settings = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin", **options}
    return load(simple(tmp_path / "config", {"exec": settings}))


HEAD = '"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential"'


async def test_a_plugin_is_asked_once_until_its_token_expires_or_is_refused(tmp_path: Path) -> None:
    clock = FixedClock(1_700_000_000.0)
    script = f"""
        echo x >> {tmp_path}/calls
        n=$(wc -l < {tmp_path}/calls | tr -d ' ')
        status='"token":"%s-%s-%s","expirationTimestamp":"2023-11-14T23:00:00Z"'
        printf '{{{HEAD},"status":{{'"$status"'}}}}' "$1" "$MODE" $n
    """
    plugin(tmp_path, script, args=["arg"], env=[{"name": "MODE", "value": "env"}])
    credentials = connect.from_files([tmp_path / "config"], clock=clock).credentials

    tokens = await asyncio.gather(*(credentials.authorization() for _ in range(3)))
    assert tokens == ["Bearer arg-env-1"] * 3
    assert await credentials.renew()
    assert await credentials.authorization() == "Bearer arg-env-2"
    clock.now_s += 3600
    assert await credentials.authorization() == "Bearer arg-env-3"


async def test_a_plugin_learns_of_the_cluster_when_it_asks(tmp_path: Path) -> None:
    script = f"""
        printf '%s' "$KUBERNETES_EXEC_INFO" > {tmp_path}/info
        echo '{{{HEAD},"status":{{"token":"t"}}}}'
    """
    found = plugin(tmp_path, script, provideClusterInfo=True, interactiveMode="Never", args=None)
    await found.credentials.authorization()

    info = json.loads((tmp_path / "info").read_text())
    assert info["spec"] == {"interactive": False, "cluster": {"server": "http://127.0.0.1:1"}}


@pytest.mark.parametrize(
    ("script", "message"),
    [
        pytest.param("echo no access >&2; exit 3", "ended with 3: no access", id="exit code"),
        pytest.param("echo hello", "sent no ExecCredential", id="no JSON"),
        pytest.param(f"echo '{{{HEAD},\"status\":{{}}}}'", "neither a token nor a certificate", id="empty"),
        pytest.param(
            'echo \'{"apiVersion":"v0","kind":"ExecCredential","status":{}}\'',
            "sent v0 ExecCredential",
            id="another version",
        ),
    ],
)
async def test_a_failing_plugin_is_named_with_its_reason(tmp_path: Path, script: str, message: str) -> None:
    found = plugin(tmp_path, script)
    with pytest.raises(ClusterConfigError, match=message):
        await found.credentials.authorization()
    async with KubeCluster(found, rng=random.Random(1)) as cluster:
        with pytest.raises(errors.Unauthorized, match=message):
            await cluster.request("GET", "/version")


async def test_a_missing_plugin_shows_its_install_hint(tmp_path: Path) -> None:
    settings = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "no-such-plugin-anywhere",
        "installHint": "install it from the cloud's page",
    }
    found = load(simple(tmp_path / "config", {"exec": settings}))
    with pytest.raises(ClusterConfigError, match="install it from the cloud's page"):
        await found.credentials.authorization()


# OIDC


def id_token(expires_s: float, mark: str) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": expires_s, "m": mark}).encode()).rstrip(b"=")
    return f"head.{claims.decode()}.sign"


def oidc(tmp_path: Path, issuer: str, token: str, refresh: str = "r1") -> Path:
    settings = {"idp-issuer-url": issuer, "client-id": "koordinator", "client-secret": "s"}
    settings |= {"id-token": token, "refresh-token": refresh}
    return simple(tmp_path / "config", {"auth-provider": {"name": "oidc", "config": settings}})


async def test_an_expired_id_token_is_renewed_and_kept_for_kubectl(tmp_path: Path) -> None:
    fresh = id_token(CLOCK.now_s + 3600, "fresh")
    async with scripted() as provider:
        provider.answers = [
            ok({"token_endpoint": f"{provider.url}/token"}),
            ok({"id_token": fresh, "refresh_token": "r2"}),
        ]
        path = oidc(tmp_path, provider.url, id_token(CLOCK.now_s - 1, "old"))
        credentials = load(path).credentials

        assert await credentials.authorization() == f"Bearer {fresh}"
        assert await credentials.authorization() == f"Bearer {fresh}"

        assert [asked.path for asked in provider.asked] == ["/.well-known/openid-configuration", "/token"]
    kept = yaml.safe_load(path.read_text())["users"][0]["user"]["auth-provider"]["config"]
    assert (kept["id-token"], kept["refresh-token"], kept["client-id"]) == (fresh, "r2", "koordinator")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_valid_id_token_is_used_as_it_is(tmp_path: Path) -> None:
    token = id_token(CLOCK.now_s + 3600, "valid")
    credentials = load(oidc(tmp_path, "http://127.0.0.1:1", token)).credentials
    assert await credentials.authorization() == f"Bearer {token}"


async def test_a_provider_that_refuses_is_named(tmp_path: Path) -> None:
    async with scripted(status(400, "BadRequest")) as provider:
        credentials = load(oidc(tmp_path, provider.url, "")).credentials
        with pytest.raises(ClusterConfigError, match="tokens not renewed: 400"):
            await credentials.authorization()


def test_providers_that_no_longer_exist_point_to_plugins(tmp_path: Path) -> None:
    path = simple(tmp_path / "config", {"auth-provider": {"name": "gcp"}})
    with pytest.raises(ClusterConfigError, match="'gcp' is not supported; use its exec plugin"):
        load(path)
