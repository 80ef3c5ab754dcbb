"""How long files of tests take: a plugin of pytest (`-p tests.quick.seconds`) that remembers it for the next choice."""

import time
from collections import Counter, defaultdict
from pathlib import Path

import msgspec
import pytest

from tests.quick.imports import ROOT

FILE = ROOT / ".pytest_cache" / "seconds.json"


def known(file: Path = FILE) -> dict[str, float]:
    """File of tests → seconds, as far as it ran here."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, float])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}


class Clock:
    """Adds up what the tests of a file take, and lets no test begin after the time is up."""

    def __init__(self, config: pytest.Config, budget_s: float | None) -> None:
        self._config = config
        self._budget_s = budget_s
        self._ends_at: float | None = None
        self._seconds: dict[str, float] = defaultdict(float)
        self._not_begun: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.partition("::")[0]] += report.duration

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if self._budget_s is None:
            return None
        if self._ends_at is None:  # Collecting does not count, so that a slow start leaves tests to run.
            self._ends_at = time.monotonic() + self._budget_s
        if time.monotonic() < self._ends_at:
            return None
        self._not_begun[item.nodeid.partition("::")[0]] += 1
        return True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._not_begun:
            names = ", ".join(f"{name} ({count})" for name, count in self._not_begun.items())
            terminalreporter.write_line(f"not begun, for want of time: {names}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self._config, "workerinput") or not self._seconds:
            return
        for name in self._not_begun:  # What it takes is more than was seen.
            self._seconds[name] = max(self._seconds[name], known().get(name, 0.0))
        FILE.parent.mkdir(exist_ok=True)
        seen = known() | self._seconds
        kept = {name: seconds for name, seconds in seen.items() if (ROOT / name).exists()}
        FILE.write_bytes(msgspec.json.encode(kept))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--budget", type=float, default=None, help="Seconds after which no further test begins.")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Clock(config, config.getoption("--budget")), "seconds")
