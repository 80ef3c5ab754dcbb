"""YAML text to JSON values, safely: no recursion, no alias bombs, no duplicate keys, no timestamps.

Built from the parser's events rather than its objects: only so are depth and size bounded while reading.
Scalars follow YAML 1.1 as Go's parser reads it (yes/no/on/off are booleans, 0777 is octal, 1:30 is text).
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from koordinator.api.errors import KoordinatorError

DEPTH_MAX = 200
"""Deeper than any manifest, and far below the interpreter's recursion limit: later steps may recurse freely."""
ALIASED_BYTES_MAX = 3 * 1024 * 1024
"""Most that aliases may add to a text: writing the value out writes out each of them."""


class YamlError(KoordinatorError, ValueError):
    """The text is no YAML that can be turned into JSON."""


_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLS = {
    word: value
    for value, words in ((True, "y yes true on"), (False, "n no false off"))
    for plain in words.split()
    for word in (plain, plain.capitalize(), plain.upper())
}
_INT = re.compile(r"[-+]?(0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|[1-9][0-9_]*|0)\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_INT_DIGITS_MAX = 18  # fits 64 bits; JSON numbers beyond are floats to Go as well
_FLOAT_DIGITS_MAX = 300
_TAG = "tag:yaml.org,2002:"


def load(text: bytes | str, *, nodes_max: int | None = None) -> Any:
    """Return the one document of a text; None for an empty one. `nodes_max` bounds values, so the time that reading
    takes: some 10 µs for each.

    Raises: YamlError.
    """
    found = None
    for number, document in enumerate(load_all(text, nodes_max=nodes_max)):
        if number:
            raise YamlError("expected a single document in the stream")
        found = document
    return found


def load_all(text: bytes | str, *, nodes_max: int | None = None) -> Iterator[Any]:
    """Yield the documents of a text, one after the other. Raises: YamlError."""
    try:
        loader = _Events(text.decode() if isinstance(text, bytes) else text)
        try:
            builder = _Builder(loader, nodes_max)
            while builder.goes_on():
                yield builder.document()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise YamlError(f"line {line}: {error.problem}") from None
    except yaml.reader.ReaderError as error:
        raise YamlError(f"character {error.position}: {error.reason}") from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise YamlError(str(error).splitlines()[0]) from None


_Events: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Node(NamedTuple):
    """A finished value, the characters that it takes when it is written out, and how deep it is (scalars: 0)."""

    value: Any
    size: int
    depth: int


class _Builder:
    """Turns events into values with an explicit stack of open collections."""

    def __init__(self, loader: Any, nodes_max: int | None) -> None:
        self._loader = loader
        self._nodes_left = -1 if nodes_max is None else nodes_max  # from -1 on down it never gets to 0
        self._anchors: dict[str, _Node] = {}
        self._aliased_bytes = 0

    def goes_on(self) -> bool:
        """Return whether another document follows."""
        while not isinstance(event := self._loader.get_event(), yaml.DocumentStartEvent):
            if event is None or isinstance(event, yaml.StreamEndEvent):
                return False
        return True

    def document(self) -> Any:
        stack: list[_Open] = []
        root: Any = None
        self._anchors.clear()
        while not isinstance(event := self._loader.get_event(), yaml.DocumentEndEvent):
            self._nodes_left -= 1
            if self._nodes_left == 0:
                raise YamlError(f"line {_line(event)}: document has too many values")
            if isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
                self._check_depth(event, len(stack) + 1)
                stack.append(_Open({} if isinstance(event, yaml.MappingStartEvent) else [], event))
                continue
            if isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
                done = stack.pop()
                node, anchor, line = _Node(done.value, done.size, done.depth), done.anchor, done.line
            elif isinstance(event, yaml.AliasEvent):
                node, anchor, line = self._alias(event, len(stack)), None, _line(event)
            else:
                value = _scalar(event)
                node, anchor, line = _Node(value, len(event.value) + 3, 0), event.anchor, _line(event)
            if anchor is not None:
                self._anchors[anchor] = node
            root = node.value
            if stack:
                stack[-1].add(node, line)
        return root

    def _alias(self, event: Any, depth: int) -> _Node:
        node = self._anchors.get(event.anchor)
        if node is None:
            raise YamlError(f"line {_line(event)}: unknown anchor '{event.anchor}' referenced")
        self._check_depth(event, depth + node.depth)
        self._aliased_bytes += node.size
        if self._aliased_bytes > ALIASED_BYTES_MAX:
            raise YamlError(f"line {_line(event)}: document contains excessive aliasing")
        return node

    def _check_depth(self, event: Any, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise YamlError(f"line {_line(event)}: exceeded max depth")


class _Open:
    """A collection whose end was not read yet."""

    __slots__ = ("anchor", "depth", "key", "line", "size", "value")

    def __init__(self, value: Any, event: Any) -> None:
        self.value = value
        self.anchor = event.anchor
        self.line = _line(event)
        self.size = 2
        self.depth = 1
        self.key: str | None = None

    def add(self, node: _Node, line: int) -> None:
        value = node.value
        self.size += node.size
        self.depth = max(self.depth, node.depth + 1)
        if isinstance(self.value, list):
            self.value.append(value)
        elif self.key is None:
            self.key = _key(value, line)
            if self.key in self.value and self.key != "<<":
                raise YamlError(f'unmarshal errors:\n  line {line}: key "{self.key}" already set in map')
        elif self.key == "<<":
            self._merge(value, line)
            self.key = None
        else:
            self.value[self.key] = value
            self.key = None

    def _merge(self, value: Any, line: int) -> None:
        for source in value if isinstance(value, list) else [value]:
            if not isinstance(source, dict):
                raise YamlError(f"line {line}: map merge requires map or sequence of maps as the value")
            for key, item in source.items():
                self.value.setdefault(key, item)


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _key(value: Any, line: int) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise YamlError(f"line {line}: invalid map key: {value!r}")


def _scalar(event: Any) -> Any:
    text: str = event.value
    tag = (event.tag or "").removeprefix(_TAG)
    if tag in ("str", "!") or (not tag and not event.implicit[0]):
        return text
    if tag not in ("", "null", "bool", "int", "float", "timestamp"):
        raise YamlError(f"line {_line(event)}: cannot decode !!{tag} into JSON")
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if _INT.match(text):
        return _integer(text)
    if _FLOAT.match(text):
        return float(text.replace("_", ""))
    return text


def _integer(text: str) -> int | float | str:
    digits = text.replace("_", "").lower()
    if len(digits) > _INT_DIGITS_MAX:
        return float(digits) if digits.lstrip("+-").isdigit() and len(digits) < _FLOAT_DIGITS_MAX else text
    sign = -1 if digits[0] == "-" else 1
    digits = digits.lstrip("+-")
    if digits in ("0", "0o", "0x", "0b"):
        return 0 if digits == "0" else text
    if digits[0] == "0" and digits[1].isdigit():
        digits = "0o" + digits[1:]
    return sign * int(digits, 0)
