"""Check the text of a component's configuration against its struct: strictly, and with every problem at once.

msgspec stops at the first thing that does not fit. People who edit a file want all of them, each with its
path, so the body is walked along the types of the struct and only leaves are given to msgspec. The parts that all
components' files have (the base of their structs, leader election) are here, too.
"""

import difflib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Self, Union

import msgspec

from koordinator.api import duration, yaml_text
from koordinator.api.errors import KoordinatorError

RETRY_JITTER = 1.2
"""The renew deadline must leave room for one retry with its jitter."""


class ConfigProblem(msgspec.Struct, frozen=True):
    """The flaw at a place: `field` is a path such as `profiles[0].plugins.score`."""

    field: str
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


class ConfigFileError(KoordinatorError, ValueError):
    """The configuration cannot be used: `field` is a path in the file, `reason` what is wrong there;
    `problems` has all that were found, this one first. Subclasses name the component (`of_what`)."""

    of_what: ClassVar[str]

    def __init__(self, field: str, reason: str, more: Iterable[ConfigProblem] = ()) -> None:
        super().__init__(field, reason)
        self.field, self.reason = field, reason
        self.problems = (ConfigProblem(field, reason), *more)

    @classmethod
    def of(cls, problems: Iterable[ConfigProblem]) -> Self:
        """Return one error for at least one problem."""
        first, *more = problems
        return cls(first.field, first.reason, more)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return f"{self.of_what}: {self.problems[0]}"
        lines = "".join(f"\n  {problem}" for problem in self.problems)
        return f"{self.of_what}: {len(self.problems)} problems:{lines}"


Check = Callable[[Any], object]
"""Raises ValueError when a leaf that has the right type has a wrong value."""


Duration = Annotated[str, msgspec.Meta(extra={"check": duration.parse})]
"""Text such as `15s` or `1m30s`."""


