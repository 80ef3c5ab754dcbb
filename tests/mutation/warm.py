"""Faults put into a process that has imported and collected everything: each costs the tests that run its line.

The process forks for each fault. In the child the functions' code is replaced; where a fault changes what runs at
import (a constant, a default, a class body), and to confirm a survivor, the child forgets the project's modules and
imports them anew, with the fault.
"""

import contextlib
import functools
import gc
import importlib.machinery
import math
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from types import CodeType, FunctionType, ModuleType

import msgspec
import pytest

from tests.mutation.footprint import ROOT, Footprint
from tests.mutation.mutants import Mutant

UNFIT = ("e2e", "kernel", "real", "abuse", "mutation", "docs")
"""Suites that start servers, need root, or read texts: they check whole products and cost too much for one mutant."""
MARKS = "not slow and not runtime and not yarn"
OPTIONS = (
    "-q",
    "-s",
    "--no-header",
    "-p",
    "no:cacheprovider",
    "--timeout=25",
    "--timeout-method=thread",  # It ends the process: a search would try a test again that hangs.
    *(f"--ignore={ROOT / 'tests' / name}" for name in UNFIT),
)
_OPTIMIZED = 0x1
"""The flag of code with fast locals: a function's, not that of a module or of a class body."""
_AT_IMPORT = "?at import"
_DIED = "died"
_BYTES_MAX = 6 << 30
"""What a fault may take of the machine's memory."""
_WALL_FACTOR_MAX = 5
"""How much longer than its CPU time a fault may take: others use the machine, too, and who waits uses none."""


class Result(msgspec.Struct, frozen=True):
    """What became of a mutant; `by` is the test that noticed, empty for one that survived."""

    mutant: Mutant
    by: str
    seconds: float
    tests: int


class Loop:
    """A plugin of pytest that runs faults instead of tests."""

    def __init__(
        self, chosen: Sequence[Mutant], footprint: Footprint, timeout_s: float, tell: Callable[[Result], None]
    ) -> None:
        self._chosen, self._footprint, self._timeout_s, self._tell = chosen, footprint, timeout_s, tell
        self._unstable: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        for mutant in self._chosen:
            self._tell(self._attempt(mutant, items))
        return True

    def _attempt(self, mutant: Mutant, items: dict[str, pytest.Item]) -> Result:
        began_s = time.monotonic()
        while True:
            tests = self._affordable(mutant, items)
            by = _forked(
                functools.partial(_in_place, mutant, [items[test] for test in tests]), self._timeout_s
            )
            suspects = [by] if by in items else tests * (by == _DIED)
            if not (
                failed := _forked(functools.partial(_run, [items[t] for t in suspects]), self._timeout_s)
            ):
                break
            # It fails without the fault, too: it depends on the time or on its neighbours.
            self._unstable.update(suspects if failed == _DIED else [failed])
        if tests and by in ("", _AT_IMPORT):
            by = _forked(functools.partial(_anew, mutant, tests), self._timeout_s + 30)
        elif by == _AT_IMPORT:
            by = ""
        return Result(mutant, by, time.monotonic() - began_s, len(tests))

    def _affordable(self, mutant: Mutant, items: dict[str, pytest.Item]) -> list[str]:
        """Tests that see the line and together take half of the time at most, file by file, the quickest first."""
        known = [
            test
            for test in self._footprint.tests(mutant.path, mutant.line)
            if test in items and test not in self._unstable
        ]
        files: dict[str, list[str]] = {}
        left_s = self._timeout_s / 2
        for test in known:
            left_s -= self._footprint.seconds(test)
            if left_s < 0:
                break
            files.setdefault(test.partition("::")[0], []).append(test)
        return [
            test for file in sorted(files, key=lambda file: self._cost_s(files[file])) for test in files[file]
        ]

    def _cost_s(self, tests: list[str]) -> float:
        return sum(map(self._footprint.seconds, tests))


