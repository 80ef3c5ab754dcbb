"""Addresses, networks and URLs. Source: the libraries of k8s.io/apiserver/pkg/cel."""

import ipaddress
import re
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from koordinator.cel.values import EvaluationError, Function, no_overload

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Interface | ipaddress.IPv6Interface


def ip(text: Any) -> Address:
    """Return an IPv4 or IPv6 address. Raises: EvaluationError."""
    if not isinstance(text, str):
        raise no_overload("ip", text)
    if "%" in text:
        raise EvaluationError(f'IP address "{text}" with zone value is not allowed')
    try:
        found = ipaddress.ip_address(text)
    except ValueError as error:
        detail = f'IP Address "{text}" parse error during conversion from string'
        raise EvaluationError(f'{detail}: ParseAddr("{text}"): unable to parse IP') from error
    if found.version == 6 and found.ipv4_mapped is not None:
        raise EvaluationError(f'IPv4-mapped IPv6 address "{text}" is not allowed')
    return found


def _is_link_local_multicast(address: Address) -> bool:
    """`224.0.0.0/24`, or `ffX2::/16`."""
    first, second, third = address.packed[:3]
    if address.version == 4:
        return (first, second, third) == (224, 0, 0)
    return first == 0xFF and second & 0x0F == 2


def _is_global_unicast(address: Address) -> bool:
    is_broadcast = address == ipaddress.IPv4Address(0xFFFFFFFF)
    return not (
        is_broadcast
        or address.is_unspecified
        or address.is_loopback
        or address.is_multicast
        or address.is_link_local
    )


_NO_NETWORK = "network address parse error during conversion from string"
_LENGTH = re.compile(r"0|[1-9][0-9]{0,2}", re.ASCII)


def cidr(text: Any) -> Network:
    """Return an address with the length of its network. Raises: EvaluationError."""
    if not isinstance(text, str):
        raise no_overload("cidr", text)
    before, slash, length = text.rpartition("/")
    try:
        if not slash or _LENGTH.fullmatch(length) is None or "%" in before:
            raise ValueError(text)
        found = ipaddress.ip_interface(text)
    except ValueError as error:
        raise EvaluationError(
            f'{_NO_NETWORK}: {_NO_NETWORK}: netip.ParsePrefix("{text}"): no network'
        ) from error
    if found.version == 6 and found.ip.ipv4_mapped is not None:
        raise EvaluationError(f'{_NO_NETWORK}: IPv4-mapped IPv6 address "{text}" is not allowed')
    return found


def _holds_address(network: Network, other: Any) -> bool:
    if isinstance(other, str):
        other = ip(other)
    if not isinstance(other, Address):
        raise no_overload("containsIP", network, other)
    return other in network.network


def _holds_network(network: Network, other: Any) -> bool:
    if isinstance(other, str):
        other = cidr(other)
    if not isinstance(other, Network):
        raise no_overload("containsCIDR", network, other)
    outer, inner = network.network, other.network
    return (
        outer.version == inner.version
        and inner.network_address in outer
        and inner.prefixlen >= outer.prefixlen
    )


class Url(msgspec.Struct, frozen=True):
    """A URL, or an absolute path."""

    text: str
    scheme: str
    host: str
    path: str
    query: str


_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):", re.ASCII)
_PORT = re.compile(r"(?::[0-9]*)?", re.ASCII)
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_BAD_HOST = re.compile(r'[\x00-\x20"#/?@\\^`{|}\x7f]|%(?![0-9A-Fa-f]{2})')
_KEPT = frozenset("$&+,/:;=@!'()*[]-._~")


def url(text: Any) -> Url:
    """Raises: EvaluationError unless the text is an absolute URI or an absolute path."""
    _checked(text)
    rest = text.partition("#")[0]
    scheme = _SCHEME.match(rest)
    rest, _, query = (rest[scheme.end() :] if scheme else rest).partition("?")
    authority, has_host = "", rest.startswith("//") and (bool(scheme) or not rest.startswith("///"))
    if has_host:
        authority, slash, rest = rest[2:].partition("/")
        rest = slash + rest
    host = authority.rpartition("@")[2]
    if has_host and (reason := _wrong_with_host(host)):
        raise EvaluationError(f'URL parse error during conversion from string: parse "{text}": {reason}')
    path = rest if has_host or rest.startswith("/") else ""  # else it is opaque
    return Url(text, scheme[1].lower() if scheme else "", host, _escaped(path), query)


