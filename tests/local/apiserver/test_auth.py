"""Who may talk to the server, over which connection, and what the kubeconfig says."""

import ssl
import stat
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from koordinator.clock import FixedClock, SystemClock
from koordinator.local.apiserver import ApiServer, auth, tls
from koordinator.local.apiserver import server as server_module
from koordinator.local.apiserver.auth import StaticToken
from tests.local.apiserver.fake import FakeBackend
from tests.local.apiserver.kubectl import Kubectl, needs_kubectl
from tests.local.apiserver.requests import PODS_PATH, send

ALICE = StaticToken("s3cret", "alice", groups=("staff",))
BOSS = StaticToken("s3cret", "boss", groups=("staff", "system:masters"))
ADMIN = StaticToken("adm1n")


async def get(
    server: ApiServer, path: str, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession(server.url) as session:
        return await send(session, "GET", path, None, headers)


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        pytest.param({}, 200, id="by address"),
        pytest.param({"Host": "localhost:8080"}, 200, id="by name"),
        pytest.param({"Host": "[::1]:8080"}, 200, id="by IPv6 address"),
        pytest.param({"Host": "evil.example.com"}, 403, id="a name that was rebound to us"),
        pytest.param({"Host": "127.0.0.1.evil.example.com"}, 403, id="a name that looks like ours"),
        pytest.param({"Origin": "https://evil.example.com"}, 403, id="a page of another origin"),
        pytest.param({"Host": "localhost:8080", "Origin": "http://localhost:8080"}, 200, id="our own page"),
        pytest.param(
            {"Host": "localhost:8080", "Origin": "http://localhost:3000"}, 403, id="a page of another port"
        ),
    ],
)
async def test_without_tokens_web_pages_cannot_drive_the_cluster(
    server: ApiServer, headers: dict[str, str], code: int
) -> None:
    assert (await get(server, PODS_PATH, headers))[0] == code


async def test_further_names_can_be_allowed(backend: FakeBackend) -> None:
    server = ApiServer(backend, hosts=["cluster.local"])
    await server.start()

    assert (await get(server, PODS_PATH, {"Host": "cluster.local:80"}))[0] == 200
    await server.stop()


async def test_with_tokens_nobody_is_anonymous_but_for_health(backend: FakeBackend) -> None:
    server = ApiServer(backend, tokens=[BOSS])
    await server.start()

    assert (await get(server, PODS_PATH))[1]["reason"] == "Unauthorized"
    assert (await get(server, PODS_PATH, {"Authorization": "Bearer wrong"}))[0] == 401
    assert (await get(server, "/metrics"))[0] == 401
    assert (await get(server, "/healthz-but-not-quite"))[0] == 401
    assert (await get(server, PODS_PATH, {"Authorization": "Bearer s3cret"}))[0] == 200
    async with aiohttp.ClientSession(server.url) as session, session.get("/readyz") as response:
        assert response.status == 200
    await server.stop()


async def test_only_masters_may_act_as_others(backend: FakeBackend) -> None:
    server = ApiServer(backend, tokens=[ALICE, ADMIN])
    await server.start()
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"

    async with aiohttp.ClientSession(server.url) as session:
        acting = {"Impersonate-User": "bob", "Authorization": "Bearer adm1n"}
        nobody, _ = await send(session, "POST", path, {}, acting)
        _, review = await send(session, "POST", path, {}, {**acting, "Impersonate-Group": "system:masters"})
        refused, _ = await send(session, "POST", path, {}, {**acting, "Authorization": "Bearer s3cret"})

    groups = ["system:masters", "system:authenticated"]
    assert review["status"]["userInfo"] == {"username": "bob", "groups": groups}
    assert (nobody, refused) == (403, 403)
    await server.stop()


@pytest.mark.parametrize("meta", ["x", 3, {"labels": 3}, {"labels": {"a": ["b"]}}, {"name": ["b"]}])
@pytest.mark.parametrize("accept", ["application/json", "application/vnd.kubernetes.protobuf"])
async def test_a_review_whose_metadata_is_damaged_is_refused(
    backend: FakeBackend, meta: object, accept: str
) -> None:
    server = ApiServer(backend, tokens=[BOSS])
    await server.start()
    headers = {"Authorization": "Bearer s3cret", "Accept": accept}
    async with aiohttp.ClientSession(server.url, headers=headers) as session:
        for plural in ("tokenreviews", "selfsubjectreviews"):
            path = f"/apis/authentication.k8s.io/v1/{plural}"
            async with session.post(path, json={"metadata": meta, "spec": {}}) as response:
                assert response.status == 400, await response.read()


