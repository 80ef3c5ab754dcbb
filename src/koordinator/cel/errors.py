"""Errors of an expression, and of its evaluation."""

from koordinator.api.errors import KoordinatorError


class CompileError(KoordinatorError):
    """The expression is none, or uses what we do not have; `position` counts characters from 0."""

    def __init__(self, source: str, position: int, reason: str) -> None:
        super().__init__(source, position, reason)
        self.source, self.position, self.reason = source, position, reason

    def __str__(self) -> str:
        return f"{self.reason} at character {self.position + 1} of {self.source!r}"


class EvaluationError(KoordinatorError):
    """The expression has no value for what it was asked about."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class OutOfBudget(EvaluationError):
    """The evaluation costs more than it may; whatever it would give, it ends."""
