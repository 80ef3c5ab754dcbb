"""`'%s of %d'.format([...])`, as cel-go's string extension formats, with numbers as in English texts.

A template is read once for texts and once, when an expression is written, for types.
"""

import datetime
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from koordinator.cel import times
from koordinator.cel.conversions import bytes_of, to_string
from koordinator.cel.values import EvaluationError, TypeName, UInt, kind_of, no_overload

_CLAUSE = re.compile(r"%(?:\.([0-9]*))?(.)", re.DOTALL)
DIGITS = 6
"""Behind the point, unless the template says otherwise."""
_DIGITS_MAX = 1000
_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_WORDS = ("NaN", "Infinity", "-Infinity")
_QUOTED = {'"': '\\"', "\\": "\\\\", "\a": "\\a", "\b": "\\b", "\f": "\\f"}
_QUOTED |= {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}


class Verb(NamedTuple):
    """A kind of clause: what it takes, by names of types, and what it says when it is given something else."""

    takes: frozenset[str]
    refusal: str


_WITH_TEXT = (
    *("string", "bool", "bytes", "int", "uint", "double", "map", "list", "type", "null", "null_type"),
    *("google.protobuf.Duration", "google.protobuf.Timestamp"),
)
_STRING = Verb(
    frozenset(_WITH_TEXT),
    "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and "
    "timestamps",
)
_HEX = Verb(
    frozenset(("int", "uint", "string", "bytes")),
    "only integers, byte buffers, and strings can be formatted as hex",
)
_REAL = frozenset(("double", "string"))
_WHOLE = frozenset(("int", "uint"))
VERBS = {
    "s": _STRING,
    "d": Verb(_WHOLE, "decimal clause can only be used on integers"),
    "f": Verb(_REAL, "fixed-point clause can only be used on doubles"),
    "e": Verb(_REAL, "scientific clause can only be used on doubles"),
    "b": Verb(_WHOLE | {"bool"}, "only integers and bools can be formatted as binary"),
    "x": _HEX,
    "X": _HEX,
    "o": Verb(_WHOLE, "octal clause can only be used on integers"),
}


class Clause(NamedTuple):
    """`%.2f`; without a verb it is plain text."""

    text: str
    verb: str = ""
    digits: int = DIGITS


def clauses(template: str, count: int) -> Iterator[Clause]:
    """Yield the parts of a template for `count` values. Raises: EvaluationError."""
    at = used = 0
    while at < len(template):
        percent = template.find("%", at)
        if percent < 0:
            yield Clause(template[at:])
            return
        if percent > at:
            yield Clause(template[at:percent])
        if template.startswith("%%", percent):
            yield Clause("%")
            at = percent + 2
            continue
        if percent + 1 == len(template) and used < count:
            raise EvaluationError("unexpected end of string")
        if used >= count:
            raise EvaluationError(f"index {used} out of range")
        found = _CLAUSE.match(template, percent)
        digits = found[1] if found else ""
        if found is None or digits == "" or (digits and int(digits) > _DIGITS_MAX):
            raise EvaluationError("could not parse formatting clause: error while parsing precision")
        if found[2] not in VERBS:
            detail = f'unrecognized formatting clause "{found[2]}"'
            raise EvaluationError(f"could not parse formatting clause: {detail}")
        yield Clause(found[0], found[2], DIGITS if digits is None else int(digits))
        used, at = used + 1, found.end()


def refusal(verb: str, kind: str) -> str:
    """Return what a clause says of a value of a type that it does not take."""
    return f"error during formatting: {VERBS[verb].refusal}, was given {kind}"


def format_text(template: str, values: Any) -> str:
    """Raises: EvaluationError."""
    if not isinstance(values, list):
        raise no_overload("format", template, values)
    left = iter(values)
    return "".join(
        _filled(clause, next(left)) if clause.verb else clause.text
        for clause in clauses(template, len(values))
    )


def _filled(clause: Clause, value: Any) -> str:
    kind, verb = kind_of(value), clause.verb
    is_word = verb in "fe" and kind == "string"
    if kind not in VERBS[verb].takes or (is_word and value not in _WORDS):
        raise EvaluationError(refusal(verb, kind))
    return _FILLERS[verb](value, clause.digits)


def _fixed(value: Any, digits: int) -> str:
    number = float(value)
    if not math.isfinite(number):
        return _special(number)
    return f"{number:,.{digits}f}"


def _scientific(value: Any, width: int) -> str:
    number = float(value)
    if not math.isfinite(number):
        return _special(number)
    mantissa, _, power = f"{number:.{DIGITS}e}".partition("e")
    raised = f"{'-' if power[0] == '-' else ''}{abs(int(power)):02d}".translate(_RAISED)
    return f"{mantissa}×10{raised}".rjust(width)


def _special(number: float) -> str:
    return "NaN" if math.isnan(number) else "∞" if number > 0 else "-∞"


def _hexadecimal(value: Any, _: int) -> str:
    return f"{value:x}" if isinstance(value, int) else bytes_of(value).hex()


_FILLERS: dict[str, Callable[[Any, int], str]] = {
    "s": lambda value, _: shown(value),
    "d": lambda value, _: str(int(value)),
    "f": _fixed,
    "e": _scientific,
    "b": lambda value, _: f"{int(value):b}",
    "x": _hexadecimal,
    "X": lambda value, digits: _hexadecimal(value, digits).upper(),
    "o": lambda value, _: f"{value:o}",
}


def shown(value: Any) -> str:
    """Return a value as `%s` prints it. Raises: EvaluationError."""
    match value:
        case None:
            return "null"
        case TypeName():
            return value.name
        case list():
            return f"[{', '.join(map(_inside, value))}]"
        case dict():
            pairs = sorted(f"{_key(key)}\0:{_inside(item)}" for key, item in value.items())
            return f"{{{', '.join(pair.replace(chr(0), '', 1) for pair in pairs)}}}"
    return to_string(value)


def _key(value: Any) -> str:
    if isinstance(value, bool | int | UInt):
        return to_string(value)
    if isinstance(value, str):
        return quoted(value)
    raise EvaluationError(
        f"error during formatting: no formatting function for map key of type {kind_of(value)}"
    )


def _inside(value: Any) -> str:
    """Return a part of a list or map, as an expression would write it."""
    match value:
        case float():
            return f'"{_special(value)}"' if not math.isfinite(value) else f"{value:.{DIGITS}f}"
        case str():
            return quoted(value)
        case bytes():
            return f"b{quoted(to_string(value))}"
        case datetime.datetime():
            return f'timestamp("{times.timestamp_text(value)}")'
        case datetime.timedelta():
            return f'duration("{times.duration_text(value)}")'
    kind = kind_of(value)
    if kind not in VERBS["s"].takes:
        raise EvaluationError(f"error during formatting: no formatting function for {kind}")
    return shown(value)


def quoted(text: str) -> str:
    """Return a text in double quotes, with the escapes of CEL."""
    return f'"{"".join(_QUOTED.get(char, char) for char in text)}"'
