"""Run the same day twice, side by side in two processes, without and with co-location; and compare in figures: what
the table, the JSON file and the report say."""

import logging
import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import msgspec
import numpy as np

from koordinator.api.errors import KoordinatorError
from koordinator.cluster import garbage
from koordinator.simulate.recorder import HOT_BIN, HOT_PERCENT
from koordinator.simulate.run import RunResult, simulate
from koordinator.simulate.scenario import Scenario

Progress = Callable[[str, float], Any]
"""Called with "before" or "after" and how much of that run is done (0–1)."""


class SimulationError(KoordinatorError):
    """A run ended without a result; the text says which and why."""


class Comparison(msgspec.Struct, kw_only=True):
    """Both runs of a scenario."""

    scenario: Scenario
    before: RunResult
    after: RunResult


def compare(scenario: Scenario, on_progress: Progress | None = None) -> Comparison:
    """Run both days. Raises: SimulationError."""
    context = multiprocessing.get_context("spawn")  # a fresh interpreter: no inherited event loop or threads
    runs: dict[Connection, tuple[str, Any]] = {}
    for name, colocation in (("before", False), ("after", scenario.colocation)):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(scenario, colocation, sender), name=f"simulate {name}")
        process.start()
        sender.close()
        runs[receiver] = (name, process)
    results: dict[str, RunResult] = {}
    try:
        _collect(runs, results, on_progress)
    finally:
        for name, process in runs.values():
            if name not in results:
                process.terminate()
            process.join()
    return Comparison(scenario=scenario, before=results["before"], after=results["after"])


def _collect(
    runs: dict[Connection, tuple[str, Any]], results: dict[str, RunResult], on_progress: Progress | None
) -> None:
    while len(results) < len(runs):
        for receiver in wait([r for r, (name, _) in runs.items() if name not in results]):
            assert isinstance(receiver, Connection)
            name, _ = runs[receiver]
            try:
                kind, content = receiver.recv()
            except EOFError:
                raise SimulationError(f"the {name!r} run died (killed, or out of memory?)") from None
            if kind == "error":
                raise SimulationError(f"the {name!r} run failed: {content}")
            if kind == "result":
                results[name] = content
            if on_progress is not None:
                on_progress(name, 1.0 if kind == "result" else content)


