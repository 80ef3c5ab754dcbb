"""The part of JSONPath that printer columns of custom resources use.

`.a.b`, `['a']`, `[0]`, `[-1]`, `[*]`, `.*`, slices, `..name` and filters with one comparison:
`[?(@.type=="Ready")]`.
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

Step = Callable[[Any], Iterator[Any]]


class JsonPathError(ValueError):
    """The text is no path of the supported form."""


@lru_cache(maxsize=1024)
def compile(path: str) -> tuple[Step, ...]:
    """Return the steps of a path such as `.status.conditions[?(@.type=="Ready")].status`.

    Raises: JsonPathError.
    """
    text = path.strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1].strip()
    text = text.removeprefix("$")
    steps: list[Step] = []
    position = 0
    while position < len(text):
        for pattern, build in _SYNTAX:
            match = pattern.match(text, position)
            if match:
                steps.append(build(match))
                position = match.end()
                break
        else:
            raise JsonPathError(f"{path}: cannot be read from {text[position:]!r} on")
    return tuple(steps)


def find(steps: tuple[Step, ...], value: Any) -> list[Any]:
    """Return all values at a compiled path."""
    found = [value]
    for step in steps:
        found = [child for parent in found for child in step(parent)]
    return found


def _key(name: str) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, dict) and name in value:
            yield value[name]

    return step


def _deep(name: str) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, dict):
            if name in value:
                yield value[name]
            for child in value.values():
                yield from step(child)
        elif isinstance(value, list):
            for child in value:
                yield from step(child)

    return step


def _index(number: int) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list) and -len(value) <= number < len(value):
            yield value[number]

    return step


def _slice(start: str | None, end: str | None) -> Step:
    first = int(start) if start else None
    last = int(end) if end else None

    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list):
            yield from value[first:last]

    return step


def _all(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _filter(path: str, operator: str, literal: str) -> Step:
    steps = compile(path)
    wanted = _literal(literal) if operator else None

    def keeps(item: Any) -> bool:
        found = find(steps, item)
        if not operator:
            return bool(found)
        return any(_COMPARE[operator](left, wanted) for left in found)

    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list):
            yield from filter(keeps, value)

    return step


def _literal(text: str) -> Any:
    text = text.strip()
    if text[:1] in "'\"":
        return text[1:-1]
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text)
    except ValueError:
        raise JsonPathError(f"{text!r} is no text in quotes, number, true or false") from None


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def safe(left: Any, right: Any) -> bool:
        both_numbers = isinstance(left, int | float) and isinstance(right, int | float)
        return (both_numbers or (isinstance(left, str) and isinstance(right, str))) and compare(left, right)

    return safe


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda left, right: bool(left == right),
    "!=": lambda left, right: bool(left != right),
    "<": _ordered(lambda left, right: left < right),
    "<=": _ordered(lambda left, right: left <= right),
    ">": _ordered(lambda left, right: left > right),
    ">=": _ordered(lambda left, right: left >= right),
}

# Names may hold escaped dots: `.metadata.labels.app\.kubernetes\.io/name`.
_NAME = r"((?:[^.\[\]\\*]|\\.)+)"
_SYNTAX: list[tuple[re.Pattern[str], Callable[[re.Match[str]], Step]]] = [
    (re.compile(r"\.\." + _NAME), lambda m: _deep(_plain(m[1]))),
    (re.compile(r"\.?\*|\.?\[\*\]"), lambda m: _all),
    (re.compile(r"\.?\[\s*(-?\d{1,9})\s*\]"), lambda m: _index(int(m[1]))),
    (re.compile(r"\.?\[\s*(-?\d{1,9})?\s*:\s*(-?\d{1,9})?\s*\]"), lambda m: _slice(m[1], m[2])),
    (
        re.compile(r"""\.?\[\s*(?:'([^']*)'|"([^"]*)")\s*\]"""),
        lambda m: _key(m[1] if m[1] is not None else m[2]),
    ),
    (
        re.compile(
            r"""\.?\[\?\(\s*@((?:[^=!<>()\s'"]|\\.)*)\s*(?:(==|!=|<=|>=|<|>)\s*('[^']*'|"[^"]*"|[^)'"]+?))?\s*\)\]"""
        ),
        lambda m: _filter(m[1], m[2] or "", m[3] or ""),
    ),
    (re.compile(r"\." + _NAME), lambda m: _key(_plain(m[1]))),
    (re.compile(_NAME), lambda m: _key(_plain(m[1]))),
    (re.compile(r"\.\Z"), lambda m: _self),
]


def _self(value: Any) -> Iterator[Any]:
    yield value


def _plain(name: str) -> str:
    return re.sub(r"\\(.)", r"\1", name)
