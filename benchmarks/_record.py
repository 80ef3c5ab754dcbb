"""Keeps what benchmarks print: `benchmarks/history/NAME.jsonl`, one run a line, with commit and machine."""

import io
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from datetime import UTC, datetime
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[1]
HISTORY = Path(__file__).parent / "history"


class Machine(msgspec.Struct, frozen=True):
    """Where figures were measured."""

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    load: float
    """Processes that wanted a core, mean of the minute before."""


class Run(msgspec.Struct, frozen=True):
    """One run of one benchmark."""

    date: str
    """RFC 3339, UTC."""
    commit: str
    """With `+` when files differed from it."""
    machine: Machine
    seconds: float
    lines: list[str]
    """What it printed."""


class _Tee(io.TextIOBase):
    """Shows what is printed, and keeps it."""

    def __init__(self) -> None:
        self.kept = io.StringIO()

    def write(self, text: str) -> int:
        if sys.__stdout__ is not None:
            sys.__stdout__.write(text)
        return self.kept.write(text)

    def flush(self) -> None:
        if sys.__stdout__ is not None:
            sys.__stdout__.flush()


def record(name: str, benchmark: Callable[[], None]) -> Path:
    """Run a benchmark and append the run to its history; returns the file.

    What programs print that the benchmark starts is shown and not kept.
    """
    machine, tee, began_s = this_machine(), _Tee(), time.monotonic()
    with redirect_stdout(tee):
        benchmark()
    run = Run(
        date=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        commit=_commit(),
        machine=machine,
        seconds=round(time.monotonic() - began_s, 1),
        lines=tee.kept.getvalue().rstrip().splitlines(),
    )
    HISTORY.mkdir(exist_ok=True)
    path = HISTORY / f"{name}.jsonl"
    with path.open("ab") as file:
        file.write(msgspec.json.encode(run) + b"\n")
    return path


def history() -> dict[str, list[Run]]:
    """Benchmark → its runs, oldest first."""
    return {
        path.stem: [msgspec.json.decode(line, type=Run) for line in path.read_bytes().splitlines()]
        for path in sorted(HISTORY.glob("*.jsonl"))
    }


def this_machine() -> Machine:
    """The machine that this runs on, and how busy it is."""
    facts = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = [line.partition(":")[2].strip() for line in facts.splitlines() if line.startswith("model name")]
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return Machine(
        cpu=models[0] if models else platform.processor(),
        cores=os.cpu_count() or 1,
        memory_gib=round(pages * page_bytes / 2**30, 1),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        load=round(os.getloadavg()[0], 1),
    )


def _commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + "+" * bool(git("status", "--porcelain", "src", "benchmarks"))
