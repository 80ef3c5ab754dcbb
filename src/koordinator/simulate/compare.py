"""The same day twice, side by side in two processes: without and with co-location."""

import logging
import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import msgspec

from koordinator.api.errors import KoordinatorError
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
        result = simulate(
            scenario, colocation=colocation, on_progress=lambda done: sender.send(("progress", done))
        )
        sender.send(("result", result))
    except KoordinatorError as error:
        sender.send(("error", str(error)))
    finally:
        sender.close()
