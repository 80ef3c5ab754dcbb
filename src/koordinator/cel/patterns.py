"""Regular expressions in linear time, by RE2: the syntax of Kubernetes, and no pattern that takes for ever.

Used for CEL, and for `pattern` in schemas of custom resources.
"""

import functools

from koordinator.cel.values import EvaluationError

PATTERNS_MAX = 512
"""Compiled patterns that are kept; some 10 kB each."""
SOURCE_MAX = 4096
"""Characters of a pattern."""
SMALL_PROGRAM = 2_000
"""Instructions up to which the fast way of asking whether a text matches has all the memory that it needs."""

LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
UPPER = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}


class Pattern:
    """A compiled pattern."""

    def __init__(self, source: str) -> None:
        """Raises: EvaluationError."""
        import re2

        if len(source) > SOURCE_MAX:
            raise EvaluationError(f"a regular expression may have {SOURCE_MAX} characters, not {len(source)}")
        options = re2.Options()
        options.log_errors = False
        try:
            self._compiled: re2._Regexp = re2.compile(source, options)
        except (re2.error, UnicodeEncodeError) as error:
            reason = error.args[0] if error.args else error
            text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(error)
            raise EvaluationError(f"{source!r} is no regular expression: {text}") from error
        self._fast: re2.Set | None = None
        if self._compiled.programsize <= SMALL_PROGRAM:
            # Without the places of groups, asking costs a fifth.
            self._fast = re2.Set.SearchSet(options)
            self._fast.Add(source)
            self._fast.Compile()

    def matches(self, text: str) -> bool:
        """Return whether the pattern is found somewhere in the text."""
        encoded = text.encode("utf-8", "surrogatepass")
        if self._fast is not None:
            return bool(self._fast.Match(encoded))
        return self._compiled.search(text) is not None

    def find(self, text: str) -> str:
        """Return the first part of the text that matches, "" for none."""
        found = self._compiled.search(text)
        return "" if found is None else str(found[0])

    def all(self, text: str) -> list[str]:
        """Return all parts of the text that match, in order."""
        return [found[0] for found in self._compiled.finditer(text)]


@functools.lru_cache(PATTERNS_MAX)
def of(source: str) -> Pattern:
    """Raises: EvaluationError when the text is no pattern."""
    return Pattern(source)


def find_all(text: str, source: object, limit: object = -1) -> list[str]:
    """Return all matches, at most `limit` unless it is negative. Raises: EvaluationError."""
    if not isinstance(source, str) or type(limit) is not int:
        raise EvaluationError("no such overload: findAll")
    found = of(source).all(text)
    return found if limit < 0 else found[:limit]