def _forked(work: Callable[[], str], timeout_s: float) -> str:
    """What the work said in a process of its own, nothing when so much CPU time was not enough: that may be the test's
    fault. One that dies has noticed: a test that hangs, or takes all memory, ends it."""
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (_BYTES_MAX, _BYTES_MAX))
        _end_after(timeout_s, writing)
        silent = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(silent, fd)
        try:
            said = work()
        except BaseException as error:  # Whatever leaves a test run has noticed, and is told.
            said = f"left by {error!r}"[:200]
        os.write(writing, (said or "-").encode())
        os._exit(0)
    os.close(writing)
    try:
        ready, _, _ = select.select([reading], [], [], _WALL_FACTOR_MAX * timeout_s)
        said = os.read(reading, 65536).decode() if ready else "-"
        return {"-": "", "": _DIED}.get(said, said)
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _end_after(cpu_s: float, writing: int) -> None:
    """End this process, having said nothing, once it has used so much CPU time: a busy machine finds no fault less."""

    def end(*_: object) -> None:
        os.write(writing, b"-")
        os._exit(0)

    signal.signal(signal.SIGXCPU, end)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(cpu_s), resource.RLIM_INFINITY))


def _in_place(mutant: Mutant, items: list[pytest.Item]) -> str:
    return _run(items) if _replaced(mutant) else _AT_IMPORT


def _run(items: list[pytest.Item]) -> str:
    """The first test that fails, or nothing."""
    failures = _Failures()
    for number, item in enumerate(items):
        if number == 0:
            item.config.pluginmanager.register(failures)
        following = items[number + 1] if number + 1 < len(items) else None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if failures.first:
            break
    return failures.first


def _anew(mutant: Mutant, tests: list[str]) -> str:
    """Import the project anew, with the fault, and run the tests on it."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("koordinator", "tests")]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Faulty(mutant))
    failures = _Failures()
    ended = pytest.main([*OPTIONS, "-x", "--continue-on-collection-errors", *tests], plugins=[failures])
    known = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
    return failures.first or ("" if ended in known else f"pytest: {ended!r}")


class _Failures:
    first = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.first:
            self.first = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.first:
            self.first = f"import of {report.nodeid}"


class _Faulty(MetaPathFinder):
    """Finds one module with its fault."""

    def __init__(self, mutant: Mutant) -> None:
        self._path = str(ROOT / mutant.path)
        self._code = compile(mutant.applied((ROOT / mutant.path).read_text("utf-8")), self._path, "exec")

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin != self._path:
            return None
        loader = spec.loader
        assert isinstance(loader, importlib.machinery.SourceFileLoader)
        loader.get_code = lambda fullname: self._code  # type: ignore[method-assign]
        return spec


def _replaced(mutant: Mutant) -> bool:
    """Give the fault to all functions that exist; says whether that gives it wholly."""
    path = ROOT / mutant.path
    source = path.read_text("utf-8")
    old, new = (compile(text, str(path), "exec") for text in (source, mutant.applied(source)))
    try:
        changed = dict(changed_functions(old, new))
    except ValueError:
        return False
    outermost = set(changed)
    for code in changed:
        outermost -= {const for const in code.co_consts if isinstance(const, CodeType)}
    seen = set()
    for function in gc.get_objects():
        if type(function) is FunctionType and function.__code__.co_filename == str(path):
            code = function.__code__
            if code in changed:
                seen.add(code)
                try:
                    function.__code__ = changed[code]
                except ValueError:  # It closes over other names now.
                    return False
    return bool(changed) and outermost <= seen


def changed_functions(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Functions' code before and after.

    Raises:
        ValueError: What runs at import differs, or there are other functions than before.
    """
    if old == new:
        return
    if old.co_flags & _OPTIMIZED:
        yield old, new
    elif old.co_code != new.co_code or _values(old) != _values(new) or old.co_names != new.co_names:
        raise ValueError("what runs at import differs")
    olds, changes = _inner(old), _inner(new)
    if [code.co_name for code in olds] != [code.co_name for code in changes]:
        raise ValueError("other functions than before")
    for before, after in zip(olds, changes, strict=True):
        yield from changed_functions(before, after)


def _inner(code: CodeType) -> list[CodeType]:
    return [const for const in code.co_consts if isinstance(const, CodeType)]


def _values(code: CodeType) -> list[tuple[type, object]]:
    return [(type(const), const) for const in code.co_consts if not isinstance(const, CodeType)]
