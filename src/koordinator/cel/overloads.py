"""List what functions and methods take and give, one signature a line. A single capital letter is any type.

Sources: CEL's standard definitions, cel-go's string extension, and the libraries of k8s.io/apiserver/pkg/cel.
"""

import functools
import re
from collections.abc import Iterator

import msgspec

from koordinator.cel import formats, times

_SIGNATURES = """
_==_(A, A) bool            | _!=_(A, A) bool              | !_(bool) bool        | @in(A, list(A)) bool
@in(A, map(A, B)) bool    | _&&_(bool, bool) bool        | _||_(bool, bool) bool
_?_:_(bool, A, A) A        | _[_](list(A), int) A         | _[_](map(A, B), A) B
_[_](optional_type(list(A)), int) optional_type(A)        | _[_](optional_type(map(A, B)), A) optional_type(B)
_[?_](list(A), int) optional_type(A)                      | _[?_](optional_type(list(A)), int) optional_type(A)
_[?_](map(A, B), A) optional_type(B)                      | _[?_](optional_type(map(A, B)), A) optional_type(B)
_+_(int, int) int          | _+_(double, double) double   | _+_(string, string) string
_+_(bytes, bytes) bytes    | _+_(list(A), list(A)) list(A)
_+_(google.protobuf.Timestamp, google.protobuf.Duration) google.protobuf.Timestamp
_+_(google.protobuf.Duration, google.protobuf.Timestamp) google.protobuf.Timestamp
_+_(google.protobuf.Duration, google.protobuf.Duration) google.protobuf.Duration
_-_(int, int) int          | _-_(double, double) double
_-_(google.protobuf.Timestamp, google.protobuf.Timestamp) google.protobuf.Duration
_-_(google.protobuf.Timestamp, google.protobuf.Duration) google.protobuf.Timestamp
_-_(google.protobuf.Duration, google.protobuf.Duration) google.protobuf.Duration
_*_(int, int) int          | _*_(double, double) double   | _/_(int, int) int    | _/_(double, double) double
_%_(int, int) int          | -_(int) int                  | -_(double) double
_+_(uint, uint) uint       | _-_(uint, uint) uint         | _*_(uint, uint) uint | _/_(uint, uint) uint
_%_(uint, uint) uint
size(string) int           | size(bytes) int              | size(list(A)) int    | size(map(A, B)) int
dyn(A) dyn                 | type(A) type(A)              | bool(bool) bool      | bool(string) bool
bytes(bytes) bytes         | bytes(string) bytes          | matches(string, string) bool
timestamp(google.protobuf.Timestamp) google.protobuf.Timestamp
timestamp(int) google.protobuf.Timestamp                  | timestamp(string) google.protobuf.Timestamp
duration(google.protobuf.Duration) google.protobuf.Duration
duration(int) google.protobuf.Duration                    | duration(string) google.protobuf.Duration
quantity(string) kubernetes.Quantity                      | isQuantity(string) bool
semver(string) kubernetes.Semver                          | semver(string, bool) kubernetes.Semver
isSemver(string) bool      | isSemver(string, bool) bool
isIP(string) bool          | ip(string) net.IP            | ip.isCanonical(string) bool
isCIDR(string) bool        | cidr(string) net.CIDR        | isURL(string) bool   | url(string) kubernetes.URL
format.named(string) optional_type(kubernetes.NamedFormat)
optional.of(A) optional_type(A)                           | optional.none() optional_type(A)
optional.ofNonZeroValue(A) optional_type(A)               | optional.unwrap(list(optional_type(A))) list(A)
list(optional_type(A)).unwrapOpt() list(A)                | lists.range(int) list(int)
strings.quote(string) string                              | sign(kubernetes.Quantity) int
sets.contains(list(A), list(A)) bool                      | sets.equivalent(list(A), list(A)) bool
sets.intersects(list(A), list(A)) bool
string.size() int          | bytes.size() int             | list(A).size() int   | map(A, B).size() int
string.startsWith(string) bool                            | string.endsWith(string) bool
string.contains(string) bool                              | string.matches(string) bool
string.find(string) string | string.findAll(string) list(string)
string.findAll(string, int) list(string)                  | string.lowerAscii() string
string.upperAscii() string | string.trim() string         | string.indexOf(string) int
string.indexOf(string, int) int                           | string.lastIndexOf(string) int
string.lastIndexOf(string, int) int
string.charAt(int) string  | string.substring(int) string | string.substring(int, int) string
string.replace(string, string) string                     | string.replace(string, string, int) string
string.split(string) list(string)                         | string.split(string, int) list(string)
string.format(list(dyn)) string
list(string).join() string | list(string).join(string) string
list(A).indexOf(A) int     | list(A).lastIndexOf(A) int   | list(A).slice(int, int) list(A)
list(list(A)).flatten() list(A)                           | list(dyn).flatten(int) list(dyn)
list(A).distinct() list(A) | list(A).reverse() list(A)    | list(A).first() optional_type(A)
list(A).last() optional_type(A)
optional_type(A).hasValue() bool                          | optional_type(A).value() A
optional_type(A).or(optional_type(A)) optional_type(A)    | optional_type(A).orValue(A) A
kubernetes.Quantity.compareTo(kubernetes.Quantity) int
kubernetes.Quantity.isGreaterThan(kubernetes.Quantity) bool
kubernetes.Quantity.isLessThan(kubernetes.Quantity) bool
kubernetes.Quantity.add(kubernetes.Quantity) kubernetes.Quantity
kubernetes.Quantity.add(int) kubernetes.Quantity
kubernetes.Quantity.sub(kubernetes.Quantity) kubernetes.Quantity
kubernetes.Quantity.sub(int) kubernetes.Quantity
kubernetes.Quantity.asInteger() int                       | kubernetes.Quantity.isInteger() bool
kubernetes.Quantity.asApproximateFloat() double
kubernetes.Semver.compareTo(kubernetes.Semver) int        | kubernetes.Semver.major() int
kubernetes.Semver.isGreaterThan(kubernetes.Semver) bool   | kubernetes.Semver.minor() int
kubernetes.Semver.isLessThan(kubernetes.Semver) bool      | kubernetes.Semver.patch() int
kubernetes.URL.getScheme() string                         | kubernetes.URL.getHost() string
kubernetes.URL.getHostname() string                       | kubernetes.URL.getPort() string
kubernetes.URL.getEscapedPath() string                    | kubernetes.URL.getQuery() map(string, list(string))
kubernetes.NamedFormat.validate(string) optional_type(list(string))
net.IP.family() int        | net.IP.isUnspecified() bool  | net.IP.isLoopback() bool
net.IP.isLinkLocalMulticast() bool                        | net.IP.isLinkLocalUnicast() bool
net.IP.isGlobalUnicast() bool
net.CIDR.ip() net.IP       | net.CIDR.masked() net.CIDR   | net.CIDR.prefixLength() int
net.CIDR.containsIP(string) bool                          | net.CIDR.containsIP(net.IP) bool
net.CIDR.containsCIDR(string) bool                        | net.CIDR.containsCIDR(net.CIDR) bool
google.protobuf.Duration.getHours() int                   | google.protobuf.Duration.getMinutes() int
google.protobuf.Duration.getSeconds() int                 | google.protobuf.Duration.getMilliseconds() int
"""
_CONVERTED = {
    "int": ("int", "double", "google.protobuf.Duration", "string", "google.protobuf.Timestamp", "uint"),
    "uint": ("int", "uint", "double", "string"),
    "double": ("int", "uint", "double", "string"),
    "string": (
        *("string", "bool", "bytes", "double", "int", "uint", "net.IP", "net.CIDR"),
        *("google.protobuf.Timestamp", "google.protobuf.Duration"),
    ),
}
"""Types that the functions named after types take."""
SORT_BY = "@sortByAssociatedKeys"
"""Name of the function that `sortBy` calls with a list and the keys of its items."""
_NUMBERS = ("int", "uint", "double")
_ORDERED = ("bool", "string", "bytes", "google.protobuf.Timestamp", "google.protobuf.Duration")


