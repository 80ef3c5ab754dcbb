"""Self-signed certificates of the webhook server: what is wrong with them, new ones, whom to trust.

Source: behaviour/manager 12.1.

Pure, but for the chance in keys and serial numbers.
"""

import datetime
import enum
import functools

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from koordinator.cluster.certificates import (
    alternative_name,
    alternative_names,
    builder,
    certificate_pem,
    common_name,
    is_signed_by_any,
    key_pem,
    key_usage,
)

KEY_BITS = 2048
VALIDITY = datetime.timedelta(days=3650)
RENEW_BEFORE = datetime.timedelta(days=183)
"""A certificate that would not live for another half a year is replaced."""
CA_LEFT_MIN = datetime.timedelta(days=365)
"""A CA that lives at least so long signs the next certificate too."""
BACKDATED = datetime.timedelta(days=1)
"""New certificates are valid since then: clocks of peers may be behind."""
CA_NAME = "webhook-cert-ca"
TRUST_OVERLAP = datetime.timedelta(hours=1)
"""Time for which the CAs before a new one stay trusted: replicas and API servers change over within a minute or two."""
OLD_CAS_MAX = 2
_UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.ExtensionNotFound,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""Errors of `cryptography` for a certificate or key that it cannot read; the remedy is always a new one."""


class CertificateSet(msgspec.Struct, frozen=True):
    """CA and server certificate, all PEM."""

    ca_key: bytes
    ca_cert: bytes
    key: bytes
    cert: bytes

    def secret_data(self) -> dict[str, bytes]:
        """Keys of the Secret, as upstream names them."""
        return {
            "ca-key.pem": self.ca_key,
            "ca-cert.pem": self.ca_cert,
            "key.pem": self.key,
            "tls.key": self.key,
            "cert.pem": self.cert,
            "tls.crt": self.cert,
        }


SECRET_KEYS = ("ca-key.pem", "ca-cert.pem", "key.pem", "cert.pem")
"""Keys that are read again; the two others hold the same under the names that Kubernetes knows."""


class Renewal(enum.StrEnum):
    """The reason why certificates are replaced; empty when they are good."""

    NONE = ""
    MISSING = "there are none"
    UNREADABLE = "a certificate or key cannot be read"
    NOT_PAIRED = "the key is not that of the certificate"
    NO_CHAIN = "the CA did not issue the certificate"
    WRONG_NAME = "the certificate is for another name"
    NOT_YET = "the certificate is not valid yet"
    ENDS_SOON = "the certificate, or its CA, ends within half a year"


class _Facts(msgspec.Struct, frozen=True):
    """The facts that do not change with time; `flaw` is empty when the pieces fit each other."""

    flaw: Renewal
    names: tuple[x509.GeneralName, ...] = ()
    begins: datetime.datetime = datetime.datetime.min
    ends: datetime.datetime = datetime.datetime.max


def why_renew(certs: CertificateSet | None, host: str, now_s: float) -> Renewal:
    """Return whether the certificates can serve `host` (a DNS name or an address) until half a year from now."""
    if certs is None:
        return Renewal.MISSING
    facts = _facts(certs)
    if facts.flaw:
        return facts.flaw
    if alternative_name(host) not in facts.names:
        return Renewal.WRONG_NAME
    now = _time(now_s)
    if facts.begins > now:
        return Renewal.NOT_YET
    return Renewal.ENDS_SOON if facts.ends < now + RENEW_BEFORE else Renewal.NONE


@functools.lru_cache(maxsize=4)  # asked every minute; OpenSSL checks an RSA key for a tenth of a second
def _facts(certs: CertificateSet) -> _Facts:
    try:
        cert = x509.load_pem_x509_certificate(certs.cert)
        ca_cert = x509.load_pem_x509_certificate(certs.ca_cert)
        key = serialization.load_pem_private_key(certs.key, None)
        names = tuple(cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
        is_ca = _is_ca(ca_cert)
    except _UNREADABLE:
        return _Facts(Renewal.UNREADABLE)
    if _public_bytes(key.public_key()) != _public_bytes(cert.public_key()):
        return _Facts(Renewal.NOT_PAIRED)
    if not (is_ca and is_signed_by_any(cert, [ca_cert])):
        return _Facts(Renewal.NO_CHAIN)
    return _Facts(
        Renewal.NONE,
        names,
        max(cert.not_valid_before_utc, ca_cert.not_valid_before_utc),
        min(cert.not_valid_after_utc, ca_cert.not_valid_after_utc),
    )


def renewed(certs: CertificateSet | None, host: str, now_s: float) -> CertificateSet:
    """Return a new server certificate for `host` (and `localhost`), by the same CA where that is still good for a
    year."""
    authority = None if certs is None else _usable_authority(certs, _time(now_s))
    return _issue(host, authority or _new_authority(_time(now_s)), _time(now_s))


def trusted(certs: CertificateSet, present: bytes, now_s: float) -> bytes:
    """Return the CAs that API servers should trust (PEM): ours, and for a while the ones they trusted before.

    `present` is the bundle in force. Without an overlap, replicas that have not changed over yet would be refused.
    """
    ca_cert = x509.load_pem_x509_certificate(certs.ca_cert)
    now = _time(now_s)
    ours = certificate_pem(ca_cert)
    if now >= ca_cert.not_valid_before_utc + BACKDATED + TRUST_OVERLAP:
        return ours
    try:
        known = x509.load_pem_x509_certificates(present) if present else []
    except ValueError:
        known = []
    older = [each for each in dict.fromkeys(known) if each != ca_cert and _was_ours(each, now)]
    older.sort(key=lambda each: each.not_valid_before_utc, reverse=True)
    return ours + b"".join(certificate_pem(each) for each in older[:OLD_CAS_MAX])


class _Authority(msgspec.Struct, frozen=True):
    key: rsa.RSAPrivateKey
    cert: x509.Certificate


def _was_ours(cert: x509.Certificate, now: datetime.datetime) -> bool:
    names = [attribute.value for attribute in cert.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    return CA_NAME in names and cert.not_valid_after_utc > now


def _usable_authority(certs: CertificateSet, now: datetime.datetime) -> _Authority | None:
    """Return the CA of a set, None when it cannot sign, or not for long."""
    try:
        cert = x509.load_pem_x509_certificate(certs.ca_cert)
        key = serialization.load_pem_private_key(certs.ca_key, None)
        is_ca = _is_ca(cert)
    except _UNREADABLE:
        return None
    is_paired = _public_bytes(key.public_key()) == _public_bytes(cert.public_key())
    if not isinstance(key, rsa.RSAPrivateKey) or not (is_paired and is_ca):
        return None
    lives = cert.not_valid_before_utc <= now and cert.not_valid_after_utc >= now + CA_LEFT_MIN
    return _Authority(key, cert) if lives else None


def _new_authority(now: datetime.datetime) -> _Authority:
    key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    name = common_name(CA_NAME)
    cert = (
        builder(name, name, key, now, VALIDITY, BACKDATED)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _Authority(key, cert)


def _issue(host: str, authority: _Authority, now: datetime.datetime) -> CertificateSet:
    key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    name = common_name(host)
    issuer = authority.cert
    cert = (
        builder(name, issuer.subject, key, now, VALIDITY, BACKDATED)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_issuer_id(issuer), critical=False)
        .add_extension(alternative_names([host, "localhost"]), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return CertificateSet(
        ca_key=_pem(authority.key), ca_cert=certificate_pem(issuer), key=_pem(key), cert=certificate_pem(cert)
    )


def _issuer_id(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    """Return the id by which the CA names itself; one that does not is named by its key."""
    try:
        own = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key())  # type: ignore[arg-type]
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)


def _is_ca(cert: x509.Certificate) -> bool:
    return cert.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def _time(now_s: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(now_s, datetime.UTC)


def _public_bytes(key: object) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    encoded: bytes = key.public_bytes(serialization.Encoding.DER, form)  # type: ignore[attr-defined]
    return encoded


def _pem(key: rsa.RSAPrivateKey) -> bytes:
    return key_pem(key, serialization.PrivateFormat.TraditionalOpenSSL)
