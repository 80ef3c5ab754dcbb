"""Lives of whole agents among faults drawn from a seed: nothing wild is done, nothing dies, and in the end all is well.

Repeat one with `pytest tests/koordlet/test_agent_faults.py -k 'seed-3'`.
"""

import asyncio
import logging
import random
from pathlib import Path
from typing import Any

import pytest

from koordinator.host.errors import HostError
from koordinator.host.files import FileFailure, FileProblem
from tests.host import host_tree
from tests.koordlet.agent_world import BE, BURSTABLE, CPUS, World, live
from tests.koordlet.test_agent import protecting

STEPS = 60
PERIOD_US = 100_000
QUOTA_US_MIN = 1_000


class Faults:
    """What happens at each step, and how the world is made whole again."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world, self.rng = world, rng
        self._count = 0
        self._actions = [
            self.api_fails,
            self.api_returns,
            self.kubelet_fails,
            self.kubelet_forgets,
            self.kubelet_returns,
            self.pod_comes,
            self.pod_goes,
            self.group_vanishes,
            self.service_jumps,
            self.batch_jumps,
            self.counter_falls,
            self.counter_is_nonsense,
            self.kernel_refuses,
            self.policy_is_malformed,
            self.policy_changes,
        ]

    async def step(self) -> None:
        action = self.rng.choice(self._actions)
        logging.getLogger(__name__).info("fault: %s", action.__name__)
        result = action()
        if asyncio.iscoroutine(result):
            await result
        await asyncio.sleep(self.rng.choice((0.3, 1.0, 2.5, 12.0)))

    def api_fails(self) -> None:
        self.world.cluster.fail_ratio = self.rng.choice((0.3, 0.8))
        self.world.cluster.away = self.rng.random() < 0.5

    def api_returns(self) -> None:
        self.world.cluster.away, self.world.cluster.fail_ratio = False, 0.0

    def kubelet_fails(self) -> None:
        self.world.kubelet.trouble = "connection refused"

    def kubelet_forgets(self) -> None:
        self.world.kubelet.forgets = True

    def kubelet_returns(self) -> None:
        self.world.kubelet.trouble, self.world.kubelet.forgets = "", False

    def pod_comes(self) -> None:
        self._count += 1
        is_batch = self.rng.random() < 0.6
        self.world.run_pod(f"pod{self._count}", batch=is_batch, cores=self.rng.random() / 2)

    def pod_goes(self) -> None:
        others = [
            pod.metadata.uid for pod in self.world.kubelet.listed if pod.metadata.uid not in ("web", "batch")
        ]
        if others:
            self.world.end_pod(self.rng.choice(others))

    def group_vanishes(self) -> None:
        """A container's groups go before the kubelet knows."""
        pods = [pod for pod in self.world.kubelet.listed if pod.metadata.uid != "web"]
        if pods:
            pod = self.rng.choice(pods)
            container = pod.status.container_statuses[0].container_id.rpartition("/")[2]
            for base in (BE, BURSTABLE):
                host_tree.remove_group(
                    self.world.root, self.world.version, f"{base}/pod{pod.metadata.uid}/{container}"
                )

    def service_jumps(self) -> None:
        self.world.use["web"] = self.rng.choice((0.0, 0.5, 1.5, 4.0))

    def batch_jumps(self) -> None:
        self.world.use["batch"] = self.rng.choice((0.0, 1.0, 3.0))

    def counter_falls(self) -> None:
        """As after a restart of the container, or by a broken kernel."""
        self.world.use.set_back(self.rng.choice(("web", "batch", "system")))

    def counter_is_nonsense(self) -> None:
        path = self.rng.choice(list(self.world.files.counters))
        text = self.rng.choice(("", "garbage\n", "9" * 40 + "\n", "-5\n", "cpu x\n"))
        good = self.world.files.counters[path]

        def once() -> str:
            self.world.files.counters[path] = good
            return text

        self.world.files.counters[path] = once

    def kernel_refuses(self) -> None:
        path = str(self.world.quota_path())
        failure = self.rng.choice(
            (FileFailure.INVALID, FileFailure.BUSY, FileFailure.DENIED, FileFailure.GONE)
        )
        self.world.files.refusals[path] = [FileProblem(path, failure)] * self.rng.randint(1, 4)

    async def policy_is_malformed(self) -> None:
        threshold = self.rng.choice(
            ({"cpuSuppressThresholdPercent": "x"}, {"enable": 3}, {"cpuEvictPolicy": []})
        )
        await self.world.say(resourceUsedThresholdWithBE=threshold)

    async def policy_changes(self) -> None:
        threshold = {
            "cpuSuppressThresholdPercent": self.rng.randint(0, 100),
            "enable": self.rng.random() < 0.8,
        }
        await self.world.say(resourceUsedThresholdWithBE={**threshold, "cpuEvictPolicy": None})

    async def heal(self) -> None:
        """The faults stop; from here on progress is owed."""
        self.api_returns()
        self.kubelet_returns()
        self.world.files.refusals.clear()
        for name, cores in (("web", 0.5), ("batch", 1.0), ("system", 0.0)):
            self.world.use[name] = cores
        for pod in list(self.world.kubelet.listed):
            if pod.metadata.uid not in ("web", "batch"):
                self.world.end_pod(pod.metadata.uid)
        await self.world.say(
            resourceUsedThresholdWithBE={
                **protecting()["resourceUsedThresholdWithBE"],
                "cpuEvictPolicy": None,
            }
        )  # type: ignore[dict-item]


