"""Finding a cluster: kubeconfig files, plugins, OIDC, the pod we run in; and TLS for real."""

import asyncio
import base64
import datetime
import json
import os
import random
import ssl
import stat
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from koordinator.clock import FixedClock
from koordinator.cluster import config, connect, errors, kubeconfig
from koordinator.cluster.config import ConfigError
from koordinator.cluster.kube import KubeCluster
from tests.cluster.scripted_server import ok, scripted, status, text

CLOCK = FixedClock(1_700_000_000.0)


def write(path: Path, **parts: Any) -> Path:
    path.write_text(yaml.safe_dump({key.replace("_", "-"): value for key, value in parts.items()}))
    return path


def simple(path: Path, user: dict[str, Any], cluster: dict[str, Any] | None = None) -> Path:
    return write(
        path,
        current_context="c",
        contexts=[{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "shop"}}],
        clusters=[{"name": "k", "cluster": {"server": "http://127.0.0.1:1"} | (cluster or {})}],
        users=[{"name": "u", "user": user}],
    )


def load(path: Path, context: str = "") -> config.ClientConfig:
    return kubeconfig.load([path], context=context, clock=CLOCK)


# Files


async def test_several_files_are_merged_and_the_first_wins(tmp_path: Path) -> None:
    first = write(
        tmp_path / "first",
        current_context="prod",
        users=[{"name": "me", "user": {"token": "first"}}],
        clusters=None,
    )
    second = write(
        tmp_path / "second",
        current_context="other",
        contexts=[{"name": "prod", "context": {"cluster": "k", "user": "me"}}],
        clusters=[{"name": "k", "cluster": {"server": "https://k:6443/"}}],
        users=[{"name": "me", "user": {"token": "second"}}],
    )

    found = kubeconfig.load([first, second], clock=CLOCK)

    assert found.server == "https://k:6443"
    assert found.namespace == "default"
    assert await found.credentials.authorization() == "Bearer first"


async def test_the_environment_names_files_of_which_some_may_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = simple(tmp_path / "there", {"token": "t"})
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join([str(tmp_path / "missing"), str(there)]))

    assert connect.load().namespace == "shop"


def test_without_any_configuration_the_error_says_what_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match=r"missing not found; give --kubeconfig or a URL"):
        connect.load()


async def test_a_relative_token_file_is_beside_its_kubeconfig_and_read_again_when_it_changes(
    tmp_path: Path,
) -> None:
    (tmp_path / "token").write_text("one\n")
    found = load(simple(tmp_path / "config", {"tokenFile": "token", "token": "stale"}))
    assert await found.credentials.authorization() == "Bearer one"

    (tmp_path / "token.new").write_text("two\n")
    (tmp_path / "token.new").replace(tmp_path / "token")

    assert await found.credentials.authorization() == "Bearer two"


async def test_passwords_and_impersonation_are_headers(tmp_path: Path) -> None:
    user = {"username": "a", "password": "b", "as": "jane", "as-groups": ["x", "y"]}
    found = load(simple(tmp_path / "config", user))

    assert await found.credentials.authorization() == "Basic " + base64.b64encode(b"a:b").decode()
    assert found.headers == (
        ("Impersonate-User", "jane"),
        ("Impersonate-Group", "x"),
        ("Impersonate-Group", "y"),
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("a: [", "no YAML", id="no YAML"),
        pytest.param("contexts: 5", r"\$\.contexts: Expected `array \| null`", id="wrong type"),
        pytest.param("{}", "current-context: not set", id="no context"),
        pytest.param("current-context: x", "'x' not found; there is none", id="unknown context"),
        pytest.param(
            "{current-context: c, contexts: [{name: c, context: {cluster: k}}], clusters: [{name: k}]}",
            r"clusters\[k\]: server: '' is not an http",
            id="no server",
        ),
        pytest.param(
            "{current-context: c, contexts: [{name: c, context: {cluster: k}}], clusters: [{name: k, cluster:"
            " {server: 'https://k', certificate-authority-data: '%%'}}]}",
            "certificate-authority-data: no base64",
            id="bad base64",
        ),
        pytest.param(
            "{current-context: c, contexts: [{name: c, context: {cluster: k}}], clusters: [{name: k, cluster:"
            " {server: 'https://k', certificate-authority: nowhere.crt}}]}",
            "nowhere.crt",
            id="missing authority",
        ),
        pytest.param(
            "{current-context: c, contexts: [{name: c, context: {cluster: k}}], clusters: [{name: k, cluster:"
            " {server: 'https://k', proxy-url: 'socks5://p'}}]}",
            "proxy-url: 'socks5://p': only http",
            id="socks",
        ),
    ],
)
def test_a_broken_kubeconfig_names_file_field_and_reason(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)


