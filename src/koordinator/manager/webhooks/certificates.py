"""Self-signed certificates of the webhook server (spec 02 §12.1)."""

import datetime
import ipaddress
from collections.abc import Sequence

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

KEY_BITS = 2048
VALIDITY_DAYS = 3650
RENEW_BEFORE_DAYS = 183  # a certificate that would not live for another half a year is replaced


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


def generate(hosts: Sequence[str], now_s: float) -> CertificateSet:
    """A new CA and a server certificate for the given DNS names and IP addresses (and `localhost`)."""
    now = datetime.datetime.fromtimestamp(now_s, datetime.UTC)
    ca_key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "webhook-cert-ca")])
    ca_cert = (
        _builder(ca_name, ca_name, ca_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, (hosts[0] if hosts else "localhost")[:64])])
    cert = (
        _builder(name, ca_name, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .add_extension(
            x509.SubjectAlternativeName([_alternative(h) for h in dict.fromkeys([*hosts, "localhost"])]),
            critical=False,
        )
        .sign(ca_key, hashes.SHA256())
    )
    return CertificateSet(
        ca_key=_pem(ca_key), ca_cert=_cert_pem(ca_cert), key=_pem(key), cert=_cert_pem(cert)
    )


def needs_renewal(certs: CertificateSet, host: str, now_s: float) -> bool:
    """True when key and certificate do not pair, the name is missing, or the end is near."""
    try:
        cert = x509.load_pem_x509_certificate(certs.cert)
        ca_cert = x509.load_pem_x509_certificate(certs.ca_cert)
        key = serialization.load_pem_private_key(certs.key, None)
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        cert.verify_directly_issued_by(ca_cert)
    except Exception:  # whatever is wrong with it, a new one is the remedy
        return True
    public = serialization.PublicFormat.SubjectPublicKeyInfo
    der = serialization.Encoding.DER
    if key.public_key().public_bytes(der, public) != cert.public_key().public_bytes(der, public):
        return True
    if _alternative(host) not in list(names):
        return True
    horizon = datetime.datetime.fromtimestamp(now_s, datetime.UTC) + datetime.timedelta(
        days=RENEW_BEFORE_DAYS
    )
    return min(cert.not_valid_after_utc, ca_cert.not_valid_after_utc) < horizon


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: rsa.RSAPublicKey, now: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # clocks of peers may be behind
        .not_valid_after(now + datetime.timedelta(days=VALIDITY_DAYS))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
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


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def _cert_pem(cert: x509.Certificate) -> bytes:
    return cert.public_bytes(serialization.Encoding.PEM)
