"""What a deviation is asked: a case, both answers, and the code that gave ours."""

from collections.abc import Callable
from typing import Any

import msgspec

Case = dict[str, Any]
Ask = Callable[[Case], Any]
"""What our code answers to a case's input."""


class Question(msgspec.Struct, frozen=True):
    """A case whose answers differ. `same` is how the area compares (expected, actual)."""

    input: Case
    expected: Any
    ours: Any
    ask: Ask
    same: Callable[[Any, Any], bool]


class Deviation(msgspec.Struct, frozen=True):
    """A documented difference: where it shows, why, and the section and some words of the line that documents it."""

    name: str
    areas: tuple[str, ...]
    why: str
    section: str
    words: str
    explains: Callable[[Question], bool]


def derived(reference: Callable[[Case, Ask], Any]) -> Callable[[Question], bool]:
    """Whether the expected answer is what `reference` works out from ours; None: the case is no concern of it."""

    def explains(question: Question) -> bool:
        found = reference(question.input, question.ask)
        return found is not None and question.same(question.expected, found)

    return explains