def _child(scenario: Scenario, colocation: bool, sender: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, who then ends us
    logging.basicConfig(level=logging.ERROR)  # warnings are about the simulated cluster, thousands of them
    try:
        with garbage.left_to_exit():
            result = simulate(
                scenario, colocation=colocation, on_progress=lambda done: sender.send(("progress", done))
            )
        sender.send(("result", result))
    except KoordinatorError as error:
        sender.send(("error", str(error)))
    finally:
        sender.close()


class Summary(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One run. Ratios are of all CPUs of the cluster, averaged over the measured time."""

    cpu_allocated_ratio: float
    cpu_use_ratio: float
    services_use_ratio: float
    batch_use_ratio: float
    batch_allocatable_cores: float
    batch_core_hours: float
    batch_lost_core_hours: float
    jobs_finished: int
    jobs_arrived: int
    tasks_finished: int
    queueing_p50_s: float
    queueing_p95_s: float
    evictions: int
    hot_node_time_ratio: float
    latency_p50_ms: float
    latency_p99_ms: float
    latency_p99_alone_ms: float
    latency_p999_ms: float
    latency_p999_alone_ms: float
    slow_minutes: int
    longest_slow_s: float


def summarise(run: RunResult) -> Summary:
    """Return the figures of one run."""
    means = run.means
    waits_s = np.array(run.waits_s) if run.waits_s else np.zeros(1)
    lent = run.series.batch_allocatable
    return Summary(
        cpu_allocated_ratio=round(means["cpu_allocated_ratio"], 4),
        cpu_use_ratio=round(means["cpu_use_ratio"], 4),
        services_use_ratio=round(means["services_ratio"], 4),
        batch_use_ratio=round(means["batch_ratio"], 4),
        batch_allocatable_cores=round(float(np.mean(lent)), 1) if lent else 0.0,
        batch_core_hours=round(means["batch_core_hours"] - run.lost_core_hours, 1),
        batch_lost_core_hours=round(run.lost_core_hours, 1),
        jobs_finished=run.jobs_finished,
        jobs_arrived=run.jobs_arrived,
        tasks_finished=run.tasks_finished,
        queueing_p50_s=round(float(np.percentile(waits_s, 50)), 1),
        queueing_p95_s=round(float(np.percentile(waits_s, 95)), 1),
        evictions=run.evictions,
        hot_node_time_ratio=round(sum(run.utilisation[HOT_BIN:]) / max(sum(run.utilisation), 1), 4),
        latency_p50_ms=round(means["p50_ms"], 3),
        latency_p99_ms=round(means["p99_ms"], 3),
        latency_p99_alone_ms=round(means["p99_alone_ms"], 3),
        latency_p999_ms=round(means["p999_ms"], 3),
        latency_p999_alone_ms=round(means["p999_alone_ms"], 3),
        slow_minutes=run.slow_minutes,
        longest_slow_s=run.longest_slow_s,
    )


class SummaryRow(msgspec.Struct, frozen=True):
    """A line of the table; texts."""

    name: str
    before: str
    after: str
    change: str


def rows(before: Summary, after: Summary) -> list[SummaryRow]:
    """Return the table: what it is, before, after, change."""
    found = []
    for name, field, show, change in _ROWS:
        old, new = getattr(before, field), getattr(after, field)
        shown = show(old), show(new)
        if field == "jobs_finished":
            shown = f"{old} of {before.jobs_arrived}", f"{new} of {after.jobs_arrived}"
        found.append(SummaryRow(name, *shown, change(old, new)))
    return found


def title(comparison: Comparison) -> str:
    """Return what was simulated, above the table."""
    scenario = comparison.scenario
    loop = "on" if scenario.closed_loop else "off"
    cores = f"{comparison.before.cores:,.0f} cores"
    return f"{scenario.nodes} nodes, {cores}, {scenario.hours:g} hours, closed loop {loop}"


def _settings(comparison: Comparison) -> dict[str, Any]:
    """Return the scenario without the parts that no option of the command sets."""
    found = msgspec.json.decode(msgspec.json.encode(comparison.scenario, enc_hook=str))
    return {name: each for name, each in found.items() if name not in ("jobs", "agents")}


def figures(comparison: Comparison) -> dict[str, Any]:
    """Return the table as a file, small enough to be kept beside texts that quote it. Equal for equal seeds."""
    before, after = summarise(comparison.before), summarise(comparison.after)
    return {
        "scenario": _settings(comparison),
        "title": title(comparison),
        "rows": [[row.name.strip(), row.before, row.after, row.change] for row in rows(before, after)],
    }


def document(comparison: Comparison) -> dict[str, Any]:
    """Return the JSON file: equal for equal seeds, so nothing about this run of the program is in it."""
    before, after = summarise(comparison.before), summarise(comparison.after)
    return {
        "scenario": _settings(comparison),
        "cores": comparison.before.cores,
        "before": msgspec.to_builtins(before),
        "after": msgspec.to_builtins(after),
        "series": {
            "before": msgspec.to_builtins(comparison.before.series),
            "after": msgspec.to_builtins(comparison.after.series),
        },
        "utilisation": {"before": comparison.before.utilisation, "after": comparison.after.utilisation},
    }


def _percent(ratio: float) -> str:
    return f"{ratio * 100:.1f} %"


def _count(number: float) -> str:
    return f"{number:,.0f}"


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.2f}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"


def _times(old: float, new: float) -> str:
    return f"× {new / old:.2f}" if old > 0 else _difference(old, new)


def _relative(old: float, new: float) -> str:
    return f"{(new / old - 1) * 100:+.1f} %" if old > 0 else _difference(old, new)


def _points(old: float, new: float) -> str:
    return f"{(new - old) * 100:+.1f} points"


def _difference(old: float, new: float) -> str:
    return f"{new - old:+,.0f}" if new != old else "="


_ROWS: tuple[tuple[str, str, Callable[[float], str], Callable[[float, float], str]], ...] = (
    ("CPU allocated, Batch included", "cpu_allocated_ratio", _percent, _points),
    ("CPU used, mean of the cluster", "cpu_use_ratio", _percent, _times),
    ("  of it by services", "services_use_ratio", _percent, _points),
    ("  of it by batch", "batch_use_ratio", _percent, _times),
    ("Cores lent to batch, mean", "batch_allocatable_cores", _count, _difference),
    ("Batch work done, core-hours", "batch_core_hours", _count, _times),
    ("Batch work thrown away, core-hours", "batch_lost_core_hours", _count, _difference),
    ("Batch jobs finished", "jobs_finished", _count, _times),
    ("Queueing time of tasks, p50", "queueing_p50_s", _duration, _relative),
    ("Queueing time of tasks, p95", "queueing_p95_s", _duration, _relative),
    ("Evictions", "evictions", _count, _difference),
    (f"Node-time above {HOT_PERCENT:.0f} % CPU", "hot_node_time_ratio", _percent, _points),
    ("Service latency p50, ms", "latency_p50_ms", _ms, _relative),
    ("Service latency p99, ms", "latency_p99_ms", _ms, _relative),
    ("  p99 if there were no batch, ms", "latency_p99_alone_ms", _ms, _relative),
    ("Service latency p99.9, ms", "latency_p999_ms", _ms, _relative),
    ("  p99.9 if there were no batch, ms", "latency_p999_alone_ms", _ms, _relative),
    ("Minutes with a service twice as slow by batch", "slow_minutes", _count, _difference),
)
"""Rows of the table: what each is, its field of `Summary`, how it is shown, how its change is."""
