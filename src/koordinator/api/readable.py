"""Amounts as people read them: cores, GiB, plain numbers; lists of names. Programs still read Kubernetes quantities."""

from collections.abc import Sequence

from koordinator.api import quantity, resources
from koordinator.api.quantity import Quantity, RawQuantity

_BYTES = (("Pi", 2**50), ("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))
_IN_MILLI_UNITS = frozenset((resources.BATCH_CPU, resources.MID_CPU))
UNLIMITED = 2**62 // 1000
"""Amounts from here on stand for "no limit": 2^63 / 2000, the smallest that the reference writes for it."""


def is_bytes(name: str) -> bool:
    """Return whether a resource is counted in bytes."""
    known = name in (resources.MEMORY, resources.EPHEMERAL_STORAGE) or name.endswith("-memory")
    return known or name.startswith(resources.HUGEPAGES_PREFIX)


def is_cpu(name: str) -> bool:
    """Return whether a resource is CPU time, of whatever priority."""
    return name == resources.CPU or name in _IN_MILLI_UNITS


def cell(name: str, raw: RawQuantity | Quantity) -> str:
    """Return an amount for a table that names the resource: `97.5` cores, `17.03Ti`, `1,234`, `unlimited`."""
    found = raw if isinstance(raw, Quantity) else quantity.of(raw)
    if abs(found.value) >= UNLIMITED:
        return "unlimited"
    if is_cpu(name):
        nanos = found.nanos // 1000 if name in _IN_MILLI_UNITS else found.nanos
        return _decimal(nanos / quantity.NANO, 3)
    if is_bytes(name):
        return _bytes(found.value, "")
    return _decimal(found.nanos / quantity.NANO, 3)


def amount(name: str, raw: RawQuantity | Quantity) -> str:
    """Return an amount with its unit: `97.5 cores`, `17.03 TiB`, `3`."""
    found = raw if isinstance(raw, Quantity) else quantity.of(raw)
    text = cell(name, found)
    if text == "unlimited":
        return text
    if is_cpu(name):
        return "1 core" if text == "1" else f"{text} cores"
    return _bytes(found.value, "B", " ") if is_bytes(name) else text


def lot(name: str, raw: RawQuantity | Quantity) -> str:
    """Return an amount with what it is of: `97.5 cores`, `2.5 GiB of memory`, `3 nvidia.com/gpu`."""
    text = amount(name, raw)
    if text == "unlimited":
        return f"{text} {name}"
    if name == resources.CPU:
        return text
    return f"{text} of {name}" if is_cpu(name) or is_bytes(name) else f"{text} {name}"


def some_of(names: Sequence[str], most: int = 5) -> str:
    """Return some names, and how many more there are: `a, b and 3 more`."""
    some = ", ".join(names[:most])
    return some if len(names) <= most else f"{some} and {len(names) - most} more"


def percent(ratio: float) -> str:
    """Return a share for people: `12.5 %`."""
    return f"{100 * ratio:.1f} %"


def _bytes(number: int, unit: str, space: str = "") -> str:
    for suffix, size in _BYTES:
        if abs(number) >= size:
            return f"{_decimal(number / size, 2)}{space}{suffix}{unit}"
    return f"{number}{space}{unit}"


def _decimal(number: float, digits: int) -> str:
    """At most so many digits after the point, none that say nothing."""
    text = f"{number:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
