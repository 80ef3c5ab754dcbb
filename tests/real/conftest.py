"""Tests on real servers: where their programs are not there, one line says what is missing."""

import shutil
from collections.abc import Iterator

import pytest

from tests.e2e.cluster import SERVERS
from tests.real import binaries, given
from tests.real.cluster import RealCluster, Shape

TIMEOUT_S = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/real/" in item.nodeid:
            item.add_marker(pytest.mark.real)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def _servers() -> None:
    if given.FILE:
        pytest.skip("needs servers of its own; KOORDINATOR_TEST_KUBECONFIG gives another cluster")
    why = binaries.why_missing() or ("" if shutil.which("kubectl") else "no kubectl on the PATH")
    if why:
        pytest.skip(why)


@pytest.fixture(scope="module")
def real(_servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """A cluster per module: two nodes, all components, webhooks behind their Service."""
    with RealCluster.open(tmp_path_factory.mktemp("real"), Shape()) as running:
        yield running


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The stories that ran here; the same text runs on `koordinator up` in `make test`."""
    passed = [each.nodeid for each in terminalreporter.getreports("passed") if each.when == "call"]
    stories = sorted({node.partition("[")[0] for node in passed if node.startswith("tests/e2e/")})
    if SERVERS == "real" and stories:
        terminalreporter.section(f"{len(stories)} stories that run on both kinds of server")
        for story in stories:
            terminalreporter.line(story.removeprefix("tests/e2e/"))
