"""Add what Kubernetes adds to CEL for its rules: times, addresses, URLs, named formats, and the formatting of
texts.

Sources: CEL's definitions of time, cel-go's string extension, and the libraries of k8s.io/apiserver/pkg/cel.
"""

import base64
import datetime
import ipaddress
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from koordinator.api import duration as durations
from koordinator.api.scalars import ScalarError
from koordinator.cel.values import NONE, EvaluationError, OptionalValue, TypeName, kind_of, no_overload

Function = Callable[..., Any]

_UTC = datetime.UTC
_STAMP = re.compile(
    r"(\d{4}-\d{2}-\d{2})(?:[Tt](\d{2}:\d{2}:\d{2})(\.\d{1,9})?(Z|z|[+-]\d{2}:\d{2}))?", re.ASCII
)


def timestamp(text: Any) -> datetime.datetime:
    """Return a time of RFC 3339, or a date. Raises: EvaluationError."""
    if isinstance(text, datetime.datetime):
        return text
    if not isinstance(text, str):
        raise no_overload("timestamp", text)
    found = _STAMP.fullmatch(text)
    try:
        if found is None:
            raise ValueError(text)
        zone = (found[4] or "Z").upper().replace("Z", "+00:00")
        fraction = ((found[3] or "")[1:7]).ljust(6, "0")
        return datetime.datetime.fromisoformat(f"{found[1]}T{found[2] or '00:00:00'}.{fraction}{zone}")
    except ValueError as error:
        raise EvaluationError(f"{text!r} is no time") from error


def duration(text: Any) -> datetime.timedelta:
    """Return a span as Go writes it (`1h30m`). Raises: EvaluationError."""
    if isinstance(text, datetime.timedelta):
        return text
    if not isinstance(text, str):
        raise no_overload("duration", text)
    try:
        return datetime.timedelta(seconds=durations.parse(text))
    except ScalarError as error:
        raise EvaluationError(str(error)) from error


def duration_text(span: datetime.timedelta) -> str:
    """Seconds, as CEL prints a duration: `90s`, `0.5s`."""
    return f"{span.total_seconds():.9f}".rstrip("0").rstrip(".") + "s"


def timestamp_text(moment: datetime.datetime) -> str:
    """RFC 3339 in UTC."""
    text = moment.astimezone(_UTC).isoformat().removesuffix("+00:00")
    return (text.rstrip("0") if "." in text else text) + "Z"


def _zoned(moment: datetime.datetime, zone: Any) -> datetime.datetime:
    if zone is None:
        return moment.astimezone(_UTC)
    from zoneinfo import ZoneInfo

    try:
        if re.fullmatch(r"[+-]\d{2}:\d{2}", zone):
            return moment.astimezone(datetime.datetime.fromisoformat(f"2000-01-01T00:00{zone}").tzinfo)
        return moment.astimezone(ZoneInfo(zone))
    except (KeyError, ValueError, TypeError, OSError) as error:
        raise EvaluationError(f"no time zone {zone!r}") from error


def _part(read: Callable[[datetime.datetime], int]) -> Function:
    return lambda moment, zone=None: read(_zoned(moment, zone))


def bytes_of(value: Any) -> bytes:
    """Return the UTF-8 of a text. Raises: EvaluationError."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    raise no_overload("bytes", value)


def decode_base64(text: str) -> bytes:
    """Return the bytes that a field of format `byte` holds. Raises: EvaluationError."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise EvaluationError("illegal base64 data") from error


# Addresses

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Interface | ipaddress.IPv6Interface


def ip(text: Any) -> Address:
    """Return an IPv4 or IPv6 address. Raises: EvaluationError."""
    try:
        if isinstance(text, str) and "%" not in text and not text.lower().startswith("::ffff:"):
            return ipaddress.ip_address(text)
    except ValueError as error:
        raise EvaluationError(f"IP Address {text!r} parse error during conversion from string") from error
    raise EvaluationError(f"IP Address {text!r} parse error during conversion from string")


def _is_link_local_multicast(address: Address) -> bool:
    """`224.0.0.0/24`, or `ffX2::/16`."""
    first, second, third = address.packed[:3]
    if address.version == 4:
        return (first, second, third) == (224, 0, 0)
    return first == 0xFF and second & 0x0F == 2


