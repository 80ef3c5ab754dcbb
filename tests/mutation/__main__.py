"""`python -m tests.mutation`: put random faults into decision modules, one at a time, and run the tests of their lines.

A fault is found when a test fails, does not end in time, or cannot even be collected. What survives is listed with its
line: close it by a test, or make the place go away. Which test runs which line is recorded the first time
(`--record` does it again); files of tests that came or changed since are recorded beside it.
"""

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click
import hypothesis
import msgspec
import pytest

from tests.mutation.footprint import LATER, PART, ROOT, TESTS, Footprint, folder, unrecorded
from tests.mutation.mutants import Mutant, mutants
from tests.mutation.passes import Verdict, equivalents, found_again, place_of
from tests.mutation.warm import MARKS, OPTIONS, UNFIT, Loop, Result

DECISIONS = (
    "api/*.py",
    "cel/*.py",
    "scheduler/*.py",
    "scheduler/table/*.py",
    "scheduler/plugin/*.py",
    "scheduler/config/*.py",
    "scheduler/engine/*.py",
    "scheduler/queue/*.py",
    "scheduler/loop/*.py",
    "scheduler/observe/*.py",
    "scheduler/serve/*.py",
    "scheduler/plugins/**/*.py",
    "manager/**/*.py",
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


@click.command()
@click.option(
    "--count", default=100, show_default=True, help="Mutants, drawn evenly over the modules' places."
)
@click.option("--seed", default=0, show_default=True, help="Equal seeds draw equal mutants of equal sources.")
@click.option("--skip", default=0, show_default=True, help="Leave out so many of them at the beginning.")
@click.option(
    "--only", "patterns", multiple=True, help="Modules below src/koordinator instead of all that decide."
)
@click.option("--keep", type=click.Path(path_type=Path), help="Write the pass down in this file.")
@click.option(
    "--again",
    type=click.Path(path_type=Path, exists=True),
    help="Draw none: take the mutants of a pass that --keep wrote, wherever their lines are today.",
)
@click.option(
    "--timeout",
    "timeout_s",
    default=120.0,
    show_default=True,
    help="Seconds of CPU time for the tests of a mutant.",
)
@click.option("--record", is_flag=True, help="Record anew which test runs which line: a run of all tests.")
@click.option("--jobs", default=2, show_default=True, help="Test files that are recorded at the same time.")
def main(
    count: int,
    seed: int,
    skip: int,
    patterns: tuple[str, ...],
    keep: Path | None,
    again: Path | None,
    timeout_s: float,
    record: bool,
    jobs: int,
) -> None:
    """Say how many faults the tests notice, and which they do not.

    A pass that is to end well is kept: `--seed 7 --keep FILE` draws it and writes it down. Then come the tests that its
    survivors show to be missing. `--again FILE` puts in the very same faults, wherever edits have moved their lines.
    Survivors that change nothing go to tests/mutation/equivalent.json, with the reason, and are counted apart.
    `make test-mutation` draws MUTANTS=100 by SEED=0, or takes those of AGAIN=FILE.
    """
    if record or not (folder() / TESTS).exists():
        recorded(jobs)
    elif files := [file for file in unrecorded(folder(), ["tests"]) if file.split("/")[1] not in UNFIT]:
        recorded(jobs, files)
    chosen = (kept(again) if again else drawn(patterns or DECISIONS, count, random.Random(seed)))[skip:]
    results: list[Result] = []

    def tell(result: Result) -> None:
        results.append(result)
        _report(skip + len(results), skip + len(chosen), result)
        if keep is not None:
            written = [Verdict(place_of(each.mutant, ROOT), each.by) for each in results]
            keep.write_bytes(b"[\n" + b",\n".join(map(msgspec.json.encode, written)) + b"\n]\n")

    hypothesis.settings.register_profile("mutation", database=None, deadline=None)
    hypothesis.settings.load_profile("mutation")
    footprint = Footprint(folder())
    asked = {test.partition("::")[0] for each in chosen for test in footprint.tests(each.path, each.line)}
    there = [str(ROOT / file) for file in sorted(asked) if (ROOT / file).exists()]
    pytest.main([*OPTIONS, "-m", MARKS, *there], [Loop(chosen, footprint, timeout_s, tell)])
    _summary(results)


def recorded(jobs: int, files: Sequence[str] = ()) -> None:
    """Record which test runs which line: of all tests, or of some files beside what is recorded."""
    part = f"{LATER}{len(list(folder().glob(f'{LATER}*')))}" if files else ""
    how_long = f": {len(files)} files that changed" if files else " (about twice as long as `make test`)"
    click.echo(f"recording which test runs which line into {folder() / part}{how_long}")
    ignored = [f"--ignore=tests/{name}" for name in UNFIT]
    command = ["-p", "tests.mutation.footprint", "-n", str(jobs), "--dist", "loadfile", "-m", MARKS]
    subprocess.run(
        [sys.executable, "-m", "pytest", *command, *ignored, "--timeout=400", *(files or ("tests",))],
        cwd=ROOT,
        env={**os.environ, PART: part},
        check=False,
    )


def drawn(patterns: tuple[str, ...], count: int, rng: random.Random) -> list[Mutant]:
    """Mutants of the modules: a module is drawn by its number of places, then one of its mutants."""
    base = ROOT / "src" / "koordinator"
    paths = sorted({path for pattern in patterns for path in base.glob(pattern)})
    every = [
        mutant for path in paths for mutant in mutants(str(path.relative_to(ROOT)), path.read_text("utf-8"))
    ]
    click.echo(f"{len(paths)} modules, {len(every)} possible mutants, {min(count, len(every))} drawn")
    return rng.sample(every, min(count, len(every)))


def kept(path: Path) -> list[Mutant]:
    """The mutants of a pass that was written down; says which are not there any more, and why."""
    verdicts = msgspec.json.decode(path.read_bytes(), type=list[Verdict])
    at_first = sum(bool(each.by) for each in verdicts)
    click.echo(f"{path.name}: {len(verdicts)} mutants, of which {at_first} were found at first")
    mutants_now = []
    for place in (each.place for each in verdicts):
        mutant = found_again(place, ROOT)
        if isinstance(mutant, Mutant):
            mutants_now.append(mutant)
        else:
            click.echo(f"not there: {place.path} {place.function} {place.before[:70]}: {mutant}")
    return mutants_now


def _report(number: int, count: int, result: Result) -> None:
    verdict = "found" if result.by else click.style("SURVIVED", fg="red")
    click.echo(
        f"{number}/{count} {verdict} {result.mutant.path}:{result.mutant.line} {result.mutant.about} "
        f"-> {' '.join(result.mutant.text.split())[:70]} [{result.by}] {result.tests} tests, {result.seconds:.0f} s"
    )


def _summary(results: Sequence[Result]) -> None:
    """Found by room, and of all: with mutants that change nothing, and without them."""
    rooms = Counter(_room(each) for each in results)
    found = Counter(_room(each) for each in results if each.by)
    click.echo("")
    for room, total in sorted(rooms.items()):
        click.echo(f"{room:40} {found[room]:4} of {total:4} found")
    known = equivalents()
    unseen = 0
    for each in results:
        if why := known.get(place_of(each.mutant, ROOT)):
            unseen += not each.by
            click.echo(
                f"{'FOUND, and yet ' * bool(each.by)}equivalent: {each.mutant.path}:{each.mutant.line} {why}"
            )
    all_found, differ = sum(found.values()), len(results) - unseen
    modules = len({each.mutant.path for each in results})
    click.echo(
        f"{modules} modules, {len(results)} mutants: {all_found} found ({_share(all_found, len(results))} of all); "
        f"{unseen} survivors change nothing, without them {_share(all_found, differ)}"
    )


def _share(found: int, of: int) -> str:
    return f"{100 * found / max(of, 1):.1f} %"


def _room(result: Result) -> str:
    return "/".join(Path(result.mutant.path).parent.parts[2:5])


if __name__ == "__main__":
    main()
