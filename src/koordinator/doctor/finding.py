"""Define a finding: which object, what is wrong with it, why that matters, what to do next."""

import enum
from collections.abc import Iterable, Sequence
from typing import TypedDict, Unpack

import msgspec

from koordinator.api import readable
from koordinator.api.meta import Object, named

OBJECTS_MAX = 100
"""Objects that a finding lists: tools that need all of them ask the API."""


class FindingSeverity(enum.StrEnum):
    """The severity of a finding, worst first."""

    ERROR = "error"
    """Something does not work, or is refused, now."""
    WARNING = "warning"
    """It works, but not as somebody meant it, or it will break with the next failure."""
    NOTICE = "notice"
    """Worth knowing, such as what could not be looked at."""


About = Object | str | tuple[str, Iterable[str]]
"""An object, words for what is none, or the kind and the names of objects that have the same trouble (at least one)."""


class Details(TypedDict, total=False):
    """The optional parts of a finding: why it matters, the next steps, names of objects."""

    why: str
    do: Sequence[str]
    objects: Iterable[str]


_WEIGHTS = {severity: weight for weight, severity in enumerate(FindingSeverity)}


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a check found.

    `object` is `Kind namespace/name` or, for several, a count such as `17 Nodes`, whose names are then in
    `objects`. `remedy` are the next steps in order, commands where possible.
    """

    severity: FindingSeverity
    check: str = ""
    object: str
    problem: str
    why: str = ""
    remedy: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()

    @property
    def order(self) -> tuple[int, str, str, str]:
        """Worst first, then by check and object."""
        return _WEIGHTS[self.severity], self.check, self.object, self.problem

    @classmethod
    def of(
        cls,
        severity: FindingSeverity,
        about: About,
        problem: str,
        *,
        why: str = "",
        do: Sequence[str] = (),
        objects: Iterable[str] = (),
    ) -> "Finding":
        """Return a finding of the check that runs."""
        if isinstance(about, tuple):
            kind, names = about[0], sorted(about[1])
            about = f"{kind} {names[0]}" if len(names) == 1 else f"{len(names)} {plural(kind)}"
            objects = () if len(names) == 1 else names
        return cls(
            severity=severity,
            object=about if isinstance(about, str) else named(about),
            problem=problem,
            why=why,
            remedy=tuple(do),
            objects=tuple(objects)[:OBJECTS_MAX],
        )

    @classmethod
    def error(cls, about: About, problem: str, **more: Unpack[Details]) -> "Finding":
        """Return what does not work, or is refused, now."""
        return cls.of(FindingSeverity.ERROR, about, problem, **more)

    @classmethod
    def warning(cls, about: About, problem: str, **more: Unpack[Details]) -> "Finding":
        """Return what works otherwise than somebody meant it, or will break with the next failure."""
        return cls.of(FindingSeverity.WARNING, about, problem, **more)

    @classmethod
    def notice(cls, about: About, problem: str, **more: Unpack[Details]) -> "Finding":
        """Return what is worth knowing."""
        return cls.of(FindingSeverity.NOTICE, about, problem, **more)


def some_of(names: Iterable[str]) -> str:
    """`a, b and 3 more`."""
    return readable.some_of(sorted(names))


def edit(obj: Object) -> str:
    """Return the command that opens an object in an editor."""
    meta = obj.metadata
    where = f" -n {meta.namespace}" if meta.namespace else ""
    return f"kubectl{where} edit {obj.resource.singular} {meta.name}"


def plural(kind: str) -> str:
    """Return the kind for more than one."""
    if kind.endswith("y"):
        return f"{kind[:-1]}ies"
    return f"{kind}es" if kind.endswith("s") else f"{kind}s"
