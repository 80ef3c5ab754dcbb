"""`python -m tests.quick`: lint and the tests that matter for what changed against a base, within a minute."""

import importlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

import click

from tests.mutation import footprint
from tests.quick.choice import Choice, changed, changed_lines, choose
from tests.quick.imports import ROOT, Imports
from tests.quick.seconds import known

LINT = (
    ("ruff", "format", "--check", "-q", "src", "tests", "benchmarks"),
    ("ruff", "check", "-q", "src", "tests", "benchmarks"),
    ("lint-imports", "--no-logo"),
    ("mypy",),
)
OPTIONS = (
    *("-x", "-q", "--no-header", "-p", "tests.quick.seconds"),
    *(
        "-m",
        "not slow and not kernel and not kubectl and not clients and not real and not runtime and not abuse"
        " and not yarn",
    ),
)
TESTS_MIN_S = 10.0
"""Tests get this time in any case."""
AREA_S = 0.3
"""What an area of vectors takes, most of it the import of what answers it."""
LINES_MAX = 50
"""Changed lines of a file that the recording is asked about, evenly over all of them."""


@click.command()
@click.option(
    "--base", default="main", show_default=True, help="What the change is held against: a branch or commit."
)
@click.option(
    "--budget", "budget_s", default=40.0, show_default=True, help="Seconds for tests; others are named."
)
@click.option("--list", "only_list", is_flag=True, help="Say what would run, and run nothing.")
def main(base: str, budget_s: float, only_list: bool) -> None:
    """Lint, and run the tests that matter for what changed: committed since BASE, uncommitted and untracked."""
    began_s = time.monotonic()
    try:
        paths = changed(base)
    except subprocess.CalledProcessError as error:
        raise click.ClickException(
            f"git knows no base {base!r}: {error.stderr.strip()}. Give one with --base"
        ) from error
    with tempfile.TemporaryFile("w+") as said:
        lint = None if only_list else _lint(said)
        choice = choose(paths, Imports(), _areas, known(), budget_s, _runners(base))
        click.echo(f"{len(paths)} files differ from {base}: {_summary(choice)}")
        if lint is None:
            click.echo("\n".join((*choice.files, *choice.areas)))
            return
        ends_at = began_s + budget_s
        failed = [name for name, command in _commands(choice, ends_at) if not _run(name, command)]
        if lint.wait():
            said.seek(0)
            click.echo(said.read().strip())
            failed.append("lint")
    if choice.left_out:
        click.echo(f"left out, for want of time: {' '.join(choice.left_out)}")
    click.echo(
        f"{'failed: ' + ', '.join(failed) if failed else 'fine'} after {time.monotonic() - began_s:.0f} s"
    )
    sys.exit(bool(failed))


def _areas(adapter: str) -> list[str]:
    """The areas of the vectors that this module answers."""
    return list(importlib.import_module(f"tests.vectors.adapters.{adapter}").ADAPTERS)


def _runners(base: str) -> Callable[[str], Iterable[str]]:
    """Who ran the changed lines of a path, as recorded by `python -m tests.mutation --record`; nobody without that."""
    if not (footprint.folder() / "source.json").exists():
        return lambda path: ()
    recording, lines = footprint.Footprint(footprint.folder()), changed_lines(base)

    def runners(path: str) -> set[str]:
        asked = lines.get(path, [])[:: max(len(lines.get(path, [])) // LINES_MAX, 1)]
        files = {test.partition("::")[0] for line in asked for test in recording.tests(path, line)}
        return {
            file for file in files if (ROOT / file).exists()
        }  # the recording may be older than a renaming

    return runners


def _summary(choice: Choice) -> str:
    parts = [f"{len(choice.files)} files of tests"] * bool(choice.files)
    parts += [f"{len(choice.areas)} areas of vectors"] * bool(choice.areas)
    parts += [f"{len(choice.left_out)} files left out"] * bool(choice.left_out)
    return ", ".join(parts) or "no test looks at them"


def _commands(choice: Choice, ends_at: float) -> Iterator[tuple[str, list[str]]]:
    if choice.files:
        budget_s = max(ends_at - time.monotonic() - AREA_S * len(choice.areas), TESTS_MIN_S)
        yield "tests", ["-m", "pytest", *OPTIONS, f"--budget={budget_s:.0f}", *choice.files]
    if choice.areas:
        areas = [part for area in choice.areas for part in ("-a", area)]
        yield "vectors", ["-m", "tests.vectors", "tests/vectors/cases", *areas]


def _lint(said: IO[str]) -> subprocess.Popen[str]:
    """Begin all checks, one after the other and whatever the others say, beside the tests."""
    folder = Path(sys.executable).parent
    checks = [f"'{folder / command}' {' '.join(words)} || failed=1" for command, *words in LINT]
    script = "; ".join(("failed=0", *checks, "exit $failed"))
    return subprocess.Popen(["sh", "-c", script], cwd=ROOT, stdout=said, stderr=subprocess.STDOUT, text=True)


def _run(name: str, command: list[str]) -> bool:
    """Run a command and say whether it went well; the vectors are heard only where they fail."""
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, check=False, text=True,
        stdout=subprocess.PIPE if name == "vectors" else None,
    )  # fmt: skip
    is_well = done.returncode in (0, 5)  # 5: no test is left
    if done.stdout:
        click.echo(f"vectors: {done.stdout.splitlines()[-1]}" if is_well else done.stdout)
    return is_well


if __name__ == "__main__":
    main()