async def test_reviews_answer_for_tokens_and_users(backend: FakeBackend) -> None:
    server = ApiServer(backend, tokens=[BOSS])
    await server.start()
    headers = {"Authorization": "Bearer s3cret"}

    async with aiohttp.ClientSession(server.url) as session:
        tokens = "/apis/authentication.k8s.io/v1/tokenreviews"
        _, known = await send(session, "POST", tokens, {"spec": {"token": "s3cret"}}, headers)
        _, unknown = await send(session, "POST", tokens, {"spec": {"token": "x"}}, headers)
        access = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        anyone = {"spec": {"user": "system:anonymous", "resourceAttributes": {"verb": "get"}}}
        _, anonymous = await send(session, "POST", access, anyone, headers)
        nothing, _ = await send(session, "POST", access, {"spec": {"user": "a"}}, headers)

    groups = ["staff", "system:masters", "system:authenticated"]
    assert known["status"]["user"] == {"username": "boss", "groups": groups}
    assert unknown["status"]["authenticated"] is False
    assert anonymous["status"]["allowed"] is False
    assert nothing == 422
    await server.stop()


@pytest.mark.parametrize("secured", [{}, {"tokens": [ADMIN]}], ids=["open", "tokens without TLS"])
def test_other_machines_are_served_only_with_tokens_and_tls(
    backend: FakeBackend, secured: dict[str, Any]
) -> None:
    with pytest.raises(server_module.UnsafeBind, match=r"refusing to listen on 0\.0\.0\.0"):
        ApiServer(backend, host="0.0.0.0", **secured)


def test_a_token_file_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "tokens.csv"
    path.write_text('# comment\nabc,alice,1,"a,b"\ndef,bob,2\n')
    assert auth.read_token_file(path) == [
        StaticToken("abc", "alice", "1", ("a", "b")),
        StaticToken("def", "bob", "2", ()),
    ]

    path.write_text("abc\n")
    with pytest.raises(auth.TokenFileError, match="line 1: expected token,user,uid"):
        auth.read_token_file(path)
    path.write_text("")
    with pytest.raises(auth.TokenFileError, match="holds no token"):
        auth.read_token_file(path)


def test_the_kubeconfig_is_for_its_owner_only_and_replaces_another(tmp_path: Path) -> None:
    path = tmp_path / "new" / "kubeconfig"
    for token in ("one", "two"):
        tls.write_kubeconfig(path, server="https://127.0.0.1:1", ca_certificate=b"CA", token=token)

    content = yaml.safe_load(path.read_text())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert content["users"][0]["user"] == {"token": "two"}
    assert content["clusters"][0]["cluster"]["certificate-authority-data"] == "Q0E="
    assert [file.name for file in path.parent.iterdir()] == ["kubeconfig"]


def test_the_authority_is_kept_and_renewed_before_it_ends(tmp_path: Path) -> None:
    clock = FixedClock(1_700_000_000)

    first = tls.self_signed(tmp_path, clock).ca_certificate
    assert tls.self_signed(tmp_path, clock).ca_certificate == first
    clock.now_s += 9.5 * 365 * 86_400
    assert tls.self_signed(tmp_path, clock).ca_certificate != first
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in tmp_path.iterdir())


async def test_clients_that_know_the_authority_can_check_the_server(
    backend: FakeBackend, tmp_path: Path
) -> None:
    secured = tls.self_signed(tmp_path, SystemClock(), ["10.1.2.3", "box.example.com"])
    server = ApiServer(backend, tokens=[ADMIN], tls=secured)
    await server.start()
    trusting = ssl.create_default_context(cadata=secured.ca_certificate.decode())

    async with aiohttp.ClientSession(server.url) as session:
        async with session.get("/readyz", ssl=trusting) as response:
            assert await response.text() == "ok"
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await session.get("/readyz")
    await server.stop()


@pytest.mark.kubectl
@needs_kubectl
async def test_kubectl_works_over_tls_with_a_token(backend: FakeBackend, tmp_path: Path) -> None:
    server = ApiServer(backend, tokens=[ADMIN], tls=tls.self_signed(tmp_path / "pki", SystemClock()))
    await server.start()
    kubectl = Kubectl(server, tmp_path)

    assert "system:masters" in await kubectl("auth whoami")
    assert "provide credentials" in await kubectl.fails("get pods --kubeconfig /dev/null --server " + server.url
                                                        + " --insecure-skip-tls-verify --token wrong")  # fmt: skip
    await server.stop()
