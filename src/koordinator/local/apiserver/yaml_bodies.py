"""YAML text to JSON values, safely: no recursion, no alias bombs, no duplicate keys, no timestamps.

Built from the parser's events rather than its objects: only so are depth and size bounded while reading.
Scalars follow YAML 1.1 as Go's parser reads it (yes/no/on/off are booleans, 0777 is octal, 1:30 is text).
"""

import re
from typing import Any

import yaml

NODES_MAX = 1_000_000  # values after aliases are expanded; a 3 MiB text without aliases has fewer


class YamlError(ValueError):
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


def load(body: bytes, *, depth_max: int) -> Any:
    """The one document of `body`.

    Raises: YamlError.
    """
    try:
        loader = yaml.CSafeLoader(body.decode())
        try:
            return _Builder(loader, depth_max).document()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise YamlError(f"line {line}: {error.problem}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise YamlError(str(error).splitlines()[0]) from None


class _Builder:
    """Turns events into values with an explicit stack of open collections."""

    def __init__(self, loader: Any, depth_max: int) -> None:
        self._loader = loader
        self._depth_max = depth_max
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._nodes = 0

    def document(self) -> Any:
        stack: list[_Open] = []
        root: Any = None
        documents = 0
        while (event := self._loader.get_event()) is not None:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise YamlError("expected a single document in the stream")
            elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
                if len(stack) >= self._depth_max:
                    raise YamlError("exceeded max depth")
                stack.append(
                    _Open({} if isinstance(event, yaml.MappingStartEvent) else [], event, self._nodes)
                )
            elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
                done = stack.pop()
                self._remember(done.anchor, done.value, self._nodes - done.nodes_before + 1)
                root = self._place(stack, done.value, done.line)
            elif isinstance(event, yaml.ScalarEvent):
                value = _scalar(event)
                self._remember(event.anchor, value, 1)
                root = self._place(stack, value, _line(event))
            elif isinstance(event, yaml.AliasEvent):
                root = self._place(stack, self._alias(event), _line(event))
        return root

    def _alias(self, event: Any) -> Any:
        if event.anchor not in self._anchors:
            raise YamlError(f"unknown anchor '{event.anchor}' referenced")
        value, nodes = self._anchors[event.anchor]
        self._count(nodes)
        return value

    def _remember(self, anchor: str | None, value: Any, nodes: int) -> None:
        if anchor is not None:
            self._anchors[anchor] = (value, nodes)

    def _count(self, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > NODES_MAX:
            raise YamlError("document contains excessive aliasing")

    def _place(self, stack: "list[_Open]", value: Any, line: int) -> Any:
        """Put a finished value into the innermost open collection; returns it for the root."""
        self._count(1)
        if stack:
            stack[-1].add(value, line)
        return value


class _Open:
    """A collection whose end was not read yet."""

    __slots__ = ("anchor", "key", "line", "merged", "nodes_before", "value")

    def __init__(self, value: Any, event: Any, nodes_before: int) -> None:
        self.value = value
        self.anchor = event.anchor
        self.line = _line(event)
        self.nodes_before = nodes_before
        self.key: str | None = None
        self.merged: list[dict[str, Any]] = []

    def add(self, value: Any, line: int) -> None:
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
