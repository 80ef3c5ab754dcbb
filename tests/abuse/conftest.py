"""Everything here is `abuse`, has a time of its own, and ends in one table."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.abuse import sizes
from tests.abuse.server import Server

FOLDER = Path(__file__).parent
TIMEOUT_S = 2_400


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.abuse)
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if sizes.RESULTS:
        terminalreporter.section("abuse")
        for line in sizes.table():
            terminalreporter.write_line(line)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A cluster of a few nodes, in memory."""
    with Server(tmp_path, "--nodes", "4") as running:
        yield running
