"""A node with containerd for each module; where it cannot run, one line says why."""

from collections.abc import Iterator

import pytest

from tests.runtime import node
from tests.runtime.node import RuntimeNode

TIMEOUT_S = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/runtime/" in item.nodeid:
            item.add_marker(pytest.mark.runtime)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def _can_run() -> None:
    why = node.why_not()
    if why:
        pytest.skip(why)


@pytest.fixture(scope="module")
def runtime_node(_can_run: None) -> Iterator[RuntimeNode]:
    """containerd with NRI on, and the probe's image."""
    with node.running_node() as running:
        yield running
