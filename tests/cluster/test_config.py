"""Finding a cluster: kubeconfig files, the pod we run in; and TLS for real."""

import asyncio
import base64
import os
import random
from pathlib import Path
from typing import Any

import pytest

from koordinator.cluster import config, connect, errors
from koordinator.cluster.config import ClusterConfigError
from koordinator.cluster.kube import KubeCluster
from tests.cluster.kubeconfigs import CLOCK, authority, load, simple, write
from tests.cluster.scripted_server import ok, scripted, status, text

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

    found = connect.from_files([first, second], clock=CLOCK)

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
    with pytest.raises(
        ClusterConfigError, match=r"missing not found; name its kubeconfig with --kubeconfig FILE"
    ):
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
    user = {"username": "a", "password": "b", "as": "jane", "as-groups": ["x", "z"]}
    found = load(simple(tmp_path / "config", user))

    assert await found.credentials.authorization() == "Basic " + base64.b64encode(b"a:b").decode()
    assert found.headers == (
        ("Impersonate-User", "jane"),
        ("Impersonate-Group", "x"),
        ("Impersonate-Group", "z"),
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
    with pytest.raises(ClusterConfigError, match=message) as caught:
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
    with pytest.raises(ClusterConfigError, match="this is no pod"):
        config.in_cluster(tmp_path)


# TLS and refusals, against a server


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
    with pytest.raises(ClusterConfigError, match="client-key: missing"):
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
    with pytest.raises(ClusterConfigError, match="'localhost:8080' is not an http:// or https:// address"):
        connect.load(server="localhost:8080")


async def test_a_proxy_gets_the_request(tmp_path: Path) -> None:
    async with scripted(text('{"through":"proxy"}')) as proxy:
        path = simple(tmp_path / "config", {}, {"server": "http://api.test:80", "proxy-url": proxy.url})
        async with KubeCluster(load(path), rng=random.Random(1)) as cluster:
            assert await cluster.request("GET", "/version") == {"through": "proxy"}
