"""Label and field selectors as they stand in a query: parsed once, then asked per object.

The label grammar, its order of checks and its error texts are those of `k8s.io/apimachinery/pkg/labels`.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from koordinator.api.label_selector import key_faults, value_faults

Labels = Mapping[str, str]
LabelTest = Callable[[Labels], bool]


class SelectorError(ValueError):
    """A selector breaks the grammar; the text is the API server's."""


class FieldRequirement(msgspec.Struct, frozen=True):
    """`field=value`, or `field!=value` when negative."""

    field: str
    value: str
    negative: bool = False


# Label selectors

_TOKEN = re.compile(r"\s*(?:(==|=|!=|!|\(|\)|,|<|>)|([^\s=!(),<>]+))")
_END = ""
_BINARY = ("=", "==", "!=", "in", "notin", "<", ">")
_BINARY_NAMES = "in, notin, =, ==, !=, gt, lt"
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_INT64_MAX = 2**63 - 1


@lru_cache(4096)
def labels(text: str) -> LabelTest | None:
    """Return the test that a label selector stands for; None when it selects everything. Raises: SelectorError."""
    tests = _Parser(text).requirements()
    if not tests:
        return None
    if len(tests) == 1:
        return tests[0]
    return lambda labels: all(test(labels) for test in tests)


class _Parser:
    """Recursive descent over the tokens, in the order in which the API server looks at them."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        position, end = 0, len(text.rstrip())
        while position < end:
            token = _TOKEN.match(text, position)
            assert token is not None, (text, position)  # every character belongs to one of the two classes
            self._tokens.append(token[1] or token[2])
            position = token.end()
        self._next = 0

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else _END

    def _take(self) -> str:
        token = self._peek()
        self._next += 1
        return token

    def requirements(self) -> list[LabelTest]:
        found: list[LabelTest] = []
        while (token := self._peek()) != _END:
            if not (_is_word(token) or token == "!"):
                raise SelectorError(f"found '{token}', expected: !, identifier, or 'end of string'")
            try:
                found.append(self._requirement())
            except SelectorError as error:
                raise SelectorError(f"unable to parse requirement: {error}") from None
            token = self._take()
            if token == _END:
                break
            if token != ",":
                raise SelectorError(f"found '{token}', expected: ',' or 'end of string'")
            after = self._peek()
            if not (_is_word(after) or after == "!"):
                raise SelectorError(f"found '{after}', expected: identifier after ','")
        return found

    def _requirement(self) -> LabelTest:
        key = self._take()
        if is_absent := key == "!":
            key = self._take()
        if not _is_word(key):
            raise SelectorError(f"found '{key}', expected: identifier")
        _check_key(key)
        if is_absent:
            return lambda labels: key not in labels
        if self._peek() in (_END, ","):
            return lambda labels: key in labels
        operator = self._take()
        if operator not in _BINARY:
            raise SelectorError(f"found '{operator}', expected: {_BINARY_NAMES}")
        values = self._values() if operator in ("in", "notin") else {self._value(): None}
        return _requirement(key, operator, list(values))

    def _values(self) -> dict[str, None]:
        token = self._take()
        if token != "(":
            raise SelectorError(f"found '{token}' expected: '('")
        values: dict[str, None] = {}
        token = self._peek()
        if token == ")":
            self._take()
            return {"": None}
        if not (_is_word(token) or token == ","):
            raise SelectorError(f"found '{token}', expected: ',', ')' or identifier")
        while True:
            token = self._take()
            if _is_word(token):
                values[token] = None
                token = self._peek()
                if token not in (",", ")"):
                    raise SelectorError(f"found '{token}', expected: ',' or ')'")
                if token == ")":
                    break
            elif token == ",":
                # Nothing before, between or after commas is the empty value.
                after = self._peek()
                if not values or after in (",", ")"):
                    values[""] = None
                if after == ")":
                    break
            else:
                raise SelectorError(f"found '{token}', expected: ',', or identifier")
        self._take()
        return values

    def _value(self) -> str:
        token = self._peek()
        if token in (_END, ","):
            return ""
        self._take()
        if not _is_word(token):
            raise SelectorError(f"found '{token}', expected: identifier")
        return token


def _is_word(token: str) -> bool:
    return bool(token) and token[0] not in "=!(),<>"


def _check_key(key: str) -> None:
    faults = key_faults(key)
    if faults:
        raise SelectorError(f'<nil>: Invalid value: "{key}": {"; ".join(faults)}')


def _requirement(key: str, operator: str, values: list[str]) -> LabelTest:
    values.sort()  # the API server keeps them in a sorted set: indexes in errors follow it
    if operator in ("<", ">") and not _is_integer(values[0]):
        reason = "for 'Gt', 'Lt' operators, the value must be an integer"
        raise SelectorError(f'values[0]: Invalid value: "{values[0]}": {reason}')
    for i, value in enumerate(values):
        faults = value_faults(value)
        if faults:
            raise SelectorError(f'values[{i}][{key}]: Invalid value: "{value}": {"; ".join(faults)}')
    return _test(key, operator, values)


def _test(key: str, operator: str, values: list[str]) -> LabelTest:
    one, several = values[0], frozenset(values)
    match operator:
        case "=" | "==":
            return lambda labels: labels.get(key) == one
        case "in":
            return lambda labels: labels.get(key) in several
        case "!=" | "notin":
            return lambda labels: labels.get(key) not in several
        case ">":
            return lambda labels: _is_integer(labels.get(key)) and int(labels[key]) > int(one)
        case _:
            return lambda labels: _is_integer(labels.get(key)) and int(labels[key]) < int(one)


def _is_integer(text: str | None) -> bool:
    return text is not None and bool(_INTEGER.fullmatch(text)) and -_INT64_MAX - 1 <= int(text) <= _INT64_MAX


# Field selectors


@lru_cache(4096)
def fields(text: str) -> tuple[FieldRequirement, ...]:
    """Return the requirements of a field selector, all of which must hold. Raises: SelectorError."""
    return tuple(_field(part) for part in _split(text) if part)


def _split(text: str) -> list[str]:
    """Split at commas that no backslash protects."""
    return re.split(r"(?<!\\),", text) if "\\" not in text else re.findall(r"(?:\\.|[^,\\])+|\\$", text)


def _field(part: str) -> FieldRequirement:
    match = re.match(r"((?:\\.|[^\\!=])*?)(!=|==|=)(.*)", part, re.DOTALL)
    if match is None:
        raise SelectorError(f"invalid selector: '{part}'; can't understand '{part}'")
    field, operator, value = match.groups()
    return FieldRequirement(field, _unescape(value), operator == "!=")


def _unescape(value: str) -> str:
    if not any(char in value for char in "\\,="):
        return value
    out: list[str] = []
    chars = iter(value)
    for char in chars:
        if char == "\\":
            follow = next(chars, "")
            if follow not in ("\\", ",", "="):
                raise SelectorError(f"invalid field selector: invalid escape sequence in value: {value}")
            out.append(follow)
        elif char in ",=":
            raise SelectorError(f"invalid field selector: unescaped character in value: {value}")
        else:
            out.append(char)
    return "".join(out)


def text_at(path: str) -> Callable[[dict[str, Any]], str]:
    """Return a function that reads a field (`spec.nodeName`) of an object as text; empty when it is not there."""
    keys = path.split(".")

    def read(obj: dict[str, Any]) -> str:
        value: Any = obj
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
            if value is None:
                return ""
        if isinstance(value, bool):
            return "true" if value else "false"
        return value if isinstance(value, str) else str(value)

    return read
