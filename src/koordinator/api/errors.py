"""Errors in data from outside."""

from typing import ClassVar


class KoordinatorError(Exception):
    """Base of all errors that this project raises on purpose. The text is what is known of it, from the outside in:
    `file: place: reason`."""

    def __str__(self) -> str:
        return ": ".join(str(part) for part in self.args if part)


class SubjectError(KoordinatorError):
    """Base of the errors that name what is wrong and say why; `kind` tells people what the subject is."""

    kind: ClassVar[str] = ""

    def __init__(self, subject: object, reason: object) -> None:
        super().__init__(subject, reason)
        self.subject, self.reason = str(subject), str(reason)

    def __str__(self) -> str:
        return f"{self.kind}{self.subject}: {self.reason}"


class ProtocolError(KoordinatorError, ValueError):
    """An object from outside breaks its format; the caller applies the safe default.

    `obj` names the object (`Pod default/web-0`, or empty where the caller alone knows it), `field` the
    annotation, label or member, `reason` what is wrong with it.
    """

    def __init__(self, obj: str, field: str, reason: str) -> None:
        super().__init__(obj, field, reason)
        self.obj, self.field, self.reason = obj, field, reason

    def of(self, obj: str) -> "ProtocolError":
        """Return the same error, told about `obj`."""
        return ProtocolError(obj, self.field, self.reason)
