"""Read certificates: whom they name, until when they hold, and whether one vouches for another."""

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature


class CertificateFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a PEM text: the end of the first certificate and of the last to end, and the names in the first."""

    not_after_s: float
    last_end_s: float
    names: tuple[str, ...] = ()


def facts(pem: bytes) -> CertificateFacts | None:
    """None when the text has no readable certificate."""
    found = _load(pem)
    if not found:
        return None
    ends_s = [each.not_valid_after_utc.timestamp() for each in found]
    return CertificateFacts(not_after_s=ends_s[0], last_end_s=max(ends_s), names=_names(found[0]))


def vouches(ca: bytes, certificate: bytes) -> bool:
    """Return whether the first certificate of `certificate` is signed by (or is) one of `ca`; both PEM."""
    served = _load(certificate)
    return bool(served) and any(each == served[0] or _signed(each, served[0]) for each in _load(ca))


def covers(found: CertificateFacts, host: str) -> bool:
    """Return whether the certificate is for that DNS name or address."""
    wildcard = "*." + host.partition(".")[2]
    return host in found.names or wildcard in found.names


def _load(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


def _names(found: x509.Certificate) -> tuple[str, ...]:
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    addresses = [str(each) for each in names.get_values_for_type(x509.IPAddress)]
    return (*names.get_values_for_type(x509.DNSName), *addresses)


def _signed(ca: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
