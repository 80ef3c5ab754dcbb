"""What the recorder of a simulated run makes of services that are slow."""

import asyncio
import random

import numpy as np
import pytest

from koordinator.api.core import Node
from koordinator.clock import LoopClock
from koordinator.cluster.informer import Informer
from koordinator.cluster.memory import MemoryCluster
from koordinator.local.nodes.usage import Trace
from koordinator.local.registry import in_memory
from koordinator.simulate import recorder
from koordinator.simulate.recorder import Recorder
from tests.local.nodes.test_fleet import add, fleet


def recorded(monkeypatch: pytest.MonkeyPatch, ratio: float, used: tuple[float, ...]) -> Recorder:
    """Return the recorder of a node whose service uses so much of it, step by step of half a minute."""
    monkeypatch.setattr(recorder, "SLOW_RATIO", ratio)
    f = fleet(nodes=1, trace=Trace(("m",), np.array([used])))
    add(f, 0, cpu="6", cpuMilli=6_000, followsTrace=True, serviceTimeMs=10)
    add(f, 0, batch=True, cpu="9", cpuMilli=10_000, name="batch")

    async def run() -> Recorder:
        clock = LoopClock(asyncio.get_running_loop(), 0.0)
        cluster = MemoryCluster(in_memory(clock, seed=1))
        found = Recorder(f, Informer(cluster, Node, rng=random.Random(0)))
        for step in range(len(used)):
            f.step(step * 300.0, 30.0)
            found.step(30.0)
        return found

    return asyncio.run(run())


def test_the_longest_time_without_a_break_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = recorded(monkeypatch, 1.1, (0.05, 0.6, 0.6, 0.05, 0.6, 0.05))

    assert found.longest_slow_s == 60.0
    assert found.slow_minutes == 1  # half a minute alone is tolerated


def test_a_service_that_is_never_slow_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = recorded(monkeypatch, 50.0, (0.05, 0.6, 0.6, 0.05))

    assert found.longest_slow_s == 0.0
    assert found.slow_minutes == 0
