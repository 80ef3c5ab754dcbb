"""`python -m tests.mutation`: put random faults into decision modules, one at a time, and run their tests.

Each worker has a copy of the project of its own. A fault is found when a test fails, does not end in time, or cannot
even be collected. What survives is listed with its line: close it by a test, or see that it changes nothing.
"""

import concurrent.futures
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import click
import msgspec

from tests.mutation.choice import ROOT, Imports, Tests
from tests.mutation.mutants import Mutant, mutants

DECISIONS = (
    "api/*.py",
    "cel/*.py",
    "scheduler/*.py",
    "scheduler/plugins/**/*.py",
    "manager/*.py",
    "manager/noderesource/*.py",
    "manager/quota/*.py",
    "manager/webhooks/*.py",
    "descheduler/**/*.py",
    "koordlet/collect/*.py",
    "koordlet/predict/*.py",
    "koordlet/report/*.py",
    "koordlet/qos/*.py",
    "koordlet/hooks/*.py",
    "koordlet/device_daemon/*.py",
    "host/*.py",
    "local/nodes/*.py",
    "local/admission/**/*.py",
)
"""Modules that decide, below src/koordinator."""


class Result(msgspec.Struct, frozen=True):
    """What became of a mutant; `by` is the test that noticed, empty for one that survived."""

    mutant: Mutant
    by: str
    seconds: float


@click.command()
@click.option(
    "--count", default=100, show_default=True, help="Mutants, drawn evenly over the modules' places."
)
@click.option("--seed", default=0, show_default=True, help="Equal seeds draw equal mutants.")
@click.option("--jobs", default=2, show_default=True, help="Mutants tried at the same time.")
@click.option(
    "--only", "patterns", multiple=True, help="Modules below src/koordinator instead of all that decide."
)
@click.option(
    "--timeout", "timeout_s", default=180.0, show_default=True, help="Seconds for the tests of a mutant."
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all results to this file.")
def main(
    count: int, seed: int, jobs: int, patterns: tuple[str, ...], timeout_s: float, json_path: Path | None
) -> None:
    """Say how many faults the tests notice, and which they do not."""
    rng = random.Random(seed)
    chosen = drawn(patterns or DECISIONS, count, rng)
    imports = Imports()
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        free: queue.Queue[Path] = queue.Queue()
        for number in range(jobs):
            free.put(_copy(Path(folder) / str(number)))

        def tried(mutant: Mutant) -> Result:
            copy = free.get()
            try:
                return attempt(mutant, imports.tests_of(_module(mutant.path)), copy, timeout_s)
            finally:
                free.put(copy)

        results = []
        with concurrent.futures.ThreadPoolExecutor(jobs) as workers:
            for result in workers.map(tried, chosen):
                results.append(result)
                _tell(len(results), len(chosen), result)
    _summary(results)
    if json_path is not None:
        json_path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1))


def drawn(patterns: tuple[str, ...], count: int, rng: random.Random) -> list[Mutant]:
    """Mutants of the modules: a module is drawn by its number of places, then one of its mutants."""
    base = ROOT / "src" / "koordinator"
    paths = sorted({path for pattern in patterns for path in base.glob(pattern)})
    every = [
        mutant for path in paths for mutant in mutants(str(path.relative_to(ROOT)), path.read_text("utf-8"))
    ]
    click.echo(f"{len(paths)} modules, {len(every)} possible mutants, {min(count, len(every))} drawn")
    return rng.sample(every, min(count, len(every)))


def attempt(mutant: Mutant, tests: Tests, copy: Path, timeout_s: float) -> Result:
    """Run the tests on the mutant, nearest first, until one notices."""
    began_s = time.monotonic()
    path = copy / mutant.path
    source = path.read_text("utf-8")
    path.write_text(mutant.applied(source), "utf-8")
    commands: list[tuple[str, list[str]]] = []
    if tests.areas:
        areas = [part for area in tests.areas for part in ("-a", area)]
        commands.append(("vectors", ["-m", "tests.vectors", "tests/vectors/cases", "-q", *areas]))
    if tests.files:
        options = [
            "-x",
            "-q",
            "--no-header",
            "-p",
            "no:cacheprovider",
            "-m",
            "not kernel and not slow",
            "--timeout=60",
        ]
        commands.append(("", ["-m", "pytest", *options, *tests.files]))
    environment = {
        **os.environ,
        "PYTHONPATH": f"{copy / 'src'}{os.pathsep}{copy}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    by = ""
    try:
        for name, command in commands:
            try:
                done = subprocess.run(
                    [sys.executable, *command],
                    cwd=copy, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                by = "no end in time"
                break
            if done.returncode not in (0, 5):  # 5: no test is left
                by = name or _first_failure(done.stdout)
                break
    finally:
        path.write_text(source, "utf-8")
    return Result(mutant, by, time.monotonic() - began_s)


def _first_failure(output: str) -> str:
    failed = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed[0].split(" - ")[0].partition(" ")[2] if failed else "pytest"


def _copy(to: Path) -> Path:
    ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "build", "*.egg-info")
    shutil.copytree(ROOT, to, ignore=ignored, symlinks=True)
    return to


def _module(path: str) -> str:
    return ".".join(Path(path).relative_to("src").with_suffix("").parts).removesuffix(".__init__")


def _tell(number: int, count: int, result: Result) -> None:
    verdict = "found" if result.by else click.style("SURVIVED", fg="red")
    click.echo(
        f"{number}/{count} {verdict} {result.mutant.path}:{result.mutant.line} {result.mutant.about} "
        f"-> {' '.join(result.mutant.text.split())[:70]} [{result.by}] {result.seconds:.0f} s"
    )


def _summary(results: list[Result]) -> None:
    rooms = Counter(_room(each) for each in results)
    found = Counter(_room(each) for each in results if each.by)
    click.echo("")
    for room, total in sorted(rooms.items()):
        click.echo(f"{room:40} {found[room]:4} of {total:4} found")
    all_found = sum(found.values())
    click.echo(f"{all_found} of {len(results)} found ({100 * all_found / max(len(results), 1):.1f} %)")


def _room(result: Result) -> str:
    return "/".join(Path(result.mutant.path).parent.parts[2:5])


if __name__ == "__main__":
    main()
