"""Tests on a real Hadoop: where it is not there, one line says what is missing."""

import pytest

from tests.yarn.hadoop import jars

TIMEOUT_S = 400


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/yarn/hadoop/" in item.nodeid:
            item.add_marker(pytest.mark.yarn)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(autouse=True, scope="session")
def _there() -> None:
    if why := jars.why_missing():
        pytest.skip(why)
