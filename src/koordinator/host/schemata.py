"""Parse and write a schemata file of resctrl: shares of caches and of memory bandwidth by cache id.

Source: behaviour/koordlet-act 10.1; Documentation/filesystems/resctrl.rst.
"""

import msgspec


class Schemata(msgspec.Struct, frozen=True):
    """The content of a schemata file, by cache id."""

    l3: dict[int, int]
    mb: dict[int, int]


def parse(content: str) -> Schemata:
    """Return what a schemata file says; unknown lines and malformed parts are left out."""
    found = Schemata({}, {})
    for line in content.splitlines():
        kind, _, parts = line.strip().partition(":")
        if kind == "L3":
            found.l3.update(_numbers(parts, 16))
        elif kind == "MB":
            found.mb.update(_numbers(parts, 10))
    return found


def needs_write(content: str, line: str) -> bool:
    """Return whether a schemata file with this content must be written for the line to hold: real ids are compared."""
    have, want = parse(content), parse(line)
    return any(have.l3.get(cache) != mask for cache, mask in want.l3.items()) or any(
        have.mb.get(cache) != value for cache, value in want.mb.items()
    )


def _numbers(parts: str, base: int) -> dict[int, int]:
    found = {}
    for part in parts.split(";"):
        cache, separator, value = (word.strip() for word in part.partition("="))
        if separator and cache.isdigit() and value.isalnum() and value.isascii():
            try:
                found[int(cache)] = int(value, base)
            except ValueError:
                continue
    return found
