"""Errors in a node's files and in calls over its sockets."""

import enum

from koordinator.api.errors import KoordinatorError, SubjectError


class HostError(KoordinatorError):
    """Base of the errors of this room."""


class ContentError(SubjectError, HostError, ValueError):
    """A file or a command's output, the subject, does not say what it should."""


class LayoutError(HostError, ValueError):
    """A name does not follow the cgroup layout."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name, self.reason = name, reason

    def __str__(self) -> str:
        return f"{self.name[:120]!r}: {self.reason}"


class UnsupportedError(HostError):
    """The knob does not exist in this cgroup version; the caller leaves it alone."""

    def __init__(self, knob: str, version: int) -> None:
        super().__init__(knob, version)
        self.knob, self.version = knob, version

    def __str__(self) -> str:
        return f"{self.knob} does not exist in cgroup v{self.version}"


class KnobValueError(HostError, ValueError):
    """The kernel would refuse this value, so it is not written."""

    def __init__(self, knob: str, value: str, reason: str) -> None:
        super().__init__(knob, value, reason)
        self.knob, self.value, self.reason = knob, value, reason

    def __str__(self) -> str:
        return f"{self.knob}: {self.value[:80]!r} cannot be written: {self.reason}"


class RuntimeCallError(HostError):
    """A container runtime was not there, refused a call, or did not answer. `code` is gRPC's name of the refusal, empty
    where nothing was refused."""

    def __init__(self, call: str, reason: str, code: str = "") -> None:
        super().__init__(call, reason, code)
        self.call, self.reason, self.code = call, reason, code

    def __str__(self) -> str:
        return ": ".join(part for part in (self.call, self.code, self.reason) if part)


class GrpcCode(enum.IntEnum):
    """Status codes of calls. Source: grpc.io, "Status codes and their use in gRPC"."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16

    @classmethod
    def of(cls, text: bytes) -> "GrpcCode":
        """Return the code of a `grpc-status` header; UNKNOWN for what is none."""
        try:
            return cls(int(text))
        except ValueError:
            return cls.UNKNOWN


class CallError(HostError):
    """A gRPC call failed."""

    def __init__(self, code: GrpcCode, reason: str) -> None:
        super().__init__(code, reason)
        self.code, self.reason = code, reason

    def __str__(self) -> str:
        return self.reason
