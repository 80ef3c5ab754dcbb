"""The matrix: services × antagonists × modes, one line for each service, load and antagonist."""

from collections.abc import Sequence

import msgspec

from koordinator.node_demo import texts
from koordinator.node_demo.plan import BASELINES, SERVICES, DemoMode, DemoScenario
from koordinator.node_demo.results import ResultRow


class MatrixLine(msgspec.Struct, frozen=True):
    """All modes of one scenario."""

    scenario: DemoScenario
    rows: dict[DemoMode, ResultRow]

    @property
    def checks(self) -> list[texts.PromiseCheck]:
        """Return the promises for it."""
        return [check for row in self.rows.values() for check in texts.checks(row)]


def lines(rows: Sequence[ResultRow]) -> list[MatrixLine]:
    """Return one line per scenario, service by service."""
    found: dict[DemoScenario, dict[DemoMode, ResultRow]] = {}
    for row in rows:
        found.setdefault(row.scenario, {})[row.mode] = row
    kinds = list(SERVICES)
    ordered = sorted(found, key=lambda each: (kinds.index(each.service), each.load_percent, each.hog))
    return [MatrixLine(scenario, found[scenario]) for scenario in ordered]


def modes(rows: Sequence[ResultRow]) -> list[DemoMode]:
    """Return those with batch that were measured."""
    return [mode for mode in DemoMode if mode.has_batch and any(row.mode is mode for row in rows)]


def header(rows: Sequence[ResultRow]) -> list[str]:
    """Return the columns: p99 by itself, then for each mode p99 relative to that with the use of the CPUs, promises."""
    return ["", *(texts.MODES[mode] for mode in (*BASELINES, *modes(rows))), "kept"]


def cells(line: MatrixLine, shown: Sequence[DemoMode]) -> list[str]:
    """Return a line of the table, as `header` names the columns; empty where nothing was measured."""
    found = [name(line)]
    for mode in BASELINES:
        found.append(f"{texts.ms(line.rows[mode].p99_ms)} ms" if mode in line.rows else "")
    for mode in shown:
        found.append(_beside(line.rows[mode]) if mode in line.rows else "")
    return [*found, kept(line)]


def relative(row: ResultRow) -> float | None:
    """Return p99 relative to CPUs kept awake, or to the service alone where that was not measured."""
    return row.p99_to_awake if row.p99_to_awake is not None else row.p99_to_alone


def kept(line: MatrixLine) -> str:
    """Return how many promises of a line were kept; empty where there are none."""
    checks = line.checks
    return f"{sum(check.is_kept for check in checks)}/{len(checks)}" if checks else ""


def name(line: MatrixLine) -> str:
    """Return service, load and hog in a few words."""
    scenario = line.scenario
    service = SERVICES[scenario.service].removesuffix(" service")
    return f"{service}, {scenario.load_percent} %, {scenario.hog}"


def _beside(row: ResultRow) -> str:
    compared = relative(row)
    text = f"{texts.ratio(compared)} ×" if compared is not None else f"{texts.ms(row.p99_ms)} ms"
    return f"{text}, {row.total_ratio:.0%}"
