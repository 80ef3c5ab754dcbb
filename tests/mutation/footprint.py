"""Which test runs which line, and how long it takes: recorded once, with `pytest -p tests.mutation.footprint`.

Each worker of a parallel run writes a part of its own. Lines that the code has gained since the recording are taken for
the nearest line before them that was there. Files of tests that came or changed since are recorded beside it.
"""

import difflib
import functools
import hashlib
import importlib
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import coverage
import msgspec
import pytest

from tests.quick.imports import Imports

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "koordinator"
IMPORTERS_MAX = 12
"""Files of tests that look at what a module declares."""
OF_DECLARATIONS = "tests/test_defaults.py"
"""Looks at what all modules declare, by walking through them: it imports few of them by name."""


PART = "KOORDINATOR_MUTATION_PART"
LATER = "later."
"""Begins the names of folders that recordings of single files are kept in, within that of the whole."""
TESTS = "tests.json"
"""The files of tests that were recorded, with digests of their texts."""


def folder() -> Path:
    """Where the recording is kept, outside the tree."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "koordinator" / "mutation"


def target() -> Path:
    """Where this run of tests is recorded: for a part of them the environment names a folder in that of the whole."""
    return folder() / os.environ.get(PART, "")


def digests(args: Iterable[str]) -> dict[str, str]:
    """Files of tests with digests of their texts; `args`: files and folders, below the root or from it."""
    named = [ROOT / arg for arg in args]
    paths = [found for each in named for found in (each.rglob("test_*.py") if each.is_dir() else (each,))]
    return {str(path.relative_to(ROOT)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def recordings(parts: Path) -> list[Path]:
    """The folders of the recording of all tests and of those of single files after it, the oldest first."""
    return [parts, *sorted(parts.glob(f"{LATER}*"), key=lambda part: int(part.suffix[1:]))]


def unrecorded(parts: Path, args: Iterable[str]) -> list[str]:
    """Files of tests among `args` that came or changed since they were recorded."""
    known: dict[str, str] = {}
    for each in recordings(parts):
        known |= msgspec.json.decode((each / TESTS).read_bytes(), type=dict[str, str])
    return sorted(path for path, digest in digests(args).items() if known.get(path) != digest)


class Recording:
    """One run of tests: which of them ran which lines of the sources as they were then."""

    def __init__(self, parts: Path) -> None:
        self._parts = [coverage.CoverageData(str(path)) for path in sorted(parts.glob("lines.*"))]
        for part in self._parts:
            part.read()
        self._then = msgspec.json.decode((parts / "source.json").read_bytes(), type=dict[str, str])
        self.seconds: dict[str, float] = {}
        for path in sorted(parts.glob("seconds.*")):
            self.seconds |= msgspec.json.decode(path.read_bytes(), type=dict[str, float])

    def near(self, path: str, line: int) -> set[str]:
        """Tests that ran a line of a file below the root."""
        by_line = self._of_file(path)
        old = self._line_then(path, line)
        # A line of a statement is known by its first line, one that only imports run by the file.
        return next((by_line[n] for n in range(old, max(old - 8, 0), -1) if by_line.get(n)), set())

    def everywhere(self, path: str) -> set[str]:
        """Tests that ran any line of the file."""
        return set().union(*self._of_file(path).values())

    @functools.lru_cache(maxsize=8)  # noqa: B019 (one object for the whole run)
    def _of_file(self, path: str) -> dict[int, set[str]]:
        found: dict[int, set[str]] = defaultdict(set)
        for part in self._parts:
            for line, tests in part.contexts_by_lineno(self._path_then(path)).items():
                found[line].update(test for test in tests if test in self.seconds)
        return found

    @functools.cache  # noqa: B019 (one object for the whole run)
    def _path_then(self, path: str) -> str:
        """A file that was not there is taken for the one that it shares most lines with: it was renamed."""
        if path in self._then or not self._then:
            return path
        lines = set((ROOT / path).read_text("utf-8").splitlines())
        return max(self._then, key=lambda old: len(lines.intersection(self._then[old].splitlines())))

    def _line_then(self, path: str, line: int) -> int:
        then, now = self._then.get(self._path_then(path), ""), (ROOT / path).read_text("utf-8")
        if then == now:
            return line
        matcher = difflib.SequenceMatcher(None, then.splitlines(), now.splitlines(), autojunk=False)
        old = 1
        for a, b, size in matcher.get_matching_blocks():
            if b < line and size:
                old = a + min(line - b, size)
        return old


class Footprint:
    """The recording of all tests and those of single files after it, asked for one line at a time."""

    def __init__(self, parts: Path) -> None:
        self._recordings = [Recording(each) for each in recordings(parts)]
        self._imports = Imports()
        self._seconds: dict[str, float] = {}
        for each in self._recordings:
            self._seconds |= each.seconds

    def tests(self, path: str, line: int) -> list[str]:
        """Tests that run a line of a file below the root, the quickest first.

        Then those of the same files that run another line of it: what runs once for several tests is recorded
        with the first of them.
        """
        near = set().union(*(each.near(path, line) for each in self._recordings))
        everywhere = set().union(*(each.everywhere(path) for each in self._recordings))
        if not near:
            near = everywhere | self._of_importers(path)
        files = {test.partition("::")[0] for test in near}
        beside = {test for test in everywhere - near if test.partition("::")[0] in files}
        return [*sorted(near, key=self.seconds), *sorted(beside, key=self.seconds)]

    def _of_importers(self, path: str) -> set[str]:
        """Tests of the files nearest to a module: what runs when it is imported is recorded for nobody."""
        of_module = list(self._imports.tests_of(self._imports.module_of(path) or ""))[:IMPORTERS_MAX]
        nearest = [OF_DECLARATIONS, *of_module]
        adapters = [file for file in nearest if file.startswith("tests/vectors/adapters/")]
        areas = {
            area
            for file in adapters
            for area in importlib.import_module(file.removesuffix(".py").replace("/", ".")).ADAPTERS
        }
        return {
            test
            for test in self._seconds
            if test.partition("::")[0] in nearest or test.partition("[")[2].partition("/")[0] in areas
        }

    def seconds(self, test: str) -> float:
        return self._seconds.get(test, 0.0)


class Recorder:
    """Traces the lines of the project while tests run. A failed test has no time, and so is never chosen."""

    def __init__(self, to: Path, worker: str) -> None:
        self._to, self._worker = to, worker
        self._has_failed = False
        self._seconds: dict[str, float] = {}
        self._coverage = coverage.Coverage(
            data_file=str(to / f"lines.{worker}"), source=[str(SOURCE)], config_file=False
        )
        self._coverage.set_option("run:relative_files", True)  # One recording serves all checkouts.
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        self._has_failed = False
        began_s = _cpu_s()
        try:
            return (yield)
        finally:
            if not self._has_failed:
                self._seconds[item.nodeid] = _cpu_s() - began_s

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._has_failed |= not report.passed

    def pytest_unconfigure(self) -> None:
        self._coverage.stop()
        self._coverage.save()
        (self._to / f"seconds.{self._worker}").write_bytes(msgspec.json.encode(self._seconds))


def _cpu_s() -> float:
    """CPU time of this process and of those that it waited for: a busy machine makes no test cost more."""
    children = os.times()
    return time.process_time() + children.children_user + children.children_system


def pytest_configure(config: pytest.Config) -> None:
    to = target()
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir(parents=True)
        sources = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in SOURCE.rglob("*.py")}
        (to / "source.json").write_bytes(msgspec.json.encode(sources))
        (to / TESTS).write_bytes(msgspec.json.encode(digests(config.args)))
    if worker is not None or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Recorder(to, worker or "only"), "footprint-recorder")
