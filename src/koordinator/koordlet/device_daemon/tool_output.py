"""Reading what vendors' tools print: lines such as `Key : value`, in blocks. Nothing here asks anything."""

import re
from collections.abc import Iterator

import msgspec

from koordinator.api.errors import KoordinatorError

_UNITS = {
    "": 2**20,
    "MB": 2**20,
    "MIB": 2**20,
    "KB": 2**10,
    "KIB": 2**10,
    "KBYTES": 2**10,
    "GB": 2**30,
    "GIB": 2**30,
}
_AMOUNT = re.compile(r"([0-9]+)\s*([A-Za-z]*)")
_NOTHING = frozenset(("", "na", "n/a", "-", "none"))


class ToolError(KoordinatorError):
    """A vendor's tool failed, or printed something else than it is known to; `tool` names it."""

    def __init__(self, tool: str, reason: str) -> None:
        super().__init__(tool, reason)
        self.tool, self.reason = tool, reason

    def __str__(self) -> str:
        return f"{self.tool}: {self.reason}"


class ToolValues(msgspec.Struct, frozen=True):
    """The values of one block of a tool's output, by key in lower case; the first of equal keys counts."""

    tool: str
    by_key: dict[str, str]

    def text(self, key: str, default: str = "") -> str:
        """Return the value, `default` where the tool says nothing or N/A."""
        value = self.by_key.get(key.lower(), "")
        return default if value.lower() in _NOTHING else value

    def number(self, key: str) -> int | None:
        """Return a whole number, None where the tool does not say.

        Raises: ToolError when it says something else.
        """
        value = self.text(key)
        if not value:
            return None
        if not value.isdigit():
            raise ToolError(self.tool, f"{key}: {value[:40]!r} is no number")
        return int(value)

    def size_bytes(self, key: str) -> int | None:
        """Return an amount of memory, in megabytes without a unit; None where the tool does not say.

        Raises: ToolError when it says something else.
        """
        value = self.text(key)
        return bytes_of(self.tool, key, value) if value else None


def bytes_of(tool: str, key: str, value: str) -> int:
    """Return an amount of memory such as `24576 MiB`. Raises: ToolError."""
    found = _AMOUNT.fullmatch(value.strip())
    if found is None or found[2].upper() not in _UNITS:
        raise ToolError(tool, f"{key}: {value[:40]!r} is no amount of memory")
    return int(found[1]) * _UNITS[found[2].upper()]


def values(tool: str, output: str) -> ToolValues:
    """Return all `Key : value` lines."""
    found: dict[str, str] = {}
    for line in output.splitlines():
        key, colon, value = line.partition(":")
        if colon and key.strip():
            found.setdefault(key.strip().lower(), value.strip())
    return ToolValues(tool, found)


def blocks(output: str, head: re.Pattern[str]) -> Iterator[tuple[re.Match[str], str]]:
    """Parts of the output, each beginning with a line that matches `head`; what stands before the first is left out."""
    begun: re.Match[str] | None = None
    lines: list[str] = []
    for line in output.splitlines():
        found = head.match(line.strip())
        if found is not None:
            if begun is not None:
                yield begun, "\n".join(lines)
            begun, lines = found, []
        lines.append(line)
    if begun is not None:
        yield begun, "\n".join(lines)
