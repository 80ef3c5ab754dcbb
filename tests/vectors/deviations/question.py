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


class Derived(msgspec.Struct, frozen=True):
    """Whether the expected answer is what `reference` works out from ours; None: the case is no concern of it."""

    reference: Callable[[Case, Ask], Any]

    def __call__(self, question: Question) -> bool:
        found = self.reference(question.input, question.ask)
        return found is not None and question.same(question.expected, found)

    def taken_for_ours(self, question: Question) -> Question:
        """The same question as if our code answered what `reference` works out."""

        def ask(case: Case) -> Any:
            found = self.reference(case, question.ask)
            return question.ask(case) if found is None else found

        return msgspec.structs.replace(question, ours=ask(question.input), ask=ask)


def together(one: Deviation, other: Deviation) -> Deviation:
    """Two deviations that meet in one case, as one."""
    return msgspec.structs.replace(other, name=f"{one.name}, {other.name}", why=f"{one.why}; {other.why}")
