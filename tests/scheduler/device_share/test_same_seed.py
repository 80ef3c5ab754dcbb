"""A life with a seed is the same in each process: a failing seed fails again, and a simulation can be repeated.

Order that comes from sets of strings differs between processes; this finds it."""

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from tests.cluster import virtual_loop
from tests.cluster.faulty_cluster import FaultyCluster
from tests.scheduler.device_share.test_device_lives import FencingLife, live

SEED = 9
"""Of the lives in which reservations take pods over, the busiest one: some 1,100 requests."""


class LoggedCluster(FaultyCluster):
    """Prints who asks at which moment."""

    async def _send(self, write: Any, effect: Callable[[], Awaitable[Any]]) -> Any:
        task = asyncio.current_task()
        assert task is not None
        name = "" if task.get_name().startswith("Task-") else task.get_name()
        print(f"{asyncio.get_running_loop().time():.4f} {name}: {write or 'reads'}")
        return await super()._send(write, effect)


class LoggedLife(FencingLife):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.faulty.__class__ = LoggedCluster


def requests(hash_seed: str) -> list[str]:
    found = subprocess.run(
        [sys.executable, "-m", __name__],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return found.stdout.splitlines()


def test_a_life_is_the_same_in_each_process() -> None:
    first, second = requests("2"), requests("3")
    assert len(first) > 500
    assert first == second


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    virtual_loop.run(live(LoggedLife, SEED))
