"""Certificates of a control plane: one authority, and what it signed."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFE = datetime.timedelta(days=2)
_BACKDATED = datetime.timedelta(hours=1)
_SERVER_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


class Authority:
    """Signs certificates and writes them as `NAME.crt` and `NAME.key` into its folder; its own is `ca`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test-ca")])
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        self._certificate = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
            .add_extension(usage, True)
            .sign(self._key, hashes.SHA256())
        )
        self._write("ca", self._certificate, self._key)

    @property
    def certificate(self) -> bytes:
        """PEM."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def server(self, name: str, addresses: tuple[str, ...]) -> None:
        """A certificate for a server at these addresses."""
        alternatives: list[x509.GeneralName] = [x509.DNSName(each) for each in _SERVER_NAMES]
        alternatives += [x509.IPAddress(ipaddress.ip_address(each)) for each in addresses]
        self._sign(name, (), x509.SubjectAlternativeName(alternatives), ExtendedKeyUsageOID.SERVER_AUTH)

    def client(self, name: str, user: str, *groups: str) -> tuple[bytes, bytes]:
        """Certificate and key (PEM) of a user."""
        names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject = (*names, x509.NameAttribute(NameOID.COMMON_NAME, user))
        return self._sign(name, subject, None, ExtendedKeyUsageOID.CLIENT_AUTH)

    def key_pair(self, name: str) -> None:
        """A key that signs tokens, with its public half as `NAME.pub`."""
        key = ec.generate_private_key(ec.SECP256R1())
        (self.folder / f"{name}.key").write_bytes(_pem(key))
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        (self.folder / f"{name}.pub").write_bytes(public)

    def _sign(
        self,
        name: str,
        subject: tuple[x509.NameAttribute, ...],
        alternatives: x509.SubjectAlternativeName | None,
        usage: x509.ObjectIdentifier,
    ) -> tuple[bytes, bytes]:
        key = ec.generate_private_key(ec.SECP256R1())
        whom = x509.Name(subject or (x509.NameAttribute(NameOID.COMMON_NAME, name),))
        builder = (
            self._builder(whom, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
            .add_extension(x509.ExtendedKeyUsage([usage]), False)
        )
        if alternatives is not None:
            builder = builder.add_extension(alternatives, False)
        return self._write(name, builder.sign(self._key, hashes.SHA256()), key)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BACKDATED)
            .not_valid_after(now + _LIFE)
        )

    def _write(
        self, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
    ) -> tuple[bytes, bytes]:
        texts = certificate.public_bytes(serialization.Encoding.PEM), _pem(key)
        for ending, text in zip(("crt", "key"), texts, strict=True):
            (self.folder / f"{name}.{ending}").write_bytes(text)
        return texts


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
