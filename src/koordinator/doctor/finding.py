"""Define a finding: which object, what is wrong with it, why that matters, what to do next."""

import enum
from collections.abc import Iterable, Sequence

import msgspec

from koordinator.api.meta import Object

NAMED_MAX = 5
"""Objects that a sentence names; the others are counted (`Finding.objects` has more)."""
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


def finding(
    severity: FindingSeverity,
    about: Object | str,
    problem: str,
    *,
    why: str = "",
    do: Sequence[str] = (),
    objects: Iterable[str] = (),
) -> Finding:
    """Return a finding of the check that runs; `about` is an object, or words for what is none."""
    return Finding(
        severity=severity,
        object=about if isinstance(about, str) else name_of(about),
        problem=problem,
        why=why,
        remedy=tuple(do),
        objects=tuple(objects)[:OBJECTS_MAX],
    )


def of_many(
    severity: FindingSeverity,
    kind: str,
    names: Iterable[str],
    problem: str,
    *,
    why: str = "",
    do: Sequence[str] = (),
) -> Finding:
    """Return one finding for all objects that have the same trouble (at least one)."""
    found = sorted(names)
    about = f"{kind} {found[0]}" if len(found) == 1 else f"{len(found)} {plural(kind)}"
    listed = () if len(found) == 1 else found
    return finding(severity, about, problem, why=why, do=do, objects=listed)


def name_of(obj: Object) -> str:
    """`Kind namespace/name`."""
    return f"{obj.resource.kind} {obj.key}"


def some_of(names: Iterable[str]) -> str:
    """`a, b and 3 more`."""
    found = sorted(names)
    shown = ", ".join(found[:NAMED_MAX])
    return shown if len(found) <= NAMED_MAX else f"{shown} and {len(found) - NAMED_MAX} more"


def plural(kind: str) -> str:
    """Return the kind for more than one."""
    if kind.endswith("y"):
        return f"{kind[:-1]}ies"
    return f"{kind}es" if kind.endswith("s") else f"{kind}s"
