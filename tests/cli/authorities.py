"""Certificate authorities and client certificates for tests."""

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_BEGIN = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
_END = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)
_PEM = serialization.Encoding.PEM


class Authority:
    """Signs certificates. Several may have the same name."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        extension = x509.BasicConstraints(ca=True, path_length=None)
        self.certificate = self._sign(self._name, self._key, extension)

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(_PEM).decode()

    def client(self, path: Path, name: str, *organisations: str) -> Path:
        """Write the certificate and key of a client to a file."""
        key = ec.generate_private_key(ec.SECP256R1())
        parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in organisations]
        subject = x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(subject, key, x509.BasicConstraints(ca=False, path_length=None))
        private = key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        path.write_bytes(certificate.public_bytes(_PEM) + private)
        return path

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.BasicConstraints
    ) -> x509.Certificate:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_BEGIN)
            .not_valid_after(_END)
            .add_extension(extension, True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False)
            .sign(self._key, hashes.SHA256())
        )
