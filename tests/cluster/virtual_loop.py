"""Runs a scenario on virtual time: seconds of a test cost nothing."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from koordinator.simulate import virtual_time

T = TypeVar("T")


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`; the loop's time starts at 0."""
    return virtual_time.run_virtual(lambda _: scenario)