class ConfigPart(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Base of a file's pieces."""


class LeaderElection(ConfigPart, frozen=True):
    """Lease that lets one of several instances work. Durations are texts such as `15s`; components have names of
    their own."""

    leader_elect: bool = True
    lease_duration: Duration = "15s"
    renew_deadline: Duration = "10s"
    retry_period: Duration = "2s"
    resource_lock: str = "leases"
    resource_name: str = ""
    resource_namespace: str = ""


def election_problems(election: LeaderElection) -> Iterator[ConfigProblem]:
    """Yield what cannot work about the leader election of a file, or of flags."""
    if not election.leader_elect:
        return
    lease_s, renew_s, retry_s = map(
        duration.parse, (election.lease_duration, election.renew_deadline, election.retry_period)
    )
    for name, seconds in (("leaseDuration", lease_s), ("renewDeadline", renew_s), ("retryPeriod", retry_s)):
        if seconds <= 0:
            yield ConfigProblem(f"leaderElection.{name}", "must be greater than zero")
    if lease_s <= renew_s:
        yield ConfigProblem("leaderElection.leaseDuration", "must be greater than renewDeadline")
    if renew_s <= RETRY_JITTER * retry_s:
        yield ConfigProblem(
            "leaderElection.renewDeadline", f"must be greater than retryPeriod × {RETRY_JITTER}"
        )
    if election.resource_lock != "leases":
        reason = f'must be "leases", not {election.resource_lock!r}'
        yield ConfigProblem("leaderElection.resourceLock", reason)
    for name, text in (
        ("resourceName", election.resource_name),
        ("resourceNamespace", election.resource_namespace),
    ):
        if not text:
            yield ConfigProblem(f"leaderElection.{name}", "must not be empty")


def read_yaml(text: str | bytes, error: type[ConfigFileError]) -> Any:
    """Return the body of a YAML or JSON text. Raises: `error`."""
    try:
        return yaml_text.load(text)
    except yaml_text.YamlError as cause:
        raise error("$", f"no YAML: {cause}") from cause


def version_problems(body: Any, api_version: str, kind: str, field: str = "") -> list[ConfigProblem]:
    """Return what is wrong with the `apiVersion` and `kind` of a text."""
    prefix = f"{field}." if field else ""
    if not isinstance(body, Mapping):
        return [ConfigProblem(field or "$", f"expected a mapping, got {word_of(body)}")]
    return [
        ConfigProblem(
            f"{prefix}{name}",
            f"must be {wanted}, not {body[name]!r}" if name in body else f"is missing; write {wanted}",
        )
        for name, wanted in (("apiVersion", api_version), ("kind", kind))
        if body.get(name) != wanted
    ]


def problems_of(body: Any, kind: Any, field: str, *, strict: bool = False) -> list[ConfigProblem]:
    """Everything in `body` that does not fit the type `kind`, in the order of the text.

    Views of API objects inside may have fields that we do not read, unless `strict`: a selector with a mistyped
    member selects everything.
    """
    kind, checks = _bare(kind)
    origin = typing.get_origin(kind)
    if origin in (Union, types.UnionType):
        members = [member for member in typing.get_args(kind) if member is not type(None)]
        if body is None:
            return []
        if len(members) == 1:
            return problems_of(body, members[0], field, strict=strict)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _problems_of_struct(body, kind, field, strict)
    if origin in (list, tuple) and isinstance(body, list):
        item = typing.get_args(kind)[0]
        return [
            each
            for i, part in enumerate(body)
            for each in problems_of(part, item, f"{field}[{i}]", strict=strict)
        ]
    if origin is dict and isinstance(body, Mapping):
        item = typing.get_args(kind)[1]
        return [
            each
            for key, part in body.items()
            for each in problems_of(part, item, f"{field}.{key}", strict=strict)
        ]
    return _problems_of_leaf(body, kind, checks, field)


def without_nulls(body: Any) -> Any:
    """Return the body without members that are null."""
    if isinstance(body, Mapping):
        return {key: without_nulls(part) for key, part in body.items() if part is not None}
    if isinstance(body, list | tuple):
        return [without_nulls(part) for part in body]
    return body


def _problems_of_struct(
    body: Any, kind: type[msgspec.Struct], field: str, strict: bool
) -> list[ConfigProblem]:
    if not isinstance(body, Mapping):
        return [ConfigProblem(field or "$", f"expected a mapping, got {word_of(body)}")]
    prefix = f"{field}." if field else ""
    fields = {each.encode_name: each for each in msgspec.structs.fields(kind)}
    found: list[ConfigProblem] = []
    for name, part in body.items():
        known = fields.get(name)
        if known is None:
            if not (strict or kind.__struct_config__.forbid_unknown_fields):
                continue  # a view of an API object, which has more fields than we read
            found.append(ConfigProblem(f"{prefix}{name}", f'unknown field "{name}"{_hint(name, fields)}'))
        else:
            found += problems_of(part, known.type, f"{prefix}{name}", strict=strict)
    missing = [name for name, each in fields.items() if each.required and name not in body]
    found += [ConfigProblem(f"{prefix}{name}", "is missing") for name in missing]
    return found or _problems_of_whole(body, kind, field)


def _problems_of_whole(body: Any, kind: type[msgspec.Struct], field: str) -> list[ConfigProblem]:
    """Return what the members of a struct break together (`__post_init__`)."""
    try:
        msgspec.convert(body, kind)
    except (msgspec.ValidationError, ValueError) as error:
        why = str(error).rpartition(" - at ")[0] or str(error)
        # `resources: every weight must be 1` names the member that is wrong.
        member, colon, rest = why.partition(": ")
        names = {each.encode_name for each in msgspec.structs.fields(kind)}
        if colon and member.partition(".")[0].partition("[")[0] in names:
            return [ConfigProblem(f"{field}.{member}" if field else member, rest)]
        return [ConfigProblem(field or "$", why)]
    return []


def _problems_of_leaf(body: Any, kind: Any, checks: tuple[Check, ...], field: str) -> list[ConfigProblem]:
    try:
        msgspec.convert(body, kind)
        for check in checks:
            check(body)
    except (msgspec.ValidationError, ValueError) as error:
        reason = str(error).rpartition(" - at ")[0] or str(error)
        return [
            ConfigProblem(
                field or "$",
                f"{reason}, got {body!r}" if "Expected" in reason and "got" not in reason else reason,
            )
        ]
    return []


def _bare(kind: Any) -> tuple[Any, tuple[Check, ...]]:
    """Return the type without our own checks; msgspec's ranges stay on it."""
    if typing.get_origin(kind) is not Annotated:
        return kind, ()
    inner, *notes = typing.get_args(kind)
    checks = tuple(
        note.extra["check"]
        for note in notes
        if isinstance(note, msgspec.Meta) and note.extra and "check" in note.extra
    )
    is_leaf = not (isinstance(inner, type) and issubclass(inner, msgspec.Struct))
    return (kind if is_leaf and typing.get_origin(inner) is None else inner), checks


def _hint(name: str, fields: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, fields, n=1)
    return f' (did you mean "{close[0]}"?)' if close else ""


def word_of(body: Any) -> str:
    return (
        "nothing"
        if body is None
        else {list: "a list", str: "a text", bool: "a boolean"}.get(type(body), repr(body))
    )