async def test_in_a_pod_the_service_account_is_used_and_its_token_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca, _, _ = authority(tmp_path)
    (tmp_path / "ca.crt").write_bytes(ca)
    (tmp_path / "token").write_text("t1")
    (tmp_path / "namespace").write_text("koordinator-system")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")

    found = config.in_cluster(tmp_path)

    assert found.server == "https://[fd00::1]:443"
    assert found.namespace == "koordinator-system"
    assert await found.credentials.authorization() == "Bearer t1"
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    with pytest.raises(ConfigError, match="this is no pod"):
        config.in_cluster(tmp_path)


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
    credentials = kubeconfig.load([tmp_path / "config"], clock=clock).credentials

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
    with pytest.raises(ConfigError, match=message):
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
    with pytest.raises(ConfigError, match="install it from the cloud's page"):
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
        with pytest.raises(ConfigError, match="tokens not renewed: 400"):
            await credentials.authorization()


def test_providers_that_no_longer_exist_point_to_plugins(tmp_path: Path) -> None:
    path = simple(tmp_path / "config", {"auth-provider": {"name": "gcp"}})
    with pytest.raises(ConfigError, match="'gcp' is not supported; use its exec plugin"):
        load(path)


# TLS and refusals, against a server


def authority(tmp_path: Path) -> tuple[bytes, bytes, ssl.SSLContext]:
    """A self-signed certificate for api.test, its key, and a server context that demands it of clients."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "api.test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("api.test")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert_pem = certificate.public_bytes(serialization.Encoding.PEM)
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (tmp_path / "tls.pem").write_bytes(cert_pem + key_pem)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=cert_pem.decode())
    context.load_cert_chain(tmp_path / "tls.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    return cert_pem, key_pem, context


async def test_client_certificates_and_server_names_work_over_real_tls(tmp_path: Path) -> None:
    certificate, key, server_tls = authority(tmp_path)
    data = base64.b64encode(certificate).decode()
    (tmp_path / "key.pem").write_bytes(key)
    user = {"client-certificate-data": data, "client-key": "key.pem"}

    async with scripted(ssl=server_tls) as server:
        server.otherwise = ok({"gitVersion": "v1"})
        cluster = {"server": server.url, "certificate-authority-data": data, "tls-server-name": "api.test"}
        found = load(simple(tmp_path / "config", user, cluster))
        async with KubeCluster(found, rng=random.Random(1)) as client:
            assert await client.request("GET", "/version") == {"gitVersion": "v1"}

        insecure = {"server": server.url, "insecure-skip-tls-verify": True}
        found = load(simple(tmp_path / "config", user, insecure))
        async with KubeCluster(found, rng=random.Random(1)) as client:
            assert await client.request("GET", "/version") == {"gitVersion": "v1"}

        wrong_name = {"server": server.url, "certificate-authority-data": data}
        found = load(simple(tmp_path / "config", user, wrong_name))
        async with KubeCluster(found, rng=random.Random(1)) as client:
            with pytest.raises(
                errors.ConnectionFailed, match=r"is certificate-authority or tls-server-name right\?"
            ):
                await client.request("GET", "/version")


def test_a_certificate_without_its_key_is_refused(tmp_path: Path) -> None:
    certificate, _, _ = authority(tmp_path)
    user = {"client-certificate-data": base64.b64encode(certificate).decode()}
    with pytest.raises(ConfigError, match="client-key: missing"):
        load(simple(tmp_path / "config", user, {"server": "https://k"}))


async def test_a_refused_token_is_renewed_once_for_all_who_were_refused(tmp_path: Path) -> None:
    class Rotating:
        renewals = 0

        async def authorization(self) -> str:
            return f"Bearer {self.renewals}"

        async def renew(self) -> bool:
            await asyncio.sleep(0.01)
            self.renewals += 1
            return True

    credentials = Rotating()

    async with scripted() as server:

        async def answer(request: Any) -> Any:
            if request.headers["Authorization"] == "Bearer 0":
                await asyncio.sleep(0.02)
                return await status(401, "Unauthorized")(request)
            return await ok({})(request)

        server.otherwise = answer
        found = config.ClientConfig(server=server.url, credentials=credentials)
        async with KubeCluster(found, rng=random.Random(1)) as cluster:
            await asyncio.gather(*(cluster.request("GET", "/version") for _ in range(5)))
    assert credentials.renewals == 1


async def test_a_server_that_refuses_renewed_credentials_too_is_unauthorized() -> None:
    async with scripted() as server:
        server.otherwise = status(401, "Unauthorized")
        found = config.from_url(server.url, token="t")
        async with KubeCluster(found, rng=random.Random(1)) as cluster:
            with pytest.raises(errors.Unauthorized):
                await cluster.request("GET", "/version")
        assert server.asked[0].headers["Authorization"] == "Bearer t"
        assert len(server.asked) == 1


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="'localhost:8080' is not an http:// or https:// address"):
        connect.load(server="localhost:8080")


async def test_a_proxy_gets_the_request(tmp_path: Path) -> None:
    async with scripted(text('{"through":"proxy"}')) as proxy:
        path = simple(tmp_path / "config", {}, {"server": "http://api.test:80", "proxy-url": proxy.url})
        async with KubeCluster(load(path), rng=random.Random(1)) as cluster:
            assert await cluster.request("GET", "/version") == {"through": "proxy"}
