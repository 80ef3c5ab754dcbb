"""The secure port: who gets in by certificate, front proxy, token or not at all."""

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509

from koordinator.cli import component, serving
from koordinator.cli.flag_settings import FlagError
from koordinator.clock import SystemClock
from koordinator.cluster import delegated_auth, errors
from koordinator.cluster.delegated_auth import (
    AccessReviewer,
    ClientCAs,
    DelegatedAuth,
    RequestHeaders,
    TokenReviewer,
)
from tests.cli.authorities import Authority

USERS, PROXIES = Authority("ca"), Authority("ca")  # the same name on purpose


class Reviews:
    """The API server's part: one token is known, and who may do what."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.down = False

    async def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *_: Any
    ) -> dict[str, Any]:
        if self.down:
            raise errors.ConnectionFailed("connection refused")
        if path == delegated_auth.LOOKUP_PATH:
            data = {"client-ca-file": USERS.pem, "requestheader-allowed-names": '["front"]'}
            return {"data": data | {"requestheader-client-ca-file": PROXIES.pem}}
        assert body is not None
        spec = body["spec"]
        if path == delegated_auth.TOKEN_REVIEWS:
            self.asked.append(("token", spec["token"]))
            user = {"username": "prometheus", "groups": ["monitoring"]}
            is_known = spec["token"] == "good"
            return {"status": {"authenticated": is_known, "user": user if is_known else {}}}
        self.asked.append((spec["user"], spec["nonResourceAttributes"]["path"]))
        return {"status": {"allowed": bool({"monitoring", "ops"} & set(spec["groups"]))}}


class Door:
    """A served application behind delegated authentication."""

    def __init__(self, reviews: Reviews, port: int) -> None:
        self.reviews = reviews
        self._url = f"https://127.0.0.1:{port}"

    async def get(self, path: str, *, cert: Path | None = None, **headers: str) -> int:
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        if cert is not None:
            tls.load_cert_chain(cert)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with (
            aiohttp.ClientSession() as session,
            session.get(self._url + path, ssl=tls, headers=named) as response,
        ):
            await response.read()
            return response.status


@pytest.fixture
async def door() -> Any:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    reviews = Reviews()
    authorities = await delegated_auth.look_up(reviews)  # type: ignore[arg-type]
    keeper = DelegatedAuth(authorities, TokenReviewer(reviews), AccessReviewer(reviews))  # type: ignore[arg-type]
    tls = serving.tls_context(None, None, None, SystemClock())
    delegated_auth.trust_clients(tls, authorities)
    app = web.Application(middlewares=(delegated_auth.guarded(keeper.refusal),))
    app.router.add_get("/{path}", answer)
    async with component.served(app, "127.0.0.1", 0, tls) as port:
        yield Door(reviews, port)


async def test_health_needs_no_permission_and_metrics_do(door: Door) -> None:
    assert await door.get("/healthz") == 200
    assert await door.get("/metrics") == 403
    assert door.reviews.asked == [("system:anonymous", "/metrics")]


async def test_a_token_is_reviewed_once_and_remembered(door: Door) -> None:
    assert await door.get("/metrics", Authorization="Bearer good") == 200
    assert await door.get("/metrics", Authorization="Bearer good") == 200
    assert await door.get("/metrics", Authorization="Bearer bad") == 401
    assert await door.get("/healthz", Authorization="Bearer bad") == 401
    assert door.reviews.asked.count(("token", "good")) == 1
    assert door.reviews.asked.count(("prometheus", "/metrics")) == 1


async def test_nobody_gets_in_while_the_api_server_is_away(door: Door) -> None:
    door.reviews.down = True
    assert await door.get("/metrics", Authorization="Bearer good") == 401
    assert await door.get("/metrics") == 403
    assert await door.get("/readyz") == 200


async def test_client_certificates_name_user_and_groups(door: Door, tmp_path: Path) -> None:
    assert await door.get("/metrics", cert=USERS.client(tmp_path / "a", "jane", "ops")) == 200
    assert await door.get("/metrics", cert=USERS.client(tmp_path / "b", "joe", "sales")) == 403
    assert await door.get("/configz", cert=USERS.client(tmp_path / "c", "root", "system:masters")) == 200
    assert [name for name, _ in door.reviews.asked] == ["jane", "joe"]


async def test_only_a_front_proxy_may_speak_for_others(door: Door, tmp_path: Path) -> None:
    speak = {"X_Remote_User": "jane", "X_Remote_Group": "ops"}
    front = PROXIES.client(tmp_path / "a", "front")
    other = PROXIES.client(tmp_path / "b", "other")
    user_called_front = USERS.client(tmp_path / "c", "front")

    assert await door.get("/metrics", cert=front, **speak) == 200
    assert await door.get("/metrics", cert=other, **speak) == 403
    assert await door.get("/metrics", cert=user_called_front, **speak) == 403
    assert await door.get("/metrics", **speak) == 403
    assert [name for name, _ in door.reviews.asked] == ["jane", "system:anonymous", "front"]


async def test_a_certificate_of_a_stranger_is_refused_by_tls(door: Door, tmp_path: Path) -> None:
    stranger = Authority("ca").client(tmp_path / "a", "jane", "ops")
    with pytest.raises(aiohttp.ClientError):
        await door.get("/metrics", cert=stranger)


async def test_our_own_certificate_is_kept_in_its_directory(tmp_path: Path) -> None:
    serving.tls_context(None, None, tmp_path / "certs", SystemClock())
    [file] = (tmp_path / "certs").iterdir()
    first = file.read_bytes()
    serving.tls_context(None, None, tmp_path / "certs", SystemClock())
    assert file.read_bytes() == first
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        pytest.param({"min_version": "VersionTLS09"}, "tls-min-version", id="version"),
        pytest.param({"ciphers": ["ROT13"]}, "tls-cipher-suites", id="cipher"),
        pytest.param({"certificate": Path("/none")}, "tls-private-key-file", id="certificate alone"),
        pytest.param({"certificate": Path("/none"), "key": Path("/none")}, "tls-cert-file", id="no file"),
    ],
)
def test_flags_of_tls_that_cannot_work_are_named(options: dict[str, Any], flag: str) -> None:
    given = {"certificate": None, "key": None, "directory": None, "clock": SystemClock()} | options
    with pytest.raises(FlagError) as caught:
        serving.tls_context(**given)
    assert caught.value.subject == f"--{flag}"


def test_what_a_front_proxy_says() -> None:
    headers = [("X-Remote-User", "jane"), ("X-Remote-Group", "a"), ("X-Remote-Group", "b")]
    found = delegated_auth.proxied_user([*headers, ("X-Remote-Extra-Scopes%2fx", "read")], RequestHeaders())
    assert found is not None
    assert (found.name, found.groups) == ("jane", ("a", "b", "system:authenticated"))
    assert found.extra == {"scopes/x": ("read",)}
    assert delegated_auth.proxied_user(headers[1:], RequestHeaders()) is None
    assert ClientCAs().client_ca == ""


async def test_callers_get_the_certificate_of_the_name_that_they_ask_for(tmp_path: Path) -> None:
    other = USERS.client(tmp_path / "other.pem", "other")
    tls = serving.tls_context(None, None, None, SystemClock())
    serving.present_by_name(tls, [f"{other},{other}:a.example,*.b.example"])

    async with component.served(web.Application(), "127.0.0.1", 0, tls) as port:

        async def subject(name: str) -> str:
            trust = ssl.create_default_context()
            trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust, server_hostname=name)
            der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.close()
            return x509.load_der_x509_certificate(der).subject.rfc4514_string()

        assert [await subject(name) for name in ("a.example", "x.b.example")] == ["CN=other"] * 2
        assert await subject("c.example") != "CN=other"

    with pytest.raises(FlagError, match="is not CERT,KEY"):
        serving.present_by_name(tls, ["alone.pem"])
