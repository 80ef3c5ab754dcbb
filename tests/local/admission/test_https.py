"""Webhooks over real HTTPS on loopback, and the texts of what goes wrong on the way."""

import base64
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from koordinator.cluster.errors import InternalError
from tests.local.admission.builders import (
    POD,
    PODS,
    Resolver,
    Source,
    admission,
    answering,
    attributes,
    configuration,
    label,
    webhook,
)

Json = dict[str, Any]
NAMES = ("hook.default.svc", "localhost")


class Server:
    """A webhook server with a certificate of its own."""

    def __init__(self, port: int, bundle: str) -> None:
        self.port = port
        self.bundle = bundle
        self.paths: list[str] = []


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hook")])
    now = datetime.datetime.now(datetime.UTC)
    alternatives: list[x509.GeneralName] = [x509.DNSName(one) for one in NAMES]
    alternatives.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    files = (tmp_path / "tls.crt", tmp_path / "tls.key")
    files[0].write_bytes(pem)
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*files)
    found = Server(0, base64.b64encode(pem).decode())
    handler = answering(label("remote"))

    async def handle(request: web.Request) -> web.Response:
        found.paths.append(str(request.rel_url))
        if request.path == "/broken":
            return web.Response(status=500, text="oops")
        return web.Response(body=await handler(await request.read()), content_type="application/json")

    app = web.Application()
    app.router.add_post("/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    found.port = runner.addresses[0][1]
    yield found
    await runner.cleanup()


async def ask(client: Json, resolver: Resolver | None = None, **more: Any) -> Json:
    admit = admission(Source([configuration(webhook(clientConfig=client, **more))]), resolver)
    try:
        made = await admit.admit(attributes("CREATE", PODS, "default", None), POD)
    finally:
        await admit.close()
    assert made is not None
    return made


async def test_a_webhook_by_url(server: Server) -> None:
    client = {"url": f"https://127.0.0.1:{server.port}/mutate", "caBundle": server.bundle}

    made = await ask(client, timeoutSeconds=7)

    assert made["metadata"]["labels"]["remote"] == "y"
    assert server.paths == ["/mutate?timeout=7s"]


async def test_a_webhook_by_service_is_resolved_and_its_certificate_checked_by_the_services_name(
    server: Server,
) -> None:
    service = {"namespace": "default", "name": "hook", "path": "/x", "port": 443}

    made = await ask({"service": service, "caBundle": server.bundle}, Resolver(server.port))
    assert made["metadata"]["labels"]["remote"] == "y"

    wrong = {"service": {**service, "name": "other"}, "caBundle": server.bundle}
    with pytest.raises(InternalError, match="tls: failed to verify certificate: x509: "):
        await ask(wrong, Resolver(server.port))


async def test_an_untrusted_certificate_is_refused(server: Server) -> None:
    with pytest.raises(InternalError, match="x509: certificate signed by unknown authority"):
        await ask({"url": f"https://127.0.0.1:{server.port}/"})


async def test_a_server_error_is_a_failure(server: Server) -> None:
    client = {"url": f"https://127.0.0.1:{server.port}/broken", "caBundle": server.bundle}

    with pytest.raises(InternalError, match=r'an error on the server \("oops"\) has prevented the request'):
        await ask(client)
    assert await ask(client, failurePolicy="Ignore") == POD


async def test_an_unreachable_webhook_fails_in_the_words_of_the_api_server(unused_tcp_port: int) -> None:
    client = {"url": f"https://127.0.0.1:{unused_tcp_port}/x"}

    with pytest.raises(InternalError) as caught:
        await ask(client)

    assert caught.value.message == (
        'Internal error occurred: failed calling webhook "a.example.com": failed to call webhook: Post '
        f'"https://127.0.0.1:{unused_tcp_port}/x?timeout=10s": dial tcp 127.0.0.1:{unused_tcp_port}: '
        "connect: connection refused"
    )
    assert await ask(client, failurePolicy="Ignore") == POD


async def test_an_unknown_service_is_named() -> None:
    service = {"namespace": "default", "name": "hook"}

    with pytest.raises(InternalError) as caught:
        await ask({"service": service})

    assert caught.value.message.endswith(
        'Post "https://hook.default.svc:443/?timeout=10s": service "hook" not found'
    )


async def test_a_broken_ca_bundle_is_named() -> None:
    with pytest.raises(InternalError, match="unable to load root certificates"):
        await ask({"url": "https://127.0.0.1:1/", "caBundle": "AAAA"})
