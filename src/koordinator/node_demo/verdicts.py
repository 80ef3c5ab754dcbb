"""Define what is promised for services beside managed batch, and tell whether it was kept."""

import msgspec

from koordinator.node_demo.plan import DemoMode, Hog
from koordinator.node_demo.results import ResultRow

CALM_LOAD_PERCENT = 40
"""Up to this load the promises are those of an ordinary hour, above it those of a rush hour."""


class Aim(msgspec.Struct, frozen=True):
    """Bounds of a managed run."""

    p99_to_alone_max: float
    total_min: float = 0.0
    batch_of_left_min: float = 0.0


_CALM = {
    Hog.CPU: Aim(1.25, total_min=0.90, batch_of_left_min=0.90),
    Hog.MEMORY: Aim(1.25),
    Hog.DISK: Aim(2.0),
}
_RUSH = {
    Hog.CPU: Aim(2.5, total_min=0.90, batch_of_left_min=0.85),
    Hog.MEMORY: Aim(2.5),
    Hog.DISK: Aim(2.5),
}


class PromiseCheck(msgspec.Struct, frozen=True):
    """One promise: what it says, what came out, whether it was kept."""

    text: str
    found: str
    is_kept: bool


def aim(row: ResultRow) -> Aim:
    """Return what is promised for a managed run."""
    return (_CALM if row.scenario.load_percent <= CALM_LOAD_PERCENT else _RUSH)[row.scenario.hog]


def verdicts(rows: list[ResultRow]) -> list[PromiseCheck]:
    """All promises of managed runs."""
    found = []
    for row in rows:
        if row.mode is not DemoMode.MANAGED:
            continue
        wanted = aim(row)
        found.append(
            PromiseCheck(
                f"{row.scenario}: p99 at most {wanted.p99_to_alone_max:g} × that of the service alone",
                f"{row.p99_to_alone:.2f} ×",
                row.p99_to_alone <= wanted.p99_to_alone_max,
            )
        )
        for name, least, value in (
            ("CPUs used", wanted.total_min, row.total_ratio),
            ("batch gets of what the service leaves", wanted.batch_of_left_min, row.batch_of_left),
        ):
            if least > 0:
                found.append(
                    PromiseCheck(
                        f"{row.scenario}: {name} at least {least:.0%}", f"{value:.1%}", value >= least
                    )
                )
    return found