def _checked(text: Any) -> None:
    """Raises: EvaluationError unless the text is an absolute URI or an absolute path; its host may be no host."""
    if not isinstance(text, str):
        raise no_overload("url", text)
    if reason := _wrong_with(text):
        raise EvaluationError(f'URL parse error during conversion from string: parse "{text}": {reason}')


def _wrong_with(text: str) -> str:
    """Return why a text is no URL, by the rules of Go's net/url; empty if it is one."""
    if not text:
        return "empty url"
    if any(char < " " or char == "\x7f" for char in text):
        return "net/url: invalid control character in URL"
    scheme = _SCHEME.match(text)
    rest = text[scheme.end() :] if scheme else text
    if not scheme and text.startswith(":"):
        return "missing protocol scheme"
    if not rest.startswith("/"):
        return "" if scheme else "invalid URI for request"
    rest = rest.partition("?")[0]
    if rest.startswith("//") and scheme:
        authority, slash, path = rest[2:].partition("/")
        if reason := _wrong_with_host(authority.rpartition("@")[2]):
            return reason
        rest = slash + path
    bad = _BAD_ESCAPE.search(rest)
    return f'invalid URL escape "{rest[bad.start() : bad.start() + 3]}"' if bad else ""


def _wrong_with_host(host: str) -> str:
    if host.startswith("["):
        inner, bracket, port = host[1:].partition("]")
        if not bracket:
            return "missing ']' in host"
        return "" if _PORT.fullmatch(port) and inner else f'invalid port "{port}" after host'
    name, colon, port = host.rpartition(":")
    if colon and _PORT.fullmatch(colon + port) is None:
        return f'invalid port "{colon}{port}" after host'
    bad = _BAD_HOST.search(name if colon else host)
    return f'invalid character "{bad[0]}" in host name' if bad else ""


def _escaped(path: str) -> str:
    return "".join(
        char if char.isascii() and (char.isalnum() or char in _KEPT or char == "%") else _percent(char)
        for char in path
    )


def _percent(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode())


def _query(value: Url) -> dict[str, list[str]]:
    """Parts that cannot be read are left out."""
    found: dict[str, list[str]] = {}
    for part in value.query.split("&"):
        key, _, item = part.partition("=")
        if part and ";" not in part and not _BAD_ESCAPE.search(part):
            name, content = (
                unquote_to_bytes(text.replace("+", " ")).decode(errors="replace") for text in (key, item)
            )
            found.setdefault(name, []).append(content)
    return found


def _host_and_port(value: Url) -> tuple[str, str]:
    if value.host.startswith("["):
        inner, _, port = value.host[1:].partition("]")
        return inner, port[1:]
    name, colon, port = value.host.rpartition(":")
    return (name, port) if colon else (value.host, "")


FUNCTIONS: dict[str, Function] = {
    "ip": ip,
    "cidr": cidr,
    "url": url,
    "ip.isCanonical": lambda text: str(ip(text)) == text,
}
TESTS = {"isIP": ip, "isCIDR": cidr, "isURL": _checked}
"""Tests of whether a value can be made, by name."""

METHODS: dict[str, dict[str, Function]] = {
    "net.IP": {
        "family": lambda address: address.version,
        "isUnspecified": lambda address: address.is_unspecified,
        "isLoopback": lambda address: address.is_loopback,
        "isLinkLocalMulticast": _is_link_local_multicast,
        "isLinkLocalUnicast": lambda address: address.is_link_local and not address.is_multicast,
        "isGlobalUnicast": _is_global_unicast,
    },
    "net.CIDR": {
        "ip": lambda network: network.ip,
        "masked": lambda network: ipaddress.ip_interface(network.network.with_prefixlen),
        "prefixLength": lambda network: network.network.prefixlen,
        "containsIP": _holds_address,
        "containsCIDR": _holds_network,
    },
    "kubernetes.URL": {
        "getScheme": lambda value: value.scheme,
        "getHost": lambda value: value.host,
        "getHostname": lambda value: _host_and_port(value)[0],
        "getPort": lambda value: _host_and_port(value)[1],
        "getEscapedPath": lambda value: value.path,
        "getQuery": _query,
    },
}
"""By type of the receiver, by name."""
