"""Regular expressions in bounded time.

CEL means RE2, whose time grows with the text alone. Python's engine tries alternatives one after the other, so
patterns on which that takes for ever (a repetition of what can match in several ways, many repetitions) are
refused, as are references and look-around, which RE2 does not have either.
"""

import functools
import re

from koordinator.cel.errors import EvaluationError

REPETITIONS_MAX = 4
"""Unbounded repetitions in a pattern: n of them cost up to the n-th power of the text's length."""
TEXT_MAX = 256
"""Characters searched with a pattern that repeats more than once; attributes of devices have up to 64."""
PATTERNS_MAX = 512

LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
UPPER = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}

_PART = re.compile(
    r"\\.|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]|\(\?[^)]?|[()]|[*+?]|\{\d+(?:,\d*)?\}|.", re.DOTALL
)


class Pattern:
    """A pattern that was found harmless."""

    def __init__(self, source: str) -> None:
        """Raises: EvaluationError."""
        self._repetitions = _check(source)
        try:
            self._compiled = re.compile(source, re.ASCII)
        except (re.error, OverflowError, RecursionError) as error:
            raise EvaluationError(f"{source!r} is no regular expression: {error}") from error

    def search(self, text: str) -> re.Match[str] | None:
        """Raises: EvaluationError when the text is too long for the pattern."""
        self._check_length(text)
        return self._compiled.search(text)

    def all(self, text: str) -> list[str]:
        self._check_length(text)
        return [found[0] for found in self._compiled.finditer(text)]

    def _check_length(self, text: str) -> None:
        if self._repetitions > 1 and len(text) > TEXT_MAX:
            raise EvaluationError(f"more than {TEXT_MAX} characters to search")


@functools.lru_cache(PATTERNS_MAX)
def of(source: str) -> Pattern:
    """Raises: EvaluationError when the pattern is none, or one that may take too long."""
    return Pattern(source)


def find(text: str, source: str) -> str:
    """The first match, "" for none. Raises: EvaluationError when the pattern cannot be read."""
    found = of(source).search(text)
    return found[0] if found is not None else ""


def find_all(text: str, source: object, limit: object = -1) -> list[str]:
    """All matches, at most `limit` unless it is negative. Raises: EvaluationError."""
    if not isinstance(source, str) or type(limit) is not int:
        raise EvaluationError("no such overload: findAll")
    found = of(source).all(text)
    return found if limit < 0 else found[:limit]


def _check(source: str) -> int:
    """How many unbounded repetitions there are. Raises: EvaluationError."""
    count, repeats_inside, after_group = 0, [False], False
    for part in _PART.findall(source):
        was_group, after_group = after_group, False
        if part.startswith("\\") and (part[1].isdigit() or part[1] == "k"):
            raise _refused(source, "references to groups")
        if part in ("(?=", "(?!", "(?<", "(?>", "(?("):
            raise _refused(source, "look-around, conditions and named groups other than (?P<name>)")
        if part.startswith("("):
            repeats_inside.append(False)
        elif part == ")" and len(repeats_inside) > 1:
            after_group = repeats_inside.pop()
            repeats_inside[-1] |= after_group
        elif part in ("|", "?"):
            repeats_inside[-1] = True  # several ways to match: repeated, that is as bad
        elif part in ("*", "+") or (part.startswith("{") and len(part) > 2):
            if was_group:
                raise _refused(source, "repetitions of what can match in several ways")
            count += 1
            repeats_inside[-1] = True
    if count > REPETITIONS_MAX:
        raise _refused(source, f"more than {REPETITIONS_MAX} repetitions")
    return count


def _refused(source: str, what: str) -> EvaluationError:
    return EvaluationError(f"regular expression {source!r}: {what} are not supported")
