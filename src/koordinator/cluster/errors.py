"""Failures of API calls, as the API server words them.

The in-process server raises the same classes that the HTTP client decodes from a `Status` answer, so a
component cannot tell the two apart.
"""

from typing import Any

import msgspec

from koordinator.api.errors import KoordinatorError


class StatusCause(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One field's trouble inside an `Invalid` answer."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The object and fields that a `Status` speaks of."""

    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: list[StatusCause] = []
    retry_after_seconds: int = 0


class ApiError(KoordinatorError):
    """An API call was answered with a failure `Status`: HTTP `code`, CamelCase `reason`, text."""

    code = 500
    reason = "InternalError"

    def __init__(self, message: str, *, details: StatusDetails | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def status(self) -> dict[str, Any]:
        """Return the `Status` object of the answer."""
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        if self.details is not None:
            body["details"] = msgspec.to_builtins(self.details)
        return body


class BadRequest(ApiError):
    code, reason = 400, "BadRequest"


class Unauthorized(ApiError):
    code, reason = 401, "Unauthorized"


class Forbidden(ApiError):
    code, reason = 403, "Forbidden"


class NotFound(ApiError):
    """There is no such object, or nobody serves such a thing; never without details, which clients read unasked."""

    code, reason = 404, "NotFound"

    def __init__(self, message: str, *, details: StatusDetails | None = None) -> None:
        super().__init__(message, details=details or StatusDetails())


class MethodNotSupported(ApiError):
    code, reason = 405, "MethodNotAllowed"


class NotAcceptable(ApiError):
    code, reason = 406, "NotAcceptable"


class AlreadyExists(ApiError):
    code, reason = 409, "AlreadyExists"


class Conflict(ApiError):
    """The object changed since it was read, or its uid differs; read it again and retry."""

    code, reason = 409, "Conflict"


class Gone(ApiError):
    """The resourceVersion is no longer kept; list again. `Expired` is the API server's word for it."""

    code, reason = 410, "Expired"


class RequestTooLarge(ApiError):
    code, reason = 413, "RequestEntityTooLarge"


class UnsupportedMediaType(ApiError):
    code, reason = 415, "UnsupportedMediaType"


class Invalid(ApiError):
    code, reason = 422, "Invalid"


class TooManyRequests(ApiError):
    """Retry later (`details.retry_after_seconds`); eviction refused by a PodDisruptionBudget is one too."""

    code, reason = 429, "TooManyRequests"


class InternalError(ApiError):
    code, reason = 500, "InternalError"


class ServiceUnavailable(ApiError):
    code, reason = 503, "ServiceUnavailable"


class RequestFenced(ServiceUnavailable):
    """We kept the request back: it must not be sent now, nor again by itself."""


class Timeout(ApiError):
    code, reason = 504, "Timeout"


class ConnectionFailed(ServiceUnavailable):
    """No answer: the connection was refused, reset or timed out. A write may or may not have happened."""

    reason = "ConnectionFailed"


class Unreadable(InternalError):
    """An object on the server does not fit the typed view: `obj` (key), `field` (JSON path), `why`."""

    reason = "Unreadable"

    def __init__(self, kind: str, obj: str, field: str, why: str) -> None:
        super().__init__(f"{kind} {obj}: {field}: {why}")
        self.kind, self.obj, self.field, self.why = kind, obj, field, why


# Only direct subclasses: the two above have no wire form of their own.
_CLASSES: dict[tuple[int, str], type[ApiError]] = {(c.code, c.reason): c for c in ApiError.__subclasses__()}
_BY_CODE: dict[int, type[ApiError]] = {c.code: c for c in ApiError.__subclasses__() if c is not AlreadyExists}


def from_status(code: int, body: dict[str, Any]) -> ApiError:
    """Return the error of a failure `Status` (or of a body that is none: then the HTTP code decides)."""
    reason = str(body.get("reason", ""))
    cls = _CLASSES.get((code, reason)) or _BY_CODE.get(code, ApiError)
    details = body.get("details")
    try:
        parsed = msgspec.convert(details, StatusDetails, strict=False) if details else None
    except msgspec.ValidationError:
        parsed = None
    error = cls(str(body.get("message") or f"HTTP {code}"), details=parsed)
    error.code = code
    error.reason = reason or cls.reason
    return error


def not_found(qualified: str, name: str, *, group: str = "", kind: str = "") -> NotFound:
    """`pods "web-0" not found`."""
    return NotFound(
        f'{qualified} "{name}" not found', details=StatusDetails(name=name, group=group, kind=kind)
    )