def cidr(text: Any) -> Network:
    """Return an address with the length of its network. Raises: EvaluationError."""
    try:
        if isinstance(text, str) and "/" in text and text.rpartition("/")[2].isdigit():
            return ipaddress.ip_interface(text)
    except ValueError as error:
        raise EvaluationError(
            f"network address parse error during conversion from string: {text!r}"
        ) from error
    raise EvaluationError(f"network address parse error during conversion from string: {text!r}")


def _holds_address(network: Network, other: Any) -> bool:
    return (other if isinstance(other, Address) else ip(other)) in network.network


def _holds_network(network: Network, other: Any) -> bool:
    inner = (other if isinstance(other, Network) else cidr(other)).network
    outer = network.network
    if isinstance(inner, ipaddress.IPv4Network) and isinstance(outer, ipaddress.IPv4Network):
        return inner.subnet_of(outer)
    if isinstance(inner, ipaddress.IPv6Network) and isinstance(outer, ipaddress.IPv6Network):
        return inner.subnet_of(outer)
    return False


# URLs


class Url(msgspec.Struct, frozen=True):
    """A URL, or an absolute path."""

    text: str
    scheme: str
    host: str
    path: str
    query: str


def url(text: Any) -> Url:
    """Raises: EvaluationError unless the text is an absolute URI or an absolute path."""
    if not isinstance(text, str):
        raise no_overload("url", text)
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018  it raises for what is no port
    except ValueError as error:
        raise EvaluationError(f"URL parse error during conversion from string: {error}") from error
    if not (parts.scheme or text.startswith("/")) or any(char <= " " for char in text):
        raise EvaluationError(f"URL parse error during conversion from string: parse {text!r}: invalid URI")
    return Url(text, parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query)


# Named formats

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"


class NamedFormat(msgspec.Struct, frozen=True):
    """A format by name, and what a text must be for it."""

    name: str
    pattern: str
    length_max: int

    def validate(self, text: Any) -> OptionalValue:
        """Return what is wrong with a text; none when it is valid."""
        if not isinstance(text, str):
            raise no_overload("validate", text)
        wrong = []
        if len(text) > self.length_max:
            wrong.append(f"must be no more than {self.length_max} characters")
        if re.fullmatch(self.pattern, text, re.ASCII) is None:
            wrong.append(f"must be a valid {self.name}")
        return OptionalValue(True, wrong) if wrong else NONE