class CELType(msgspec.Struct, frozen=True):
    """A type: its name, what it is made of, and for objects of a schema their fields."""

    name: str
    of: tuple["CELType", ...] = ()
    fields: dict[str, "CELType"] | None = None

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.of))})" if self.of else self.name


DYN, BOOL, INT, UINT, DOUBLE = map(CELType, ("dyn", "bool", "int", "uint", "double"))
STRING, BYTES = CELType("string"), CELType("bytes")
NULL, TYPE = CELType("null"), CELType("type")
TIMESTAMP, DURATION = CELType("google.protobuf.Timestamp"), CELType("google.protobuf.Duration")


def list_of(item: CELType) -> CELType:
    return CELType("list", (item,))


def map_of(key: CELType, value: CELType) -> CELType:
    return CELType("map", (key, value))


def optional_of(inner: CELType) -> CELType:
    return CELType("optional_type", (inner,))


_SHORT = {"google.protobuf.Timestamp": "timestamp", "google.protobuf.Duration": "duration"}


def shown(given: CELType) -> str:
    """Return a type as messages name it."""
    if given.fields is not None:
        return "object"
    name = _SHORT.get(given.name, given.name)
    return f"{name}({', '.join(map(shown, given.of))})" if given.of else name


class Overload(msgspec.Struct, frozen=True):
    """One signature; `receiver` of a method."""

    receiver: CELType | None
    args: tuple[CELType, ...]
    result: CELType


