"""Name modes and scenarios, say what is promised for services beside managed batch and whether it was kept: for the
terminal and the page alike."""

import re
from collections.abc import Sequence

import msgspec

from koordinator.node_demo.measure import Measured
from koordinator.node_demo.plan import DemoMode, Hog
from koordinator.node_demo.results import ResultRow
from koordinator.node_demo.stage import Written

_IDS = re.compile(r"(?<=/pod)[0-9a-f-]{36}|(?<=/)[0-9a-f]{64}|(?<=koordinator-demo-)[0-9]+")

MODES = {
    DemoMode.ALONE: "alone",
    DemoMode.UNMANAGED: "unmanaged",
    DemoMode.DEFAULT: "by default",
    DemoMode.MANAGED: "managed",
}
HEADER = ("", "p50", "p99", "p99.9", "× alone", "CPUs", "service", "batch", "of left", "work/s")
COLUMNS = (
    "p50, p99, p99.9: latency in milliseconds. × alone: p99 relative to the service alone. "
    "CPUs, service, batch: share of all CPU time of the machine. "
    "of left: CPU time of batch relative to what the service leaves when it is alone. work/s: what batch did."
)
METHOD = (
    "Requests arrive at a constant rate, whatever became of earlier ones, and latency counts from the moment a request "
    "was due. The load generator runs in a real-time class (SCHED_FIFO) outside of the pods: it stands for a client on "
    "another machine. Unmanaged batch runs as ordinary pods that request as much CPU as the service does. "
    "Figures are medians of interleaved runs; requests that were never answered count with what they had waited."
)


def cells(row: ResultRow) -> tuple[str, ...]:
    """Return a line of the table, as `HEADER` names the columns."""
    is_alone = row.mode is DemoMode.ALONE
    return (
        MODES[row.mode],
        _ms(row.p50_ms),
        _ms(row.p99_ms),
        _ms(row.p999_ms),
        "" if is_alone else _ratio(row.p99_to_alone),
        f"{row.total_ratio:.0%}",
        f"{row.service_ratio:.0%}",
        "" if is_alone else f"{row.batch_ratio:.0%}",
        "" if is_alone else f"{row.batch_of_left:.0%}",
        row.work,
    )


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def _ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def held(measured: Sequence[Measured], written: Sequence[Written]) -> list[str]:
    """Return what managed groups held while they were measured, each file once, and whether the agent had written
    it."""
    by_agent = {(each.path, each.message.rpartition(" to ")[2]): each.reason for each in reversed(written)}
    found: dict[str, str] = {}
    for each in measured:
        for path, value in each.evidence.items():
            reason = by_agent.get((path, value))
            who = f", written by koordlet ({reason})" if reason is not None else ""
            found.setdefault(_generic(path), f"held   {_generic(path)} = {value}{who}")
    return list(found.values())


def _generic(path: str) -> str:
    """Return the path without what differs between runs and pods."""
    return _IDS.sub("…", path)


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
    """Return all promises of managed runs."""
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
