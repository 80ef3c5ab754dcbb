"""Make certificates of the local server (a CA of its own, kept in the data directory, and what it signed) and its
kubeconfig file."""

import base64
import datetime
import os
import ssl
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from koordinator.api import user_files
from koordinator.clock import Clock
from koordinator.cluster import certificates
from koordinator.cluster.certificates import (
    alternative_names,
    certificate_pem,
    common_name,
    key_pem,
    key_usage,
)

_CA_LIFE, _CERTIFICATE_LIFE = datetime.timedelta(days=3650), datetime.timedelta(days=365)
_NAMES = ("localhost", "127.0.0.1", "::1", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


class ServerTls:
    """The files that a TLS server needs, and the CA that clients need."""

    def __init__(self, certificate: Path, key: Path, ca_certificate: bytes) -> None:
        self._certificate = certificate
        self._key = key
        self.ca_certificate = ca_certificate

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._certificate, self._key)
        return context


def self_signed(directory: Path, clock: Clock, names: Iterable[str] = ()) -> ServerTls:
    """Return a server certificate for this machine's names and `names`; the CA in `directory` is made once and
    kept.

    Raises: OSError, ValueError (files in the directory that are no certificate or key).
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    now = datetime.datetime.fromtimestamp(clock.now(), datetime.UTC)
    ca_certificate, ca_key = _authority(directory, now)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        certificates.builder(
            common_name("koordinator-apiserver"), ca_certificate.subject, key, now, _CERTIFICATE_LIFE
        )
        .add_extension(alternative_names([*_NAMES, *names]), False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), False)
        .sign(ca_key, hashes.SHA256())
    )
    _write_secret(directory / "apiserver.key", key_pem(key))
    _write_secret(directory / "apiserver.crt", certificate_pem(certificate))
    return ServerTls(
        directory / "apiserver.crt",
        directory / "apiserver.key",
        certificate_pem(ca_certificate),
    )


def _authority(
    directory: Path, now: datetime.datetime
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return the CA in the directory, made when there is none or when it is about to end."""
    certificate_path, key_path = directory / "ca.crt", directory / "ca.key"
    if certificate_path.exists() and key_path.exists():
        certificate = x509.load_pem_x509_certificate(user_files.read(certificate_path))
        key = serialization.load_pem_private_key(user_files.read(key_path), password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{key_path}: expected an elliptic-curve key, found {type(key).__name__}")
        if certificate.not_valid_after_utc - now > _CERTIFICATE_LIFE:
            return certificate, key
    key = ec.generate_private_key(ec.SECP256R1())
    name = common_name("koordinator-ca")
    certificate = (
        certificates.builder(name, name, key, now, _CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(key_usage(signs_certificates=True), True)
        .sign(key, hashes.SHA256())
    )
    _write_secret(key_path, key_pem(key))
    _write_secret(certificate_path, certificate_pem(certificate))
    return certificate, key


def _write_secret(path: Path, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)


NAME = "koordinator"


def write_kubeconfig(
    path: Path,
    *,
    server: str,
    ca_certificate: bytes | None = None,
    token: str = "",
    extension: Mapping[str, str] | None = None,
) -> None:
    """Write the kubeconfig of one cluster, at once and for its owner only (mode 0600): a reader never sees half of it.

    Answers are not compressed: client and server share the machine. `extension` is what else our own commands need to
    know, kept where kubectl ignores it. Raises: OSError.
    """
    cluster: dict[str, Any] = {"server": server, "disable-compression": True}
    if ca_certificate is not None:
        cluster["certificate-authority-data"] = base64.b64encode(ca_certificate).decode()
    if extension:
        cluster["extensions"] = [{"name": NAME, "extension": dict(extension)}]
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": cluster}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME}}],
        "current-context": NAME,
        "preferences": {},
        "users": [{"name": NAME, "user": {"token": token} if token else {}}],
    }
    text = yaml.safe_dump(body, sort_keys=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # made with mode 0600
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