@functools.cache
def functions() -> dict[str, list[Overload]]:
    """Functions and operators (`_+_`) by name."""
    return _grouped(is_method=False)


@functools.cache
def methods() -> dict[str, list[Overload]]:
    """Methods by name."""
    return _grouped(is_method=True)


def _grouped(*, is_method: bool) -> dict[str, list[Overload]]:
    found: dict[str, list[Overload]] = {}
    for name, overload in _all():
        if (overload.receiver is not None) == is_method:
            found.setdefault(name, []).append(overload)
    return found


_NAMESPACES = ("optional", "sets", "ip", "format", "lists", "strings")


def _all() -> Iterator[tuple[str, Overload]]:
    for line in re.split(r"\n|\s+\|\s+", _SIGNATURES.strip()):
        yield _signature(line.strip())
    for sign in ("<", "<=", ">", ">="):
        for name in _ORDERED:
            yield f"_{sign}_", Overload(None, (CELType(name), CELType(name)), BOOL)
        for a in _NUMBERS:
            for b in _NUMBERS:
                yield f"_{sign}_", Overload(None, (CELType(a), CELType(b)), BOOL)
    for name, taken in _CONVERTED.items():
        for one in taken:
            yield name, Overload(None, (CELType(one),), CELType(name))
    for name in (*_NUMBERS, *_ORDERED):
        item, items = CELType(name), list_of(CELType(name))
        for method, result in (("isSorted", BOOL), ("min", item), ("max", item), ("sort", items)):
            yield method, Overload(items, (), result)
        any_items = list_of(CELType("A"))
        yield SORT_BY, Overload(any_items, (items,), any_items)
    for name in (*_NUMBERS, DURATION.name):
        yield "sum", Overload(list_of(CELType(name)), (), CELType(name))
    for part in times.METHODS[TIMESTAMP.name]:
        yield part, Overload(TIMESTAMP, (), INT)
        yield part, Overload(TIMESTAMP, (STRING,), INT)
    for name in formats.FORMAT_NAMES:
        yield f"format.{name}", Overload(None, (), CELType("kubernetes.NamedFormat"))


def _signature(line: str) -> tuple[str, Overload]:
    head, result = _split_result(line)
    opening = head.rindex("(", 0, _matching(head) + 1) if head.endswith(")") else -1
    before, args = head[:opening], head[opening + 1 : -1]
    receiver, dot, name = before.rpartition(".")
    if dot and receiver in _NAMESPACES:
        receiver, name = "", before
    taken = tuple(_type(text) for text in _split(args))
    return name, Overload(_type(receiver) if receiver else None, taken, _type(result))


def _split_result(line: str) -> tuple[str, str]:
    """Return the call and its result: the last blank outside of brackets parts them."""
    depth = 0
    for at in range(len(line) - 1, -1, -1):
        depth += (line[at] == ")") - (line[at] == "(")
        if line[at] == " " and not depth:
            return line[:at], line[at + 1 :]
    raise AssertionError(line)


def _matching(head: str) -> int:
    """Return the index of the opening bracket that belongs to the closing one at the end of the text."""
    depth = 0
    for at in range(len(head) - 1, -1, -1):
        depth += (head[at] == ")") - (head[at] == "(")
        if not depth:
            return at
    raise AssertionError(head)


def _split(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and not depth:
            parts.append(text[start:at].strip())
            start = at + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def _type(text: str) -> CELType:
    name, bracket, inner = text.partition("(")
    return CELType(name, tuple(_type(part) for part in _split(inner[:-1]))) if bracket else CELType(name)
