"""Which tests matter for a change, in which order, and which of them there is time for. Pure, but for `changed`."""

import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from tests.quick.imports import ROOT, Imports

UNKNOWN_SECONDS = 2.0
"""What a file of tests takes that never ran here."""
RUNS_IT = 0.25
"""Distance of a test that ran a changed line: behind those that bear the module's name, before all that import it."""
_HUNK = re.compile(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@")
ADAPTER_SECONDS = 1.0
"""What the areas of one adapter take, its import included."""
_DOCS = "tests/docs"
_ADAPTERS = "tests/vectors/adapters/"
_CASES = "tests/vectors/cases/"


class Choice(msgspec.Struct, frozen=True):
    """What is run, in this order, and what there is no time for."""

    files: tuple[str, ...]
    areas: tuple[str, ...]
    """Areas of the vectors."""
    left_out: tuple[str, ...]


def changed(base: str, root: Path = ROOT) -> list[str]:
    """Paths that differ from where this branch left `base`: committed, uncommitted and untracked ones that exist.

    Raises subprocess.CalledProcessError when git knows no such base.
    """

    def git(*words: str) -> list[str]:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    [start] = git("merge-base", base, "HEAD")
    paths = {*git("diff", "--name-only", start), *git("ls-files", "--others", "--exclude-standard")}
    return sorted(path for path in paths if (root / path).exists())


def changed_lines(base: str, root: Path = ROOT) -> dict[str, list[int]]:
    """Path → lines that are new or changed since this branch left `base`, as `changed`; nothing of untracked files."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout

    found: dict[str, list[int]] = {}
    path = ""
    for line in git("diff", "-U0", "--no-color", git("merge-base", base, "HEAD").strip()).splitlines():
        if line.startswith("+++ "):
            path = line.removeprefix("+++ b/")
        elif hunk := _HUNK.match(line):
            start, count = int(hunk[1]), int(hunk[2] or 1)
            found.setdefault(path, []).extend(
                range(start, start + max(count, 1))
            )  # a deletion: the line before
    return found


def choose(
    paths: Iterable[str],
    imports: Imports,
    areas_of: Callable[[str], Iterable[str]],
    seconds: Mapping[str, float],
    budget_s: float,
    runners: Callable[[str], Iterable[str]] = lambda path: (),
) -> Choice:
    """The tests for these changed paths: changed tests first, then the nearest, of those the quickest.

    `areas_of` tells the areas of the vectors that an adapter's module answers; `seconds` what files of tests took when
    they ran last; `runners` the files of tests that ran the changed lines of a path when that was recorded.
    """
    near: dict[str, float] = {}
    areas: set[str] = set()

    def add(path: str, distance: float) -> None:
        near[path] = min(distance, near.get(path, distance))

    for path in paths:
        module = imports.module_of(path)
        if path.startswith(_CASES):
            areas.add(Path(path).stem)
        elif Path(path).name.startswith("test_") and module is not None:
            add(path, -1)
        elif module is not None:
            if path.startswith(_ADAPTERS):
                add(path, -1)
            for test, distance in imports.tests_of(module).items():
                add(test, distance)
            for test in runners(path):
                add(test, RUNS_IT)
        else:  # Pages, manifests, settings: the tests of the pages look at all of these.
            add(f"{_DOCS}/test_pages.py", 0)
            add(f"{_DOCS}/test_citations.py", 0)

    def takes_s(path: str) -> float:
        return ADAPTER_SECONDS if path.startswith(_ADAPTERS) else seconds.get(path, UNKNOWN_SECONDS)

    files, left_out, spent_s = [], [], 0.0
    for path in sorted(near, key=lambda path: (near[path], takes_s(path), path)):
        if spent_s + takes_s(path) > budget_s and near[path] >= 0:
            left_out.append(path)
            continue
        spent_s += takes_s(path)
        if path.startswith(_ADAPTERS):
            areas.update(areas_of(Path(path).stem))
        else:
            files.append(path)
    return Choice(tuple(files), tuple(sorted(areas)), tuple(left_out))
