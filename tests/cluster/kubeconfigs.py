"""Kubeconfig files and certificates for tests."""

import datetime
import ssl
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from koordinator.clock import FixedClock
from koordinator.cluster import config, connect

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
    return connect.from_files([path], context=context, clock=CLOCK)


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
