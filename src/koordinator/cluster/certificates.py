"""Parts of the X.509 certificates that components make for themselves."""

import contextlib
import datetime
import ipaddress
from collections.abc import Iterable

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
BACKDATED = datetime.timedelta(hours=1)
"""New certificates are valid since then: clocks of peers may be behind."""


def common_name(text: str) -> x509.Name:
    """Return a name that is one common name, cut to what that may hold."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: PrivateKey,
    now: datetime.datetime,
    life: datetime.timedelta,
    backdated: datetime.timedelta = BACKDATED,
) -> x509.CertificateBuilder:
    """Return what all certificates have; extensions and the signature are the caller's."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - backdated)
        .not_valid_after(now + life)
    )


def alternative_names(hosts: Iterable[str]) -> x509.SubjectAlternativeName:
    """Return the hosts, each once, as addresses or as DNS names."""
    return x509.SubjectAlternativeName([alternative_name(host) for host in dict.fromkeys(hosts)])


def alternative_name(host: str) -> x509.GeneralName:
    """Return a host as an address, or as a DNS name."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    """Return the use of an authority's key, or of a server's."""
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=not signs_certificates,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def key_pem(key: PrivateKey, form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8) -> bytes:
    """Return a private key as PEM, not encrypted."""
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def is_signed_by_any(certificate: x509.Certificate, authorities: Iterable[x509.Certificate]) -> bool:
    """By signature, not by name: two authorities may be called the same. One of a kind that we cannot check is none."""
    for authority in authorities:
        with contextlib.suppress(ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
            certificate.verify_directly_issued_by(authority)
            return True
    return False


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """Return a certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)