def check(world: World, running: "asyncio.Task[None]") -> None:
    """Services are never limited, best-effort pods within bounds; the agent lives."""
    assert not running.done(), running
    for group in (BURSTABLE, f"{BURSTABLE}/podweb", f"{BURSTABLE}/podweb/web-0"):
        assert world.quota(group) == "-1", group
    quota = int(world.quota())
    assert quota == -1 or QUOTA_US_MIN <= quota <= CPUS * PERIOD_US, quota


def is_bug(record: logging.LogRecord) -> bool:
    """A round that fails because a file of the host says nonsense is told with its traceback, and is none."""
    return record.exc_info is None or not isinstance(record.exc_info[1], HostError)


@pytest.mark.parametrize("seed", [pytest.param(seed, id=f"seed-{seed}") for seed in range(6)])
def test_an_agent_lives_through_faults(tmp_path: Path, seed: int, caplog: Any) -> None:
    async def scenario(world: World) -> None:
        rng = random.Random(seed)
        await world.create_objects(protecting())
        world.run_pod("web", batch=False, cores=0.5)
        world.run_pod("batch", batch=True, cores=1.0)
        faults = Faults(world, rng)
        if rng.random() < 0.5:  # the API server is there at start, or not
            faults.api_fails()
        for _ in range(STEPS):
            await faults.step()
            check(world, world.running)

        await faults.heal()
        await asyncio.sleep(150)
        assert world.agent.troubles() == {}
        assert 140_000 <= int(world.quota()) <= 150_000
        status = (await world.node_metric()).status
        assert {pod.name for pod in status.pods_metric} == {"web", "batch"}
        await world.say(resourceUsedThresholdWithBE={"enable": False})
        await asyncio.sleep(5)
        assert world.quota() == "-1"

    (tmp_path / "audit").write_text("a file where a directory should be: like a full disk, for root, too")
    (tmp_path / "checkpoints").write_text("")
    live(tmp_path, scenario, seed=seed, gates="AuditEvents=true,PSICollector=true,CgroupReconcile=true")
    bugs = [record for record in caplog.records if record.levelno >= logging.ERROR and is_bug(record)]
    assert not bugs, [(each.getMessage(), each.exc_info) for each in bugs]
