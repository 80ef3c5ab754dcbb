"""Name modes and scenarios, say what is promised for services beside managed batch and whether it was kept: for the
terminal and the page alike."""

import re
from collections.abc import Sequence

import msgspec

from koordinator.node_demo.measure import Measured
from koordinator.node_demo.plan import (
    BASELINES,
    CALM_LOAD_PERCENT,
    DemoMode,
    Hog,
    ServiceKind,
    p99_to_awake_max,
)
from koordinator.node_demo.results import ResultRow
from koordinator.node_demo.stage import Written

_IDS = re.compile(r"(?<=/pod)[0-9a-f-]{36}|(?<=/)[0-9a-f]{64}|(?<=koordinator-demo-)[0-9]+")

MODES = {
    DemoMode.ALONE: "alone",
    DemoMode.AWAKE: "awake",
    DemoMode.UNMANAGED: "unmanaged",
    DemoMode.DEFAULT: "by default",
    DemoMode.MANAGED: "managed",
    DemoMode.CLOSED_LOOP: "closed loop",
}
HEADER = ("", "p50", "p99", "p99.9", "× alone", "× awake", "CPUs", "service", "batch", "of left", "work/s")
COLUMNS = (
    "p50, p99, p99.9: latency in milliseconds. × alone: p99 relative to the service alone; × awake: to the service "
    "alone on CPUs that never idle. "
    "CPUs, service, batch: share of all CPU time of the machine. "
    "of left: CPU time of batch relative to what the service leaves when it is alone. work/s: what batch did."
)
MATRIX = (
    "Left: p99 of the service by itself in milliseconds, alone and on CPUs kept awake. Then for each mode p99 relative "
    "to CPUs kept awake (to alone where that was not measured), and the share of all CPU time that was used. Last: how "
    "many promises were kept."
)
METHOD = (
    "Requests arrive at a constant rate, whatever became of earlier ones, and latency counts from the moment a request "
    "was due. The load generator runs in a real-time class (SCHED_FIFO) outside of the pods: it stands for a client on "
    "another machine. Awake is the service alone on CPUs that are kept from idling, so that virtual ones are not "
    "parked: the fairer comparison, as batch keeps them awake, too. Unmanaged batch runs as ordinary pods that request "
    "as much CPU as the service does. Figures are medians of interleaved runs; requests that were never answered count "
    "with what they had waited."
)


def cells(row: ResultRow) -> tuple[str, ...]:
    """Return a line of the table, as `HEADER` names the columns."""
    has_batch = row.mode.has_batch
    return (
        MODES[row.mode],
        ms(row.p50_ms),
        ms(row.p99_ms),
        ms(row.p999_ms),
        "" if row.mode is DemoMode.ALONE else ratio(row.p99_to_alone),
        "" if row.mode in BASELINES else ratio(row.p99_to_awake),
        f"{row.total_ratio:.0%}",
        f"{row.service_ratio:.0%}",
        f"{row.batch_ratio:.0%}" if has_batch else "",
        f"{row.batch_of_left:.0%}" if has_batch and row.batch_of_left is not None else "",
        row.work,
    )


def ms(value: float) -> str:
    """Return milliseconds as short as is useful."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def ratio(value: float | None) -> str:
    """Return a ratio likewise; empty without one."""
    return "" if value is None else ms(value)


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


class Aim(msgspec.Struct, frozen=True):
    """Bounds of a run beside batch; `p99_max` is relative to the service in mode `than`."""

    p99_max: float
    than: DemoMode = DemoMode.ALONE
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
_THAN = {DemoMode.ALONE: "the service alone", DemoMode.AWAKE: "the service alone on CPUs kept awake"}


class PromiseCheck(msgspec.Struct, frozen=True):
    """One promise: what it says, what came out, whether it was kept."""

    text: str
    found: str
    is_kept: bool


def aim(row: ResultRow) -> Aim | None:
    """Return what is promised for a run; None for those of which nothing is."""
    scenario = row.scenario
    if row.mode is DemoMode.CLOSED_LOOP:
        total_min = 0.90 if scenario.hog in (Hog.CPU, Hog.MEMORY) else 0.0  # the others want no more CPU time
        return Aim(p99_to_awake_max(scenario.load_percent), DemoMode.AWAKE, total_min)
    if row.mode is DemoMode.MANAGED and scenario.service is ServiceKind.CPU:
        return (_CALM if scenario.load_percent <= CALM_LOAD_PERCENT else _RUSH).get(scenario.hog)
    return None


def verdicts(rows: list[ResultRow]) -> list[PromiseCheck]:
    """Return all promises, each kept or missed."""
    return [check for row in rows for check in checks(row)]


def checks(row: ResultRow) -> list[PromiseCheck]:
    """Return the promises for one scenario and mode that can be told from what was measured."""
    wanted = aim(row)
    if wanted is None:
        return []
    found = []
    p99 = row.p99_to_alone if wanted.than is DemoMode.ALONE else row.p99_to_awake
    if p99 is not None:
        text = f"{row.scenario}: p99 at most {wanted.p99_max:g} × that of {_THAN[wanted.than]}"
        found.append(PromiseCheck(text, f"{p99:.2f} ×", p99 <= wanted.p99_max))
    for name, least, value in (
        ("CPUs used", wanted.total_min, row.total_ratio),
        ("batch gets of what the service leaves", wanted.batch_of_left_min, row.batch_of_left),
    ):
        if least > 0 and value is not None:
            text = f"{row.scenario}: {name} at least {least:.0%}"
            found.append(PromiseCheck(text, f"{value:.1%}", value >= least))
    return found
