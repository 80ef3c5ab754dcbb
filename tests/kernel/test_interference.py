"""Naming a culprit on this kernel: a real service waits for a real antagonist among real innocents."""

import asyncio
import os
import random
import signal
import time
from pathlib import Path

import pytest

from koordinator.host.cgroup_knobs import Knob
from koordinator.host.cgroups import Cgroups
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.degradation import Contended, Degradation
from koordinator.koordlet.interference.all import InterferenceParts
from koordinator.koordlet.qos.evictor import Evictor
from koordinator.koordlet.qos.shadow import ShadowMode
from tests.kernel.conftest import Spawn
from tests.kernel.strategy_node import BE, LS, StrategyNode, pod_object

BATCH = [f"b{number}" for number in range(6)]
ROUND_S = 0.5
CALM_ROUNDS = 6
TRIES_MAX = 120
SERVICE = """
import os, time
for _ in range(os.cpu_count() - 1):
    if not os.fork():
        break
while True:
    until = time.thread_time() + 0.012
    while time.thread_time() < until:
        pass
    time.sleep(0.02)
"""
ANTAGONIST = """
import os
for _ in range(2 * os.cpu_count() - 1):
    if not os.fork():
        break
while True:
    pass
"""
INNOCENT = "import random, time\nwhile True:\n  sum(range(random.randrange(20_000)))\n  time.sleep(0.05)"


class SharedNode(StrategyNode):
    """A service, and batch pods that together get four times its CPU when they want it."""

    def __init__(self, group: str, journal: Path) -> None:
        super().__init__(group, journal, gates="Interference=true")
        self.make_classes()
        pods = [pod_object("web", "LS"), *(pod_object(name, "BE", "BestEffort") for name in BATCH)]
        self.containers = {pod.metadata.uid: self.make_pod(pod) for pod in pods}
        self.know(*pods)
        assert self.host.cgroups.write(Knob.CPU_SHARES, BE, "8192") is None
        assert self.host.cgroups.write(Knob.CPU_SHARES, LS, "2048") is None
        self.parts = InterferenceParts(self.shared, Evictor(self.shared), ShadowMode(self.shared))
        self._used_ns: dict[str, int] = {}
        self._at_s = 0.0

    async def round(self) -> Degradation:
        """Some time passes, and everything is measured."""
        await asyncio.sleep(ROUND_S)
        now_s = time.monotonic()
        self.clock.now_s = time.time()
        for uid, container in self.containers.items():
            used_ns = self.host.cgroups.cpu_usage_ns(container.rpartition("/")[0]) or 0
            if uid in self._used_ns:
                cores = (used_ns - self._used_ns[uid]) / 1e9 / (now_s - self._at_s)
                ring = self.store.ring(kinds.POD_CPU, {kinds.POD_UID: uid})
                ring.append(int(self.clock.now_s * 1000), cores)
            self._used_ns[uid] = used_ns
        self._at_s = now_s
        self.parts.watch.run()
        assert self.view.interference is not None
        return self.view.interference.services["web"]


@pytest.mark.parametrize("seed", [1, 2])
def test_the_antagonist_is_named_among_innocents(
    real: Cgroups, group: str, tmp_path: Path, spawn: Spawn, seed: int
) -> None:
    rng = random.Random(seed)
    who = rng.choice(BATCH)
    # What else runs on this machine must not be the culprit.
    assert real.write(Knob.CPU_SHARES, group, "262144") is None

    async def scenario() -> None:
        node = SharedNode(group, tmp_path / "restore.jsonl")
        spawn(f"{group}/{node.containers['web']}", SERVICE)
        pids = {name: spawn(f"{group}/{node.containers[name]}", INNOCENT) for name in BATCH}
        calm = 0
        for _ in range(TRIES_MAX):
            found = await node.round()
            calm = 0 if found.is_degraded or not found.indicators else calm + 1
            if calm >= CALM_ROUNDS:
                break
        else:
            pytest.skip("this machine is too busy for a calm service")

        os.kill(pids[who], signal.SIGKILL)
        spawn(f"{group}/{node.containers[who]}", ANTAGONIST)
        for _ in range(TRIES_MAX):
            await node.round()
            assert node.view.interference is not None
            if node.view.interference.verdicts:
                break

        verdict = node.view.interference.verdicts["web"]
        assert (verdict.culprit, verdict.resource) == (who, Contended.CPU)
        node.host.close()

    asyncio.run(scenario())
