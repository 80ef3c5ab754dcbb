"""How long files of tests take: a plugin of pytest (`-p tests.quick.seconds`) that remembers it for the next choice."""

import time
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest

from tests.quick.imports import ROOT

FILE = ROOT / ".pytest_cache" / "seconds.json"
ALARM = pytest.StashKey[float]()


def known(file: Path = FILE) -> dict[str, float]:
    """File of tests → seconds, as far as it ran here."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, float])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}


class Clock:
    """Adds up what the tests of a file take, and ends the session when its time is up."""

    def __init__(self, config: pytest.Config, budget_s: float | None) -> None:
        self._config = config
        self._ends_at = None if budget_s is None else time.monotonic() + budget_s
        self._seconds: dict[str, float] = defaultdict(float)
        self._complete = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.partition("::")[0]] += report.duration

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> object:
        done = yield
        if self._ends_at is not None and nextitem is not None and time.monotonic() > self._ends_at:
            self._complete = False
            item.session.shouldstop = f"no time for what follows {item.nodeid}"
        return done

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self._config, "workerinput") or not self._seconds:
            return
        if not self._complete:  # The last file was cut short: what it takes is more than was seen.
            last = next(reversed(self._seconds))
            self._seconds[last] = max(self._seconds[last], known().get(last, 0.0))
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_bytes(msgspec.json.encode(known() | self._seconds))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--budget", type=float, default=None, help="Seconds after which no further test begins.")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Clock(config, config.getoption("--budget")), "seconds")