_FORMATS = {
    "dns1123Label": (_LABEL, 63),
    "dns1123Subdomain": (rf"{_LABEL}(\.{_LABEL})*", 253),
    "dns1035Label": (r"[a-z]([-a-z0-9]*[a-z0-9])?", 63),
    "dns1123LabelPrefix": (rf"{_LABEL}-?", 63),
    "dns1123SubdomainPrefix": (rf"{_LABEL}(\.{_LABEL})*[-.]?", 253),
    "dns1035LabelPrefix": (r"[a-z]([-a-z0-9]*[a-z0-9])?-?", 63),
    "qualifiedName": (rf"({_LABEL}(\.{_LABEL})*/)?{_QUALIFIED}", 317),
    "labelValue": (rf"({_QUALIFIED})?", 63),
    "uuid": (r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", 36),
    "date": (r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])", 10),
    "datetime": (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", 64),
    "byte": (r"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?", 3 << 20),
    "uri": (r"[A-Za-z][A-Za-z0-9+.-]*:\S*|/\S*", 3 << 20),
}
FORMAT_NAMES = tuple(_FORMATS)


def named_format(name: Any) -> OptionalValue:
    """Return the format of a name, none where there is no such format."""
    known = _FORMATS.get(name) if isinstance(name, str) else None
    return NONE if known is None else OptionalValue(True, NamedFormat(name, *known))


# Formatting of texts


def format_text(template: str, values: Any) -> str:
    """`'%s of %d'.format([...])`. Raises: EvaluationError."""
    if not isinstance(values, list):
        raise no_overload("format", template, values)
    left = list(values)

    def fill(found: re.Match[str]) -> str:
        if found[0] == "%%":
            return "%"
        if not left:
            raise EvaluationError(f"index {len(values)} out of range")
        return _clause(left.pop(0), found[2], found[1])

    text = re.sub(r"%%|%(?:\.(\d+))?([a-zA-Z])", fill, template)
    if left:
        raise EvaluationError(
            f"too many arguments supplied to string.format (expected {len(values) - len(left)})"
        )
    return text


def _clause(value: Any, verb: str, precision: str | None) -> str:
    digits = int(precision) if precision is not None else 6
    match verb:
        case "s":
            return shown(value)
        case "d" if type(value) is int:
            return str(value)
        case "f" if type(value) in (int, float):
            return f"{value:.{min(digits, 100)}f}"
        case "e" if type(value) in (int, float):
            return f"{value:.{min(digits, 100)}e}"
        case "b" if type(value) in (int, bool):
            return f"{int(value):b}"
        case "x" | "X" if isinstance(value, int | str | bytes):
            text = f"{value:x}" if isinstance(value, int) else bytes_of(value).hex()
            return text.upper() if verb == "X" else text
        case "o" if type(value) is int:
            return f"{value:o}"
    raise EvaluationError(f"error during formatting: %{verb} does not take a {kind_of(value)}")


def shown(value: Any) -> str:
    """Return a value as `%s` prints it."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case float():
            return repr(value).removesuffix(".0")
        case bytes():
            return value.decode(errors="replace")
        case datetime.datetime():
            return timestamp_text(value)
        case datetime.timedelta():
            return duration_text(value)
        case list():
            return f"[{', '.join(map(shown, value))}]"
        case dict():
            return f"{{{', '.join(f'{shown(key)}: {shown(item)}' for key, item in sorted(value.items()))}}}"
        case TypeName():
            return value.name
        case Url():
            return value.text
    return str(value)


FUNCTIONS: dict[str, Function] = {
    "timestamp": timestamp,
    "duration": duration,
    "bytes": bytes_of,
    "type": lambda value: TypeName(kind_of(value)),
    "ip": ip,
    "cidr": cidr,
    "url": url,
    "ip.isCanonical": lambda text: str(ip(text)) == text,
    "format.named": named_format,
    **{f"format.{name}": lambda name=name: NamedFormat(name, *_FORMATS[name]) for name in _FORMATS},
}
TESTS = {"isIP": ip, "isCIDR": cidr, "isURL": url}
"""Tests of whether a value can be made, by name."""

METHODS: dict[str, dict[str, Function]] = {
    "google.protobuf.Timestamp": {
        "getFullYear": _part(lambda moment: moment.year),
        "getMonth": _part(lambda moment: moment.month - 1),
        "getDate": _part(lambda moment: moment.day),
        "getDayOfMonth": _part(lambda moment: moment.day - 1),
        "getDayOfWeek": _part(lambda moment: moment.isoweekday() % 7),
        "getDayOfYear": _part(lambda moment: moment.timetuple().tm_yday - 1),
        "getHours": _part(lambda moment: moment.hour),
        "getMinutes": _part(lambda moment: moment.minute),
        "getSeconds": _part(lambda moment: moment.second),
        "getMilliseconds": _part(lambda moment: moment.microsecond // 1000),
    },
    "google.protobuf.Duration": {
        "getHours": lambda span: int(span.total_seconds() / 3600),
        "getMinutes": lambda span: int(span.total_seconds() / 60),
        "getSeconds": lambda span: int(span.total_seconds()),
        "getMilliseconds": lambda span: span.microseconds // 1000,
    },
    "bytes": {"size": len},
    "net.IP": {
        "family": lambda address: address.version,
        "isUnspecified": lambda address: address.is_unspecified,
        "isLoopback": lambda address: address.is_loopback,
        "isLinkLocalMulticast": _is_link_local_multicast,
        "isLinkLocalUnicast": lambda address: address.is_link_local and not address.is_multicast,
        "isGlobalUnicast": lambda address: (
            not (
                address.is_unspecified or address.is_loopback or address.is_multicast or address.is_link_local
            )
        ),
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
        "getHostname": lambda value: urlsplit(value.text).hostname or "",
        "getPort": lambda value: str(urlsplit(value.text).port or ""),
        "getEscapedPath": lambda value: value.path,
        "getQuery": lambda value: parse_qs(value.query, keep_blank_values=True),
    },
    "kubernetes.NamedFormat": {"validate": NamedFormat.validate},
    "string": {"format": format_text},
}
"""By type of the receiver, by name."""
